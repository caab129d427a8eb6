// Connections across exec: kept, closed on exec, moved to the standard numbers, passed to another process.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

#include <linux/close_range.h>
#include <spawn.h>

using namespace sdtest;

namespace {

std::string own_path() {
    char path[4096] = {};
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    return path;
}

} // namespace

// The second image of the tests below: `images serve NUMBER` answers one request on that descriptor.
BEHAVIOUR("exec keeps a connection", exec_keeps_connection, accelerated) {
    const Pair pair = make_pair();
    const int kept = MUST(fcntl(pair.server, F_DUPFD, 60));
    const pid_t child = spawn([&] {
        const std::string path = own_path();
        execl(path.c_str(), path.c_str(), "serve", "60", nullptr);
        give_up("exec");
    });
    close(kept);
    close(pair.server);
    send_all(pair.client, "request!");
    say("%s", receive(pair.client, 8).c_str());
    reap("child", child);
    SHOW_BOOL(peer_is_gone(pair.client));
}

BEHAVIOUR("exec closes what is marked", exec_closes_marked, accelerated) {
    const int listener = make_listener();
    const int client = connect_to(listener);
    const int server = MUST(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    const pid_t child = spawn([&] {
        close(client);
        execl("/bin/sleep", "sleep", "0.3", nullptr);
        give_up("exec");
    });
    close(server);
    SHOW_BOOL(peer_is_gone(client));
    reap("child", child);
}

BEHAVIOUR("exec keeps a listener", exec_keeps_listener, accelerated) {
    const int listener = MUST(fcntl(make_listener(), F_DUPFD, 61));
    const pid_t child = spawn([&] {
        const std::string path = own_path();
        execl(path.c_str(), path.c_str(), "accept", "61", nullptr);
        give_up("exec");
    });
    const int client = connect_to(listener);
    send_all(client, "request!");
    say("%s", receive(client, 8).c_str());
    reap("child", child);
}

BEHAVIOUR("exec with a connection as standard input and output", exec_of_standard_numbers, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.client);
        MUST(dup2(pair.server, 0));
        MUST(dup2(pair.server, 1));
        close(pair.server);
        execl("/bin/cat", "cat", nullptr);
        give_up("exec");
    });
    close(pair.server);
    send_all(pair.client, "through cat\n");
    say("%s", receive(pair.client, 11).c_str());
    MUST(shutdown(pair.client, SHUT_WR));
    say("rest %zu", receive_to_end(pair.client).size());
    reap("child", child);
}

// sdrun's channel is not the program's to close, not even at an exec: what it starts would outlive its
// monitor.
BEHAVIOUR("exec after everything was marked", exec_after_marking_all, any) {
    const pid_t child = spawn([&] {
        MUST(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
        const std::string path = own_path();
        execl(path.c_str(), path.c_str(), "look", "3", nullptr);
        give_up("exec");
    });
    reap("child", child);
}

BEHAVIOUR("posix_spawn with file actions", spawned_with_file_actions, accelerated) {
    const Pair pair = make_pair();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair.server, 0);
    posix_spawn_file_actions_adddup2(&actions, pair.server, 1);
    posix_spawn_file_actions_addclose(&actions, pair.server);
    posix_spawn_file_actions_addclose(&actions, pair.client);
    posix_spawn_file_actions_addclose(&actions, pair.listener);
    char name[] = "cat";
    char *arguments[] = {name, nullptr};
    pid_t child = 0;
    SHOW(posix_spawn(&child, "/bin/cat", &actions, nullptr, arguments, environ));
    close(pair.server);
    send_all(pair.client, "through cat\n");
    say("%s", receive(pair.client, 11).c_str());
    MUST(shutdown(pair.client, SHUT_WR));
    say("rest %zu", receive_to_end(pair.client).size());
    reap("child", child);
}

// Commands that have nothing to do with the sockets leave them alone.
BEHAVIOUR("system, popen and vfork in between", commands_in_between, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "one");
    SHOW(system("true"));
    SHOW(system("exit 3") >> 8);
    FILE *output = popen("echo from the shell", "r");
    char line[64] = {};
    SHOW_BOOL(output && fgets(line, sizeof line, output));
    say("%.14s", line);
    SHOW(pclose(output));
    const pid_t child = vfork();
    if (child == 0) {
        close(pair.client); // in the child only
        execl("/bin/true", "true", nullptr);
        _exit(1);
    }
    reap("vfork", child);
    send_all(pair.client, "two");
    say("%s", receive(pair.server, 6).c_str());
    send_all(pair.server, "back");
    say("%s", receive(pair.client, 4).c_str());
}

// An image with an empty environment still gets the connection.
BEHAVIOUR("exec with an empty environment", exec_with_empty_environment, accelerated) {
    const Pair pair = make_pair();
    const int kept = MUST(fcntl(pair.server, F_DUPFD, 60));
    const pid_t child = spawn([&] {
        const std::string path = own_path();
        char *nothing[] = {nullptr};
        execle(path.c_str(), path.c_str(), "serve", "60", nullptr, nothing);
        give_up("exec");
    });
    close(kept);
    close(pair.server);
    send_all(pair.client, "request!");
    say("%s", receive(pair.client, 8).c_str());
    reap("child", child);
    SHOW_BOOL(peer_is_gone(pair.client));
}

BEHAVIOUR("SCM_RIGHTS to a child", passed_to_a_relative, accelerated) {
    const Pair pair = make_pair();
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    const pid_t child = spawn([&] {
        close(pair.server);
        close(pair.client);
        const int fd = receive_descriptor(channel[1]);
        send_all(fd, "passed on");
        say("child got %s", receive(fd, 3).c_str());
    });
    pass_descriptor(channel[0], pair.server);
    close(pair.server);
    say("got %s", receive(pair.client, 9).c_str());
    send_all(pair.client, "yes");
    reap("child", child);
    SHOW_BOOL(peer_is_gone(pair.client));
}

BEHAVIOUR("SCM_RIGHTS to itself", passed_to_itself, accelerated) {
    const Pair pair = make_pair();
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    pass_descriptor(channel[0], pair.server);
    close(pair.server);
    SHOW_BOOL((poll_now(pair.client, POLLRDHUP, 100) & POLLRDHUP) == 0); // alive, on its way
    send_all(pair.client, "meanwhile");
    const int fd = receive_descriptor(channel[1]);
    say("%s", receive(fd, 9).c_str());
    send_all(fd, "back");
    say("%s", receive(pair.client, 4).c_str());
}

// Servers throw away what they inherited before they open their first socket; with it goes what names the
// monitor.
BEHAVIOUR("a program that empties its environment first", environment_emptied_first, accelerated) {
    clearenv();
    const Pair pair = make_pair();
    SHOW(send(pair.client, "bare", 4, 0));
    say("%s", receive(pair.server, 4).c_str());
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "serve") == 0) {
        const int fd = atoi(argv[2]);
        const std::string request = receive(fd, 8);
        send_all(fd, request);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "accept") == 0) {
        const int fd = MUST(accept(atoi(argv[2]), nullptr, nullptr));
        send_all(fd, receive(fd, 8));
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "look") == 0) {
        const char *channel = getenv("SD_CONTROL_FD");
        SHOW_BOOL(!channel || access((std::string("/proc/self/fd/") + channel).c_str(), F_OK) == 0);
        SHOW(fcntl(atoi(argv[2]), F_GETFD));
        return 0;
    }
    return run_behaviour(argc, argv);
}
