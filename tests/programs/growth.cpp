// What is used for a connection or a listener is given back at its end, so that a program that goes on for
// years does not grow.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"

using namespace sdtest;

BEHAVIOUR("listeners that come and go leave nothing", listeners_come_and_go, accelerated) {
    long before = 0;
    for (int i = 0; i < 300; ++i) {
        if (i == 20)
            before = mappings();
        const Pair pair = make_pair();
        close(pair.client);
        close(pair.server);
        close(pair.listener);
    }
    SHOW_BOOL(mappings() < before + 50);
}

// Children are the last to close connections that their parent made, or was passed; one stays open all the
// time.
BEHAVIOUR("connections that children close last leave nothing", children_close_last, accelerated) {
    const Pair stays = make_pair();
    constexpr int kRounds = 30, kEach = 500;
    long before = 0;
    for (int round = 0; round < kRounds; ++round) {
        std::vector<int> clients, servers;
        for (int i = 0; i < kEach; ++i) {
            const Pair pair = connect_through(stays.listener);
            clients.push_back(pair.client);
            servers.push_back(pair.server);
        }
        const Gate go;
        const bool killed = round % 2;
        const pid_t child = spawn([&] {
            go.pass();
            if (killed)
                raise(SIGKILL);
        });
        for (const int fd : clients)
            close(fd);
        SHOW_BOOL((poll_now(servers[0], POLLRDHUP) & POLLRDHUP) == 0);
        go.open();
        reap("child", child);
        bool all = true;
        for (const int fd : servers) {
            all = all && wait_for(fd, POLLRDHUP);
            close(fd);
        }
        SHOW_BOOL(all);
        if (round == 1)
            before = mappings();
    }
    SHOW_BOOL(mappings() < before + 2);
    send_all(stays.client, "still here");
    say("%s", receive(stays.server, 10).c_str());
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
