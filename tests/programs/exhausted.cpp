// A process that has used up its descriptors.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <atomic>
#include <optional>
#include <sys/resource.h>
#include <thread>

using namespace sdtest;

namespace {

/// The limit is the lowest number that is free, for good, so nothing can be opened; the value.
int use_up_numbers() {
    const int free = MUST(socket(AF_INET, SOCK_STREAM, 0));
    close(free);
    const rlimit limit{static_cast<rlim_t>(free), static_cast<rlim_t>(free)};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    return free;
}

} // namespace

// The calls that find no number for themselves must not need one of their own either.
BEHAVIOUR("waiting without a number to spare", waiting_without_numbers, accelerated) {
    const Pair pair = make_pair();
    const Pair watched = make_pair();
    const int set = MUST(epoll_create1(0));
    const pid_t child = MUST(fork());
    if (child == 0) {
        for (const char *text : {"poll", "epoll", "receive"}) {
            sleep_ms(200);
            send_all(*text == 'e' ? watched.client : pair.client, text);
        }
        _exit(0);
    }
    use_up_numbers();
    SHOW(socket(AF_INET, SOCK_STREAM, 0));
    pollfd entries[] = {{pair.server, POLLIN, 0}, {pair.listener, POLLIN, 0}};
    SHOW(poll(entries, 2, 20));
    epoll_event event{};
    event.events = EPOLLIN;
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, watched.server, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, watched.listener, &event));
    SHOW(epoll_wait(set, &event, 1, 20));
    SHOW(poll(entries, 2, kPatience));
    say("%s", receive(pair.server, 4).c_str());
    SHOW(epoll_wait(set, &event, 1, kPatience));
    say("%s", receive(watched.server, 5).c_str());
    say("%s", receive(pair.server, 7).c_str());
    reap("the sender", child);
    close(set);
    close(pair.client);
}

// The last number there is goes to a socket that a plain listener is connected to.
BEHAVIOUR("the last number connects", last_number_connects, any) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    const int spare = MUST(dup(0));
    use_up_numbers();
    close(spare);
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    SHOW_BOOL(client == spare);
    SHOW_BOOL(connect(client, to.raw(), to.length) == 0 || errno == EINPROGRESS);
    wait_for(client, POLLOUT);
    SHOW(get_option(client, SOL_SOCKET, SO_ERROR));
    wait_for(listener, POLLIN);
    SHOW(accept(listener, nullptr, nullptr));
    close(client);
    close(listener);
}

// The same in a process that never had a number to spare for the library.
BEHAVIOUR("the last number connects, with no number for the library before", last_number_from_the_start, any) {
    rlimit limit{40, 40};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    const int listener = make_listener();
    const Address to = local_address(listener);
    const int first = MUST(dup(0));
    int last = first;
    for (int fd; (fd = dup(0)) >= 0;)
        last = fd;
    SHOW_BOOL(errno == EMFILE && last > first);
    close(first);
    const int client = SHOW_FD(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW_BOOL(connect(client, to.raw(), to.length) == 0 || errno == EINPROGRESS);
    wait_for(client, POLLOUT);
    SHOW(get_option(client, SOL_SOCKET, SO_ERROR));
    wait_for(listener, POLLIN);
    SHOW(accept(listener, nullptr, nullptr));
    for (int fd = last - 3; fd <= last; ++fd)
        close(fd);
    const int server = SHOW_FD(accept(listener, nullptr, nullptr));
    send_all(client, "hello");
    say("%s", receive(server, 5).c_str());
}

namespace {

/// `final`: the limit cannot be raised. Else another thread is about. Either way the library's own
/// descriptors stay where they are.
void no_number_until_one_is_closed(bool final) {
    rlimit limit{};
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 1500;
    if (final)
        limit.rlim_max = limit.rlim_cur;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    std::atomic<bool> over{false};
    std::optional<std::thread> bystander;
    if (!final)
        bystander.emplace([&] {
            while (!over)
                sleep_ms(10);
        });
    const int first = make_listener(), second = make_listener();
    const int client = connect_to(first);
    const int server = MUST(accept(first, nullptr, nullptr));
    const int late = MUST(socket(AF_INET, SOCK_STREAM, 0));
    const Address to = local_address(second);
    int last = -1;
    auto use_up = [&] {
        for (int fd; (fd = dup(0)) >= 0;)
            last = fd;
        return errno;
    };
    SHOW_BOOL(use_up() == EMFILE);
    for (int fd : {client, server, first})
        close(fd);
    SHOW_BOOL(use_up() == EMFILE);
    SHOW(connect(late, to.raw(), to.length)); // what the first connection needed is given back
    SHOW(dup(0));
    SHOW(accept(second, nullptr, nullptr));
    close(last);
    SHOW_BOOL(accept(second, nullptr, nullptr) == last);
    send_all(late, "late");
    say("%s", receive(last, 4).c_str());
    SHOW(dup(0));
    for (int fd : {late, last}) // for the library's statistics
        close(fd);
    over = true;
    if (bystander)
        bystander->join();
}

} // namespace

// Who was told that no number is left finds one when one was closed, and not because the library needs one of
// its own no more.
BEHAVIOUR("used up numbers stay used up, with a final limit", final_limit_stays_used_up, any) {
    no_number_until_one_is_closed(true);
}
BEHAVIOUR("used up numbers stay used up, with several threads", threads_limit_stays_used_up, any) {
    no_number_until_one_is_closed(false);
}

// Clients of the kernel's queue get the lowest free number, too, where the library's own descriptors begin.
BEHAVIOUR("clients of the kernel's queue get each number", kernel_clients_get_each_number, any) {
    const int listener = make_listener();
    const Address to = local_address(listener);
    while (MUST(dup(0)) < 1009) {
    }
    MUST(connect_to(listener)); // for which the library gets a number of its own
    int last = MUST(accept(listener, nullptr, nullptr));
    bool each = last == 1011;
    for (int i = 0; i < 20; ++i) {
        const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
        keep_in_kernel(client);
        MUST(connect(client, to.raw(), to.length));
        const int server = MUST(accept(listener, nullptr, nullptr));
        each = each && client == last + 1 && server == last + 2;
        last = server;
    }
    SHOW_BOOL(each);
}

// A program may have as many descriptors as its limit says, and has no other number when it was told so,
// whatever ends meanwhile.
BEHAVIOUR("every number below the limit is the program's", all_numbers, accelerated) {
    rlimit limit{};
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    if (limit.rlim_cur > 2000)
        limit.rlim_cur = 2000;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    const int top = static_cast<int>(limit.rlim_cur);

    const Pair pair = make_pair();
    const int go = pair.server;
    int orders[2];
    MUST(pipe(orders));
    const Address to = local_address(pair.listener);
    const pid_t peer = spawn([&] { // answers, and connects when told to
        close(pair.client);
        const int other = connect_to(pair.listener);
        char order;
        MUST(read(orders[0], &order, 1));
        close(other);
        send_all(go, "closed");
        MUST(read(orders[0], &order, 1));
        const int late = MUST(socket(AF_INET, SOCK_STREAM, 0));
        MUST(connect(late, to.raw(), to.length));
        send_all(late, "late");
        sleep_ms(200);
        send_all(go, "bye");
        MUST(read(orders[0], &order, 1));
    });
    const int first = MUST(accept(pair.listener, nullptr, nullptr));
    int free = 0, made = 0;
    for (int fd = 0; fd < top; ++fd)
        free += fcntl(fd, F_GETFD) < 0;
    int last = -1;
    for (int fd; (fd = made % 2 ? dup(first) : open("/dev/null", O_RDONLY)) >= 0; ++made)
        last = fd;
    SHOW_BOOL(errno == EMFILE);
    SHOW_BOOL(made == free);
    SHOW_BOOL(last == top - 1);
    MUST(write(orders[1], "c", 1));
    say("%s", receive(pair.client, 6).c_str());
    SHOW(dup(0));
    MUST(write(orders[1], "l", 1));
    wait_for(pair.listener, POLLIN);
    SHOW(accept(pair.listener, nullptr, nullptr));
    SHOW(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(epoll_create1(0));
    close(last);
    SHOW_BOOL(accept(pair.listener, nullptr, nullptr) == last);
    say("%s", receive(last, 4).c_str());
    say("%s", receive(pair.client, 3).c_str());
    SHOW_BOOL(dup2(0, top - 2) == top - 2);
    SHOW(dup2(0, top));
    for (int fd = first + 1; fd < last; ++fd) // a shell needs some
        close(fd);
    SHOW(system("exit 3"));
    MUST(write(orders[1], "e", 1));
    reap("the peer", peer);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
