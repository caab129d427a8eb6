// io_uring as programs use it that link to liburing, which makes its system calls itself.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <liburing.h>

using namespace sdtest;

namespace {

class Ring {
  public:
    Ring() : usable_(io_uring_queue_init(8, &ring_, 0) == 0) {}
    ~Ring() {
        if (usable_)
            io_uring_queue_exit(&ring_);
    }
    Ring(const Ring &) = delete;
    Ring &operator=(const Ring &) = delete;

    bool usable() const { return usable_; }
    io_uring *get() { return &ring_; }
    io_uring_sqe *next() { return io_uring_get_sqe(&ring_); }

    // Hands over what was prepared and waits for one completion.
    int run(const char *what) {
        const int submitted = io_uring_submit(&ring_);
        io_uring_cqe *done = nullptr;
        const int waited = io_uring_wait_cqe(&ring_, &done);
        const int result = waited == 0 ? done->res : waited;
        if (waited == 0)
            io_uring_cqe_seen(&ring_, done);
        say("%s: %d submitted, %d %s", what, submitted, result, result < 0 ? strerrorname_np(-result) : "");
        return result;
    }

  private:
    io_uring ring_{};
    bool usable_;
};

} // namespace

BEHAVIOUR("data by liburing", data, any) {
    Ring ring;
    if (!ring.usable())
        return say("no io_uring here");
    const Pair pair = make_pair();
    char in[16] = {};
    io_uring_prep_send(ring.next(), pair.client, "by ring", 7, 0);
    ring.run("send");
    say("%s", receive(pair.server, 7).c_str());
    SHOW(send(pair.client, "plain", 5, 0));
    io_uring_prep_poll_add(ring.next(), pair.server, POLLIN);
    ring.run("poll");
    io_uring_prep_recv(ring.next(), pair.server, in, sizeof in, 0);
    ring.run("receive");
    say("%s", in);
    SHOW(send(pair.server, "back", 4, 0));
    io_uring_prep_read(ring.next(), pair.client, in, sizeof in, 0);
    ring.run("read");
    say("%.4s", in);
    io_uring_prep_close(ring.next(), pair.client);
    ring.run("close");
    say("%s", receive_to_end(pair.server).c_str());
}

BEHAVIOUR("connect and accept by liburing", connecting, any) {
    Ring ring;
    if (!ring.usable())
        return say("no io_uring here");
    const int listener = make_listener();
    const Address to = local_address(listener);
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    io_uring_prep_connect(ring.next(), client, to.raw(), to.length);
    ring.run("connect");
    io_uring_prep_accept(ring.next(), listener, nullptr, nullptr, 0);
    const int server = ring.run("accept");
    SHOW(send(client, "one", 3, 0));
    say("%s", receive(server, 3).c_str());
    const int second = connect_to(listener);
    io_uring_prep_accept(ring.next(), listener, nullptr, nullptr, 0);
    const int second_server = ring.run("accept");
    SHOW(send(second, "two", 3, 0));
    say("%s", receive(second_server, 3).c_str());
}

// Sockets that the ring keeps: their numbers may go.
BEHAVIOUR("sockets that a ring of liburing keeps", kept_files, any) {
    Ring ring;
    if (!ring.usable())
        return say("no io_uring here");
    const Pair pair = make_pair();
    const int kept[] = {pair.server, -1};
    SHOW(io_uring_register_files(ring.get(), kept, 2));
    SHOW(send(pair.client, "kept", 4, 0));
    close(pair.server);
    char in[16] = {};
    io_uring_sqe *receive_it = ring.next();
    io_uring_prep_recv(receive_it, 0, in, sizeof in, 0);
    receive_it->flags |= IOSQE_FIXED_FILE;
    ring.run("receive");
    say("%s", in);
    const Pair other = make_pair();
    SHOW(io_uring_register_files_update(ring.get(), 1, &other.server, 1));
    SHOW(send(other.client, "later", 5, 0));
    receive_it = ring.next();
    io_uring_prep_recv(receive_it, 1, in, sizeof in, 0);
    receive_it->flags |= IOSQE_FIXED_FILE;
    ring.run("receive");
    say("%s", in);
}

// A ring as the kernel's interface has it, under liburing's names.
BEHAVIOUR("liburing's names of the system calls", bare_calls, any) {
    io_uring_params p{};
    const int fd = io_uring_setup(4, &p);
    if (fd < 0)
        return say("no io_uring here");
    const Pair pair = make_pair();
    SHOW(io_uring_register(fd, IORING_REGISTER_FILES, &pair.client, 1));
    SHOW(send(pair.client, "x", 1, 0));
    say("%s", receive(pair.server, 1).c_str());
    say("%s", strerrorname_np(-io_uring_enter(fd, 0, 0, ~0U, nullptr)));
    close(fd);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
