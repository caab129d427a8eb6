#include "tests/e2e/deaths/sharer.hpp"

#include <spawn.h>
#include <sys/prctl.h>

extern char **environ;

namespace deaths {

using namespace sdtest;

namespace {

constexpr int kSpawnedNumber = 77;

// The arguments of an image: sharer BOARD ROLE FD SEED AGAIN, where FD -1 means that the connection comes
// over descriptor 3 + 0, and AGAIN that this image replaces itself now and then.
struct Arguments {
    std::string role, fd, seed, again, channel, board;
    char *vector[9];
    Arguments(Role r, int number, uint64_t s, bool replaces, int over, const std::string &path)
        : role(std::to_string(static_cast<unsigned>(r))), fd(std::to_string(number)), seed(std::to_string(s)),
          again(replaces ? "1" : "0"), channel(std::to_string(over)), board(path) {
        static char program[] = "/proc/self/exe", word[] = "sharer";
        char *all[] = {program,     word,         board.data(),   role.data(), fd.data(),
                       seed.data(), again.data(), channel.data(), nullptr};
        std::copy(std::begin(all), std::end(all), vector);
    }
    char **get() { return vector; }
};

struct Life {
    int fd;
    uint64_t state;
    bool replaces;
    std::string board_path;
    Role role;

    // Now and then, and only where nothing is in hand: the program image is replaced by another of the same
    // program.
    void maybe_replace() {
        if (!replaces || random_next(state) % 400 != 0)
            return;
        if (role == Role::both)
            ++board->may_lose; // the other thread ends wherever it is
        ++board->images;
        MUST(fcntl(fd, F_SETFD, 0));
        Arguments arguments(role, fd, random_next(state) | 1, true, -1, board_path);
        execv("/proc/self/exe", arguments.get());
        complain("exec: %s", strerrorname_np(errno));
        _exit(1);
    }

    // Half of them block in the call, half wait in poll.
    void keep_sending() {
        unsigned char buffer[4096];
        const uint32_t who = board->names.fetch_add(1);
        if (who >= kNames)
            pause();
        const bool polls = random_next(state) % 2;
        for (uint32_t sequence = 1;; ++sequence) {
            Record record{kMagic, 0, who, sequence};
            const uint64_t dice = random_next(state);
            record.length = static_cast<uint32_t>(sizeof record + (dice % 4 ? dice / 8 % 64 : dice / 8 % 2000));
            memset(buffer, filling(who, sequence), record.length);
            memcpy(buffer, &record, sizeof record);
            for (;;) {
                const int more =
                    dice / 16384 % 8 == 0 ? MSG_MORE : 0; // held back by whoever comes next, or is killed
                const ssize_t sent = send(fd, buffer, record.length, more | (polls ? MSG_DONTWAIT : 0));
                if (sent == static_cast<ssize_t>(record.length))
                    break;
                if (sent < 0 && polls && errno == EAGAIN) {
                    poll_now(fd, POLLOUT, 100);
                    continue;
                }
                complain("send of %u = %zd %s", record.length, sent, strerrorname_np(errno));
                _exit(1);
            }
            board->acknowledged[who].store(sequence);
            maybe_replace();
        }
    }

    void keep_receiving(uint64_t dice) {
        const uint64_t how = dice % 3;
        uint64_t last = 0;
        int set = -1;
        if (how == 2) {
            set = MUST(epoll_create1(EPOLL_CLOEXEC));
            epoll_event event{};
            event.events = EPOLLIN;
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        }
        for (;;) {
            uint64_t message[8];
            if (how == 1)
                poll_now(fd, POLLIN, -1);
            epoll_event event;
            if (how == 2)
                MUST(epoll_wait(set, &event, 1, -1));
            const ssize_t got = recv(fd, message, sizeof message, how ? MSG_DONTWAIT : 0);
            if (got < 0 && how && errno == EAGAIN)
                continue;
            if (got == 0)
                _exit(0);
            if (got != sizeof message) {
                complain("recv = %zd %s", got, strerrorname_np(errno));
                _exit(1);
            }
            for (const uint64_t word : message)
                if (word != message[0])
                    complain("a message is torn");
            if (message[0] <= last || message[0] >= kMessages)
                complain("message %lu after %lu", message[0], last);
            else if (board->got[message[0]].fetch_add(1) != 0)
                complain("message %lu came twice", message[0]);
            last = message[0];
            ++board->messages;
            if (role == Role::receives)
                maybe_replace();
        }
    }

    [[noreturn]] void live() {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        switch (role) {
        case Role::sends:
            keep_sending();
            break;
        case Role::receives:
            keep_receiving(random_next(state));
            break;
        case Role::both: {
            std::thread receiver([this, dice = random_next(state)] { keep_receiving(dice); });
            keep_sending();
            break;
        }
        default:
            board->asleep = true;
            for (;;)
                pause();
        }
        _exit(1);
    }
};

// -1 if the other end was closed without anything having come.
int take_descriptor(int channel) {
    char byte;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
    const cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (!header)
        return -1;
    int fd;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    ++board->arrived_at_sharer;
    return fd;
}

// The receiver may be dead already.
bool hand_over(int channel, int fd) {
    return send_descriptor(channel, fd, MSG_NOSIGNAL) == 1 || errno == EPIPE;
}

[[noreturn]] void live_with_what_comes(int channel, Life life) {
    life.fd = take_descriptor(channel);
    if (life.fd < 0)
        _exit(kNothingCame);
    close(channel);
    life.live();
}

pid_t spawned(int fd, Role role, uint64_t seed, const std::string &path) {
    Arguments arguments(role, kSpawnedNumber, seed, true, -1, path);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, kSpawnedNumber);
    pid_t pid = -1;
    errno = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments.get(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (errno != 0)
        give_up("posix_spawn");
    return pid;
}

} // namespace

const char *name_of(Way way) {
    static constexpr const char *names[] = {"fork", "exec", "spawn", "passed to a child", "passed to a stranger"};
    return names[static_cast<unsigned>(way)];
}

Sharer make_sharer(int fd, Way way, Role role, bool by_courier, uint64_t seed, const std::string &path) {
    Sharer made;
    made.way = way;
    made.role = role;
    Life life{fd, seed, false, path, role};
    if (way == Way::forked) {
        made.pid = spawn([&] { life.live(); });
        return made;
    }
    if (way == Way::spawned) {
        made.pid = spawned(fd, role, seed, path);
        return made;
    }
    if (way == Way::executed) {
        made.pid = spawn([&] {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            MUST(fcntl(fd, F_SETFD, 0));
            Arguments arguments(role, fd, seed, true, -1, path);
            execv("/proc/self/exe", arguments.get());
            give_up("exec");
        });
        return made;
    }
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    made.pid = spawn([&] {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        close(fd);
        if (way == Way::child)
            live_with_what_comes(ends[1], life);
        MUST(fcntl(ends[1], F_SETFD, 0));
        Arguments arguments(role, -1, seed, true, ends[1], path);
        execv("/proc/self/exe", arguments.get());
        give_up("exec");
    });
    close(ends[1]);
    if (by_courier)
        made.courier = spawn([&] { _exit(hand_over(ends[0], fd) ? 0 : 1); });
    else
        MUST(hand_over(ends[0], fd) ? 0 : -1);
    close(ends[0]);
    return made;
}

void end_sharer(Sharer &sharer, uint64_t &state) {
    const bool courier_first = random_next(state) % 2;
    const auto end_courier = [&] {
        if (!sharer.courier)
            return;
        int status;
        kill(sharer.courier, SIGKILL);
        MUST(waitpid(sharer.courier, &status, 0));
        sharer.courier = 0;
    };
    const bool had_courier = sharer.courier != 0;
    if (courier_first)
        end_courier();
    if (sharer.role == Role::receives || sharer.role == Role::both)
        ++board->may_lose;
    kill(sharer.pid, SIGKILL);
    int status;
    MUST(waitpid(sharer.pid, &status, 0));
    if (!WIFSIGNALED(status) && !(had_courier && WEXITSTATUS(status) == kNothingCame))
        complain("a sharer (%s) ended by itself: %d", name_of(sharer.way), WEXITSTATUS(status));
    end_courier();
    sharer.pid = 0;
}

void run_sharer(char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_board(argv[2]);
    Life life{atoi(argv[4]), strtoull(argv[5], nullptr, 10), *argv[6] == '1', argv[2],
              static_cast<Role>(atoi(argv[3]))};
    if (life.fd < 0)
        live_with_what_comes(atoi(argv[7]), life);
    life.live();
}

} // namespace deaths
