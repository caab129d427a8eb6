// A process that has become another user, or has another root directory, before it uses its first socket.
// Without the privileges to do so the calls fail, in both runs, and the rest is as ever.
#include "tests/programs/cases.hpp"
#include "tests/programs/mapped.hpp"
#include "tests/programs/process.hpp"
#include "tests/programs/talking.hpp"

#include <grp.h>
#include <sys/stat.h>
#include <sys/syscall.h>

using namespace sdtest;

namespace {

constexpr uid_t kNobody = 65534;

void become_nobody() {
    SHOW(setgroups(0, nullptr));
    SHOW(setgid(kNobody));
    SHOW(setuid(kNobody));
}

// Nothing is in there, /proc neither.
class EmptyRoot {
  public:
    EmptyRoot() {
        if (!mkdtemp(path_))
            give_up("mkdtemp");
        MUST(chmod(path_, 0755));
    }
    ~EmptyRoot() { rmdir(path_); }
    EmptyRoot(const EmptyRoot &) = delete;
    EmptyRoot &operator=(const EmptyRoot &) = delete;

    const char *path() const { return path_; }

  private:
    char path_[32] = "/tmp/sd-identity-XXXXXX";
};

// The port, through a pipe.
void tell_port(int pipe_end, int listener) {
    const uint16_t port = local_address(listener).port();
    MUST(write(pipe_end, &port, sizeof port));
}

Address hear_address(int pipe_end) {
    uint16_t port = 0;
    if (read(pipe_end, &port, sizeof port) != sizeof port)
        give_up("no port");
    return make_address("127.0.0.1", port);
}

void talk_and_end(int fd) {
    talk(fd);
    end(fd);
}

// A server that changes itself first, and a client that does not.
void serve_changed(
    const std::function<void()> &change, const std::function<void()> &afterwards = [] {}) {
    int ends[2];
    MUST(pipe(ends));
    const pid_t server = spawn([&] {
        change();
        const int listener = make_listener();
        afterwards();
        tell_port(ends[1], listener);
        for (int i = 0; i < 2; ++i)
            echo(MUST(accept(listener, nullptr, nullptr)));
    });
    const Address address = hear_address(ends[0]);
    talk_and_end(connect_to(address));
    talk_and_end(connect_to(address));
    reap("server", server);
}

} // namespace

BEHAVIOUR("a server that became another user", listens_as_another_user, all_accelerated) {
    serve_changed(become_nobody);
}

BEHAVIOUR("a client that became another user", connects_as_another_user, all_accelerated) {
    const int listener = make_listener();
    const pid_t client = spawn([&] {
        const Address address = local_address(listener);
        close(listener);
        become_nobody();
        talk_and_end(connect_to(address));
    });
    echo(MUST(accept(listener, nullptr, nullptr)));
    reap("client", client);
}

// As ftp servers do around the one call that needs it.
BEHAVIOUR("another effective user", listens_as_another_user_for_a_while, all_accelerated) {
    serve_changed([] { SHOW(seteuid(kNobody)); }, [] { SHOW(seteuid(0)); });
}

BEHAVIOUR("another user once it listens", listens_as_root_and_accepts_as_another_user, all_accelerated) {
    serve_changed([] {}, become_nobody);
}

BEHAVIOUR("another root directory", another_root, all_accelerated) {
    const EmptyRoot root;
    serve_changed([&] { SHOW(chroot(root.path())); });
}

BEHAVIOUR("another root directory, by system call", another_root_by_system_call, all_accelerated) {
    const EmptyRoot root;
    serve_changed([&] { SHOW(syscall(SYS_chroot, root.path())); });
}

BEHAVIOUR("another root directory and another user", another_root_and_another_user, all_accelerated) {
    const EmptyRoot root;
    serve_changed([&] {
        SHOW(chroot(root.path()));
        SHOW(chdir("/"));
        become_nobody();
    });
}

BEHAVIOUR("chroot that fails", a_root_that_is_not_there, all_accelerated) {
    SHOW(chroot("/nowhere/at/all"));
    SHOW(chroot(bad_pointer<char>()));
    serve_changed([] {});
}

// Nobody has had a socket before the change; the children of the one who changed each accept and connect on
// their own.
BEHAVIOUR("workers of another user", workers_of_another_user, all_accelerated) {
    constexpr int kWorkers = 3;
    const Gate done;
    int ends[2];
    MUST(pipe(ends));
    const pid_t server = spawn([&] {
        become_nobody();
        const int listener = make_listener();
        pid_t workers[kWorkers];
        for (pid_t &worker : workers)
            worker = spawn([&] { echo(MUST(accept(listener, nullptr, nullptr))); });
        reap("client", spawn([&] { talk_and_end(connect_to(listener)); }));
        tell_port(ends[1], listener);
        done.pass();
        for (const pid_t worker : workers)
            reap("worker", worker);
    });
    const Address address = hear_address(ends[0]);
    const int one = connect_to(address), two = connect_to(address);
    talk_and_end(two);
    talk_and_end(one);
    done.open();
    reap("server", server);
}

// A master that keeps its rights has sockets of its own; what it has written down about them is not within
// reach of those who gave theirs up.
BEHAVIOUR("workers that become another user, of a master that does not", workers_that_become_another_user,
          all_accelerated) {
    const int listener = make_listener();
    const int own = connect_to(listener);
    const int accepted = MUST(accept(listener, nullptr, nullptr));
    const std::set<std::string> before = mapped("sd-family");
    close(own);
    close(accepted);
    int ready[2];
    MUST(pipe(ready));
    pid_t workers[2];
    for (pid_t &worker : workers) {
        worker = spawn([&] {
            become_nobody();
            SHOW_BOOL(still_mapped(before));
            MUST(write(ready[1], "x", 1));
            for (int i = 0; i < 2; ++i)
                echo(MUST(accept(listener, nullptr, nullptr)));
        });
        char byte;
        MUST(read(ready[0], &byte, 1));
    }
    for (int i = 0; i < 2; ++i) {
        const int one = connect_to(listener), two = connect_to(listener);
        talk_and_end(two);
        talk_and_end(one);
    }
    for (const pid_t worker : workers)
        reap("worker", worker);
}

// The kernel decides on ports, whoever the monitor thinks that this is.
BEHAVIOUR("ports below 1024 as another user", privileged_ports, all_accelerated) {
    serve_changed([] {
        close(make_listener()); // what there is to say to the monitor, it has been told as root
        become_nobody();
        const Address low = make_address("127.0.0.1", 80);
        const int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
        SHOW(bind(fd, low.raw(), low.length));
        close(fd);
    });
}

// No sockets: nothing is opened for them, and nothing is to be seen.
BEHAVIOUR("another user and root without sockets", no_sockets, untouched) {
    const EmptyRoot root;
    reap("the other", spawn([&] {
             SHOW(chroot(root.path()));
             become_nobody();
             say("lowest free number %d", MUST(dup(0)));
             int open = 0;
             for (int fd = 0; fd < 4096; ++fd)
                 open += fcntl(fd, F_GETFD) >= 0;
             say("%d open", open);
         }));
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
