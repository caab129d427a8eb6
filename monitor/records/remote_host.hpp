// A peer host as the monitor knows it: what it has offered, and the links that lead there.
#pragma once
#include "monitor/records/client.hpp"
#include "monitor/records/foreign_offers.hpp"

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

    uint64_t joined = 0;  ///< connections
    uint64_t refused = 0; ///< by either host
    uint64_t crowded = 0; ///< offers of it that had to make room for later ones
    uint64_t strange = 0; ///< greetings with an address that is not its own

    bool is_running() const { return step == Step::running; }
};

} // namespace sd::monitor
