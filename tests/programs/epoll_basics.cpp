// epoll: level, edge and one-shot triggering, changes to the set, errors, what happens to closed members.
#include "tests/programs/process.hpp"
#include "tests/programs/sets.hpp"

using namespace sdtest;

namespace {

int modify(int set, int fd, uint32_t events, uint64_t data) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

// Says what the set reports, in the order of the data words.
void show_set(const char *label, int set, int timeout = 0, int room = 16) {
    say("%s: %s", label, wait_set(set, timeout, room).c_str());
}

} // namespace

BEHAVIOUR("level triggering", level, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    SHOW(add(set, pair.server, EPOLLIN, 1));
    show_set("nothing", set);
    send_all(pair.client, "abc");
    show_set("data", set, kPatience);
    show_set("still", set);
    receive(pair.server, 1);
    show_set("some left", set);
    receive(pair.server, 2);
    show_set("none left", set);
    SHOW(modify(set, pair.server, EPOLLIN | EPOLLOUT, 2));
    show_set("writable", set);
    show_set("writable", set);
    shutdown(pair.client, SHUT_WR);
    wait_for(pair.server, POLLRDHUP);
    show_set("end of file", set);
    SHOW(modify(set, pair.server, EPOLLRDHUP, 3));
    show_set("hang-up only", set);
    SHOW(modify(set, pair.server, 0, 4));
    show_set("no interest", set);
    shutdown(pair.server, SHUT_WR);
    wait_for(pair.server, POLLHUP);
    show_set("both ends closed", set);
}

BEHAVIOUR("edge triggering", edge, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLET, 1));
    show_set("nothing", set);
    send_all(pair.client, "abc");
    show_set("data", set, kPatience);
    show_set("not again", set);
    receive(pair.server, 1);
    show_set("partly read", set);
    send_all(pair.client, "def");
    show_set("more data", set, kPatience);
    show_set("not again", set);
    receive(pair.server, 5);
    show_set("empty", set);
    send_all(pair.client, "g");
    show_set("new data", set, kPatience);
    SHOW(modify(set, pair.server, EPOLLIN | EPOLLET, 2));
    show_set("rearmed", set);
    show_set("not again", set);
    close(pair.client);
    show_set("closed", set, kPatience);
    show_set("not again", set);
}

BEHAVIOUR("edge triggering, and a peer that stops reading", edge_and_a_peer_that_stops_reading, accelerated) {
    Pair p = make_pair();
    const int set = MUST(epoll_create1(0));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, p.client, &event));
    SHOW(epoll_wait(set, &event, 1, 0));
    MUST(shutdown(p.server, SHUT_RD));
    SHOW(epoll_wait(set, &event, 1, 50));
    MUST(write(p.server, "x", 1));
    SHOW(epoll_wait(set, &event, 1, kPatience));
    say("events %#x", static_cast<unsigned>(event.events));
}

BEHAVIOUR("edge triggering for writing", edge_writable, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    set_nonblocking(pair.client);
    SHOW(add(set, pair.client, EPOLLIN | EPOLLOUT | EPOLLET, 1));
    show_set("first", set);
    show_set("not again", set);
    const std::string data = pattern(65536);
    size_t total = 0;
    ssize_t sent;
    while ((sent = send(pair.client, data.data(), data.size(), 0)) > 0)
        total += static_cast<size_t>(sent);
    show_set("full", set);
    receive(pair.server, total);
    show_set("drained", set, kPatience);
    SHOW(send(pair.client, "x", 1, 0));
}

BEHAVIOUR("EPOLLOUT after a drain", edge_and_level_writable_after_drain, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    set_nonblocking(pair.client);
    const std::string data = pattern(65536);
    size_t total = 0;
    ssize_t sent;
    while ((sent = send(pair.client, data.data(), data.size(), 0)) > 0)
        total += static_cast<size_t>(sent);
    SHOW(add(set, pair.client, EPOLLOUT, 1));
    show_set("full", set, 50);
    std::thread reader([&] {
        sleep_ms(50);
        receive(pair.server, total);
    });
    show_set("drained", set, kPatience);
    reader.join();
    show_set("still", set);
}

BEHAVIOUR("one-shot", one_shot, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLONESHOT, 1));
    send_all(pair.client, "abc");
    show_set("first", set, kPatience);
    show_set("disarmed", set);
    send_all(pair.client, "more");
    show_set("still disarmed", set, 50);
    SHOW(modify(set, pair.server, EPOLLIN | EPOLLONESHOT, 2));
    show_set("rearmed", set);
    show_set("disarmed", set);
    close(pair.client);
    wait_for(pair.server, POLLRDHUP);
    show_set("disarmed", set);
    SHOW(modify(set, pair.server, EPOLLRDHUP | EPOLLONESHOT | EPOLLET, 3));
    show_set("rearmed", set);
    show_set("disarmed", set);
}

BEHAVIOUR("EPOLLRDHUP and EPOLLHUP", hang_up_bits, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLRDHUP | EPOLLET, 1));
    send_all(pair.client, "last");
    shutdown(pair.client, SHUT_WR);
    wait_for(pair.server, POLLRDHUP);
    show_set("finished", set, kPatience);
    const int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(add(set, fresh, EPOLLIN, 2));
    show_set("unconnected", set);
}

BEHAVIOUR("ready before it is added", already_ready_when_added, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    send_all(pair.client, "abc");
    wait_for(pair.server, POLLIN);
    SHOW(add(set, pair.server, EPOLLIN | EPOLLET, 1));
    show_set("at once", set);
    show_set("not again", set);
    epoll_event unused{};
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, &unused));
    show_set("removed", set);
    SHOW(add(set, pair.server, EPOLLIN | EPOLLET, 2));
    show_set("added again", set);
}

BEHAVIOUR("changes that must fail", wrong_changes, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    const int file = MUST(open("/proc/self/exe", O_RDONLY));
    SHOW(modify(set, pair.server, EPOLLIN, 1));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, nullptr));
    SHOW(add(set, pair.server, EPOLLIN, 1));
    SHOW(add(set, pair.server, EPOLLIN, 1));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, nullptr));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, nullptr));
    SHOW(add(set, set, EPOLLIN, 1));
    SHOW(add(set, file, EPOLLIN, 1));
    SHOW(add(set, -1, EPOLLIN, 1));
    SHOW(add(set, 999, EPOLLIN, 1));
    SHOW(add(-1, pair.server, EPOLLIN, 1));
    SHOW(add(pair.client, pair.server, EPOLLIN, 1));
    epoll_event event{};
    SHOW(epoll_ctl(set, 77, pair.server, &event));
    SHOW(epoll_wait(set, &event, 0, 0));
    SHOW(epoll_wait(set, &event, opaque(-1), 0));
    SHOW(epoll_wait(pair.client, &event, 1, 0));
    SHOW(epoll_wait(-1, &event, 1, 0));
    SHOW(epoll_create(opaque(0)));
    SHOW(epoll_create1(opaque(0x1234)));
    SHOW_FD(epoll_create(1));
    SHOW(read(set, &event, 1));
}

BEHAVIOUR("closed members leave", closed_members_leave, accelerated) {
    const Pair one = make_pair(), two = make_pair();
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, one.server, EPOLLIN, 1));
    SHOW(add(set, two.server, EPOLLIN, 2));
    send_all(one.client, "x");
    send_all(two.client, "x");
    wait_for(one.server, POLLIN);
    wait_for(two.server, POLLIN);
    show_set("both", set);
    const int number = one.server;
    close(one.server);
    show_set("one closed", set);
    // Another connection gets the number; the set knows nothing of it until told.
    const Pair three = make_pair();
    const int reused = three.client == number ? three.client : three.listener;
    SHOW_BOOL(reused == number);
    send_all(three.server, "y");
    wait_for(three.client, POLLIN);
    show_set("number reused", set);
    SHOW(modify(set, reused, EPOLLIN, 3));
    SHOW(add(set, three.client, EPOLLIN, 4));
    show_set("added", set);
}

// A member stays as long as any duplicate of it is open.
BEHAVIOUR("duplicates keep members", duplicates_keep_members, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    const int copy = MUST(dup(pair.server));
    SHOW(add(set, pair.server, EPOLLIN, 1));
    SHOW(add(set, copy, EPOLLIN, 2));
    send_all(pair.client, "x");
    wait_for(copy, POLLIN);
    show_set("both", set);
    close(pair.server);
    show_set("one closed", set);
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, nullptr));
    close(copy);
    show_set("both closed", set);
}

BEHAVIOUR("removed members are silent", removed_members_are_silent, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN, 1));
    send_all(pair.client, "x");
    wait_for(pair.server, POLLIN);
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, nullptr));
    show_set("removed", set, 50);
    SHOW(add(set, pair.server, EPOLLOUT, 2));
    show_set("back for writing", set);
}

BEHAVIOUR("the data word is kept", data_word_is_kept, accelerated) {
    const Pair pair = make_pair();
    const int set = MUST(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLOUT, 0xfedcba9876543210ull));
    SHOW(add(set, pair.client, EPOLLOUT, 0xffffffffffffffffull));
    SHOW(add(set, pair.listener, EPOLLIN, 0));
    show_set("set", set);
    SHOW(modify(set, pair.client, EPOLLOUT, 0x8000000000000000ull));
    show_set("set", set);
}

// A set shared by a duplicate, and members of two sets at once.
BEHAVIOUR("several sets", several_sets, accelerated) {
    const Pair pair = make_pair();
    const int one = MUST(epoll_create1(0)), two = MUST(epoll_create1(0)), copy = MUST(dup(one));
    SHOW(add(one, pair.server, EPOLLIN | EPOLLET, 1));
    SHOW(add(two, pair.server, EPOLLIN, 2));
    send_all(pair.client, "x");
    show_set("duplicate of one", copy, kPatience);
    show_set("one", one);
    show_set("two", two, kPatience);
    close(one);
    send_all(pair.client, "y");
    show_set("duplicate of one", copy, kPatience);
    show_set("two", two);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
