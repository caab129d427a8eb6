// Programs of several users, some of which try to get what the kernel would not have given them. Where the
// test is not root they are all of one user, and the kernel's answers are the same.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <cstddef>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

using namespace sdtest;

namespace {

constexpr uid_t kFirst = 40001, kSecond = 40002;

void become(uid_t user) {
    if (geteuid() != 0)
        return;
    MUST(setgroups(0, nullptr));
    MUST(setresgid(user, user, user));
    MUST(setresuid(user, user, user));
}

/// A system call that no library sees. The value, or -1 with errno.
long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
    long result;
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                 : "rcx", "r11", "memory");
    if (result >= 0 || result < -4095)
        return result;
    errno = static_cast<int>(-result);
    return -1;
}
template <class T> long word(T *p) { return reinterpret_cast<long>(p); }

template <class T> struct Shared {
    T *value =
        static_cast<T *>(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    T &operator*() const { return *value; }
};

/// Who closes last leaves the port free at once.
void answer(int fd, char letter) {
    send_all(fd, std::string(1, letter));
    receive_to_end(fd);
    close(fd);
}

std::string ask(const Address &name) {
    const int fd = connect_to(name);
    const std::string letter = receive(fd, 1);
    close(fd);
    return letter;
}

/// Whether this process has a link, as it should if it runs with the library. (The file for its counts is
/// root's.)
bool as_linked_as_it_should() {
    bool linked = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    for (char line[512]; maps && fgets(line, sizeof line, maps);)
        linked = linked || strstr(line, "memfd:sd-link");
    if (maps)
        fclose(maps);
    return linked == (getenv("LD_PRELOAD") && !getenv("SD_DISABLE"));
}

enum class Leaving { closes, disconnects };

/// Listens, serves one client, gives the address up behind the library's back, and takes whatever still
/// comes.
void first_server(Leaving how, const Shared<std::atomic<uint16_t>> &port, const Gate &ready,
                  const Gate &served, const Gate &gone) {
    become(kFirst);
    const int listener = make_listener();
    *port = local_address(listener).port();
    ready.open();
    answer(MUST(accept(listener, nullptr, nullptr)), 'A');
    served.pass();
    set_nonblocking(listener);
    if (how == Leaving::closes) {
        raw(SYS_close, listener);
    } else {
        sockaddr nothing{};
        nothing.sa_family = AF_UNSPEC;
        raw(SYS_connect, listener, word(&nothing), sizeof nothing);
        raw(SYS_listen, listener, 16); // at another port
    }
    gone.open();
    for (int i = 0; i < 600; ++i) {
        if (const int fd = accept(listener, nullptr, nullptr); fd >= 0)
            answer(fd, 'A');
        sleep_ms(5);
    }
}

constexpr int kClients = 12;

void second_server(bool with_library, const Shared<std::atomic<uint16_t>> &port, const Gate &gone,
                   const Gate &ready) {
    become(kSecond);
    gone.pass();
    const Address name = make_address("127.0.0.1", *port);
    const auto call = [&](long number, long a, long b, long c) {
        return with_library ? syscall(number, a, b, c) : raw(number, a, b, c);
    };
    const long listener = MUST(call(SYS_socket, AF_INET, SOCK_STREAM, 0));
    const int on = 1;
    raw(SYS_setsockopt, listener, SOL_SOCKET, SO_REUSEADDR, word(&on), sizeof on);
    MUST(call(SYS_bind, listener, word(name.raw()), name.length));
    MUST(call(SYS_listen, listener, 128, 0));
    ready.open();
    for (int i = 0; i < kClients; ++i) {
        const int fd = static_cast<int>(MUST(call(SYS_accept, listener, 0, 0)));
        if (with_library) {
            answer(fd, 'B');
        } else {
            char byte;
            raw(SYS_write, fd, word("B"), 1);
            raw(SYS_read, fd, word(&byte), 1);
            raw(SYS_close, fd);
        }
    }
}

/// Two servers, one after the other, at one address. A client that knows the first has to meet the second.
void change_hands(Leaving how, bool with_library) {
    const Shared<std::atomic<uint16_t>> port;
    const Gate first_ready, served, gone, second_ready;
    const pid_t first = spawn([&] { first_server(how, port, first_ready, served, gone); });
    const pid_t second = spawn([&] { second_server(with_library, port, gone, second_ready); });
    const pid_t client = spawn([&] {
        become(kFirst);
        first_ready.pass();
        const Address name = make_address("127.0.0.1", *port);
        say("before: %s", ask(name).c_str());
        SHOW_BOOL(as_linked_as_it_should());
        served.open();
        second_ready.pass();
        if (!with_library)
            sleep_ms(100); // a client that never stops asking may be led astray for some milliseconds
        std::string answers;
        for (int i = 0; i < kClients; ++i)
            answers += ask(name);
        say("after: %s", answers.c_str());
    });
    reap("client", client);
    reap("second", second);
    kill(first, SIGKILL);
    reap("first", first);
}

} // namespace

BEHAVIOUR("whoever listens next at an address gets its clients", next_listener_has_the_library, any) {
    change_hands(Leaving::closes, true);
}
BEHAVIOUR("also without the library", next_listener_has_not, any) { change_hands(Leaving::closes, false); }
BEHAVIOUR("also when the former socket listens elsewhere", first_one_listens_elsewhere, any) {
    change_hands(Leaving::disconnects, true);
}
BEHAVIOUR("also when the former socket listens elsewhere, without the library",
          first_one_listens_elsewhere_and_next_has_no_library, any) {
    change_hands(Leaving::disconnects, false);
}

namespace {

/// A name as it lies in shared memory: 16 bytes of address, port and family in host order.
struct SharedName {
    unsigned char ip[16];
    uint16_t port, family;
};

SharedName shared_name(const char *host, uint16_t port, uint16_t family = AF_INET) {
    SharedName name{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, port, family};
    inet_pton(AF_INET, host, name.ip + 12);
    return name;
}

/// Writes over each `from` in the links that this process has mapped.
void forge(const SharedName &from, const SharedName &to) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (!strstr(line, "memfd:sd-link") || sscanf(line, "%lx-%lx", &begin, &end) != 2)
            continue;
        auto *at = reinterpret_cast<char *>(begin);
        size_t left = end - begin < (1u << 20) ? end - begin : 1u << 20;
        for (void *hit; (hit = memmem(at, left, &from, sizeof from)); at = static_cast<char *>(hit) + 1) {
            memcpy(hit, &to, sizeof to);
            left = static_cast<size_t>(reinterpret_cast<char *>(begin) +
                                       (end - begin < (1u << 20) ? end - begin : 1u << 20) -
                                       (static_cast<char *>(hit) + 1));
        }
    }
    if (maps)
        fclose(maps);
}

/// What the server is told when a client lies about one of the two names. The kernel tells the truth; we may
/// refuse the client instead.
void lie(bool about_server, const char *host, uint16_t port, uint16_t family = AF_INET) {
    const int listener = make_listener("0.0.0.0");
    const Address name = make_address("127.0.0.1", local_address(listener).port());
    const Gate lied, asked;
    const pid_t liar = spawn([&] {
        const int fd = connect_to(name);
        const SharedName truth = shared_name("127.0.0.1", about_server ? name.port() : local_address(fd).port());
        SharedName told = shared_name(host, port ? port : truth.port, family);
        forge(truth, told);
        lied.open();
        asked.pass();
    });
    lied.pass();
    set_nonblocking(listener);
    bool believed = false;
    if (const int fd = accept(listener, nullptr, nullptr); fd >= 0) {
        const Address peer = peer_address(fd), own = local_address(fd);
        believed = peer.host() != "127.0.0.1" || peer.port() < 1024 || own.host() != "127.0.0.1" ||
                   own.port() != name.port() || own.storage.ss_family != AF_INET;
    }
    SHOW_BOOL(believed);
    asked.open();
    reap("liar", liar);
    // Nothing else has come to harm.
    const int fd = connect_to(name);
    set_nonblocking(listener, false);
    send_all(MUST(accept(listener, nullptr, nullptr)), "x");
    say("%s", receive(fd, 1).c_str());
}

} // namespace

BEHAVIOUR("a client cannot have a privileged port", forged_privileged_port, accelerated) {
    lie(false, "127.0.0.1", 22);
}
BEHAVIOUR("a client cannot be at another host", forged_remote_client, accelerated) {
    lie(false, "8.8.8.8", 0);
}
BEHAVIOUR("a client cannot give the server another name", forged_own_name, accelerated) {
    lie(true, "8.8.8.8", 443);
}
BEHAVIOUR("a client cannot give the server another port", forged_own_port, accelerated) {
    lie(true, "127.0.0.1", 443);
}
BEHAVIOUR("a client cannot give the server no name", forged_wildcard, accelerated) {
    lie(true, "0.0.0.0", 0);
}
BEHAVIOUR("a client cannot give the server another family", forged_family, accelerated) {
    lie(true, "127.0.0.1", 0, AF_INET6);
}

namespace {

/// Refuses socket() for one family, or for all of them (-1).
void refuse_family(int family) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(family), 0, static_cast<uint8_t>(family >= 0)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(filter), filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

} // namespace

BEHAVIOUR("sockets of both families", sockets_of_both_families, any) {
    SHOW_BOOL(socket(AF_INET, SOCK_STREAM, 0) >= 0);
    SHOW_BOOL(socket(AF_INET6, SOCK_STREAM, 0) >= 0);
}

// As with RestrictAddressFamilies=: the filter is there when the program starts.
BEHAVIOUR("a family that a filter refuses from the start", started_without_a_family, any) {
    for (const int family : {AF_INET, AF_INET6}) {
        reap("child", spawn([&] {
                 refuse_family(family);
                 execl("/proc/self/exe", "strangers", "sockets_of_both_families", nullptr);
             }));
    }
}

// What was made before the filter goes on being what it is; nothing more can be made.
BEHAVIOUR("sockets made before a filter", sockets_before_a_filter, any) {
    const int outside = make_listener();
    reap("child", spawn([&] {
             const int client = MUST(socket(AF_INET, SOCK_STREAM, 0)),
                       server = MUST(socket(AF_INET, SOCK_STREAM, 0));
             close(MUST(socket(AF_INET, SOCK_STREAM, 0)));
             refuse_family(-1);
             SHOW(socket(AF_INET, SOCK_STREAM, 0));
             const Address any = make_address("127.0.0.1", 0), there = local_address(outside);
             SHOW(bind(server, any.raw(), any.length));
             SHOW(listen(server, 8));
             SHOW(connect(client, there.raw(), there.length));
             send_all(client, "through");
         }));
    say("%s", receive(MUST(accept(outside, nullptr, nullptr)), 7).c_str());
}

namespace {

/// How many descriptors of this process are TCP sockets, whoever keeps them.
int tcp_sockets() {
    int n = 0;
    for (int fd = 0; fd < 4096; ++fd) {
        int protocol = 0;
        socklen_t length = sizeof protocol;
        n += raw(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, word(&protocol), word(&length)) == 0 &&
             protocol == IPPROTO_TCP;
    }
    return n;
}

} // namespace

// A filter takes the right to make sockets away: none is left over that the program has not got.
BEHAVIOUR("no socket of ours is left behind a filter", nothing_kept_behind_a_filter, accelerated) {
    const int listener = make_listener();
    const int fd = connect_to(listener);
    close(MUST(accept(listener, nullptr, nullptr)));
    close(fd);
    close(listener);
    reap("child", spawn([] {
             refuse_family(-1);
             say("%d", tcp_sockets());
         }));
}

// A socket stays in the network namespace that it was made in, and those made later are in the new one.
BEHAVIOUR("sockets in two network namespaces", sockets_in_two_namespaces, any) {
    const int outside = make_listener();
    reap("child", spawn([&] {
             const int before = MUST(socket(AF_INET, SOCK_STREAM, 0));
             close(MUST(socket(AF_INET, SOCK_STREAM, 0)));
             MUST(unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWNET | CLONE_NEWUSER));
             const auto cookie = [](long fd) {
                 uint64_t value = 0;
                 socklen_t length = sizeof value;
                 raw(SYS_getsockopt, fd, SOL_SOCKET, 71 /* SO_NETNS_COOKIE */, word(&value), word(&length));
                 return value;
             };
             const int after = MUST(socket(AF_INET, SOCK_STREAM, 0));
             SHOW_BOOL(cookie(after) == cookie(raw(SYS_socket, AF_INET, SOCK_STREAM, 0)));
             SHOW_BOOL(cookie(after) == cookie(before));
             const Address there = local_address(outside);
             SHOW(connect(after, there.raw(), there.length));
             SHOW(connect(before, there.raw(), there.length));
             send_all(before, "through");
         }));
    say("%s", receive(MUST(accept(outside, nullptr, nullptr)), 7).c_str());
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
