// A program without the library that has a connection together with programs that have it: its parent, above
// all, which keeps its descriptor.
#include "tests/programs/stranger.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

using namespace sdtest;

BEHAVIOUR("the parent does not read", the_parent_does_not_read, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = start("answer", pair);
    sleep_ms(50); // it waits for the request by now
    send_all(pair.client, "a request");
    say("%s", receive(pair.client, 19).c_str());
    reap("child", child);
    exchange(pair, "afterwards");
    close(pair.server);
    SHOW_BOOL(peer_is_gone(pair.client));
}

// Of which the parent has read a part.
BEHAVIOUR("a request that came before", a_request_that_came_before, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "to the parent, ");
    send_all(pair.client, "to the child");
    say("%s", receive(pair.server, 10).c_str());
    say("%s", receive(pair.server, 5).c_str());
    const pid_t child = start("answer", pair);
    say("%s", receive(pair.client, 22).c_str());
    reap("child", child);
    exchange(pair, "afterwards");
}

BEHAVIOUR("writes stand in order", writes_stand_in_order, accelerated) {
    const Pair pair = make_pair();
    std::string expected;
    for (int i = 0; i < 40; ++i) {
        const std::string before = "before " + std::to_string(i) + " ", after = " after ";
        send_all(pair.server, before);
        const pid_t child = start("writes", pair);
        int status = 1;
        MUST(waitpid(child, &status, 0));
        if (status != 0)
            say("exit %d", status);
        send_all(pair.server, after);
        expected += before + "from a stranger" + after;
    }
    const std::string got = receive(pair.client, expected.size());
    say("%s", got == expected ? "as written" : got.c_str());
}

BEHAVIOUR("what is left over is the parent's", the_rest_is_the_parents, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "fourand the rest");
    const pid_t child = start("takes four", pair);
    reap("child", child);
    say("%s", receive(pair.server, 12).c_str());
    exchange(pair, "afterwards");
}

// As a shell does it: the parent's descriptors are the child's, and both write.
BEHAVIOUR("standard input and output", standard_input_and_output, accelerated) {
    const Pair pair = make_pair();
    const pid_t shell = spawn([&] {
        MUST(dup2(pair.server, 0));
        MUST(dup2(pair.server, 1));
        close(pair.server);
        close(pair.client);
        for (int i = 0; i < 3; ++i) {
            send_all(1, "ask ");
            const pid_t child = spawn([] { become("answers standard", 0); });
            int status = 1;
            MUST(waitpid(child, &status, 0));
            send_all(1, status == 0 ? " and so on\n" : " failed\n");
        }
    });
    close(pair.server);
    for (int i = 0; i < 3; ++i) {
        say("%s", receive(pair.client, 4).c_str());
        send_all(pair.client, "me");
        say("%s", receive(pair.client, 23).c_str());
    }
    say("rest %zu", receive_to_end(pair.client).size());
    reap("shell", shell);
}

BEHAVIOUR("system and popen", system_and_popen, accelerated) {
    const Pair pair = make_pair();
    const std::string command = "exec " + stranger() + " writes " + std::to_string(pair.server);
    send_all(pair.server, "1 ");
    SHOW(system(command.c_str()));
    send_all(pair.server, " 2 ");
    FILE *stream = popen(command.c_str(), "r");
    SHOW(pclose(stream));
    send_all(pair.server, " 3");
    say("%s", receive(pair.client, 37).c_str());
    exchange(pair, "afterwards");
}

BEHAVIOUR("posix_spawn", spawned, accelerated) {
    const Pair pair = make_pair();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair.server, 0);
    posix_spawn_file_actions_adddup2(&actions, pair.server, 7);
    std::string path = stranger();
    char what[] = "answer", number[] = "7";
    char *arguments[] = {path.data(), what, number, nullptr};
    pid_t child = 0;
    SHOW(posix_spawn(&child, path.c_str(), &actions, nullptr, arguments, environ));
    send_all(pair.client, "spawned");
    say("%s", receive(pair.client, 17).c_str());
    reap("child", child);
    exchange(pair, "afterwards");
}

// Dynamically linked, but it does not load what it is told to.
BEHAVIOUR("a set-user-ID program", set_user_id, accelerated) {
    char name[] = "/var/tmp/sd-company-XXXXXX";
    const int file = MUST(mkstemp(name)), source = MUST(open("/usr/bin/head", O_RDONLY | O_CLOEXEC));
    while (sendfile(file, source, nullptr, 1 << 20) > 0) {
    }
    const bool other = getuid() == 0 && fchown(file, 65534, 65534) == 0;
    SHOW(fchmod(file, 04755));
    close(file);
    close(source);
    const Pair pair = make_pair();
    send_all(pair.server, "before ");
    send_all(pair.client, "copied");
    const pid_t child = spawn([&] {
        MUST(dup2(pair.server, 0));
        MUST(dup2(pair.server, 1));
        close(pair.client);
        execl(name, "head", "-c", "6", nullptr);
        give_up("exec");
    });
    reap("child", child);
    send_all(pair.server, " after");
    say("%s", receive(pair.client, 19).c_str());
    exchange(pair, "afterwards");
    SHOW_BOOL(other || getuid() != 0);
    unlink(name);
}

BEHAVIOUR("a child of the child", a_child_of_the_child, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.server, "zero ");
    const pid_t child = start("has a child", pair);
    say("%s", receive(pair.client, 11).c_str());
    send_all(pair.client, "me");
    say("%s", receive(pair.client, 17).c_str());
    reap("child", child);
    exchange(pair, "afterwards");
}

BEHAVIOUR("two of them at once", two_at_once, accelerated) {
    const Pair pair = make_pair();
    const pid_t one = start("answer", pair), two = start("answer", pair);
    std::string answers[2];
    for (std::string &a : answers) {
        send_all(pair.client, "xx");
        a = receive(pair.client, 12);
    }
    say("%s, %s", answers[0].c_str(), answers[1].c_str());
    reap("one", one);
    reap("two", two);
    exchange(pair, "afterwards");
}

BEHAVIOUR("one after the other", one_after_the_other, accelerated) {
    const Pair pair = make_pair();
    for (int i = 0; i < 5; ++i) {
        const pid_t child = start("answer", pair);
        send_all(pair.client, "again");
        say("%s", receive(pair.client, 15).c_str());
        reap("child", child);
    }
    exchange(pair, "afterwards");
}

BEHAVIOUR("a sibling with libsd", a_sibling, accelerated) {
    const Pair pair = make_pair();
    const Gate go;
    const pid_t sibling = spawn([&] {
        close(pair.client);
        go.pass();
        say("sibling %s", receive(pair.server, 4).c_str());
        send_all(pair.server, "from the sibling");
    });
    const pid_t child = start_that_stays(pair);
    send_all(pair.client, "data");
    go.open();
    say("%s", receive(pair.client, 16).c_str());
    reap("sibling", sibling);
    exchange(pair, "with the child");
    end(child);
    exchange(pair, "without");
    close(pair.server);
    SHOW_BOOL(peer_is_gone(pair.client));
}

// It has not looked at it since.
BEHAVIOUR("the parent closes", the_parent_closes, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = start("answer", pair);
    sleep_ms(50);
    close(pair.server);
    send_all(pair.client, "alone");
    say("%s", receive_to_end(pair.client).c_str());
    reap("child", child);
}

BEHAVIOUR("the parent ends", the_parent_ends, accelerated) {
    const Pair pair = make_pair();
    const pid_t parent = spawn([&] {
        close(pair.client);
        start("answer", pair);
        sleep_ms(50);
    });
    close(pair.server);
    reap("parent", parent);
    send_all(pair.client, "an orphan");
    say("%s", receive_to_end(pair.client).c_str());
}

BEHAVIOUR("the parent is killed", the_parent_is_killed, accelerated) {
    const Pair pair = make_pair();
    const pid_t parent = spawn([&] {
        close(pair.client);
        send_all(pair.server, "parent ");
        start("answer", pair);
        for (;;)
            pause();
    });
    close(pair.server);
    say("%s", receive(pair.client, 7).c_str());
    send_all(pair.client, "the child");
    say("%s", receive(pair.client, 19).c_str());
    MUST(kill(parent, SIGKILL));
    reap("parent", parent);
    SHOW_BOOL(peer_is_gone(pair.client));
    say("rest %zu", receive_to_end(pair.client).size());
}

BEHAVIOUR("a child that stays is killed", the_child_is_killed, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = start_that_stays(pair);
    end(child);
    SHOW_BOOL((poll_now(pair.client, POLLIN | POLLRDHUP, 100) & POLLRDHUP) == 0);
    exchange(pair, "afterwards");
    close(pair.server);
    SHOW_BOOL(peer_is_gone(pair.client));
}

BEHAVIOUR("the child shuts down", the_child_shuts_down, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.server, "before");
    const pid_t child = start("shuts", pair);
    reap("child", child);
    say("%s", receive_to_end(pair.client).c_str());
    SHOW(send(pair.server, "x", 1, MSG_NOSIGNAL));
    send_all(pair.client, "still open here");
    say("%s", receive(pair.server, 15).c_str());
    close(pair.client);
    say("rest %zu", receive_to_end(pair.server).size());
}

BEHAVIOUR("shut down before", shut_down_before, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.server, "before");
    MUST(shutdown(pair.server, SHUT_WR));
    send_all(pair.client, "four");
    const pid_t child = start("takes four", pair);
    reap("child", child);
    say("%s", receive_to_end(pair.client).c_str());
    SHOW(send(pair.server, "x", 1, MSG_NOSIGNAL));
    send_all(pair.client, "still open here");
    say("%s", receive(pair.server, 15).c_str());
}

BEHAVIOUR("both ends have been shut", both_ends_shut_before, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "four and more");
    MUST(shutdown(pair.client, SHUT_WR));
    send_all(pair.server, "before");
    MUST(shutdown(pair.server, SHUT_WR));
    const pid_t child = start("takes four", pair);
    reap("child", child);
    say("%s", receive_to_end(pair.server).c_str());
    say("%s", receive_to_end(pair.client).c_str());
}

BEHAVIOUR("the peer ends", the_peer_ends, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = start("waits", pair);
    sleep_ms(50);
    MUST(shutdown(pair.client, SHUT_WR));
    reap("child", child);
    say("rest %zu", receive_to_end(pair.server).size());
    send_all(pair.server, "the other way");
    close(pair.server);
    say("%s", receive_to_end(pair.client).c_str());
}

BEHAVIOUR("the peer resets", the_peer_resets, accelerated) {
    const Pair pair = make_pair();
    const pid_t child = start_that_stays(pair);
    abort_connection(pair.client);
    SHOW_BOOL(wait_for(pair.server, POLLIN));
    char byte;
    SHOW(recv(pair.server, &byte, 1, 0));
    end(child);
}

BEHAVIOUR("linger 0", linger_zero, accelerated) {
    const Pair pair = make_pair();
    const linger now{1, 0};
    MUST(setsockopt(pair.server, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    const pid_t child = start_that_stays(pair);
    exchange(pair, "with the child");
    end(child);
    close(pair.server);
    SHOW_BOOL(peer_is_gone(pair.client));
    char byte;
    SHOW(recv(pair.client, &byte, 1, 0));
}

BEHAVIOUR("sendfile and splice", sendfile_and_splice, accelerated) {
    const Pair pair = make_pair();
    const int file = MUST(memfd_create("data", MFD_CLOEXEC));
    MUST(write(file, "from a file", 11));
    MUST(lseek(file, 0, SEEK_SET));
    int pipes[2];
    MUST(pipe2(pipes, O_CLOEXEC));
    const pid_t child = start_that_stays(pair);
    SHOW(sendfile(pair.server, file, nullptr, 11));
    say("%s", receive(pair.client, 11).c_str());
    const Pair second = make_pair();
    const pid_t other = start_that_stays(second);
    MUST(write(pipes[1], "from a pipe", 11));
    SHOW(splice(pipes[0], nullptr, second.server, nullptr, 11, 0));
    say("%s", receive(second.client, 11).c_str());
    const Pair third = make_pair();
    const pid_t last = start_that_stays(third);
    send_all(third.client, "to a pipe");
    SHOW(splice(third.server, nullptr, pipes[1], nullptr, 9, 0));
    char text[10] = {};
    MUST(read(pipes[0], text, 9));
    say("%s", text);
    end(child);
    end(other);
    end(last);
}

// Another image of itself, which knows the connection from a table.
BEHAVIOUR("the parent executes something", the_parent_executes, accelerated) {
    if (const char *number = getenv("SD_TEST_GOES_ON")) {
        const int fd = atoi(number);
        say("%s", receive(fd, 4).c_str());
        send_all(fd, "from the next image");
        return;
    }
    const Pair pair = make_pair();
    const pid_t parent = spawn([&] {
        close(pair.client);
        const pid_t child = start_that_stays(pair);
        MUST(kill(child, SIGKILL));
        MUST(waitpid(child, nullptr, 0));
        setenv("SD_TEST_GOES_ON", std::to_string(pair.server).c_str(), 1);
        fflush(stdout);
        execl("/proc/self/exe", "in_company", "the_parent_executes", nullptr);
        give_up("exec");
    });
    close(pair.server);
    send_all(pair.client, "data");
    say("%s", receive_to_end(pair.client).c_str());
    reap("parent", parent);
}

BEHAVIOUR("the parent passes it on", the_parent_passes_it_on, accelerated) {
    const Pair pair = make_pair();
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel));
    const pid_t receiver = spawn([&] {
        close(pair.client);
        close(pair.server);
        const int fd = receive_descriptor(channel[1]);
        say("receiver %s", receive(fd, 4).c_str());
        send_all(fd, "from the receiver");
    });
    const pid_t child = start_that_stays(pair);
    pass_descriptor(channel[0], pair.server);
    send_all(pair.client, "data");
    say("%s", receive(pair.client, 17).c_str());
    reap("receiver", receiver);
    end(child);
    exchange(pair, "afterwards");
}

// The child has inherited the client's end as well.
BEHAVIOUR("both ends of one connection", both_ends, accelerated) {
    const Pair pair = make_pair();
    send_all(pair.client, "early ");
    const pid_t child = spawn([&] { become("stays", pair.server); });
    send_all(pair.client, "late");
    say("%s", receive(pair.server, 10).c_str());
    exchange(pair, "with the child");
    sleep_ms(50);
    exchange(pair, "with the child");
    end(child);
    close(pair.client);
    say("rest %zu", receive_to_end(pair.server).size());
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
