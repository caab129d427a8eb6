// What sdstat shows, as a JSON document.
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/peers/helper.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sys/epoll.h>

namespace sd::monitor {

namespace {

using nlohmann::json;

constexpr int kStatusShare = 4;

std::string address_text(const uint8_t (&ip)[16], uint16_t port) {
    SlotAddress address{{}, port, 0};
    memcpy(address.ip, ip, sizeof address.ip);
    return monitor::address_text(address);
}

/// The control group that pays for a process; null for the monitor's own, and the root's.
json group_name(const Client &client) {
    constexpr std::string_view prefix = "group ";
    const Account *group = client.payer.group.get();
    return group != nullptr && group->name.starts_with(prefix) ? json(group->name.substr(prefix.size()))
                                                               : json();
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

/// All but the connections.
json Monitor::status_json(const Viewer &viewer) {
    const auto visible = [&](const Client &client) { return viewer.may_see(client); };
    json root;
    root["monitor"] = {{"version", SD_VERSION},
                       {"pid", getpid()},
                       {"uptime", std::chrono::duration<double>(EventLoop::Clock::now() - started_).count()},
                       {"socket", socket_path_},
                       {"policy", config_.file.empty() ? json() : json(config_.file)}};

    json ends = json::object();
    const OptionPrograms::Counts counts = discovery_.counts();
    for (unsigned state = SD_SENT; state < SD_STATES; ++state) {
        ends[state_name(state)] = counts[state];
    }
    root["discovery"] = {{"on", discovery_.is_on()},
                         {"why", discovery_.is_on() ? json() : json(discovery_.why_off())},
                         {"ends", std::move(ends)}};

    if (viewer.all) {
        root["peers"] = peers_->json([this](const std::string &name, json &row) { add_host(name, row); });
        if (!root["peers"].is_null()) {
            root["peers"]["rdma"] = is_rdma_on();
            root["peers"]["soft_devices"] = is_rdma_on() && takes_soft_devices();
        }
    }

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
                                     {"joined", counters.joined},
                                     {"sleeps", counters.sleeps},
                                     {"takeovers", counters.takeovers},
                                     {"ring_changes", counters.ring_changes},
                                     {"group", group_name(*client)},
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

    root["totals"] = {{"connects", total.connects},   {"accepts", total.accepts},
                      {"joined", total.joined},       {"sleeps", total.sleeps},
                      {"takeovers", total.takeovers}, {"ring_changes", total.ring_changes}};
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
    return root;
}

ConnectionTable Monitor::connections(const Viewer &viewer) const {
    AwaitedHolders awaited;
    for (const auto &[watch, who] : awaited_) {
        awaited.try_emplace({who.link, who.side}, who.pid);
    }
    std::vector<std::shared_ptr<Segment>> segments;
    for (const auto &[file, weak] : segments_) {
        if (std::shared_ptr<Segment> segment = weak.lock()) {
            segments.push_back(std::move(segment));
        }
    }
    return list_connections(segments, awaited, [&](const Client &client) { return viewer.may_see(client); });
}

/// It takes as long as there are connections on the host, and everybody may ask, on as many channels as he
/// has: no more than a fifth of the time is spent on it. Who comes too soon is answered later, and not read
/// from before.
Reply Monitor::status(Client &client, Request &request) {
    const auto start = EventLoop::Clock::now();
    if (start < next_status_ || !awaiting_status_.empty()) {
        const AwaitingStatus awaiting{client.id, request.header, request.sender};
        if (request.sender.uid == 0 || request.sender.uid == geteuid()) {
            awaiting_status_.push_front(awaiting); // whoever looks after the host is not kept by all others
        } else {
            awaiting_status_.push_back(awaiting);
        }
        answer_status_later();
        return await_turn(client);
    }
    Reply reply = make_status(request.sender, static_cast<wire::Op>(request.header.op));
    const auto end = EventLoop::Clock::now();
    next_status_ = end + kStatusShare * (end - start);
    return reply;
}

Reply Monitor::await_turn(Client &client) {
    loop_.change(client.channel_watch, client.channel.get(), 0);
    client.awaits = true;
    Reply later;
    later.later = true;
    return later;
}

Client *Monitor::end_awaiting(uint64_t id) {
    const auto it = clients_.find(id);
    if (it == clients_.end() || !it->second->channel) {
        return nullptr;
    }
    Client &client = *it->second;
    client.awaits = false;
    listen_to(client);
    return &client;
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
        if (Client *client = end_awaiting(next.client)) {
            const auto start = EventLoop::Clock::now();
            Reply reply;
            try {
                reply = make_status(next.asker, static_cast<wire::Op>(next.header.op));
            } catch (const std::system_error &) {
                reply = Reply::error(ENOMEM, Cause::no_memory);
            }
            if (next.header.sequence != wire::kNoAnswer) {
                send(client->channel.get(), next.header, reply); // who does not take it asks anew
            }
            const auto end = EventLoop::Clock::now();
            next_status_ = end + kStatusShare * (end - start);
        }
        answer_status_later();
    });
}

/// status: one JSON document. snapshot: the connections as rows, and the rest of the document behind.
Reply Monitor::make_status(const ucred &asker, wire::Op op) {
    const Viewer viewer = viewer_of(asker);
    const ConnectionTable table = connections(viewer);
    // Names of programs may be any bytes.
    std::string text = status_json(viewer).dump(-1, ' ', false, json::error_handler_t::replace);
    UniqueFd memfd = make_memfd("sd-status", 0);
    const auto write_all = [&](const void *from, size_t bytes) {
        for (size_t done = 0; done < bytes;) {
            const ssize_t n = write(memfd.get(), static_cast<const char *>(from) + done, bytes - done);
            if (n <= 0) {
                return false;
            }
            done += static_cast<size_t>(n);
        }
        return true;
    };
    bool is_written = true;
    if (op == wire::Op::snapshot) {
        const SnapshotHeader header{kSnapshotMagic,    kSnapshotVersion,  sizeof(ConnectionRow),
                                    table.rows.size(), table.pids.size(), text.size()};
        is_written = write_all(&header, sizeof header) &&
                     write_all(table.rows.data(), table.rows.size() * sizeof(ConnectionRow)) &&
                     write_all(table.pids.data(), table.pids.size() * sizeof(uint32_t));
    } else {
        text.back() = ','; // its closing brace
        text += "\"connections\":[";
        for (const ConnectionRow &row : table.rows) {
            append_json(text, row, table.pids.data());
            text += &row == &table.rows.back() ? "" : ",";
        }
        text += "]}";
    }
    if (!is_written || !write_all(text.data(), text.size())) {
        return Reply::error(ENOMEM, Cause::no_memory);
    }
    Reply reply;
    reply.fds.push_back(memfd.get());
    reply.owned.push_back(std::move(memfd));
    return reply;
}

} // namespace sd::monitor
