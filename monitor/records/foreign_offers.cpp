// Ends of connections that another host's monitor has offered.
#include "monitor/records/foreign_offers.hpp"

namespace sd::monitor {

bool ForeignOffers::add(const between_hosts::Offer &offer) {
    remove(offer.number);
    if (const auto it = by_pair_.find(offer.pair); it != by_pair_.end()) {
        remove(by_age_.at(it->second).number);
    }
    const bool is_full = by_age_.size() >= most_;
    if (is_full) {
        remove(by_age_.begin()->second.number);
    }
    const uint64_t age = ++so_far_;
    by_age_.emplace(age, offer);
    by_pair_[offer.pair] = age;
    by_number_[offer.number] = age;
    return is_full;
}

const between_hosts::Offer *ForeignOffers::find(const PairKey &pair) const {
    const auto it = by_pair_.find(pair);
    return it == by_pair_.end() ? nullptr : &by_age_.at(it->second);
}

void ForeignOffers::remove(uint64_t number) {
    const auto it = by_number_.find(number);
    if (it == by_number_.end()) {
        return;
    }
    const auto offer = by_age_.find(it->second);
    by_pair_.erase(offer->second.pair);
    by_age_.erase(offer);
    by_number_.erase(it);
}

void ForeignOffers::clear() {
    by_age_.clear();
    by_pair_.clear();
    by_number_.clear();
}

} // namespace sd::monitor
