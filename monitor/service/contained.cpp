// Clients that came by the containers' socket. Whoever is in a container is a stranger to the host and to
// other containers, root included, so nothing here is about anything but what the client itself has.
#include "monitor/service/contained.hpp"

#include <algorithm>

namespace sd::monitor {

namespace {

using wire::Op;

/// All that there is but a look at what others have (status, snapshot), and lines in the host's log (log).
/// What is added to the protocol is not among them before somebody has thought about it.
constexpr Op kWhenContained[] = {
    // A process comes, forks, executes and ends
    Op::hello, Op::presence, Op::stay, Op::enter, Op::fork, Op::child, Op::segment, Op::image, Op::part,
    Op::leave, Op::ends, Op::memory, Op::sandbox,
    // Listeners of its own network namespace, of which it proves that it is in it, and links to them
    Op::listen, Op::unlisten, Op::unlist, Op::check, Op::links, Op::connect, Op::drop_link, Op::adopt_link,
    Op::withdraw, Op::renew, Op::no_room,
    // Being woken, and waking whom it has a link to
    Op::bell, Op::unbell, Op::peer_bell, Op::foreign_bell, Op::ring, Op::accept_bell, Op::mute_bell,
    // Sockets that are passed on, connections that are found to have libsd at both ends, pools of links
    Op::pass, Op::claim, Op::claimed, Op::moved, Op::let_go, Op::offer, Op::other_end, Op::take_back,
    Op::carry, Op::pool, Op::peer_pool, Op::end_pool};

} // namespace

bool is_answered_when_contained(Op op) {
    return std::find(std::begin(kWhenContained), std::end(kWhenContained), op) != std::end(kWhenContained);
}

} // namespace sd::monitor
