// How a connection begins: in shared memory, or as the kernel's own because something there could object.
//
// What the kernel would have refused or redirected must not come about over shared memory. Asking it with a
// connection of our own would show in the server's accept, and the answer would grow stale. So where rules
// for packets, programs on control groups or a security module could have a say, the program's own TCP
// connection is made, and they have it.
//
// A client asks once for each link. What changes later takes its links away from it: the kernel tells of
// rules at once; programs on control groups, of which it tells nobody, are looked at every kLookAtGroups.
//
// So that an idle host sleeps, a link over which no connection came meanwhile is paused: its client asks
// again before the next one, and then they are looked at.
#include "libsd/layout/discovery_word.hpp"
#include "monitor/kernel/group_programs.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/peers/helper.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <sys/epoll.h>

namespace sd::monitor {

namespace {

using namespace std::chrono_literals;
constexpr std::chrono::milliseconds kLookAtGroups = 2s, kPieceOfGroups = 3ms;
constexpr auto kTryAgain = 5s;        ///< where rules could not be read
constexpr unsigned kShareOfTime = 20; ///< of all time at most one part in so many goes into reading rules

/// Whether a security module has no rules for a process with this label.
bool is_free(const std::string &label) {
    const std::string text = label.substr(0, label.find_first_of(std::string("\n\0", 2)));
    return text.empty() || text == "_" || text == "kernel" || text.starts_with("unconfined") ||
           text.ends_with(" (complain)") || text.ends_with(" (unconfined)") ||
           text.find(":unconfined_t:") != std::string::npos ||
           text.find(":unconfined_service_t:") != std::string::npos;
}

} // namespace

/// The rules of the client's network namespace; null: they cannot be read.
const PacketFilter *Monitor::rules_of(Namespace &ns, pid_t pid) {
    const auto now = EventLoop::Clock::now();
    if (ns.filter == nullptr || (!ns.filter->is_seen() && now - ns.rules_read > kTryAgain)) {
        if (ns.filter != nullptr) {
            loop_.remove(ns.filter_watch, ns.filter->fd());
        }
        const std::string former = ns.filter == nullptr ? "" : ns.filter->why();
        ns.filter = std::make_unique<PacketFilter>(ns.cookie, pid);
        ns.rules_read = EventLoop::Clock::now();
        ns.reading_took = ns.rules_read - now;
        if (ns.filter->fd() >= 0) {
            ns.filter_watch = loop_.add(ns.filter->fd(), EPOLLIN, [this, &ns](uint32_t) { rules_changed(ns); });
        }
        if (!ns.filter->is_seen() && ns.filter->why() != former) {
            log::info("rules for packets are not seen: {}; programs of different users use kernel TCP there",
                      ns.filter->why());
        }
    }
    return ns.filter->is_seen() ? ns.filter.get() : nullptr;
}

void Monitor::rules_changed(Namespace &ns) {
    if (!ns.filter->drain()) {
        return;
    }
    const auto now = EventLoop::Clock::now();
    const auto next = ns.rules_read + kShareOfTime * ns.reading_took;
    if (now < next) { // until they are read, any of them could object
        if (ns.rules_timer == 0) {
            ns.rules_timer = loop_.after(std::chrono::ceil<std::chrono::milliseconds>(next - now), [this, &ns] {
                ns.rules_timer = 0;
                rules_changed(ns);
            });
            review_births(&ns, false);
        }
        return;
    }
    ns.filter->refresh();
    ns.rules_read = EventLoop::Clock::now();
    ns.reading_took = ns.rules_read - now;
    if (ns.rules_timer != 0) {
        loop_.cancel(ns.rules_timer);
        ns.rules_timer = 0;
    }
    review_births(&ns, false);
}

/// Whether client and listener are of one user, and what could object is not asked then where it cannot be
/// seen. A listener that was brought back and whose process has not come yet has its user only.
bool Monitor::has_one_user(const Client &client, const Listener &listener) {
    return client.who.uid == listener.uid &&
           (listener.holders.empty() || is_one_user(client, **listener.holders.begin()));
}

Cause Monitor::rules_object(const Client &client, const Listener &listener, uint32_t reach) {
    Namespace &ns = *listener.ns;
    const PacketFilter *rules = rules_of(ns, client.pid);
    if (rules == nullptr) {
        return has_one_user(client, listener) ? Cause::none : Cause::rules_unseen;
    }
    const bool v6 = listener.address.family == AF_INET6, v4 = !v6 || !listener.address.v6only;
    LocalConnection to{listener.address.port, false, reach == wire::kLoopbackAddresses};
    bool object = ns.rules_timer != 0 || (v4 && rules->may_object(to));
    to.v6 = true;
    object = object || (v6 && rules->may_object(to));
    return object ? Cause::firewalled : Cause::none;
}

/// What the kernel asks about one end, whatever the address.
Cause Monitor::end_objects(pid_t pid, bool same_user) {
    const UniqueFd pidfd = open_pidfd(pid);
    const auto group = unified_group(pid, pidfd.get());
    const auto programs = group ? has_connection_programs(*group) : std::nullopt;
    if (programs) { // who has a link there is looked at next time
        groups_seen_.note(*group, *programs);
        look_at_groups_later();
    }
    if (!programs && !same_user) {
        return Cause::rules_unseen;
    }
    if (programs.value_or(false)) {
        return Cause::group_filtered;
    }
    const auto label = security_label(pid);
    if (!label && !same_user) {
        return Cause::rules_unseen;
    }
    return is_free(label.value_or("")) ? Cause::none : Cause::labelled;
}

/// Why a connection from the client to the listener has to begin on the kernel; none: it need not.
Cause Monitor::birth_objects(const Client &client, const Listener &listener, uint32_t reach, bool ends) {
    if (listener.crosses()) {
        return Cause::crosses;
    }
    switch (config_.policy.birth_of(client.who, listener.identity(), listener.address)) {
    case Birth::shm:
        return Cause::none;
    case Birth::kernel:
        return Cause::born_on_kernel;
    case Birth::automatic:
        break;
    }
    Cause cause = rules_object(client, listener, reach);
    if (cause != Cause::none || !ends) {
        return cause;
    }
    const bool same_user = has_one_user(client, listener);
    cause = end_objects(client.pid, same_user);
    const pid_t server = listener.holders.empty() ? listener.expected : (*listener.holders.begin())->pid;
    if (cause == Cause::none && server != 0) {
        cause = end_objects(server, same_user);
    }
    return cause;
}

/// Takes the link from its client if something could object by now. The client is told, but it need not
/// care: so acceptors are told, too, where its requests end.
void Monitor::review_birth(Link &link, bool ends) {
    if (link.reach == 0 || link.listener == nullptr || link.side[0].attached.empty()) {
        return;
    }
    const Client &client = **link.side[0].attached.begin();
    for (const uint32_t reach : {wire::kLoopbackAddresses, wire::kOtherAddresses}) {
        if ((link.reach & reach) != 0 && birth_objects(client, *link.listener, reach, ends) != Cause::none) {
            link.reach = 0;
            link.withdraw_requests();
            return;
        }
    }
}

/// Takes the links from clients for whom something could object by now; who was refused asks anew. `only`: a
/// namespace, or null for all. `ends`: groups and labels may have changed, too.
void Monitor::review_births(const Namespace *only, bool ends) {
    for (const auto &[file, link] : links_) {
        if (only == nullptr || (link->listener != nullptr && link->listener->ns == only)) {
            review_birth(*link, ends);
        }
    }
    for (const auto &[cookie, ns] : namespaces_) {
        if (only == nullptr || ns.get() == only) {
            ns->directory.bump_birth();
        }
    }
}

/// Of those that are in use, which are left: the others' clients ask again.
void Monitor::pause_idle_links() {
    for (const auto &[file, link] : links_) {
        if (link->reach != 0 && link->listener != nullptr && !link->requests_end && !link->is_paused() &&
            !link->side[0].attached.empty() && link->had_no_request()) {
            link->pause_requests();
        }
    }
}

/// While there are links that take requests: what nobody tells of. Groups in pieces, which take a fifth of
/// the time at most. Also while a group has programs: if they go, its processes are told.
void Monitor::look_at_groups_later(std::chrono::milliseconds pause) {
    const auto takes_requests = [](const auto &entry) {
        const Link &link = *entry.second;
        return link.reach != 0 && !link.requests_end && !link.is_paused();
    };
    if (groups_timer_ == 0 && !links_.empty() &&
        (groups_seen_.any_has_programs() || std::any_of(links_.begin(), links_.end(), takes_requests))) {
        groups_timer_ = loop_.after(pause, [this] {
            groups_timer_ = 0;
            const bool all = groups_seen_.look(SeenGroups::Clock::now() + kPieceOfGroups);
            if (all) {
                look_at_legacy_rules();
            }
            if (groups_seen_.take_changed()) {
                review_births(nullptr, true);
            }
            if (all) {
                pause_idle_links();
            }
            look_at_groups_later(all ? kLookAtGroups : 4 * kPieceOfGroups);
        });
    }
}

void Monitor::look_at_legacy_rules() {
    for (const auto &[cookie, ns] : namespaces_) {
        if (ns->filter != nullptr && ns->filter->look_for_legacy()) {
            review_births(ns.get(), false);
        }
    }
}

Reply Monitor::renew(Client &client, Request &request) {
    const auto body = request.as<wire::LinkRef>();
    Link *link = body.side == 0 ? client.link(body.link_id, 0) : nullptr;
    if (link == nullptr) {
        return Reply::error(ENOENT);
    }
    if (!link->is_paused()) {
        return {};
    }
    if (client.ns->filter != nullptr) {
        rules_changed(*client.ns);
    }
    look_at_legacy_rules();
    review_birth(*link, true);
    if (link->reach == 0) {
        return Reply::error(EACCES);
    }
    link->resume_requests();
    look_at_groups_later();
    return {};
}

/// Without discovery no connection with another host is found to be one.
bool Monitor::is_rdma_on() const {
    return fake_.rdma || (config_.peers.rdma != UseRdma::never && config_.peers.is_used() && discovery_.is_on());
}

bool Monitor::takes_soft_devices() const { return fake_.rdma || config_.peers.rdma == UseRdma::always; }

uint32_t Monitor::discovery_word() const {
    const uint32_t rdma = is_rdma_on() ? kDiscoveryRdma | (takes_soft_devices() ? kDiscoverySoft : 0) |
                                             (config_.peers.addresses.empty() ? 0 : kDiscoveryAsk) |
                                             config_.peers.registered << kDiscoveryRegistered
                                       : 0;
    return discovery_.is_on() ? kDiscoveryMarks | rdma : 0;
}

void Monitor::say_discovery() {
    if (config_.paths.discovery && !discovery_.is_on()) {
        log::warn("no discovery of peers in other network namespaces: {}", discovery_.why_off());
    }
    for (const auto &[cookie, ns] : namespaces_) {
        ns->directory.set_discovery(discovery_word());
    }
}

void Monitor::reconfigure(Config config) {
    config_ = std::move(config);
    review_births(nullptr, true);
    discovery_.reconfigure(config_.paths);
    peers_->apply(config_.peers, discovery_.proof_key());
    say_discovery();
}

} // namespace sd::monitor
