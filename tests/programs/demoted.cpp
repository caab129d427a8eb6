// A process that gives up rights while it holds connections that it shares with others: what those have who
// stay as they are is not within its reach any more, and the connections go on for everybody.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"
#include "tests/programs/rights.hpp"
#include "tests/programs/talking.hpp"

#include <cstddef>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>

using namespace sdtest;

namespace {

// A master with two connections. A child inherits the first, gives up its rights by `change`, and serves it.
void session(const std::function<void()> &change, bool closed_before, bool closes_other = true) {
    const Pair its = make_pair(), kept = make_pair();
    const std::set<std::string> before = all_shared();
    const Gate closed, parted;
    const pid_t child = spawn([&] {
        close(its.client);
        close(kept.client);
        if (closes_other)
            close(kept.server);
        if (closed_before)
            closed.pass();
        change();
        SHOW_BOOL(still_mapped(before));
        parted.open();
        if (!closed_before)
            closed.pass();
        echo(its.server);
    });
    if (!closed_before)
        parted.pass();
    close(its.server);
    closed.open();
    std::thread server([&] { echo(kept.server); });
    talk(its.client);
    talk(kept.client);
    end(its.client);
    reap("session", child); // which may have the other one as well
    end(kept.client);
    server.join();
}

sock_filter all_pass[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
const sock_fprog filter{std::size(all_pass), all_pass};

} // namespace

BEHAVIOUR("another user, the parent has closed its copy", parent_closes_before, accelerated) {
    session(become_nobody, true);
}

BEHAVIOUR("another user, and the parent closes its copy afterwards", parent_closes_afterwards, accelerated) {
    session(become_nobody, false);
}

BEHAVIOUR("a seccomp filter", by_a_filter, accelerated) {
    session(
        [] {
            MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
        },
        true);
}

BEHAVIOUR("no capabilities", by_capabilities, accelerated) { session(give_up_capabilities, true); }

BEHAVIOUR("a user namespace", by_a_user_namespace, accelerated) {
    session([] { MUST(unshare(CLONE_NEWUSER)); }, true);
}

// What it inherited beside is everybody's kernel socket afterwards, and goes on.
BEHAVIOUR("what it inherited and does not use", it_keeps_what_is_not_its_own, accelerated) {
    session(become_nobody, true, false);
}

// Both have it, and both use it; so do the two ends that wait meanwhile.
BEHAVIOUR("both go on with one connection", both_go_on, accelerated) {
    const Pair pair = make_pair();
    const std::set<std::string> before = all_shared();
    const Gate to_child, to_parent;
    const pid_t child = spawn([&] {
        close(pair.client);
        become_nobody();
        SHOW_BOOL(still_mapped(before));
        for (int i = 0; i < 5; ++i) {
            to_child.pass();
            send_all(pair.server, "child ");
            to_parent.open();
        }
        to_child.pass();
        say("child: %s", receive(pair.server, 5).c_str());
        to_parent.open();
    });
    for (int i = 0; i < 5; ++i) {
        send_all(pair.server, "parent ");
        to_child.open();
        to_parent.pass();
    }
    say("%s", receive(pair.client, 65).c_str());
    send_all(pair.client, "onetwo");
    to_child.open();
    to_parent.pass();
    say("parent: %s", receive(pair.server, 1).c_str());
    reap("child", child);
    close(pair.server);
    SHOW_BOOL(receive_to_end(pair.client).empty());
}

// One waits for data when the other one changes.
BEHAVIOUR("the parent waits on it meanwhile", the_parent_waits_meanwhile, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.client);
        sleep_ms(100); // the parent waits by now
        become_nobody();
        sleep_ms(100);
    });
    const pid_t sender = spawn([&] {
        close(pair.server);
        sleep_ms(400);
        send_all(pair.client, "late");
    });
    say("%s", receive(pair.server, 4).c_str());
    reap("child", child);
    reap("sender", sender);
}

// Unread, unsent, ended: the connection is as it was.
BEHAVIOUR("connections in any state", in_any_state, accelerated) {
    const Pair unread = make_pair(), ended = make_pair(), shut = make_pair(), full = make_pair();
    send_all(unread.client, "unread");
    send_all(ended.client, "the end");
    close(ended.client);
    MUST(shutdown(shut.server, SHUT_WR));
    fill(full.client);
    const pid_t child = spawn([&] {
        for (const int fd : {unread.client, shut.client, full.client})
            close(fd);
        become_nobody();
        say("%s", receive(unread.server, 6).c_str());
        say("%s", receive_to_end(ended.server).c_str());
        SHOW(send(shut.server, "x", 1, MSG_NOSIGNAL));
        say("%s", receive(shut.server, 5).c_str());
        SHOW_BOOL(receive_to_end(full.server).size() > 100000);
    });
    for (const int fd : {unread.server, ended.server, shut.server, full.server})
        close(fd);
    const std::string none = receive_to_end(shut.client);
    send_all(shut.client, "there");
    close(full.client);
    reap("child", child);
    SHOW_BOOL(none.empty());
}

// The client's end.
BEHAVIOUR("a client", as_a_client, accelerated) {
    const Pair pair = make_pair(), kept = make_pair();
    const std::set<std::string> before = all_shared();
    const Gate closed;
    const pid_t child = spawn([&] {
        for (const int fd : {pair.server, kept.server, kept.client})
            close(fd);
        closed.pass();
        become_nobody();
        SHOW_BOOL(still_mapped(before));
        talk(pair.client);
        end(pair.client);
    });
    close(pair.client);
    closed.open();
    echo(pair.server);
    reap("child", child);
    std::thread server([&] { echo(kept.server); });
    talk(kept.client);
    end(kept.client);
    server.join();
}

// It made the connection itself, over a link that its master has accepted from.
BEHAVIOUR("a connection of its own over its master's link", over_a_shared_link, accelerated) {
    const int listener = make_listener();
    const Gate ready, accepted;
    const pid_t client = spawn([&] {
        const Address to = local_address(listener);
        close(listener);
        const int first = connect_to(to);
        accepted.pass();
        const int second = connect_to(to);
        talk(second);
        end(second);
        talk(first);
        end(first);
    });
    const int own = MUST(accept(listener, nullptr, nullptr));
    const std::set<std::string> before = all_shared();
    const pid_t worker = spawn([&] {
        close(own);
        accepted.open();
        const int fd = MUST(accept(listener, nullptr, nullptr));
        become_nobody();
        SHOW_BOOL(still_mapped(before));
        echo(fd);
    });
    echo(own);
    reap("client", client);
    reap("worker", worker);
}

// The parent changes itself; its child keeps the rights, and the connections that it had then.
BEHAVIOUR("the parent of a process that does not", the_parent_changes, accelerated) {
    const Pair its = make_pair(), own = make_pair();
    const std::set<std::string> before = all_shared();
    const Gate changed;
    const pid_t child = spawn([&] {
        for (const int fd : {its.client, own.client, own.server})
            close(fd);
        changed.pass();
        echo(its.server);
    });
    close(its.server);
    become_nobody();
    SHOW_BOOL(still_mapped(before));
    changed.open();
    talk(its.client);
    end(its.client);
    reap("child", child);
    std::thread server([&] { echo(own.server); });
    talk(own.client);
    end(own.client);
    server.join();
    const Pair another = make_pair();
    std::thread echoes([&] { echo(another.server); });
    talk(another.client);
    end(another.client);
    echoes.join();
}

namespace {

// A child accepts, has a child of its own take the connection over, and ends. That one gives up its rights.
// `client` makes the other end, and passes the gate before it talks.
void alone_with(const std::function<void(int listener, const Gate &parted)> &client, bool shows_links) {
    const int listener = make_listener();
    const Gate parted;
    const pid_t server = spawn([&] {
        const int fd = MUST(accept(listener, nullptr, nullptr));
        close(listener);
        const pid_t self = getpid();
        if (MUST(fork()) != 0)
            _exit(0);
        while (getppid() == self)
            sleep_ms(1);
        std::set<std::string> before;
        if (geteuid() == 0) // else it stays who it is
            before = mapped("sd-link");
        become_nobody();
        if (shows_links)
            SHOW_BOOL(still_mapped(before));
        parted.open();
        echo(fd);
        _exit(0);
    });
    client(listener, parted);
    reap("server", server);
}

void talk_over(int listener, const Gate &parted) {
    const int fd = connect_to(listener);
    close(listener);
    parted.pass();
    talk(fd);
    end(fd);
}

} // namespace

// Its former parent has ended, and the other end was a stranger's before: it stays that way.
BEHAVIOUR("nobody of its domain has what it has", alone, all_accelerated) {
    alone_with(
        [](int listener, const Gate &parted) {
            const pid_t client = spawn([&] {
                become(kSomebodyElse);
                talk_over(listener, parted);
            });
            close(listener);
            reap("client", client);
        },
        false);
}

// The other end is of the domain that it leaves, and would take it for one of its own.
BEHAVIOUR("the other end is of the former domain", other_end_of_former_domain, accelerated) {
    alone_with(talk_over, true);
}

// The monitor has not noted the child yet.
BEHAVIOUR("at once after the fork, while a client waits", at_once_after_the_fork, any) {
    for (int i = 0; i < 12; ++i) {
        const int listener = make_listener(); // a new one: the next clients of this one begin on the kernel
        const Address address = local_address(listener);
        const Gate ready;
        const pid_t client = spawn([&] {
            close(listener);
            become_nobody();
            ready.pass();
            const int fd = connect_to(address);
            send_all(fd, "word");
            say("%s", receive(fd, 4).c_str());
            close(fd);
        });
        __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
        __user_cap_data_struct own[2];
        MUST(syscall(SYS_capget, &header, own));
        const uint32_t rest = ~(1U << (CAP_SYS_PACCT + i));
        own[0].effective &= rest;
        own[0].permitted &= rest;
        MUST(syscall(SYS_capset, &header, own)); // leaves the segment, so that only the link is shared
        ready.open();
        SHOW_BOOL(poll_now(listener, POLLIN, kPatience) == POLLIN);
        const std::set<std::string> before = all_shared();
        const pid_t child = spawn([&] {
            become_nobody();
            SHOW_BOOL(still_mapped(before));
            SHOW_BOOL(poll_now(listener, POLLIN, kPatience) == POLLIN);
            const int fd = MUST(accept(listener, nullptr, nullptr));
            send_all(fd, receive(fd, 4));
            close(fd);
        });
        reap("client", client);
        reap("child", child);
        close(listener);
    }
}

// In an epoll set, before and after.
BEHAVIOUR("in an epoll set", watched, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.client);
        const int set = MUST(epoll_create1(0));
        epoll_event event{EPOLLIN, {.u32 = 7}};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.server, &event));
        become_nobody();
        for (int i = 0; i < 3; ++i) {
            epoll_event got{};
            SHOW(epoll_wait(set, &got, 1, kPatience));
            say("%u: %s", got.data.u32, receive(pair.server, 1).c_str());
            send_all(pair.server, "y");
        }
    });
    close(pair.server);
    for (int i = 0; i < 3; ++i) {
        send_all(pair.client, "x");
        say("%s", receive(pair.client, 1).c_str());
    }
    reap("child", child);
}

// The set is its parent's, and not used by the child before.
BEHAVIOUR("in an epoll set of its parent's", watched_by_an_inherited_set, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    epoll_event event{EPOLLIN, {.u32 = 7}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair.server, &event));
    const pid_t child = spawn([&] {
        close(pair.client);
        become_nobody();
        epoll_event got{};
        SHOW(epoll_wait(set, &got, 1, kPatience));
        say("%u: %s", got.data.u32, receive(pair.server, 1).c_str());
    });
    send_all(pair.client, "x");
    reap("child", child);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
