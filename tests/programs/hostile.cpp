// A peer that writes rubbish into the memory it shares with us. Without libsd there is no such memory: the
// program then resets its connection, which is what rubbish has to look like from the other side.
#include "tests/programs/cases.hpp"
#include "tests/programs/links.hpp"
#include "tests/programs/process.hpp"

#include <random>

using namespace sdtest;

namespace {

Mapping find_link() {
    const std::vector<Mapping> links = find_links();
    return links.empty() ? Mapping{nullptr, 0} : links.front();
}

/// What a slot's memory looks like is the library's business; the test only knows that payload lies somewhere
/// in the first megabytes, finds it by its content, and overwrites what surrounds it.
char *find_payload(const Mapping &link, const std::string &payload) {
    const size_t look = link.size < (8u << 20) ? link.size : 8u << 20;
    return static_cast<char *>(memmem(link.begin, look, payload.data(), payload.size()));
}

} // namespace

BEHAVIOUR("rubbish in a ring resets the connection", scribbled_record, accelerated) {
    const int listener = make_listener();
    const pid_t peer = spawn([&] {
        const int fd = connect_to(listener);
        send_all(fd, "innocent data, to be found again");
        const Mapping link = find_link();
        char *payload = link.begin ? find_payload(link, "innocent data, to be found again") : nullptr;
        if (payload) {
            const uint64_t rubbish = 0x1234567812345678;
            // The word before the payload is the record's header
            memcpy(payload - 8, &rubbish, sizeof rubbish);
            sleep_ms(300);
        } else {
            abort_connection(fd);
        }
        _exit(0);
    });
    const int fd = MUST(accept(listener, nullptr, nullptr));
    sleep_ms(100);
    char buffer[64];
    ssize_t got;
    // The kernel may still hand out what came before the reset; rubbish takes its own record with it.
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0) {
    }
    say("recv = %zd %s", got, got < 0 ? strerrorname_np(errno) : "");
    SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    close(fd);
    reap("peer", peer);
}

// An acceptor that says for ever that it is in the kernel's accept: its client connects there, where it would
// be heard.
BEHAVIOUR("an acceptor that says that it waits in the kernel", acceptor_in_the_kernel, accelerated) {
    const int listener = make_listener();
    const int first = connect_to(listener);
    close(MUST(accept(listener, nullptr, nullptr)));
    for (const Mapping &link : find_links())
        reinterpret_cast<sd::LinkHeader *>(link.begin)->side[1].in_kernel.store(sd::kInKernelUnnamed);
    const int second = connect_to(listener);
    const int server = MUST(accept(listener, nullptr, nullptr));
    send_all(second, "heard");
    say("%s", receive(server, 5).c_str());
    close(second);
    SHOW(close(first));
}

// Random words all over the slots, rings, queues and bitmaps, again and again, while the victim goes on
// accepting, reading, writing and waiting. Only that the victim lives, and serves somebody else afterwards,
// is looked at.
BEHAVIOUR("a victim survives whatever a peer writes", victim_survives_anything, accelerated) {
    const int listener = make_listener();
    set_nonblocking(listener);
    const pid_t victim = spawn([&] {
        const int set = MUST(epoll_create1(0));
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = listener;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
        for (;;) {
            epoll_event events[16];
            const int n = epoll_wait(set, events, 16, 1000);
            for (int i = 0; i < n; ++i) {
                const int fd = events[i].data.fd;
                if (fd == listener) {
                    const int fresh = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
                    if (fresh < 0)
                        continue;
                    event.data.fd = fresh;
                    event.events = EPOLLIN;
                    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fresh, &event));
                    continue;
                }
                char buffer[4096];
                const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
                if (got > 0 && memcmp(buffer, "quit", 4) == 0) {
                    send_all(fd, "alive");
                    return;
                }
                if (got > 0)
                    send(fd, buffer, static_cast<size_t>(got), MSG_NOSIGNAL);
                else if (got == 0 || errno != EAGAIN)
                    close(fd);
            }
        }
    });
    for (int round = 0; round < 20; ++round) {
        const pid_t attacker = spawn([&] {
            int fds[8];
            for (int &fd : fds) {
                fd = connect_to(listener);
                send_all(fd, pattern(200));
            }
            const Mapping link = find_link();
            std::mt19937_64 random(static_cast<uint64_t>(round) + 1);
            if (link.begin) {
                // The header page names the link; the rest of the first 64 KiB and the first slots are what
                // matters.
                const size_t span = round % 2 ? 1u << 20 : 256u << 10;
                for (int i = 0; i < 20000; ++i) {
                    const size_t at = random() % (span / 8) * 8;
                    const uint64_t word = random() % 4 ? random() : random() % 64;
                    memcpy(link.begin + at, &word, sizeof word);
                    if (i % 1000 == 0)
                        sleep_ms(1);
                }
            }
            _exit(0);
        });
        int status;
        waitpid(attacker, &status, 0);
    }
    const int fd = connect_to(listener);
    send_all(fd, "quit");
    say("%s", receive(fd, 5).c_str());
    reap("victim", victim);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
