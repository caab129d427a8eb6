// Several threads on the same and on different sockets.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

using namespace sdtest;

BEHAVIOUR("a reader and a writer on one socket", reader_and_writer, accelerated) {
    const Pair pair = make_pair();
    const std::string up = pattern(5000000, 1), down = pattern(6000000, 2);
    std::thread client_writer([&] { send_all(pair.client, up); });
    std::thread server_writer([&] { send_all(pair.server, down); });
    std::string got_up, got_down;
    std::thread server_reader([&] { got_up = receive(pair.server, up.size()); });
    got_down = receive(pair.client, down.size());
    client_writer.join();
    server_writer.join();
    server_reader.join();
    SHOW_BOOL(got_up == up);
    SHOW_BOOL(got_down == down);
}

// Several threads write small messages to one socket: each arrives whole.
BEHAVIOUR("several writers", several_writers, accelerated) {
    const Pair pair = make_pair();
    std::vector<std::thread> writers;
    for (int i = 0; i < 4; ++i)
        writers.emplace_back([&, i] {
            const std::string message(16, static_cast<char>('a' + i));
            for (int j = 0; j < 2000; ++j)
                send_all(pair.client, message);
        });
    int counts[4] = {};
    bool whole = true;
    for (int i = 0; i < 8000; ++i) {
        const std::string message = receive(pair.server, 16);
        whole = whole && message == std::string(16, message[0]);
        if (message[0] >= 'a' && message[0] < 'e')
            ++counts[message[0] - 'a'];
    }
    for (std::thread &writer : writers)
        writer.join();
    SHOW_BOOL(whole);
    say("%d %d %d %d", counts[0], counts[1], counts[2], counts[3]);
}

// Several threads read from one socket: every byte arrives once.
BEHAVIOUR("several readers", several_readers, accelerated) {
    const Pair pair = make_pair();
    std::atomic<uint64_t> sum{0}, bytes{0};
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i)
        readers.emplace_back([&] {
            unsigned char buffer[777];
            ssize_t got;
            while ((got = recv(pair.server, buffer, sizeof buffer, 0)) > 0) {
                bytes += static_cast<uint64_t>(got);
                for (ssize_t j = 0; j < got; ++j)
                    sum += buffer[j];
            }
        });
    const std::string data = pattern(2000000);
    uint64_t expected = 0;
    for (const char byte : data)
        expected += static_cast<unsigned char>(byte);
    send_all(pair.client, data);
    MUST(shutdown(pair.client, SHUT_WR));
    for (std::thread &reader : readers)
        reader.join();
    SHOW_BOOL(bytes == data.size());
    SHOW_BOOL(sum == expected);
}

BEHAVIOUR("many connections, many threads", many_connections_many_threads, accelerated) {
    const int listener = make_listener();
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
        const Pair pair = connect_through(listener);
        threads.emplace_back([pair] {
            char buffer[100];
            ssize_t got;
            while ((got = recv(pair.server, buffer, sizeof buffer, 0)) > 0)
                send_all(pair.server, buffer, static_cast<size_t>(got));
            close(pair.server);
        });
        threads.emplace_back([pair, i, &right] {
            for (int j = 0; j < 500; ++j) {
                const std::string message = std::to_string(i * 1000 + j) + "#";
                send_all(pair.client, message);
                right += receive(pair.client, message.size()) == message;
            }
            close(pair.client);
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    say("%d of 3000 right", right.load());
}

// Connections opened, used and closed in parallel.
BEHAVIOUR("connecting in parallel", connecting_in_parallel, accelerated) {
    const int listener = make_listener("127.0.0.1", 256);
    std::thread server([&] {
        for (int i = 0; i < 200; ++i) {
            const int fd = MUST(accept(listener, nullptr, nullptr));
            send_all(fd, receive(fd, 4));
            close(fd);
        }
    });
    std::atomic<int> right{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 4; ++i)
        clients.emplace_back([&] {
            for (int j = 0; j < 50; ++j) {
                const int fd = connect_to(listener);
                send_all(fd, "ping");
                right += receive_to_end(fd) == "ping";
                close(fd);
            }
        });
    for (std::thread &client : clients)
        client.join();
    server.join();
    say("%d of 200 right", right.load());
}

// A blocked recv keeps the connection alive when another thread closes the number.
BEHAVIOUR("close under a blocked reader", close_under_blocked_reader, accelerated) {
    const Pair pair = make_pair();
    ssize_t first = -2, second = -2;
    int error = 0;
    std::thread reader([&] {
        char byte;
        first = recv(pair.server, &byte, 1, 0);
        second = recv(pair.server, &byte, 1, 0);
        error = errno;
    });
    sleep_ms(100);
    MUST(close(pair.server));
    sleep_ms(50);
    SHOW_BOOL((poll_now(pair.client, POLLRDHUP) & POLLRDHUP) == 0);
    SHOW(send(pair.client, "x", 1, 0));
    reader.join();
    say("first %zd, second %zd %s", first, second, strerrorname_np(error));
    SHOW_BOOL(wait_for(pair.client, POLLRDHUP));
}

BEHAVIOUR("shutdown wakes a reader", shutdown_wakes_reader, accelerated) {
    const Pair pair = make_pair();
    for (const int how : {+SHUT_RD, +SHUT_RDWR}) {
        const Pair fresh = connect_through(pair.listener);
        std::thread waker([&] {
            sleep_ms(60);
            shutdown(fresh.server, how);
        });
        char byte;
        SHOW(recv(fresh.server, &byte, 1, 0));
        waker.join();
    }
    std::thread waker([&] {
        sleep_ms(60);
        shutdown(pair.server, SHUT_RDWR);
    });
    pollfd entry{pair.server, POLLIN, 0};
    SHOW(poll(&entry, 1, kPatience));
    say("%s", event_names(static_cast<uint32_t>(entry.revents)).c_str());
    waker.join();
}

BEHAVIOUR("shutdown wakes a writer", shutdown_wakes_writer, accelerated) {
    const Pair pair = make_pair();
    fill(pair.client);
    std::thread waker([&] {
        sleep_ms(60);
        shutdown(pair.client, SHUT_WR);
    });
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    waker.join();
}

BEHAVIOUR("reading wakes a writer", reading_wakes_writer, accelerated) {
    const Pair pair = make_pair();
    fill(pair.client);
    std::thread reader([&] {
        sleep_ms(60);
        while (receive(pair.server, 65536).size() == 65536) {
        }
    });
    SHOW(send(pair.client, "x", 1, 0));
    shutdown(pair.client, SHUT_WR);
    reader.join();
}

// Threads that write small messages of several pieces: no message is cut in two by another. In rounds that no
// socket buffer is too small for: where a writer has to wait for room, the kernel does not keep messages
// whole either.
BEHAVIOUR("small writes stay whole", small_writes_stay_whole, accelerated) {
    constexpr uint32_t kRounds = 300, kEach = 30;
    const Pair pair = make_pair();
    size_t messages = 0;
    bool whole = true;
    for (uint32_t round = 0; whole && round < kRounds; ++round) {
        std::vector<std::thread> writers;
        size_t total = 0;
        for (int i = 0; i < 3; ++i) {
            writers.emplace_back([&, i] {
                char text[300];
                memset(text, 'a' + i, sizeof text);
                for (uint32_t k = 0; k < kEach; ++k) {
                    uint32_t size = 1 + (round + k * 7) % sizeof text;
                    iovec parts[2] = {{&size, sizeof size}, {text, size}};
                    if (writev(pair.client, parts, 2) != static_cast<ssize_t>(sizeof size + size))
                        give_up("writev");
                }
            });
            for (uint32_t k = 0; k < kEach; ++k)
                total += sizeof(uint32_t) + 1 + (round + k * 7) % 300;
        }
        for (std::thread &writer : writers)
            writer.join();
        const std::string all = receive(pair.server, total);
        for (size_t at = 0; whole && at + sizeof(uint32_t) < all.size(); ++messages) {
            uint32_t size;
            memcpy(&size, &all[at], sizeof size);
            at += sizeof size;
            whole = size <= 300 && at + size <= all.size() &&
                    all.compare(at, size, std::string(size, all[at])) == 0;
            at += size;
        }
    }
    SHOW_BOOL(whole);
    say("%zu messages", messages);
}

// The reader's call is not under way in the child, which must not keep the connection open because of it.
BEHAVIOUR("a fork beside a blocked reader keeps nothing open", fork_beside_blocked_reader, accelerated) {
    const Pair pair = make_pair();
    std::thread reader([&] { say("reader: %s", receive(pair.server, 1).c_str()); });
    sleep_ms(100); // it sleeps
    const Gate closed, end;
    const pid_t child = spawn([&] {
        close(pair.client);
        close(pair.server);
        closed.open();
        end.pass();
        _exit(0);
    });
    closed.pass();
    send_all(pair.client, "x");
    reader.join();
    close(pair.server);
    char byte;
    set_timeout(pair.client, SO_RCVTIMEO, kPatience);
    say("after the last close: %zd", recv(pair.client, &byte, 1, 0));
    end.open();
    reap("child", child);
}

BEHAVIOUR("a cancelled reader", cancelled_reader, accelerated) {
    const Pair pair = make_pair();
    pthread_t reader;
    MUST(-pthread_create(
        &reader, nullptr,
        [](void *argument) -> void * {
            char byte;
            recv(*static_cast<const int *>(argument), &byte, 1, 0);
            return argument;
        },
        const_cast<int *>(&pair.client)));
    sleep_ms(80);
    SHOW(pthread_cancel(reader));
    void *result = nullptr;
    SHOW(pthread_join(reader, &result));
    SHOW_BOOL(result == PTHREAD_CANCELED);
    send_all(pair.server, "fine");
    say("%s", receive(pair.client, 4).c_str());
}

// Every call here has its answer at once; a thread that never sleeps is cancelled all the same.
BEHAVIOUR("a thread that is cancelled and never sleeps", cancelled_without_sleep, accelerated) {
    static Pair pair;
    pair = make_pair();
    set_nonblocking(pair.listener);
    static std::atomic<int> call;
    for (call = 0; call < 5; ++call) {
        pthread_t thread;
        send_all(pair.client, "x");
        MUST(-pthread_create(
            &thread, nullptr,
            [](void *) -> void * {
                char byte;
                pollfd entry{pair.server, POLLIN, 0};
                for (;;) {
                    switch (call) {
                    case 0:
                        recv(pair.server, &byte, 1, MSG_PEEK);
                        break;
                    case 1:
                        send(pair.server, "y", 1, MSG_DONTWAIT);
                        break;
                    case 2:
                        poll(&entry, 1, 0);
                        break;
                    case 3:
                        recv(pair.client, &byte, 1, MSG_DONTWAIT);
                        break;
                    default:
                        accept4(pair.listener, nullptr, nullptr, SOCK_CLOEXEC);
                    }
                }
            },
            nullptr));
        usleep(20'000);
        SHOW(pthread_cancel(thread));
        void *result = nullptr;
        MUST(-pthread_join(thread, &result));
        SHOW_BOOL(result == PTHREAD_CANCELED);
    }
}

// A call that is made by its number is no cancellation point, asleep or not.
BEHAVIOUR("a cancelled thread's calls by number", cancelled_call_by_number, accelerated) {
    static Pair pair;
    static std::atomic<bool> asked{false};
    pair = make_pair();
    for (const bool sleeps : {false, true}) {
        pthread_t thread;
        if (!sleeps)
            send_all(pair.client, "x");
        MUST(-pthread_create(
            &thread, nullptr,
            [](void *first) -> void * {
                char byte;
                while (first == nullptr && !asked) { // the request is there when the call is made
                }
                SHOW(syscall(SYS_recvfrom, pair.server, &byte, 1, 0, nullptr, nullptr));
                const int fresh = static_cast<int>(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
                SHOW(syscall(SYS_recvfrom, fresh, &byte, 1, 0, nullptr, nullptr));
                pthread_testcancel();
                return nullptr;
            },
            sleeps ? &pair : nullptr));
        if (sleeps)
            sleep_ms(60);
        SHOW(pthread_cancel(thread));
        asked = true;
        if (sleeps) {
            sleep_ms(30);
            send_all(pair.client, "y");
        }
        void *result = nullptr;
        MUST(-pthread_join(thread, &result));
        SHOW_BOOL(result == PTHREAD_CANCELED);
    }
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
