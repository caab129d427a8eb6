// io_uring through syscall(), as event loops use it that bring no library for it along.
#include "tests/programs/cases.hpp"

#include <linux/io_uring.h>
#include <sys/syscall.h>

using namespace sdtest;

namespace {

class Ring {
  public:
    Ring() {
        io_uring_params p{};
        fd_ = static_cast<int>(syscall(SYS_io_uring_setup, 8, &p));
        if (fd_ < 0)
            return;
        const size_t submissions = p.sq_off.array + p.sq_entries * sizeof(unsigned);
        const size_t completions = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe);
        char *rings = map(std::max(submissions, completions), IORING_OFF_SQ_RING);
        entries_ = reinterpret_cast<io_uring_sqe *>(map(p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
        tail_ = reinterpret_cast<unsigned *>(rings + p.sq_off.tail);
        array_ = reinterpret_cast<unsigned *>(rings + p.sq_off.array);
        mask_ = p.sq_entries - 1;
        done_head_ = reinterpret_cast<unsigned *>(rings + p.cq_off.head);
        done_tail_ = reinterpret_cast<unsigned *>(rings + p.cq_off.tail);
        done_ = reinterpret_cast<io_uring_cqe *>(rings + p.cq_off.cqes);
        done_mask_ = p.cq_entries - 1;
    }

    bool usable() const { return fd_ >= 0; }
    int fd() const { return fd_; }

    void add(const io_uring_sqe &entry) {
        const unsigned place = *tail_ & mask_;
        entries_[place] = entry;
        array_[place] = place;
        __atomic_store_n(tail_, *tail_ + 1, __ATOMIC_RELEASE);
        ++waiting_;
    }

    void change_set(int set, int operation, int fd, epoll_event *event) {
        io_uring_sqe e{};
        e.opcode = IORING_OP_EPOLL_CTL;
        e.fd = set;
        e.len = static_cast<unsigned>(operation);
        e.off = static_cast<unsigned>(fd);
        e.addr = reinterpret_cast<uintptr_t>(event);
        add(e);
    }

    void transfer(int opcode, int fd, void *data, unsigned bytes) {
        io_uring_sqe e{};
        e.opcode = static_cast<uint8_t>(opcode);
        e.fd = fd;
        e.addr = reinterpret_cast<uintptr_t>(data);
        e.len = bytes;
        add(e);
    }

    void submit() {
        submitted_ = waiting_;
        for (unsigned i = 0; i < submitted_; ++i)
            entries_[(*tail_ - submitted_ + i) & mask_].user_data = i;
        waiting_ = 0;
        say("%ld submitted", syscall(SYS_io_uring_enter, fd_, submitted_, 0, 0, nullptr, 0));
    }

    // Waits for all that was submitted and prints the results in the order of submission.
    // The result of the last is the value.
    int collect(const char *what) {
        say("%s: %ld", what, syscall(SYS_io_uring_enter, fd_, 0, submitted_, IORING_ENTER_GETEVENTS, nullptr, 0));
        std::vector<int> results(submitted_, 1 << 30);
        while (*done_head_ != __atomic_load_n(done_tail_, __ATOMIC_ACQUIRE)) {
            const io_uring_cqe &c = done_[*done_head_ & done_mask_];
            results.at(c.user_data) = c.res;
            __atomic_store_n(done_head_, *done_head_ + 1, __ATOMIC_RELEASE);
        }
        for (int result : results)
            say("  %d %s", result, result < 0 ? strerrorname_np(-result) : "");
        return results.back();
    }

    int run(const char *what) {
        submit();
        return collect(what);
    }

  private:
    char *map(size_t bytes, off_t offset) const {
        void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, offset);
        if (p == MAP_FAILED)
            give_up("mmap of a ring");
        return static_cast<char *>(p);
    }

    int fd_ = -1;
    io_uring_sqe *entries_ = nullptr;
    unsigned *tail_ = nullptr, *array_ = nullptr, mask_ = 0, waiting_ = 0, submitted_ = 0;
    unsigned *done_head_ = nullptr, *done_tail_ = nullptr, done_mask_ = 0;
    io_uring_cqe *done_ = nullptr;
};

void show_event(int set) {
    epoll_event event{};
    const int n = epoll_wait(set, &event, 1, kPatience);
    say("%d event: %s of %d", n, event_names(event.events).c_str(), event.data.fd);
}

epoll_event wanted(uint32_t events, int name) {
    epoll_event e{};
    e.events = events;
    e.data.fd = name;
    return e;
}

} // namespace

// The members of an epoll set, changed in batches.
BEHAVIOUR("an epoll set changed by io_uring", members_of_a_set, accelerated) {
    Ring ring;
    if (!ring.usable())
        return say("no io_uring here");
    const int listener = make_listener();
    const int set = MUST(epoll_create1(0));
    const int client = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    epoll_event for_listener = wanted(EPOLLIN, 1), for_client = wanted(EPOLLOUT, 2),
                for_server = wanted(EPOLLIN, 3);
    ring.change_set(set, EPOLL_CTL_ADD, listener, &for_listener);
    ring.run("the listener");
    const Address to = local_address(listener);
    SHOW_BOOL(connect(client, to.raw(), to.length) == 0 || errno == EINPROGRESS);
    show_event(set);
    const int server = MUST(accept(listener, nullptr, nullptr));
    ring.change_set(set, EPOLL_CTL_DEL, listener, nullptr);
    ring.change_set(set, EPOLL_CTL_ADD, client, &for_client);
    ring.change_set(set, EPOLL_CTL_ADD, client, &for_client);
    ring.change_set(set, EPOLL_CTL_MOD, server, &for_server);
    ring.change_set(set, EPOLL_CTL_ADD, -1, &for_server);
    ring.change_set(set, EPOLL_CTL_ADD, server, bad_pointer<epoll_event>());
    ring.run("a batch with mistakes");
    show_event(set);
    for_client.events = EPOLLIN;
    ring.change_set(set, EPOLL_CTL_MOD, client, &for_client);
    ring.change_set(set, EPOLL_CTL_ADD, server, &for_server);
    ring.run("another interest");
    SHOW(send(client, "x", 1, 0));
    show_event(set);
    const int copy = dup(server);
    ring.transfer(IORING_OP_CLOSE, copy, nullptr, 0);
    ring.transfer(IORING_OP_CLOSE, client, nullptr, 0);
    ring.transfer(IORING_OP_CLOSE, client, nullptr, 0);
    ring.run("closing");
    SHOW(fcntl(client, F_GETFD));
    say("%s", receive_to_end(server).c_str());
    SHOW(close(ring.fd()));
}

// What only the kernel can do for a ring, it does on sockets of its own.
BEHAVIOUR("data by io_uring", data, any) {
    Ring ring;
    if (!ring.usable())
        return say("no io_uring here");
    const Pair pair = make_pair();
    char out[] = "by ring", in[16] = {};
    ring.transfer(IORING_OP_SEND, pair.client, out, 7);
    ring.run("send");
    say("%s", receive(pair.server, 7).c_str());
    SHOW(send(pair.client, "plain", 5, 0));
    ring.transfer(IORING_OP_RECV, pair.server, in, 5);
    ring.run("receive");
    say("%s", in);
    SHOW(shutdown(pair.client, SHUT_WR));
    ring.transfer(IORING_OP_READ, pair.server, in, 5);
    ring.run("end");
}

// Connections made and accepted by a ring.
BEHAVIOUR("connect and accept by io_uring", connecting, any) {
    Ring ring;
    if (!ring.usable())
        return say("no io_uring here");
    const int listener = make_listener();
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    Address to = local_address(listener);
    io_uring_sqe e{};
    e.opcode = IORING_OP_CONNECT;
    e.fd = client;
    e.addr = reinterpret_cast<uintptr_t>(to.raw());
    e.off = to.length;
    ring.add(e);
    ring.run("connect");
    const int server = SHOW_FD(accept(listener, nullptr, nullptr));
    SHOW(send(client, "one", 3, 0));
    say("%s", receive(server, 3).c_str());
    // One that waits already, and one that comes later.
    const int second = MUST(socket(AF_INET, SOCK_STREAM, 0)), third = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(connect(second, to.raw(), to.length));
    ring.transfer(IORING_OP_ACCEPT, listener, nullptr, 0);
    const int second_server = ring.run("accept");
    SHOW(send(second, "two", 3, 0));
    say("%s", receive(second_server, 3).c_str());
    ring.transfer(IORING_OP_ACCEPT, listener, nullptr, 0);
    ring.submit();
    SHOW(connect(third, to.raw(), to.length));
    const int third_server = ring.collect("accept");
    SHOW(send(third, "three", 5, 0));
    say("%s", receive(third_server, 5).c_str());
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
