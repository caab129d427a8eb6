// A peer host as the monitor knows it: what it has offered, and the links that lead there.
#pragma once
#include "monitor/peers/far_records.hpp"
#include "monitor/records/client.hpp"
#include "monitor/records/foreign_offers.hpp"
#include "monitor/service/event_loop.hpp"

#include <map>
#include <set>
#include <string>

namespace sd::monitor {

struct RemoteHost {
    std::string name;
    /// How far its monitor has come since the channel is up.
    enum class Step {
        away,    ///< there is no channel, or one whose version does not speak of links
        silent,  ///< it has not said anything yet
        listing, ///< it has told its epoch, and tells which links there are
        running,
    } step = Step::away;
    uint64_t epoch = 0; ///< the last one that it has told; 0: none yet

    ForeignOffers foreign;
    uint64_t last_offer = 0;
    std::map<uint64_t, OfferKey> offers;   ///< of this host's processes, by number
    std::map<PairKey, uint64_t> connected; ///< those of them that have connected, of which it is not told
    std::map<uint64_t, Link *> links;      ///< by number here
    std::map<uint64_t, Link *> named;      ///< those of them whose number there is known, by that
    std::set<uint64_t> listed;             ///< numbers there, while it is listing
    /// By number: offers that were closed while it was asked to join them, and has not answered
    std::map<uint64_t, between_hosts::Joined> closed;

    // far_lost_links.cpp
    using LinkSlot = std::pair<uint64_t, uint32_t>; ///< number of the link here, and slot
    bool carries = false;                           ///< its monitor can, the last time that it was there
    bool is_given_up = false;                       ///< it has been away for too long
    EventLoop::Timer patience = 0;
    std::set<LinkSlot> to_pull;              ///< of which it is to be asked what its process has written
    std::set<LinkSlot> changed;              ///< of which it has not been told that there is more to ask for
    std::optional<between_hosts::Pull> asks; ///< what it asked last, until there is room for the answer
    struct Pulling {
        LinkSlot what;
        RecordsWriter records;
        std::optional<between_hosts::Words> words{};
        bool is_spoilt = false; ///< what is still to come is of no use
    };
    std::optional<Pulling> pulling; ///< what it has been asked, one at a time
    EventLoop::Timer work = 0;      ///< it goes on then
    EventLoop::Timer review = 0;    ///< of links whose process there has ended
    std::chrono::milliseconds pause{};

    uint64_t joined = 0;  ///< connections
    uint64_t refused = 0; ///< by either host
    uint64_t crowded = 0; ///< offers of it that had to make room for later ones
    uint64_t strange = 0; ///< greetings with an address that is not its own
    uint64_t lost = 0;    ///< links whose queue pair has ended with connections on it
    uint64_t pulled = 0;  ///< bytes of records that have come by way of the monitors

    bool is_running() const { return step == Step::running; }
};

} // namespace sd::monitor
