// Where calls end at an urgent byte: those that wait when it comes, and those that meet it where a direction
// has changed its path (SD_TEST_PATHS).
#include "tests/programs/blocking.hpp"
#include "tests/programs/cases.hpp"

#include <sys/ioctl.h>

using namespace sdtest;

namespace {

/// A thread in a call that waits.
class Waiting {
  public:
    template <class F> explicit Waiting(F call)
        : thread_([this, call] {
              entered_ = thread_id();
              call();
              returned_ = true;
          }) {}
    bool blocked() { return wait_until_blocked(entered_, returned_); }
    bool returns_in_time() const {
        for (Stopwatch watch; !returned_ && watch.ms() < kPatience;)
            usleep(200);
        return returned_;
    }
    void join() { thread_.join(); }

  private:
    std::atomic<pid_t> entered_{0};
    std::atomic<bool> returned_{false};
    std::thread thread_;
};

/// A thread in splice() from the socket into a pipe.
class Splicer {
  public:
    explicit Splicer(int fd)
        : thread_([this, fd] {
              entered_ = thread_id();
              result_ = into_pipe(fd, &text_, &error_);
              returned_ = true;
          }) {}
    ~Splicer() { thread_.join(); }
    bool blocked() { return wait_until_blocked(entered_, returned_); }
    void tell(const char *when) {
        for (Stopwatch watch; !returned_ && watch.ms() < kPatience;)
            usleep(200);
        if (!returned_)
            give_up("splice does not return");
        say("%s: %ld %s %s", when, result_, result_ < 0 ? strerrorname_np(error_) : "", text_.c_str());
    }

    static long into_pipe(int fd, std::string *text, int *error) {
        int ends[2];
        MUST(pipe(ends));
        const long n = splice(fd, nullptr, ends[1], nullptr, 100, 0);
        *error = errno;
        if (n > 0) {
            text->resize(static_cast<size_t>(n));
            MUST(read(ends[0], text->data(), text->size()));
        }
        close(ends[0]);
        close(ends[1]);
        return n;
    }

  private:
    std::atomic<pid_t> entered_{0};
    std::atomic<bool> returned_{false};
    std::string text_;
    long result_ = 0;
    int error_ = 0;
    std::thread thread_;
};

void show_splice(const char *when, int fd) {
    std::string text;
    int error = 0;
    const long n = Splicer::into_pipe(fd, &text, &error);
    say("%s: %ld %s %s", when, n, n < 0 ? strerrorname_np(error) : "", text.c_str());
}

void send_urgent(int fd, const char *text) { MUST(send(fd, text, strlen(text), MSG_OOB)); }

/// Has sent and read so much before that its direction may have moved, and may be about to.
Pair with_messages(int messages) {
    const Pair pair = make_pair();
    const int now = 1;
    MUST(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now));
    for (int i = 0; i < messages; ++i) {
        send_all(pair.client, "before");
        receive(pair.server, 6);
    }
    return pair;
}

} // namespace

BEHAVIOUR("splice that waits ends at an urgent byte", waiting_splice, any) {
    for (const int is_inline : {0, 1}) {
        for (const char *text : {"!", "xy!"}) {
            for (const int messages : {0, 1, 2, 3, 5}) {
                const Pair pair = with_messages(messages);
                set_option(pair.server, SOL_SOCKET, SO_OOBINLINE, is_inline);
                Splicer splicer(pair.server);
                SHOW_BOOL(splicer.blocked());
                send_urgent(pair.client, text);
                splicer.tell("when it came");
            }
        }
    }
}

BEHAVIOUR("splice passes no urgent byte", splice_at_the_mark, any) {
    for (const int is_inline : {0, 1}) {
        for (const int messages : {0, 1, 2, 3, 5}) {
            const Pair pair = with_messages(messages);
            char bytes[8];
            set_option(pair.server, SOL_SOCKET, SO_OOBINLINE, is_inline);
            send_all(pair.client, "a");
            send_urgent(pair.client, "!");
            send_all(pair.client, "bc");
            wait_for(pair.server, POLLPRI);
            show_splice("before it", pair.server);
            show_splice("at it", pair.server);
            SHOW(sockatmark(pair.server));
            if (!is_inline)
                SHOW(recv(pair.server, bytes, 1, MSG_OOB));
            show_splice("at it still", pair.server);
            set_nonblocking(pair.server);
            show_splice("without waiting", pair.server);
            SHOW(recv(pair.server, bytes, 1, MSG_PEEK));
            show_splice("peeked", pair.server);
            SHOW(recv(pair.server, bytes, 1, 0));
            show_splice("behind it", pair.server);
            show_splice("nothing more", pair.server);
        }
    }
}

BEHAVIOUR("splice at an urgent byte, and the end behind it", splice_before_the_end, any) {
    for (const bool resets : {false, true}) {
        for (const bool waits : {false, true}) {
            for (const int messages : {0, 1, 2, 3, 5}) {
                const Pair pair = with_messages(messages);
                send_urgent(pair.client, "!");
                set_nonblocking(pair.server, !waits);
                wait_for(pair.server, POLLPRI);
                if (resets)
                    abort_connection(pair.client);
                else
                    SHOW(shutdown(pair.client, SHUT_WR));
                wait_for(pair.server, POLLRDHUP);
                show_splice("at it", pair.server);
                show_splice("again", pair.server);
            }
        }
    }
}

BEHAVIOUR("splice that waits, and the urgent byte was taken", splice_of_taken, any) {
    for (const int messages : {0, 1, 2, 3, 5}) {
        const Pair pair = with_messages(messages);
        char byte;
        send_urgent(pair.client, "!");
        wait_for(pair.server, POLLPRI);
        SHOW(recv(pair.server, &byte, 1, MSG_OOB));
        show_splice("at it", pair.server);
        SHOW(recv(pair.server, &byte, 1, MSG_DONTWAIT)); // which passes it
        Splicer splicer(pair.server);
        SHOW_BOOL(splicer.blocked());
        send_all(pair.client, "a");
        splicer.tell("behind it");
    }
}

// Each send may be the one at which the direction moves.
BEHAVIOUR("reads end at an urgent byte wherever it lies", reads_end_at_the_mark, any) {
    for (const int is_inline : {0, 1}) {
        for (const bool taken : {false, true}) {
            const Pair pair = with_messages(0);
            set_option(pair.server, SOL_SOCKET, SO_OOBINLINE, is_inline);
            for (int i = 0; i < 150; ++i) {
                char bytes[16] = {}, byte = 0;
                send_all(pair.client, "a");
                send_all(pair.client, "b");
                send_urgent(pair.client, "!");
                if (i % 3 != 0)
                    send_all(pair.client, "c");
                send_all(pair.client, "d");
                wait_for(pair.server, POLLIN | POLLPRI);
                if (taken && !is_inline)
                    MUST(recv(pair.server, &byte, 1, MSG_OOB));
                std::string told;
                for (const int flags : {int{MSG_PEEK}, MSG_PEEK | MSG_WAITALL, int{MSG_WAITALL}}) {
                    const long n = recv(pair.server, bytes, sizeof bytes, flags);
                    told += std::string(bytes, n > 0 ? static_cast<size_t>(n) : 0) + " ";
                }
                told += sockatmark(pair.server) ? "at it " : "not at it ";
                told += receive(pair.server, (i % 3 != 0 ? 2u : 1u) + static_cast<unsigned>(is_inline));
                say("%s", told.c_str());
            }
        }
    }
}

BEHAVIOUR("recv that waits for what is behind an urgent byte", waiting_receive, any) {
    for (const int is_inline : {0, 1}) {
        for (const int flags : {0, int{MSG_PEEK}, int{MSG_WAITALL}, MSG_PEEK | MSG_WAITALL}) {
            for (const int messages : {0, 1, 2, 3, 5}) {
                const Pair pair = with_messages(messages);
                set_option(pair.server, SOL_SOCKET, SO_OOBINLINE, is_inline);
                char bytes[8] = {};
                long n = 0;
                Waiting reader([&] { n = recv(pair.server, bytes, 2, flags); });
                SHOW_BOOL(reader.blocked());
                send_urgent(pair.client, "!");
                sleep_ms(5); // so that it mostly meets this alone
                if (is_inline && !(flags & MSG_WAITALL))
                    SHOW_BOOL(reader.returns_in_time());
                send_all(pair.client, "a");
                if (!(flags & MSG_WAITALL))
                    SHOW_BOOL(reader.returns_in_time());
                send_all(pair.client, "b");
                reader.join();
                say("%ld %.*s", n, n > 0 ? static_cast<int>(n) : 0, bytes);
            }
        }
    }
}

BEHAVIOUR("recv that waits for more ends when an urgent byte comes", waiting_for_more, any) {
    for (const int is_inline : {0, 1}) {
        for (const int flags : {0, int{MSG_PEEK}, int{MSG_WAITALL}, MSG_PEEK | MSG_WAITALL}) {
            for (const int messages : {0, 1, 2, 3, 5}) {
                const Pair pair = with_messages(messages);
                set_option(pair.server, SOL_SOCKET, SO_OOBINLINE, is_inline);
                if (!(flags & MSG_WAITALL))
                    set_option(pair.server, SOL_SOCKET, SO_RCVLOWAT, 4);
                char bytes[8] = {};
                long n = 0;
                send_all(pair.client, "a");
                Waiting reader([&] { n = recv(pair.server, bytes, 5, flags); });
                SHOW_BOOL(reader.blocked());
                send_urgent(pair.client, "b!");
                SHOW_BOOL(reader.returns_in_time());
                shutdown(pair.server, SHUT_RD);
                reader.join();
                say("%ld %.*s", n, n > 0 ? static_cast<int>(n) : 0, bytes);
            }
        }
    }
}

// The bytes come in the midst of the peeks of a call that waits.
BEHAVIOUR("peek for more sees all before an urgent byte", all_before_the_mark, any) {
    for (const int is_inline : {0, 1}) {
        const Pair pair = with_messages(3);
        set_option(pair.server, SOL_SOCKET, SO_OOBINLINE, is_inline);
        for (int i = 0; i < 600; ++i) {
            char bytes[8] = {};
            long n = 0;
            send_all(pair.client, "a");
            std::atomic<bool> looks{false};
            std::thread reader([&] {
                looks = true;
                n = recv(pair.server, bytes, 5, MSG_PEEK | MSG_WAITALL);
            });
            while (!looks)
                sched_yield();
            usleep(static_cast<unsigned>(20 + i % 300));
            send_urgent(pair.client, "b!");
            reader.join();
            if (n != 2 || strcmp(bytes, "ab") != 0)
                say("%ld %s", n, bytes);
            receive(pair.server, 2 + static_cast<unsigned>(is_inline));
            if (!is_inline) {
                MUST(recv(pair.server, bytes, 1, MSG_OOB));
                recv(pair.server, bytes, 1, MSG_DONTWAIT); // which passes it
            }
        }
    }
}

BEHAVIOUR("recv that waits passes an urgent byte", waiting_passes, any) {
    for (const int flags : {0, int{MSG_PEEK}, int{MSG_WAITALL}}) {
        for (const int messages : {0, 1, 2, 3, 5}) {
            const Pair pair = with_messages(messages);
            char bytes[8] = {};
            Waiting reader([&] { SHOW(recv(pair.server, bytes, 2, flags)); });
            SHOW_BOOL(reader.blocked());
            send_urgent(pair.client, "!");
            for (Stopwatch watch;
                 poll_now(pair.server, POLLPRI) && watch.ms() < (flags & MSG_PEEK ? 20 : kPatience);)
                usleep(200);
            SHOW_BOOL(poll_now(pair.server, POLLPRI) != 0);
            SHOW(recv(pair.server, bytes, 1, MSG_OOB));
            send_all(pair.client, "ab");
            reader.join();
        }
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
