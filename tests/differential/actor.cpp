// The program that performs steps: a host that starts actors, and each actor's loop.
//
// A host is started once, with or without libsd, and forks a fresh actor for each sequence: an actor begins
// with the same descriptors each time, and nothing that one sequence left behind reaches the next.
#include "tests/differential/actor.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace sd::differential {

thread_local int own_channel = -1;
thread_local int own_actor = -1;

namespace {

thread_local int current_step = -1;

}

void Observation::say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    const size_t room = sizeof reply.text - length;
    const int n = vsnprintf(reply.text + length, room, format, list);
    va_end(list);
    length += n < 0 ? 0 : static_cast<size_t>(n) < room ? static_cast<size_t>(n) : room - 1;
}

void Observation::result(long value) {
    if (value < 0) {
        say("%s-1 %s", length != 0 ? ", " : "", strerrorname_np(errno));
    } else {
        say("%s%ld", length != 0 ? ", " : "", value);
    }
}

void Observation::made(int fd) {
    result(fd);
    reply.fd = fd;
}

void Observation::data(const char *bytes, size_t size) {
    uint64_t hash = 1469598103934665603ull;
    for (size_t i = 0; i < size; ++i) {
        hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 1099511628211ull;
    }
    if (size <= 24) {
        say(" \"%.*s\"", static_cast<int>(size), bytes);
    } else {
        say(" \"%.8s...\" hash %016llx", bytes, static_cast<unsigned long long>(hash));
    }
}

namespace {

/// Of 256 bytes whose places differ in the last byte only, each is the next letter.
constexpr size_t kStretch = 256;

const char *letters_from(int step, size_t at) {
    static const auto alphabets = [] {
        std::array<char, 26 + kStretch> all{};
        for (size_t i = 0; i < all.size(); ++i) {
            all[i] = static_cast<char>('a' + i % 26);
        }
        return all;
    }();
    return alphabets.data() + (static_cast<size_t>(step) * 5 + at + (at >> 8) * 3 + (at >> 16)) % 26;
}

/// Calls fn(letters, at, size) for each stretch, until it says false.
template <typename Fn> void for_each_stretch(size_t size, int step, size_t offset, Fn fn) {
    for (size_t at = 0; at < size;) {
        const size_t part = std::min(size - at, kStretch - (offset + at) % kStretch);
        if (!fn(letters_from(step, offset + at), at, part)) {
            return;
        }
        at += part;
    }
}

} // namespace

void fill_pattern(char *bytes, size_t size, int step, size_t offset) {
    for_each_stretch(size, step, offset, [&](const char *letters, size_t at, size_t part) {
        memcpy(bytes + at, letters, part);
        return true;
    });
}

size_t first_mismatch(const char *bytes, size_t size, int step, size_t offset) {
    size_t first = size;
    for_each_stretch(size, step, offset, [&](const char *letters, size_t at, size_t part) {
        if (memcmp(bytes + at, letters, part) == 0) {
            return true;
        }
        first = at + static_cast<size_t>(std::mismatch(letters, letters + part, bytes + at).first - letters);
        return false;
    });
    return first;
}

void *forbidden_page() {
    static void *const page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return static_cast<char *>(page) + 64;
}

namespace {

void answer(Observation &o, int step) {
    if (const int count = take_sigpipes(); count != 0) {
        o.say(" [SIGPIPE %d]", count);
    }
    o.reply.step = step;
    o.reply.pid = static_cast<int32_t>(raw_call(SYS_getpid));
    o.reply.tid = static_cast<int32_t>(raw_call(SYS_gettid));
    raw_call(SYS_write, own_channel, reinterpret_cast<long>(&o.reply), static_cast<long>(o.reply.size(o.length)));
}

// False when the actor must end.
bool perform(const Command &command) {
    const Op op = static_cast<Op>(command.op);
    current_step = command.step;
    const int32_t *a = command.arguments;
    static thread_local Observation o;
    o.length = 0;
    o.reply.fd = o.reply.second = -1;
    o.reply.port = 0;
    o.reply.bytes = 0;
    o.reply.text[0] = '\0';
    switch (op) {
    case Op::exit:
        if (a[0] == 0) {
            _exit(0);
        } else if (a[0] == 1) {
            exit(0);
        }
        o.say("thread ends");
        answer(o, command.step);
        return false;
    default:
        if (begin_to_jump()) {
            o.length = 0;
            o.say("jumped out");
        } else if (!perform_names(op, command.step, a, o) && !perform_fd(op, command.step, a, o) &&
                   !perform_options(op, command.step, a, o) && !perform_io(op, command.step, a, o) &&
                   !perform_ready(op, command.step, a, o) && !perform_signals(op, command.step, a, o) &&
                   !perform_passing(op, command.step, a, o) && !perform_process(op, command.step, a, o) &&
                   !perform_crowd(op, command.step, a, o) && !perform_other(op, command.step, a, o)) {
            o.say("no such step");
        }
        no_more_jumping();
    }
    answer(o, command.step);
    return true;
}

// A fresh actor per sequence; children are not waited for, the controller watches them through pidfds.
[[noreturn]] void host() {
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        Command command;
        const long got = raw_call(SYS_read, kHostChannel, reinterpret_cast<long>(&command), sizeof command);
        if (got == -EINTR) {
            continue;
        }
        if (got != sizeof command) {
            _exit(0);
        }
        const pid_t child = fork();
        if (child == 0) {
            raw_call(SYS_close, kHostChannel);
            serve(command.arguments[0]);
            _exit(0);
        }
    }
}

} // namespace

void say_cancelled() {
    Observation o;
    o.say("%s", kCancelled);
    answer(o, current_step);
}

void serve(int actor, bool thread) {
    own_actor = actor;
    own_channel = kFirstChannel + actor;
    if (!thread) {
        install_handlers();
    }
    Observation born;
    born.say("born");
    answer(born, kBornStep);
    for (;;) {
        Command command;
        const long got = raw_call(SYS_read, own_channel, reinterpret_cast<long>(&command), sizeof command);
        if (got == -EINTR) {
            continue;
        }
        if (got != sizeof command || !perform(command)) {
            return;
        }
    }
}

} // namespace sd::differential

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "resume") == 0) {
        sd::differential::serve(atoi(argv[2]));
        return 0;
    }
    sd::differential::host();
}
