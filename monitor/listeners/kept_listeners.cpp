// Listeners over a restart of the monitor.
//
// What is registered comes back with the programs, who need some milliseconds for that. A client that
// connects meanwhile would find no listener and use the kernel. So what is listed is written to a file in
// memory that the service manager keeps, and the next monitor lists it at once: clients get their links, and
// servers find the requests when they come back.
//
// The file is the monitor's own, and what it says is looked at again: whether the process lives that had the
// listener, and whether the kernel's socket listens. Where a program has registered something that has not
// been written when the monitor is killed, it is as without the file.
#include "monitor/kernel/listening.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/log.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sd::monitor {

namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto kWriteAfter = 20ms; ///< all that changes within it is written at once
/// For who had it; programs come back within half a second. One that is stopped takes longer.
constexpr auto kWaitFor = 5s;
constexpr size_t kMost = 16384; ///< listeners that are written

} // namespace

void Monitor::keep_listeners(UniqueFd file) {
    kept_ = std::move(file);
    std::string text(1 << 24, '\0');
    const ssize_t n = pread(kept_.get(), text.data(), text.size(), 0);
    const json all = json::parse(text.substr(0, n > 0 ? static_cast<size_t>(n) : 0), nullptr, false);
    unsigned listed = 0;
    for (const json &each : all.is_array() ? all : json::array()) {
        try {
            listed += expect_listener(each) ? 1 : 0;
        } catch (const std::exception &error) { // of another version, or nobody pays for it any more
            log::debug("a listener is not listed: {}", error.what());
        }
    }
    if (listed != 0) {
        log::info("{} listeners are listed before their programs have come back", listed);
    }
    listeners_changed();
}

bool Monitor::expect_listener(const json &kept) {
    ListenProof proof;
    const auto pid = kept.at("pid").get<pid_t>();
    const UniqueFd pidfd = open_pidfd(pid);
    kept.at("netns").get_to(proof.netns);
    kept.at("cookie").get_to(proof.cookie);
    kept.at("owner").get_to(proof.owner);
    kept.at("port").get_to(proof.address.port);
    kept.at("family").get_to(proof.address.family);
    kept.at("v6only").get_to(proof.address.v6only);
    const auto ip = kept.at("ip").get<std::vector<uint8_t>>();
    if (ip.size() != sizeof proof.address.ip) {
        return false;
    }
    std::copy(ip.begin(), ip.end(), proof.address.ip);
    if (!pidfd || start_time(pid) != kept.at("start").get<uint64_t>() ||
        look_up_listening(proof.address, proof.cookie, proof.netns).inode == 0) {
        return false;
    }
    const auto uid = kept.at("uid").get<uid_t>();
    const Payer payer = accounts_.payer(uid, group_of(pid, pidfd.get()));
    Charge paid = charge(payer, Resource::listeners, 1);
    Namespace &ns = find_namespace(proof.netns, payer);
    const uint32_t id = ++next_listener_;
    auto made = std::make_unique<Listener>(id, proof, &ns);
    made->charge = std::move(paid);
    made->uid = uid;
    kept.at("gid").get_to(made->gid);
    kept.at("exe").get_to(made->exe);
    kept.at("unit").get_to(made->unit);
    kept.at("backlog").get_to(made->backlog);
    made->expected = pid;
    made->directory_index = ns.directory.insert(id, proof.address, proof.cookie, made->backlog, proof.owner);
    if (made->directory_index < 0) {
        return false;
    }
    made->timer = loop_.after(patience_after_restart(kWaitFor), [this, id] {
        if (const auto it = listeners_.find(id); it != listeners_.end()) {
            it->second->timer = 0;
            abandon(*it->second); // new clients begin on the kernel; those that wait go on waiting
        }
    });
    listener_by_socket_[{proof.netns, proof.cookie}] = made.get();
    listeners_[id] = std::move(made);
    return true;
}

/// Its first holder has come back.
void Monitor::expected_came(Listener &listener, int socket) {
    listener.expected = 0;
    loop_.cancel(std::exchange(listener.timer, 0));
    watch_listener(listener, socket);
}

void Monitor::listeners_changed() {
    if (kept_ && keep_timer_ == 0) {
        keep_timer_ = loop_.after(kWriteAfter, [this] {
            keep_timer_ = 0;
            write_listeners();
        });
    }
}

void Monitor::write_listeners() {
    if (!kept_) {
        return;
    }
    json all = json::array();
    for (const auto &[id, listener] : listeners_) {
        const Listener &l = *listener;
        const Client *holder = l.holders.empty() ? nullptr : *l.holders.begin();
        const pid_t pid = holder != nullptr ? holder->pid : l.expected;
        if (l.directory_index < 0 || pid <= 0 || all.size() == kMost) {
            continue;
        }
        all.push_back({{"netns", l.ns->cookie},
                       {"cookie", l.cookie},
                       {"owner", l.owner},
                       {"port", l.address.port},
                       {"family", l.address.family},
                       {"v6only", l.address.v6only},
                       {"ip", l.address.ip},
                       {"uid", l.uid},
                       {"gid", l.gid},
                       {"exe", l.exe},
                       {"unit", l.unit},
                       {"backlog", l.backlog},
                       {"pid", pid},
                       {"start", holder != nullptr ? holder->start : start_time(pid)}});
    }
    const std::string text = all.dump(-1, ' ', false, json::error_handler_t::replace);
    // Empty meanwhile: a monitor that is killed here leaves nothing rather than a half.
    if (ftruncate(kept_.get(), 0) != 0 ||
        pwrite(kept_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
        [[maybe_unused]] const int emptied = ftruncate(kept_.get(), 0);
    }
}

} // namespace sd::monitor
