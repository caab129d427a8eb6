// What sdstat shows, as a JSON document.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <ctime>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/epoll.h>

namespace sd::monitor {

namespace {

using nlohmann::json;

constexpr int kStatusShare = 4;

/// "127.0.0.1:80" or "[::1]:80".
std::string address_text(const uint8_t (&ip)[16], uint16_t port) {
    static constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    char text[INET6_ADDRSTRLEN];
    if (memcmp(ip, mapped, sizeof mapped) == 0) {
        inet_ntop(AF_INET, ip + 12, text, sizeof text);
        return fmt::format("{}:{}", text, port);
    }
    inet_ntop(AF_INET6, ip, text, sizeof text);
    return fmt::format("[{}]:{}", text, port);
}

double seconds(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

/// The two ends of one connection, put together from what each side's segment says.
struct Connection {
    const Link *link = nullptr;
    uint32_t slot = 0;
    const Segment::OpenOfd *end[2] = {nullptr, nullptr};
};

const char *state_of(const Slot &slot, const Connection &connection) {
    const uint32_t state = slot.identity.state.load(std::memory_order_relaxed);
    const uint32_t flags[2] = {slot.side[0].control.flags.load(std::memory_order_relaxed),
                               slot.side[1].control.flags.load(std::memory_order_relaxed)};
    if (((flags[0] | flags[1]) & (kFlagDead | kFlagReset)) != 0) {
        return "reset";
    }
    if (((flags[0] | flags[1]) & kFlagClosed) != 0) {
        return "closing";
    }
    if (state == static_cast<uint32_t>(SlotState::syn)) {
        return "waiting for accept";
    }
    if (((flags[0] | flags[1]) & kFlagWriteShut) != 0) {
        return "half closed";
    }
    return connection.end[0] != nullptr && connection.end[1] != nullptr ? "established"
                                                                        : "one end not registered";
}

/// `awaited`: after a restart, a process that may hold this end and has not come back yet; 0 if there is
/// none.
json end_json(const Connection &connection, unsigned side, const SlotAddress &address, pid_t awaited) {
    json result;
    const Segment::OpenOfd *end = connection.end[side];
    result["pid"] = end != nullptr ? json(end->holders.front()->pid) : awaited != 0 ? json(awaited) : json();
    result["comm"] = end != nullptr ? json(end->holders.front()->comm)
                     : awaited != 0 ? json(process_comm(awaited))
                                    : json();
    result["pids"] = json::array();
    if (end != nullptr) {
        for (const Client *holder : end->holders) {
            result["pids"].push_back(holder->pid);
        }
    }
    SlotAddress copy;
    memcpy(&copy, &address, sizeof copy);
    result["address"] = address_text(copy.ip, copy.port);
    return result;
}

/// Bytes and messages from `side` to the other: the sender's count, or the receiver's where the sender has
/// gone.
json traffic_json(const Connection &connection, unsigned side) {
    const Segment::OpenOfd *sender = connection.end[side], *receiver = connection.end[1 - side];
    json result;
    result["bytes"] = sender != nullptr ? sender->tx_bytes : receiver != nullptr ? receiver->rx_bytes : 0;
    result["messages"] = sender != nullptr     ? sender->tx_messages
                         : receiver != nullptr ? receiver->rx_messages
                                               : 0;
    return result;
}

json causes_json(const uint64_t (&counts)[kMaxCauses], bool explain) {
    json result = json::array();
    for (unsigned i = 1; i < kMaxCauses; ++i) {
        if (counts[i] != 0) {
            json cause{{"number", i}, {"name", cause_name(i)}, {"count", counts[i]}};
            if (explain) {
                cause["text"] = cause_text(i);
            }
            result.push_back(cause);
        }
    }
    return result;
}

} // namespace

bool Monitor::Viewer::may_see(const Client &client) const {
    return all || (client.who.uid == uid &&
                   (is_near || (payer.group != nullptr && payer.group == client.payer.group)));
}

/// Whoever may not see other users' processes in detail elsewhere does not see them here. All is shown to
/// those who have the capabilities that this monitor has, where it has them: root of a container is nobody
/// else's root. From there, another user's processes of the same number are not those of the same user,
/// either.
Monitor::Viewer Monitor::viewer_of(const ucred &asker) {
    Viewer viewer;
    viewer.uid = asker.uid;
    viewer.payer = payer_of(asker);
    const UniqueFd pidfd = asker.pid > 0 ? open_pidfd(asker.pid) : UniqueFd();
    const Domain own = read_domain(getpid()), domain = asker.pid > 0 ? read_domain(asker.pid) : Domain{};
    const bool is_known = domain.known && is_alive(pidfd);
    viewer.is_near = is_known ? domain.user == own.user && domain.pid == own.pid
                              : geteuid() != 0 && asker.uid == geteuid(); // which cannot be looked into
    const bool is_able = !is_known || (domain.permitted & own.permitted) == own.permitted;
    viewer.all = viewer.is_near && is_able && (asker.uid == 0 || asker.uid == geteuid());
    return viewer;
}

std::string Monitor::status_json(const ucred &asker) {
    const Viewer viewer = viewer_of(asker);
    const auto visible = [&](const Client &client) { return viewer.may_see(client); };
    const double wall = seconds(CLOCK_REALTIME), monotonic = seconds(CLOCK_MONOTONIC);
    json root;
    root["monitor"] = {{"version", SD_VERSION},
                       {"pid", getpid()},
                       {"uptime", std::chrono::duration<double>(EventLoop::Clock::now() - started_).count()},
                       {"socket", socket_path_},
                       {"policy", config_.file.empty() ? json() : json(config_.file)}};

    Counters total = past_;
    std::vector<std::pair<const Client *, RecentFallback>> recent;
    for (const RecentFallback &fallback : past_fallbacks_) {
        if (viewer.all) {
            recent.emplace_back(nullptr, fallback);
        }
    }
    root["processes"] = json::array();
    for (const auto &[id, client] : clients_) {
        if (client->kind == Client::Kind::ended && client->own) {
            total += client->own->counters();
        }
        if (client->kind != Client::Kind::process) {
            continue;
        }
        Counters counters;
        if (client->own) {
            counters = client->own->counters();
            total += counters;
        }
        if (!visible(*client)) {
            continue;
        }
        if (client->own) {
            for (const RecentFallback &fallback : client->own->recent_fallbacks()) {
                recent.emplace_back(client.get(), fallback);
            }
        }
        root["processes"].push_back({{"pid", client->pid},
                                     {"comm", client->comm},
                                     {"exe", client->who.exe},
                                     {"uid", client->who.uid},
                                     {"connects", counters.connects},
                                     {"accepts", counters.accepts},
                                     {"fallbacks", causes_json(counters.fallbacks, false)}});
    }

    root["listeners"] = json::array();
    for (const auto &[id, listener] : listeners_) {
        if (!viewer.all && std::none_of(listener->holders.begin(), listener->holders.end(),
                                        [&](const Client *holder) { return visible(*holder); })) {
            continue;
        }
        json pids = json::array();
        for (const Client *holder : listener->holders) {
            if (holder->kind == Client::Kind::process) {
                pids.push_back(holder->pid);
            }
        }
        root["listeners"].push_back({{"id", id},
                                     {"address", address_text(listener->address.ip, listener->address.port)},
                                     {"port", listener->address.port},
                                     {"pids", pids},
                                     {"links", std::count_if(listener->place.begin(), listener->place.end(),
                                                             [](const Link *link) { return link != nullptr; })}});
    }

    std::vector<std::vector<Segment::OpenOfd>> tables; // keeps alive what the connections point to
    std::map<std::pair<const Link *, uint32_t>, Connection> connections;
    for (const auto &[file, weak] : segments_) {
        const std::shared_ptr<Segment> segment = weak.lock();
        if (!segment) {
            continue;
        }
        tables.push_back(segment->open_ofds());
        for (const Segment::OpenOfd &ofd : tables.back()) {
            const Link *link = ofd.slot < kLinkSlots ? ofd.holders.front()->link(ofd.link_id, ofd.side) : nullptr;
            if (link != nullptr) {
                Connection &connection = connections[{link, ofd.slot}];
                connection.link = link;
                connection.slot = ofd.slot;
                connection.end[ofd.side] = &ofd;
            }
        }
    }
    root["connections"] = json::array();
    for (const auto &[key, connection] : connections) {
        const auto mine = [&](const Segment::OpenOfd *end) {
            return end != nullptr && visible(*end->holders.front());
        };
        if (!mine(connection.end[0]) && !mine(connection.end[1])) {
            continue;
        }
        const Slot &slot = connection.link->view(1).slot(connection.slot);
        pid_t awaited[2] = {0, 0};
        for (const auto &[watch, who] : awaited_) {
            if (who.link == connection.link) {
                awaited[who.side] = who.pid;
            }
        }
        const double age = monotonic - static_cast<double>(slot.identity.connected_ns) / 1e9;
        root["connections"].push_back({{"client", end_json(connection, 0, slot.identity.client, awaited[0])},
                                       {"server", end_json(connection, 1, slot.identity.server, awaited[1])},
                                       {"transport", "shm"},
                                       {"to_server", traffic_json(connection, 0)},
                                       {"to_client", traffic_json(connection, 1)},
                                       {"state", state_of(slot, connection)},
                                       {"since", wall - std::clamp(age, 0.0, monotonic)}});
    }

    root["totals"] = {{"connects", total.connects}, {"accepts", total.accepts}};
    root["causes"] = causes_json(total.fallbacks, true);
    std::sort(recent.begin(), recent.end(),
              [](const auto &a, const auto &b) { return a.second.when_ns > b.second.when_ns; });
    recent.resize(std::min<size_t>(recent.size(), kFallbackRing));
    root["recent_fallbacks"] = json::array();
    for (const auto &[client, fallback] : recent) {
        root["recent_fallbacks"].push_back(
            {{"pid", client == nullptr ? json() : json(client->pid)},
             {"comm", client == nullptr ? json() : json(client->comm)},
             {"number", fallback.cause},
             {"name", cause_name(fallback.cause)},
             {"address", fallback.port == 0 ? json() : json(address_text(fallback.ip, fallback.port))},
             {"when", static_cast<double>(fallback.when_ns) / 1e9}});
    }
    if (viewer.all) {
        root["resources"] = resources_json();
    }
    // Names of programs may be any bytes.
    return root.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// It takes as long as there are connections on the host, and everybody may ask, on as many channels as he
/// has: no more than a fifth of the time is spent on it. Who comes too soon is answered later, and not read
/// from before.
Reply Monitor::status(Client &client, Request &request) {
    const auto start = EventLoop::Clock::now();
    if (start < next_status_ || !awaiting_status_.empty()) {
        loop_.change(client.channel_watch, client.channel.get(), 0);
        const AwaitingStatus awaiting{client.id, request.header, request.sender};
        if (request.sender.uid == 0 || request.sender.uid == geteuid()) {
            awaiting_status_.push_front(awaiting); // whoever looks after the host is not kept by all others
        } else {
            awaiting_status_.push_back(awaiting);
        }
        answer_status_later();
        Reply later;
        later.later = true;
        return later;
    }
    Reply reply = make_status(request.sender);
    const auto end = EventLoop::Clock::now();
    next_status_ = end + kStatusShare * (end - start);
    return reply;
}

void Monitor::answer_status_later() {
    if (status_timer_ != 0 || awaiting_status_.empty()) {
        return;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_status_ - EventLoop::Clock::now());
    status_timer_ = loop_.after(std::max(left, std::chrono::milliseconds(1)), [this] {
        status_timer_ = 0;
        const AwaitingStatus next = awaiting_status_.front();
        awaiting_status_.pop_front();
        if (const auto it = clients_.find(next.client); it != clients_.end() && it->second->channel) {
            const auto start = EventLoop::Clock::now();
            Reply reply;
            try {
                reply = make_status(next.asker);
            } catch (const std::system_error &) {
                reply = Reply::error(ENOMEM, Cause::no_memory);
            }
            loop_.change(it->second->channel_watch, it->second->channel.get(), EPOLLIN);
            if (next.header.sequence != wire::kNoAnswer) {
                send(it->second->channel.get(), next.header, reply); // who does not take it asks anew
            }
            const auto end = EventLoop::Clock::now();
            next_status_ = end + kStatusShare * (end - start);
        }
        answer_status_later();
    });
}

Reply Monitor::make_status(const ucred &asker) {
    const std::string text = status_json(asker);
    UniqueFd memfd = make_memfd("sd-status", 0);
    for (size_t written = 0; written < text.size();) {
        const ssize_t n = write(memfd.get(), text.data() + written, text.size() - written);
        if (n <= 0) {
            return Reply::error(ENOMEM, Cause::no_memory);
        }
        written += static_cast<size_t>(n);
    }
    Reply reply;
    reply.fds.push_back(memfd.get());
    reply.owned.push_back(std::move(memfd));
    return reply;
}

} // namespace sd::monitor
