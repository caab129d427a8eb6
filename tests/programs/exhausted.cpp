// A process that has used up its descriptors.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <sys/resource.h>

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
BEHAVIOUR(waiting_without_numbers) {
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
BEHAVIOUR(last_number_connects) {
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
BEHAVIOUR(last_number_from_the_start) {
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

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
