// A stranger who takes back what poll() has told of, while the program goes on to a call that blocks: in the
// kernel it cannot wait there. On kernel sockets, and where all are one user, the stranger resets his
// connection instead, which is what it has to look like.
#include "libsd/layout/record.hpp"
#include "tests/programs/cases.hpp"
#include "tests/programs/links.hpp"
#include "tests/programs/process.hpp"
#include "tests/programs/rights.hpp"

#include <algorithm>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <utility>

using namespace sdtest;

namespace {

enum class Telling { poll, epoll, ioctl };

/// Waits until there is something to read or to accept.
void wait_for(int fd, Telling how) {
    if (how == Telling::poll) {
        pollfd p{fd, POLLIN, 0};
        MUST(poll(&p, 1, -1));
        return;
    }
    if (how == Telling::ioctl) {
        for (int bytes = 0; bytes == 0; sleep_ms(1))
            MUST(ioctl(fd, FIONREAD, &bytes));
        return;
    }
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    MUST(epoll_wait(set, &event, 1, -1));
    close(set);
}

void show_end(int fd) {
    char buffer[64];
    ssize_t got;
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0) { // the kernel hands out what came before a reset
    }
    say("recv = %zd %s", got, got < 0 ? strerrorname_np(errno) : "");
}

std::atomic<uint64_t> *find_header(const std::string &payload) {
    for (const Mapping &link : find_links())
        if (void *found =
                memmem(link.begin, std::min(link.size, size_t{8} << 20), payload.data(), payload.size()))
            return reinterpret_cast<std::atomic<uint64_t> *>(static_cast<char *>(found) - 8);
    return nullptr;
}

/// Somebody else who connects, `begins`, and takes back once the server has been told. `takes_back` is false
/// where there is nothing that could be; he resets his connection then.
class Stranger {
  public:
    template <class Begin, class TakeBack> Stranger(int listener, Begin begins, TakeBack takes_back) {
        pid_ = spawn([&] {
            become_nobody();
            const int fd = connect_to(listener);
            begins(fd);
            told_.pass();
            if (!takes_back())
                abort_connection(fd);
            taken_.open();
            over_.pass();
        });
    }
    /// The server has been told; what there was is gone when this returns.
    void take_back() const {
        told_.open();
        taken_.pass();
    }
    void end() const {
        over_.open();
        reap("stranger", pid_);
    }

  private:
    const Gate told_, taken_, over_;
    pid_t pid_;
};

/// Where all are one user nobody is a stranger.
bool can_be_strangers() { return geteuid() == 0; }

/// `becomes`: what the header of the record is afterwards.
bool change_record(const std::string &words, uint64_t (*becomes)(uint64_t header)) {
    std::atomic<uint64_t> *header = find_header(words);
    if (header)
        *header = becomes(*header);
    return header;
}

void take_back_record(Telling how, uint64_t (*becomes)(uint64_t header)) {
    const int listener = make_listener();
    const bool strangers = can_be_strangers();
    const std::string words = "these words are here and then not";
    const Stranger stranger(
        listener, [&](int fd) { send_all(fd, words); },
        [&] { return strangers && change_record(words, becomes); });
    const int fd = MUST(accept(listener, nullptr, nullptr));
    wait_for(fd, how);
    stranger.take_back();
    show_end(fd);
    close(fd);
    stranger.end();
}

uint64_t nothing(uint64_t) { return 0; }
uint64_t pad(uint64_t header) {
    return (header & ~(uint64_t{0xf} << 28)) | uint64_t{static_cast<uint32_t>(sd::ring::RecordKind::pad)} << 28;
}

/// The second of two records that were peeked is taken back.
void take_back_peeked() {
    const int listener = make_listener();
    const bool strangers = can_be_strangers();
    const std::string words = "these words have been peeked";
    const Stranger stranger(
        listener,
        [&](int fd) {
            send_all(fd, "x");
            send_all(fd, words);
        },
        [&] { return strangers && change_record(words, nothing); });
    const int fd = MUST(accept(listener, nullptr, nullptr));
    char buffer[64];
    SHOW(recv(fd, buffer, 1 + words.size(), MSG_PEEK | MSG_WAITALL));
    stranger.take_back();
    SHOW(recv(fd, buffer, 1, 0));
    show_end(fd);
    close(fd);
    stranger.end();
}

/// The server has filled the ring, is told that there is room again, and sends without being asked to wait.
void take_back_room() {
    const int listener = make_listener();
    const Gate full;
    const bool strangers = can_be_strangers();
    std::vector<std::pair<std::atomic<uint64_t> *, uint64_t>> positions; // as they were when nothing was read
    const Stranger stranger(
        listener,
        [&](int fd) {
            full.pass();
            for (const Mapping &link : find_links()) {
                const sd::LinkView view{reinterpret_cast<uint8_t *>(link.begin)};
                std::atomic<uint64_t> &consumed = view.slot(0).side[0].credit.consumed;
                positions.emplace_back(&consumed, consumed.load());
            }
            std::string all(1 << 20, 0);
            ssize_t got = 0;
            for (size_t left = 24 << 20; left > 0 && (got = recv(fd, all.data(), all.size(), MSG_DONTWAIT)) > 0;)
                left -= static_cast<size_t>(got);
        },
        [&] {
            for (const auto &[position, before] : positions)
                if (strangers)
                    *position = before;
            return true; // or it just leaves the room
        });
    const int fd = MUST(accept(listener, nullptr, nullptr));
    const std::string some(4096, 's');
    const timeval soon{0, 200'000}, never{0, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon)); // who waits may have a larger ring
    while (send(fd, some.data(), some.size(), MSG_NOSIGNAL) > 0) {
    }
    say("full: %s", strerrorname_np(errno));
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &never, sizeof never));
    full.open();
    pollfd p{fd, POLLOUT, 0};
    MUST(poll(&p, 1, -1));
    stranger.take_back();
    SHOW(send(fd, "small", 5, MSG_NOSIGNAL));
    stranger.end();
    close(fd);
}

void take_requests_out() {
    for (const Mapping &link : find_links())
        for (uint32_t i = 0; i < sd::kSynEntries; ++i)
            sd::LinkView{reinterpret_cast<uint8_t *>(link.begin)}.syn(i) = 0;
}
/// Of connections that nobody has accepted yet.
void take_requests_back() {
    for (const Mapping &link : find_links()) {
        const sd::LinkView view{reinterpret_cast<uint8_t *>(link.begin)};
        for (uint32_t i = 0; i < 64; ++i)
            if (view.slot(i).identity.state == static_cast<uint32_t>(sd::SlotState::syn))
                view.slot(i).identity.state = static_cast<uint32_t>(sd::SlotState::free);
    }
}
void give_false_names() {
    for (const Mapping &link : find_links())
        for (uint32_t i = 0; i < 64; ++i)
            sd::LinkView{reinterpret_cast<uint8_t *>(link.begin)}.slot(i).identity.client.port = 22;
}

void take_back_request(Telling how, void (*spoil)(), const char *address = "127.0.0.1") {
    const int listener = make_listener(address);
    const Stranger stranger(
        listener, [](int) {},
        [&] {
            spoil();
            return !find_links().empty();
        });
    wait_for(listener, how);
    stranger.take_back();
    const int fd = MUST(accept(listener, nullptr, nullptr));
    show_end(fd);
    close(fd);
    stranger.end();
}

} // namespace

BEHAVIOUR("a record", record, accelerated) { take_back_record(Telling::poll, nothing); }
BEHAVIOUR("a record, told of by an epoll instance", record_of_a_set, accelerated) {
    take_back_record(Telling::epoll, nothing);
}
BEHAVIOUR("a record that turns out to be none", record_without_data, accelerated) {
    take_back_record(Telling::poll, pad);
}
BEHAVIOUR("a record, told of by FIONREAD", counted_record, accelerated) {
    take_back_record(Telling::ioctl, nothing);
}
BEHAVIOUR("a record that was peeked", peeked_record, accelerated) { take_back_peeked(); }
BEHAVIOUR("room", room, accelerated) { take_back_room(); }
BEHAVIOUR("a request", request, accelerated) { take_back_request(Telling::poll, take_requests_out); }
BEHAVIOUR("a request, told of by an epoll instance", request_of_a_set, accelerated) {
    take_back_request(Telling::epoll, take_requests_out);
}
BEHAVIOUR("a request that is not meant any more", request_not_meant, accelerated) {
    take_back_request(Telling::poll, take_requests_back);
}
BEHAVIOUR("a request with a name that it cannot have", request_with_false_name, accelerated) {
    take_back_request(Telling::poll, give_false_names);
}
BEHAVIOUR("a request to a listener on all addresses", request_to_all_addresses, accelerated) {
    take_back_request(Telling::poll, take_requests_out, "0.0.0.0");
}
BEHAVIOUR("a request by IPv6", request_by_ipv6, accelerated) {
    take_back_request(Telling::poll, take_requests_out, "::");
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
