// One step at a time: command, reply, and the certainty that nothing moves any more.
//
// A step that does not end is *blocked* when its thread sleeps in the kernel while nothing else on this side
// is awake either: no other actor, and not the monitor, whose part is asynchronous. Data on loopback moves
// inside the sender's own system call, so whoever is woken by a step is no longer asleep when the step has
// ended.
#include "tests/differential/controller.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace sd::differential {

namespace {

long now_us() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

constexpr long kFinite = 400000;    // µs that a step with a deadline of some 20 ms is given to end by itself
constexpr long kDraining = 4000000; // and one that waits for what a sender still has
constexpr long kForEver = 20000000; // µs after which a side that never comes to rest is given up

/// A thread's state in /proc: whether it sleeps or has gone, and how many threads its process has.
struct ThreadLook {
    bool gone = true, asleep = true;
    long threads = 0;

    explicit ThreadLook(int file) {
        char text[512];
        const ssize_t n = pread(file, text, sizeof text - 1, 0);
        if (n <= 0) {
            return;
        }
        text[n] = '\0';
        const char *at = strrchr(text, ')');
        gone = false;
        asleep = at != nullptr && (at[2] == 'S' || at[2] == 'Z' || at[2] == 'X');
        for (int field = 2; at != nullptr && field < 20; ++field) {
            at = strchr(at + 1, ' ');
        }
        threads = at == nullptr ? 0 : atol(at);
    }
};

bool asleep(int file) { return ThreadLook(file).asleep; }

} // namespace

Trace Side::run(const Sequence &sequence, bool patient) {
    sequence_ = &sequence;
    patient_ = patient;
    trace_.clear();
    made_.clear();
    known_ports_.clear();
    finished_.clear();
    current_ = 0;
    start_roots(sequence);
    for (size_t i = 0; i < sequence.steps.size(); ++i) {
        perform(sequence, i);
    }
    for (int i = 0; i < kMaxActors; ++i) {
        if (actors_[static_cast<size_t>(i)].state == State::busy) {
            note("at the end actor " + std::to_string(i) + " is still in step " +
                 std::to_string(sequence.steps[actors_[static_cast<size_t>(i)].step].id));
        }
    }
    end_all();
    sequence_ = nullptr;
    return trace_;
}

void Side::start_roots(const Sequence &sequence) {
    for (int i = 0; i < sequence.roots; ++i) {
        const bool plain = (sequence.plain >> i & 1) != 0;
        const int host = hosts_[static_cast<size_t>(!plain ? i % 2 : apart_ ? 2 + i % 2 : 2)];
        Command command;
        command.arguments[0] = i;
        if (write(host, &command, sizeof command) != sizeof command) {
            throw std::runtime_error("a host has gone");
        }
        actors_[static_cast<size_t>(i)].state = State::starting;
    }
    settle(true);
    finished_.clear();
}

void Side::note(const std::string &text) {
    const int id = current_ < sequence_->steps.size() ? sequence_->steps[current_].id : -1;
    trace_.push_back({id, masked(text)});
}

// Ports stand in braces; the kernel chooses them, so only which of them are equal is kept.
std::string Side::masked(const std::string &text) {
    std::string result;
    for (size_t at = 0; at < text.size(); ++at) {
        const size_t end = text[at] == '{' ? text.find('}', at) : std::string::npos;
        if (end == std::string::npos) {
            result += text[at];
            continue;
        }
        const int port = atoi(text.c_str() + at + 1);
        if (port != 0) {
            const auto entry = known_ports_.try_emplace(port, static_cast<int>(known_ports_.size()) + 1).first;
            result += "port" + std::to_string(entry->second);
        } else {
            result += "0";
        }
        at = end;
    }
    return result;
}

int Side::resolve(char kind, int value) const {
    if (kind == 'f' && value >= kNumber) {
        return value - kNumber;
    }
    if (kind == 'f' && value < 0) {
        return value == kUnusedFd ? 370 : value;
    }
    if (kind == 'p' && value < 0) {
        return value == kAnyPort ? 0 : 1;
    }
    if (kind != 'f' && kind != 'p' && kind != 'n') {
        return value;
    }
    const auto entry = made_.find(value >= kSecond ? value - kSecond : value);
    if (kind == 'f') {
        return entry == made_.end() ? -1 : value >= kSecond ? entry->second.second : entry->second.fd;
    }
    if (kind == 'p') {
        return entry == made_.end() || entry->second.port == 0 ? 1 : entry->second.port;
    }
    const bool is_huge = std::any_of(sequence_->steps.begin(), sequence_->steps.end(),
                                     [&](const Step &step) { return step.id == value && step.op == Op::huge; });
    return is_huge && entry == made_.end() ? static_cast<int>(kHugeBytes)
           : entry == made_.end()          ? 0
                                           : static_cast<int>(entry->second.bytes);
}

void Side::perform(const Sequence &sequence, size_t index) {
    const Step &step = sequence.steps[index];
    current_ = index;
    immediate_.clear();
    finished_.clear();
    Actor &actor = actors_[static_cast<size_t>(step.actor)];
    if (step.op == Op::kill || step.op == Op::signal) {
        Actor &target = actors_[static_cast<size_t>(step.arguments[0])];
        if (target.state != State::idle && target.state != State::busy) {
            return note("nobody there");
        }
        if (step.op == Op::kill) {
            kill(target.pid, SIGKILL);
            pollfd entry{target.death, POLLIN, 0};
            poll(&entry, 1, 5000);
        } else {
            syscall(SYS_tgkill, target.pid, target.tid, step.arguments[1] == 0 ? SIGUSR1 : SIGUSR2);
        }
        immediate_ = "done";
    } else {
        if (actor.state != State::idle) {
            return note(actor.state == State::busy ? "(actor is blocked)" : "(no actor)");
        }
        Command command;
        command.step = step.id;
        command.op = static_cast<int32_t>(step.op);
        const char *kinds = info(step.op).arguments;
        for (size_t i = 0; kinds[i] != '\0'; ++i) {
            command.arguments[i] = resolve(kinds[i], step.arguments[i]);
        }
        if (step.op == Op::drain) {
            command.arguments[2] = step.arguments[1];
        }
        actor.state = State::busy;
        actor.step = index;
        actor.finite = step.finite;
        if (write(channels_[static_cast<size_t>(step.actor)].ours, &command, sizeof command) != sizeof command) {
            throw std::runtime_error("cannot command an actor");
        }
    }
    settle(patient_);
    if (immediate_.empty()) {
        immediate_ = actor.state == State::busy   ? "blocked"
                     : actor.state == State::dead ? "the actor died"
                                                  : "no answer";
    }
    note(immediate_);
    std::sort(finished_.begin(), finished_.end());
    for (const std::string &text : finished_) {
        note(text);
    }
}

bool Side::all_asleep() const {
    for (const Actor &actor : actors_) {
        if ((actor.state == State::busy || actor.state == State::idle) && !asleep(actor.status)) {
            return false;
        }
    }
    return monitor_asleep();
}

// While the monitor's loop waits for a thread that asks the kernel, only that one is awake. The loop alone
// starts threads, so if it sleeps, it is right about how many there are. The first file is the loop's.
bool Side::monitor_threads_asleep() const {
    for (bool opened = false;; opened = true) {
        size_t alive = 0;
        long threads = 0;
        for (const int file : monitor_threads_) {
            const ThreadLook look(file);
            if (!look.asleep) {
                return false;
            }
            threads = alive == 0 ? look.threads : threads;
            alive += look.gone ? 0 : 1;
        }
        if (alive != 0 && alive == monitor_threads_.size() && static_cast<long>(alive) == threads) {
            return true;
        }
        if (opened) {
            return alive == 0; // or they come and go
        }
        open_monitor_threads();
    }
}

void Side::close_monitor_threads() const {
    for (const int file : monitor_threads_) {
        close(file);
    }
    monitor_threads_.clear();
}

void Side::open_monitor_threads() const {
    close_monitor_threads();
    const std::string tasks = "/proc/" + std::to_string(monitor_) + "/task";
    DIR *const list = opendir(tasks.c_str());
    for (const dirent *entry; list != nullptr && (entry = readdir(list)) != nullptr;) {
        const int file = entry->d_name[0] == '.'
                             ? -1
                             : open((tasks + "/" + entry->d_name + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            const bool is_loop = atoi(entry->d_name) == monitor_;
            monitor_threads_.insert(is_loop ? monitor_threads_.begin() : monitor_threads_.end(), file);
        }
    }
    if (list != nullptr) {
        closedir(list);
    }
}

/// With the bridges that it has started.
bool Side::monitor_asleep() const {
    if (monitor_ > 0 && !monitor_threads_asleep()) {
        return false;
    }
    char text[512];
    const ssize_t n = bridges_ < 0 ? 0 : pread(bridges_, text, sizeof text - 1, 0);
    text[std::max<ssize_t>(n, 0)] = '\0';
    bool all = true;
    char *at = text;
    for (long pid; all && (pid = strtol(at, &at, 10)) > 0;) {
        const int file = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
        all = file < 0 || asleep(file);
        close(file);
    }
    return all;
}

// Returns when every actor is idle, dead, or blocked. Looks at who sleeps only when that can decide: a step
// that ends by itself says so, and who is to sleep is looked at a few times in a row.
void Side::settle(bool patient) {
    const long begin = now_us();
    const int needed = patient ? 40 : 3; // looks in a row that found everybody asleep
    const long pause = patient ? 500 : 60;
    int calm = 0;
    for (long wait = pause;;) {
        const bool progress = take_news(wait);
        wait = 0;
        if (progress) {
            calm = 0;
            continue;
        }
        bool waiting = false, starting = false;
        long given = 0;
        for (const Actor &actor : actors_) {
            waiting |= actor.state == State::busy || actor.state == State::starting;
            starting |= actor.state == State::starting;
            const Op op = actor.state == State::busy ? sequence_->steps[actor.step].op : Op::socket;
            if (actor.state == State::busy && (actor.finite || op == Op::exit)) {
                const bool long_one =
                    op == Op::drain || op == Op::shell || op == Op::close_all || op == Op::spawn;
                given = std::max(given, long_one ? kDraining : kFinite);
            }
        }
        const long passed = now_us() - begin;
        if (passed > kForEver) {
            finished_.push_back("NEVER CAME TO REST");
            for (Actor &actor : actors_) {
                actor.state = actor.state == State::starting ? State::dead : actor.state;
            }
            return;
        }
        // Bridge and monitor may set each other to work: one look at each would not do.
        if (!waiting && bridges_ < 0 && monitor_asleep()) {
            return;
        }
        if (!starting && passed >= given && all_asleep()) {
            if (++calm > needed) {
                return;
            }
        } else {
            calm = 0;
        }
        wait = starting ? kForEver - passed + 1 : std::max(pause, given - passed);
    }
}

/// What actors have said, or that they ended; waits for that for so many µs. Whether there was anything.
bool Side::take_news(long wait) {
    pollfd entries[2 * kMaxActors];
    int whose[2 * kMaxActors];
    nfds_t count = 0;
    const auto look_at = [&](int fd, int actor) {
        whose[count] = actor;
        entries[count++] = {fd, POLLIN, 0};
    };
    for (int i = 0; i < kMaxActors; ++i) {
        const Actor &actor = actors_[static_cast<size_t>(i)];
        if (actor.state == State::busy || actor.state == State::starting) {
            look_at(channels_[static_cast<size_t>(i)].ours, i);
        }
        if (actor.state != State::absent && actor.state != State::dead && actor.death >= 0) {
            look_at(actor.death, i);
        }
    }
    const timespec limit{wait / 1000000, wait % 1000000 * 1000};
    bool progress = false;
    if (ppoll(entries, count, &limit, nullptr) > 0) {
        for (nfds_t i = 0; i < count; ++i) {
            if (entries[i].revents != 0) {
                receive(whose[i], progress);
            }
        }
    }
    return progress;
}

void Side::receive(int index, bool &progress) {
    Actor &actor = actors_[static_cast<size_t>(index)];
    if (actor.state == State::absent || actor.state == State::dead) {
        return;
    }
    if (actor.state != State::idle) {
        Reply reply;
        const ssize_t got = recv(channels_[static_cast<size_t>(index)].ours, &reply, sizeof reply, MSG_DONTWAIT);
        if (got > 0) {
            progress = true;
            take_reply(index, reply);
            return;
        }
    }
    pollfd entry{actor.death, POLLIN, 0};
    if (actor.death >= 0 && poll(&entry, 1, 0) > 0) {
        progress = true;
        died(index);
    }
}

void Side::take_reply(int index, const Reply &reply) {
    Actor &actor = actors_[static_cast<size_t>(index)];
    if (reply.step == kBornStep) {
        actor.pid = reply.pid;
        actor.tid = reply.tid;
        actor.death = static_cast<int>(syscall(SYS_pidfd_open, actor.pid, 0));
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/task/%d/stat", actor.pid, actor.tid);
        actor.status = open(path, O_RDONLY | O_CLOEXEC);
        const bool renewed = actor.state == State::busy; // it executed a program
        actor.state = State::idle;
        if (renewed) {
            immediate_ = "executed";
        }
        return;
    }
    const Step &step = sequence_->steps[actor.step];
    if (reply.step == step.id) {
        made_[step.id] = reply;
        actor.state = State::idle;
    }
    if (actor.step == current_) {
        immediate_ = reply.text;
    } else {
        finished_.push_back("step " + std::to_string(step.id) + " ended: " + reply.text);
    }
    if (reply.step == step.id && (step.op == Op::exit || strcmp(reply.text, kCancelled) == 0)) {
        actor.state = State::dead;
    } else if ((step.op == Op::fork || step.op == Op::thread || step.op == Op::spawn) &&
               strncmp(reply.text, "started", 7) == 0) {
        actors_[static_cast<size_t>(step.arguments[0])].state = State::starting;
    }
}

// All threads of a process die together.
void Side::died(int index) {
    const pid_t pid = actors_[static_cast<size_t>(index)].pid;
    for (int i = 0; i < kMaxActors; ++i) {
        Actor &actor = actors_[static_cast<size_t>(i)];
        if (actor.pid != pid || actor.state == State::dead || actor.state == State::absent) {
            continue;
        }
        Reply reply; // it may have said something with its last breath
        while (actor.state != State::dead &&
               recv(channels_[static_cast<size_t>(i)].ours, &reply, sizeof reply, MSG_DONTWAIT) > 0) {
            take_reply(i, reply);
        }
        if (actor.state == State::busy && actor.step != current_) {
            finished_.push_back("step " + std::to_string(sequence_->steps[actor.step].id) +
                                " ended: the actor died");
        }
        actor.state = State::dead;
    }
}

void Side::end_all() {
    for (const Actor &actor : actors_) {
        if (actor.state != State::absent && actor.state != State::dead) {
            kill(actor.pid, SIGKILL);
        }
    }
    for (Actor &actor : actors_) {
        if (actor.death >= 0) {
            pollfd entry{actor.death, POLLIN, 0};
            if (actor.state == State::dead) {
                kill(actor.pid, SIGKILL); // its thread ended, but perhaps not the process
            }
            poll(&entry, 1, 5000);
            close(actor.death);
        }
        if (actor.status >= 0) {
            close(actor.status);
        }
        actor = Actor();
    }
    empty_channels();
    for (int i = 0; i < 2000 && !monitor_asleep(); ++i) {
        usleep(100);
    }
}

// What was said but not heard must not reach the next sequence; passed descriptors nobody took are closed.
void Side::empty_channels() {
    for (const Channel &channel : channels_) {
        Reply reply;
        while (recv(channel.ours, &reply, sizeof reply, MSG_DONTWAIT) > 0) {
        }
        while (recv(channel.theirs, &reply, sizeof reply, MSG_DONTWAIT) > 0) {
        }
        for (;;) {
            char byte, control[CMSG_SPACE(8 * sizeof(int))];
            iovec part{&byte, 1};
            msghdr message{};
            message.msg_iov = &part;
            message.msg_iovlen = 1;
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            if (recvmsg(channel.mail_in, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0) {
                break;
            }
            for (cmsghdr *header = CMSG_FIRSTHDR(&message); header != nullptr;
                 header = CMSG_NXTHDR(&message, header)) {
                const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < count; ++i) {
                    int fd;
                    memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
                    close(fd);
                }
            }
        }
    }
}

} // namespace sd::differential
