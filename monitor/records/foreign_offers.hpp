// Ends of connections that another host's monitor has offered, until this host has the other ends.
#pragma once
#include "monitor/peers/link_message.hpp"

#include <map>
#include <unordered_map>

namespace sd::monitor {

/// Of one peer. Whatever it sends, no more than `most` are kept: the oldest makes room.
class ForeignOffers {
  public:
    explicit ForeignOffers(size_t most = 65536) : most_(most) {}
    /// In place of one that has its number or its connection. True: another one had to make room.
    bool add(const between_hosts::Offer &offer);
    /// nullptr: there is none.
    const between_hosts::Offer *find(const PairKey &pair) const;
    void remove(uint64_t number);
    void clear();
    size_t size() const { return by_age_.size(); }

  private:
    const size_t most_;
    uint64_t so_far_ = 0;
    std::map<uint64_t, between_hosts::Offer> by_age_; ///< by how many had come
    std::map<PairKey, uint64_t> by_pair_;
    std::unordered_map<uint64_t, uint64_t> by_number_;
};

} // namespace sd::monitor
