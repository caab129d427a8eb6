// sdctl path, detach, attach: asks the monitor until it is done, and says what holds it up.
#include "monitor/sdctl/steer.hpp"
#include "libsd/layout/directory_layout.hpp"
#include "libsd/layout/protocol.hpp"
#include "monitor/sdctl/command.hpp"
#include "monitor/sdctl/force/force.hpp"
#include "monitor/sdstat/snapshot.hpp"
#include "monitor/sdstat/view.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <map>
#include <poll.h>
#include <set>
#include <sstream>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace sd::ctl {

using monitor::Blocker;
using monitor::ConnectionRow;
using monitor::UniqueFd;
using wire::SteerTo;

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGrace = 0.1; ///< seconds, for processes to make a call, before they are stopped

/// A segment of the process, which shows the monitor that the kernel lets us trace it.
UniqueFd proof_of(uint32_t pid) {
    const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
        std::error_code gone;
        if (std::filesystem::read_symlink(entry.path(), gone) == "/memfd:sd-family (deleted)") {
            const int number = std::stoi(entry.path().filename());
            if (const int fd = static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), number, 0)); fd >= 0) {
                return UniqueFd(fd);
            }
        }
    }
    return {};
}

struct Answer {
    int error = 0; ///< positive errno
    wire::SteerReply reply{};
};

Answer request(int channel, wire::Op op, const wire::Steer &what, int fd) {
    struct {
        wire::Header header;
        wire::Steer body;
    } packet{};
    packet.header.magic = wire::kMagic;
    packet.header.version = wire::kVersion;
    packet.header.op = static_cast<uint16_t>(op);
    packet.header.sequence = 1;
    packet.header.length = sizeof what;
    packet.header.fds = fd >= 0 ? 1 : 0;
    packet.body = what;
    iovec io{&packet, sizeof packet.header + sizeof what};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)]{};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    wire::Packet answer{};
    pollfd p{channel, POLLIN, 0};
    if (sendmsg(channel, &message, MSG_NOSIGNAL) < 0 || poll(&p, 1, 5000) != 1 ||
        recv(channel, &answer, sizeof answer, 0) < static_cast<ssize_t>(sizeof answer.header)) {
        throw Failure(Exit::failed, "the monitor does not answer");
    }
    Answer result{-answer.header.status, {}};
    if (result.error == 0 && answer.header.length == sizeof result.reply) {
        memcpy(&result.reply, answer.body, sizeof result.reply);
    }
    return result;
}

/// As an administrator, and where that is refused as somebody who may trace the process.
Answer steer(int channel, const wire::Steer &what) {
    Answer answer = request(channel, wire::Op::steer, what, -1);
    if (answer.error == EPERM) {
        if (const UniqueFd proof = proof_of(what.pid)) {
            answer = request(channel, wire::Op::steer_mine, what, proof.get());
            answer.error = answer.error == ESRCH ? EPERM : answer.error;
        }
    }
    if (answer.error == ENOSYS) {
        throw Failure(Exit::failed, "the running sd-monitor is of an earlier version; restart it");
    }
    return answer;
}

stat::Snapshot look() {
    try {
        return stat::take_snapshot("");
    } catch (const stat::Failure &failure) {
        throw Failure(Exit::failed, failure.what());
    }
}

UniqueFd monitor_channel() {
    try {
        return stat::find_monitor("");
    } catch (const stat::Failure &failure) {
        throw Failure(Exit::failed, failure.what());
    }
}

/// A line for each direction of a connection that is not there.
void print_pending(const ConnectionRow &row, bool to_kernel, Blocker never) {
    for (unsigned side = 0; side < 2; ++side) {
        const monitor::RowEnd &end = row.end[side];
        auto blocker = static_cast<Blocker>(end.blocker);
        const bool is_in_kernel = static_cast<monitor::Path>(end.path) == monitor::Path::kernel;
        if (is_in_kernel == to_kernel && blocker != Blocker::unread) {
            continue;
        }
        blocker = blocker == Blocker::none ? never : blocker;
        fmt::print("  {}  {} > {}, from {}: {}\n", monitor::connection_id(row),
                   monitor::address_text(end.address), monitor::address_text(row.end[1 - side].address),
                   stat::program_text(stat::comm_of(end), end.pid),
                   blocker == Blocker::none ? "pending" : monitor::blocker_text(blocker));
    }
}

/// Asks again until all is there, nothing more can come, or the time is over.
Answer steer_until(int channel, const wire::Steer &what, Clock::time_point end) {
    for (auto pause = std::chrono::milliseconds(5);; pause = std::min(pause * 2, std::chrono::milliseconds(200))) {
        const Answer answer = steer(channel, what);
        const wire::SteerReply &r = answer.reply;
        if (answer.error != 0 || r.there + r.never >= r.directions || Clock::now() >= end) {
            return answer;
        }
        std::this_thread::sleep_for(pause);
    }
}

Clock::time_point after(double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Does a control group of the process belong to the unit or container?
bool is_in(uint32_t pid, const std::set<std::string> &names) {
    std::istringstream groups(text_of_file("/proc/" + std::to_string(pid) + "/cgroup"));
    for (std::string line; std::getline(groups, line);) {
        const size_t path = line.find(":/");
        std::istringstream parts(path == std::string::npos ? "" : line.substr(path + 1));
        for (std::string part; std::getline(parts, part, '/');) {
            if (names.count(part) != 0) {
                return true;
            }
        }
    }
    return false;
}

/// What control groups of a unit or container of this name are called.
std::set<std::string> group_names(const std::string &name) {
    std::set<std::string> result{name, name + ".service", name + ".scope", name + ".slice"};
    std::vector<std::string> ids;
    if (name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string::npos) {
        ids.push_back(name);
    }
    for (const char *engine : {"podman", "docker", "nerdctl"}) {
        try {
            const Outcome said = run({engine, "inspect", "--format", "{{.Id}}", "--type", "container", name});
            std::string id = said.output.substr(0, said.output.find('\n'));
            if (said.status == 0 && id.size() == 64) {
                ids.push_back(std::move(id));
            }
        } catch (const Failure &) { // it is not installed
        }
    }
    for (const std::string &id : ids) {
        result.insert({id, "libpod-" + id, "libpod-" + id + ".scope", "docker-" + id + ".scope",
                       "cri-containerd-" + id + ".scope", "crio-" + id + ".scope", "nerdctl-" + id + ".scope"});
    }
    return result;
}

bool is_number(const std::string &text) {
    return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
}

/// The processes with libsd that are meant.
std::vector<uint32_t> processes_of(const stat::Snapshot &snapshot, const std::string &which) {
    if (is_number(which)) {
        const auto pid = static_cast<uint32_t>(std::stoul(which));
        if (snapshot.processes.count(pid) == 0) {
            throw Failure(Exit::no_unit,
                          kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH
                              ? fmt::format("there is no process {}", pid)
                              : fmt::format("process {}: nothing of it is accelerated, or it is not yours", pid));
        }
        return {pid};
    }
    std::vector<uint32_t> result;
    const std::set<std::string> names = which == "all" ? std::set<std::string>{} : group_names(which);
    for (const auto &[pid, process] : snapshot.processes) {
        if (which == "all" || is_in(pid, names)) {
            result.push_back(pid);
        }
    }
    if (result.empty() && which != "all") {
        throw Failure(Exit::no_unit,
                      fmt::format("{}: no process of a unit or container of that name has the library", which));
    }
    return result;
}

void refuse(int error, uint32_t pid) {
    switch (error) {
    case EPERM:
        throw Failure(Exit::failed,
                      fmt::format("process {}: only an administrator, or who may trace it, may do that", pid));
    case ESRCH:
        throw Failure(Exit::no_unit, fmt::format("process {}: it has ended, or has no accelerated socket", pid));
    default:
        throw Failure(Exit::failed, fmt::format("process {}: {}", pid, strerror(error)));
    }
}

/// For each name; the first failure decides the status.
template <typename Act> Exit for_each_process(const std::vector<std::string> &which, Act act) {
    Exit first = Exit::done;
    const auto note = [&](Exit status) { first = first == Exit::done ? status : first; };
    for (const std::string &name : which) {
        try {
            for (const uint32_t pid : processes_of(look(), name)) {
                try {
                    note(act(pid));
                } catch (const Failure &failure) {
                    if (name == "all" && failure.status == Exit::no_unit) {
                        continue; // it has ended meanwhile
                    }
                    throw;
                }
            }
        } catch (const Failure &failure) {
            fflush(stdout);
            fmt::print(stderr, "sdctl: {}\n", failure.what());
            note(failure.status);
        }
    }
    return first;
}

std::string name_of(uint32_t pid) {
    std::string comm = text_of_file("/proc/" + std::to_string(pid) + "/comm");
    comm.erase(comm.find_last_not_of('\n') + 1);
    return stat::program_text(comm, pid);
}

void write_disabled_file() {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(kDisabledFile).parent_path(), error);
    std::ofstream file(kDisabledFile);
    file << "# While this file is here, no program that starts is accelerated: sdctl(1), detach. Taken away "
            "by\n"
            "# sdctl attach all.\n";
    file.close();
    if (!file) {
        throw Failure(Exit::failed, fmt::format("{}: {}", kDisabledFile, strerror(errno)));
    }
}

} // namespace

Exit move_connection(const std::string &connection, const std::string &path, double seconds) {
    if (path != "kernel" && path != "shm") {
        throw Failure(Exit::usage, fmt::format("\"{}\" is no path: kernel or shm", path));
    }
    const bool to_kernel = path == "kernel";
    stat::Snapshot snapshot = look();
    auto found = stat::find_connections(snapshot, connection);
    if (found.size() != 1) {
        throw Failure(found.empty() ? Exit::no_unit : Exit::usage,
                      found.empty()
                          ? fmt::format("{}: there is no such connection, or none that is yours to see; "
                                        "sdstat --each lists them",
                                        connection)
                          : fmt::format("{}: {} connections have that name; sdstat --each lists their ids",
                                        connection, found.size()));
    }
    const UniqueFd channel = monitor_channel();
    const ConnectionRow row = *found[0];
    Answer last{EPERM, {}};
    bool is_asked = false;
    for (const monitor::RowEnd &end : row.end) { // whichever end is the caller's
        if (end.pid == 0 || (is_asked && last.error == 0)) {
            continue;
        }
        is_asked = true;
        last = steer_until(channel.get(),
                           {static_cast<uint32_t>(to_kernel ? SteerTo::kernel : SteerTo::shm), end.pid,
                            static_cast<uint32_t>(row.link), row.slot},
                           after(seconds));
    }
    if (last.error == ENOENT || last.error == ESRCH) {
        throw Failure(Exit::no_unit, fmt::format("{}: it has ended", connection));
    }
    if (last.error != 0) {
        refuse(last.error, row.end[0].pid != 0 ? row.end[0].pid : row.end[1].pid);
    }
    if (last.reply.there == last.reply.directions) {
        fmt::print("{}: both directions go over {}\n", connection, path);
        return Exit::done;
    }
    fmt::print("{}: pending\n", connection);
    snapshot = look();
    for (const ConnectionRow *each : stat::find_connections(snapshot, connection)) {
        print_pending(*each, to_kernel, static_cast<Blocker>(last.reply.blocker % monitor::kBlockers));
    }
    return Exit::obstacle;
}

namespace {

/// Of connections that the process has, the processes that hold either end.
std::set<uint32_t> holders_of_both(const stat::Snapshot &snapshot, uint32_t pid) {
    std::set<uint32_t> result{pid};
    for (const ConnectionRow &row : snapshot.rows) {
        std::set<uint32_t> holders;
        for (const monitor::RowEnd &end : row.end) {
            const auto first = snapshot.pids.begin() + end.first_pid;
            holders.insert(first, first + end.pids);
        }
        if (holders.count(pid) != 0) {
            result.merge(holders);
        }
    }
    return result;
}

/// Has the process, and those at the other ends, do what their next calls would until all is there, nothing
/// more can come, or the time is over. What stood in the way in the end, for each that could not.
Answer force_until(int channel, const wire::Steer &what, Clock::time_point end,
                   std::map<uint32_t, std::string> &obstacles) {
    std::set<uint32_t> left = holders_of_both(look(), what.pid);
    for (auto pause = std::chrono::milliseconds(2);; pause = std::min(pause * 2, std::chrono::milliseconds(100))) {
        for (auto at = left.begin(); at != left.end();) {
            const Forced forced = force_step(static_cast<pid_t>(*at));
            if (forced.is_done) {
                obstacles.erase(*at);
            } else {
                obstacles[*at] = forced.why;
            }
            at = forced.again ? std::next(at) : left.erase(at);
        }
        const Answer answer = steer(channel, what);
        const wire::SteerReply &r = answer.reply;
        if (answer.error != 0 || r.there + r.never >= r.directions || Clock::now() >= end || left.empty()) {
            return answer;
        }
        std::this_thread::sleep_for(pause);
    }
}

} // namespace

Exit detach_processes(const std::vector<std::string> &which, double seconds, bool stays, bool is_forced) {
    if (stays && which != std::vector<std::string>{"all"}) {
        throw Failure(Exit::usage, "detach: --stay goes with all alone");
    }
    if (stays) {
        write_disabled_file(); // first: what starts from here on is not missed
    }
    const UniqueFd channel = monitor_channel();
    const Clock::time_point end = after(seconds);
    // All are asked before any is waited for: two of them may be the ends of one connection.
    const auto ask = [&](uint32_t pid) {
        return wire::Steer{static_cast<uint32_t>(SteerTo::detach), pid, 0, 0};
    };
    (void)for_each_process(which, [&](uint32_t pid) {
        const Answer answer = steer(channel.get(), ask(pid));
        return answer.error == 0 ? Exit::done : Exit::failed;
    });
    return for_each_process(which, [&](uint32_t pid) {
        // Who makes a call meanwhile is not stopped.
        Answer answer = steer_until(channel.get(), ask(pid), is_forced ? std::min(end, after(kGrace)) : end);
        std::map<uint32_t, std::string> obstacles;
        if (is_forced && answer.error == 0 && answer.reply.there + answer.reply.never < answer.reply.directions) {
            answer = force_until(channel.get(), ask(pid), end, obstacles);
        }
        if (answer.error != 0) {
            refuse(answer.error, pid);
        }
        const wire::SteerReply &r = answer.reply;
        if (r.there == r.directions) {
            fmt::print("{}: detached, {} connections are the kernel's\n", name_of(pid), r.directions / 2);
            return Exit::done;
        }
        fmt::print("{}: detached; pending: {} of {} directions\n", name_of(pid), r.directions - r.there,
                   r.directions);
        const stat::Snapshot snapshot = look();
        for (const ConnectionRow &row : snapshot.rows) {
            const auto has = [&](const monitor::RowEnd &e) {
                const auto first = snapshot.pids.begin() + e.first_pid;
                return std::find(first, first + e.pids, pid) != first + e.pids;
            };
            if (has(row.end[0]) || has(row.end[1])) {
                print_pending(row, true, static_cast<Blocker>(r.blocker % monitor::kBlockers));
            }
        }
        for (const auto &[holder, why] : obstacles) {
            fmt::print("  {} was not forced: {}\n", name_of(holder), why);
        }
        return Exit::obstacle;
    });
}

Exit attach_processes(const std::vector<std::string> &which) {
    if (which == std::vector<std::string>{"all"} && unlink(kDisabledFile) != 0 && errno != ENOENT &&
        access(kDisabledFile, F_OK) == 0) {
        throw Failure(Exit::failed, fmt::format("{}: {}", kDisabledFile, strerror(errno)));
    }
    const UniqueFd channel = monitor_channel();
    return for_each_process(which, [&](uint32_t pid) {
        const Answer answer = steer(channel.get(), {static_cast<uint32_t>(SteerTo::attach), pid, 0, 0});
        if (answer.error != 0) {
            refuse(answer.error, pid);
        }
        fmt::print("{}: attached; its {} connections move with what they send next\n", name_of(pid),
                   answer.reply.directions / 2);
        return Exit::done;
    });
}

} // namespace sd::ctl
