// A process that gives up system calls or descriptors while it has connections, as sshd does before a login.
#include "libsd/layout/link_layout.hpp"
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"
#include "tests/programs/talking.hpp"

#include <cstddef>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

using namespace sdtest;

namespace {

#define LET_PASS(call)                                                                                       \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

// What an echo server on kernel sockets needs. Everything else kills.
sock_filter strict_filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    LET_PASS(read),
    LET_PASS(write),
    LET_PASS(poll),
    LET_PASS(close),
    LET_PASS(exit_group),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
const sock_fprog strict_program{std::size(strict_filter), strict_filter};

// What a server needs as well.
sock_filter server_filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    LET_PASS(read),
    LET_PASS(write),
    LET_PASS(poll),
    LET_PASS(accept),
    LET_PASS(accept4),
    LET_PASS(fcntl),
    LET_PASS(close),
    LET_PASS(exit_group),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
const sock_fprog server_program{std::size(server_filter), server_filter};

// In the sandbox: waits with poll, echoes, and answers a last word once the other side has slept for a while.
void echo_sandboxed(int fd) {
    char buffer[4096];
    for (;;) {
        pollfd p{fd, POLLIN, 0};
        if (poll(&p, 1, -1) != 1)
            _exit(3);
        const ssize_t got = read(fd, buffer, sizeof buffer);
        if (got <= 0)
            _exit(got == 0 ? 0 : 4);
        for (ssize_t at = 0; at < got;) {
            const ssize_t n = write(fd, buffer + at, static_cast<size_t>(got - at));
            if (n <= 0)
                _exit(5);
            at += n;
        }
    }
}

void limit_descriptors(rlim_t to) {
    const rlimit limit{to, to};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
}

void talk_to(pid_t child, int fd) {
    talk(fd);
    MUST(shutdown(fd, SHUT_WR));
    SHOW_BOOL(receive_to_end(fd).empty());
    reap("the child in the sandbox", child);
}

template <class F> void in_a_sandbox(F enter) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.client);
        enter();
        echo_sandboxed(pair.server);
    });
    close(pair.server);
    talk_to(child, pair.client);
}

} // namespace

BEHAVIOUR("a seccomp filter that allows read, write and poll", seccomp_by_prctl, accelerated) {
    in_a_sandbox([] {
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &strict_program));
    });
}

BEHAVIOUR("a seccomp filter, by system call", seccomp_by_system_call, accelerated) {
    in_a_sandbox([] {
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &strict_program));
    });
}

// The kernel bounds the list of poll() by the same limit.
BEHAVIOUR("a limit of one descriptor", one_descriptor_allowed, accelerated) {
    in_a_sandbox([] { limit_descriptors(1); });
}

BEHAVIOUR("a seccomp filter and no descriptors", seccomp_and_no_descriptors, accelerated) {
    in_a_sandbox([] {
        limit_descriptors(1);
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &strict_program));
    });
}

void enter_strict_filter() {
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &strict_program));
}

// The first link that this process has mapped; null on kernel sockets.
uint8_t *find_link() {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned long from = 0, to = 0;
    while (maps && fgets(line, sizeof line, maps) &&
           !(strstr(line, "memfd:sd-link") && sscanf(line, "%lx-%lx", &from, &to) == 2))
        from = 0;
    if (maps)
        fclose(maps);
    return reinterpret_cast<uint8_t *>(from);
}

// What libsd does to connect, in slots and places of the queue that are free, as far as memory can do it.
void forge_requests(const sd::LinkView &link) {
    using namespace sd;
    uint32_t used = 0;
    while (used < kLinkSlots &&
           link.slot(used).identity.state.load() != static_cast<uint32_t>(SlotState::accepted))
        ++used;
    if (used == kLinkSlots)
        return;
    const uint32_t forged = used == 100 ? 101 : 100;
    auto &identity = link.slot(forged).identity;
    identity.client = link.slot(used).identity.client;
    identity.client.port = 40000;
    identity.server = link.slot(used).identity.server;
    identity.state.store(static_cast<uint32_t>(SlotState::syn));
    for (uint32_t i = 0; i < kSynEntries; ++i)
        link.syn(i).store(forged + 1);
}

// A listener stays usable: whoever connects once its process is in the sandbox is served, too.
BEHAVIOUR("a listener in a sandbox", accepts_in_a_sandbox, any) {
    const int listener = make_listener();
    const Gate ready;
    const pid_t child = spawn([&] {
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &server_program));
        ready.open();
        echo_sandboxed(MUST(accept(listener, nullptr, nullptr)));
    });
    const Address to = local_address(listener);
    close(listener);
    ready.pass();
    talk_to(child, connect_to(to));
}

// The filter decides about everything that it decided about before.
BEHAVIOUR("a seccomp filter still kills", seccomp_still_kills, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &strict_program));
        MUST(write(pair.server, "x", 1));
        syscall(SYS_getppid);
        _exit(0);
    });
    say("got %s", receive(pair.client, 1).c_str());
    reap("the child in the sandbox", child);
}

BEHAVIOUR("seccomp filters that are refused", seccomp_errors, any) {
    const sock_fprog empty{0, strict_filter};
    const sock_fprog nowhere{3, bad_pointer<sock_filter>()};
    sock_filter no_end[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    const sock_fprog unfinished{1, no_end};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SHOW(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &empty));
    SHOW(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &nowhere));
    SHOW(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, bad_pointer<sock_fprog>()));
    SHOW(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &unfinished));
    SHOW(prctl(PR_GET_SECCOMP));
}

// An FTP server allows itself 200 MB once it has its client: what it maps from then on has room, what is too
// large has none.
BEHAVIOUR("little address space", little_address_space, any) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        const rlimit little{rlim_t{1} << 30, rlim_t{1} << 30};
        const auto map = [](size_t size) {
            void *p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            SHOW_BOOL(p != MAP_FAILED);
            if (p != MAP_FAILED)
                munmap(p, size);
        };
        MUST(setrlimit(RLIMIT_AS, &little));
        map(size_t{1} << 20);
        map(size_t{2} << 30);
        rlimit now{};
        SHOW(getrlimit(RLIMIT_AS, &now));
        say("%llu of %llu", static_cast<unsigned long long>(now.rlim_cur),
            static_cast<unsigned long long>(now.rlim_max));
        const rlimit less{rlim_t{1} << 29, rlim_t{1} << 30};
        SHOW(prlimit(0, RLIMIT_AS, &less, &now));
        say("%llu", static_cast<unsigned long long>(now.rlim_cur));
        SHOW(setrlimit(RLIMIT_AS, &little));
        const rlimit wrong{2, 1};
        SHOW(setrlimit(RLIMIT_AS, &wrong));
        SHOW(execl("/nowhere/at/all", "all", nullptr));
        map(size_t{1} << 20);
        std::thread([] { say("a thread"); }).join();
        if (FILE *shell = popen("ulimit -Sv", "r")) {
            char line[64] = {};
            say("a shell reads %s", fgets(line, sizeof line, shell) ? line : "nothing");
            pclose(shell);
        }
        const int listener = make_listener();
        const int client = connect_to(local_address(listener)),
                  server = MUST(accept(listener, nullptr, nullptr));
        send_all(client, "new");
        say("%s", receive(server, 3).c_str());
        echo_sandboxed(pair.server);
    });
    close(pair.server);
    talk_to(child, pair.client);
}

// Made in the process itself, and nobody else's: it stays what it is.
BEHAVIOUR("a connection of the process's own", keeps_its_own_connection, all_accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const pid_t child = spawn([&] {
        close(listener);
        const int fd = connect_to(to);
        enter_strict_filter();
        echo_sandboxed(fd);
    });
    talk_to(child, MUST(accept(listener, nullptr, nullptr)));
}

BEHAVIOUR("closing connections", closes_what_it_has, all_accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const pid_t child = spawn([&] {
        close(listener);
        const int one = connect_to(to), two = connect_to(to);
        enter_strict_filter();
        char byte;
        if (read(one, &byte, 1) != 1 || close(one) != 0 || read(two, &byte, 1) != 1 || close(two) != 0)
            _exit(3);
        _exit(0);
    });
    for (int i = 0; i < 2; ++i) {
        const int fd = MUST(accept(listener, nullptr, nullptr));
        send_all(fd, "x");
        SHOW_BOOL(receive_to_end(fd).empty());
        close(fd);
    }
    reap("the child in the sandbox", child);
}

// What it connected to before is accepted afterwards.
BEHAVIOUR("connections that are accepted afterwards", accepted_once_it_is_inside, all_accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const Gate inside;
    const pid_t child = spawn([&] {
        close(listener);
        const int first = connect_to(to), second = connect_to(to);
        enter_strict_filter();
        if (write(first, "1", 1) != 1 || write(second, "2", 1) != 1)
            _exit(3);
        inside.open();
        echo_sandboxed(second);
    });
    inside.pass();
    const int first = MUST(accept(listener, nullptr, nullptr)),
              second = MUST(accept(listener, nullptr, nullptr));
    say("%s%s", receive(first, 1).c_str(), receive(second, 1).c_str());
    talk_to(child, second);
}

// It may not call connect, and does not need to where it has a link to write to.
BEHAVIOUR("no connection by memory alone", makes_no_connection_by_memory, all_accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const Gate done;
    const pid_t child = spawn([&] {
        close(listener);
        const int fd = connect_to(to);
        char byte;
        MUST(read(fd, &byte, 1));
        const sd::LinkView link{find_link()};
        enter_strict_filter();
        if (link.base)
            forge_requests(link);
        done.open();
        echo_sandboxed(fd);
    });
    const int fd = MUST(accept(listener, nullptr, nullptr));
    send_all(fd, "x");
    done.pass();
    set_nonblocking(listener);
    SHOW(poll_now(listener, POLLIN, 100));
    SHOW(accept(listener, nullptr, nullptr));
    // Others are let in.
    const int other = connect_to(listener);
    SHOW_FD(accept(listener, nullptr, nullptr));
    close(other);
    talk_to(child, fd);
}

// Who waited at a listener that goes into a sandbox is served there.
BEHAVIOUR("a client that waited before the filter", waited_before_the_filter, accelerated) {
    const int listener = make_listener();
    const Gate waiting, ready;
    const Address to = local_address(listener);
    const pid_t child = spawn([&] {
        close(MUST(accept(listener, nullptr, nullptr)));
        ready.open();
        waiting.pass();
        MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &server_program));
        echo_sandboxed(MUST(accept(listener, nullptr, nullptr)));
    });
    close(listener);
    const int first = connect_to(to);
    ready.pass();
    const int second = connect_to(to);
    waiting.open();
    talk_to(child, second);
    close(first);
}

namespace {

// Of linux/landlock.h, of which Debian 12's knows nothing about networks.
struct LandlockRuleset {
    uint64_t handled_fs, handled_net;
};
struct LandlockPort {
    uint64_t allowed, port;
};
constexpr uint64_t kLandlockConnect = 2;
constexpr int kLandlockPortRule = 2;

/// Lets this process connect to one port only.
void connect_nowhere_but(uint16_t port) {
    const LandlockRuleset ruleset{0, kLandlockConnect};
    const LandlockPort rule{kLandlockConnect, port};
    const long fd = syscall(SYS_landlock_create_ruleset, &ruleset, sizeof ruleset, 0);
    if (fd < 0) {
        say("the kernel has no Landlock for connections");
        _exit(0);
    }
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SHOW(syscall(SYS_landlock_add_rule, fd, kLandlockPortRule, &rule, 0));
    SHOW(syscall(SYS_landlock_restrict_self, fd, 0));
}

void try_ports(uint16_t allowed, uint16_t forbidden) {
    for (const uint16_t port : {allowed, forbidden}) {
        const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
        const Address to = make_address("127.0.0.1", port);
        SHOW(connect(fd, to.raw(), to.length));
        close(fd);
    }
}

} // namespace

// The connection that was there goes on, and listeners are everybody's.
BEHAVIOUR("Landlock forbids a port", landlock_forbids_a_port, accelerated) {
    const int one = make_listener(), two = make_listener();
    const uint16_t allowed = local_address(one).port(), forbidden = local_address(two).port();
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.server);
        connect_nowhere_but(allowed);
        send_all(pair.client, "still connected");
        try_ports(allowed, forbidden);
        reap("its child", spawn([&] { try_ports(allowed, forbidden); }));
        execl("/proc/self/exe", "sandbox", "--connect", std::to_string(allowed).c_str(),
              std::to_string(forbidden).c_str(), static_cast<char *>(nullptr));
        give_up("exec");
    });
    close(pair.client);
    say("%s", receive_to_end(pair.server).c_str());
    reap("under Landlock", child);
}

// Read, write and exit.
BEHAVIOUR("strict mode", seccomp_strict_mode, accelerated) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const pid_t child = spawn([&] {
        close(listener);
        const int fd = connect_to(to);
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
        char buffer[4096];
        for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;)
            for (ssize_t at = 0, n; at < got; at += n)
                if ((n = write(fd, buffer + at, static_cast<size_t>(got - at))) <= 0)
                    syscall(SYS_exit, 5);
        syscall(SYS_exit, 0);
    });
    talk_to(child, MUST(accept(listener, nullptr, nullptr)));
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--connect") == 0) {
        try_ports(static_cast<uint16_t>(atoi(argv[2])), static_cast<uint16_t>(atoi(argv[3])));
        return 0;
    }
    return run_behaviour(argc, argv);
}
