// Processes that share one connection and are killed at random moments while they use it.
//
//   shared_deaths SECONDS [SEED]
//
// Two to eight children send numbered records and receive numbered messages on one end; their parent kills one at a time and puts another in its
// place. A process at the other end reads the records and sends the messages. Every record whose send returned must have arrived, once, whole and in
// order; every message must have been received once, but for the one that a killed child had in hand. Prints what it
// did; exit status 1 and a line that says why when something is wrong.
#include "tests/programs/process.hpp"

#include <dirent.h>
#include <sys/prctl.h>

using namespace sdtest;

namespace {

constexpr unsigned kSharers = 8;
constexpr unsigned kNames = 1u << 20;    // children in the whole run
constexpr uint64_t kMessages = 1u << 24; // messages in a round

struct Record {
    uint32_t magic, length; // of the whole record
    uint32_t who;
    uint32_t sequence;
};
constexpr uint32_t kMagic = 0x5ec07d;

struct Board {
    std::atomic<uint32_t> acknowledged[kNames]; // records whose send returned, by child
    std::atomic<uint32_t> arrived[kNames];
    std::atomic<uint8_t> got[kMessages];
    std::atomic<uint64_t> records, messages, sent_messages, wrong;
    std::atomic<bool> stop, last_messages;
};
Board *board;

[[gnu::format(printf, 1, 2)]] void complain(const char *format, ...) {
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say("WRONG: %s", text);
    ++board->wrong;
}

uint64_t random_next(uint64_t &state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

unsigned char filling(uint32_t who, uint32_t sequence) {
    return static_cast<unsigned char>(who * 31 + sequence * 7);
}

// --- the children

// Half of them block in the call, half wait in poll.
void keep_sending(int fd, uint32_t who, uint64_t state) {
    static unsigned char buffer[4096];
    const bool polls = random_next(state) % 2;
    for (uint32_t sequence = 1;; ++sequence) {
        Record record{kMagic, 0, who, sequence};
        const uint64_t dice = random_next(state);
        record.length = static_cast<uint32_t>(sizeof record + (dice % 4 ? dice / 8 % 64 : dice / 8 % 2000));
        memset(buffer, filling(who, sequence), record.length);
        memcpy(buffer, &record, sizeof record);
        for (;;) {
            const ssize_t sent = send(fd, buffer, record.length, polls ? MSG_DONTWAIT : 0);
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
    }
}

void keep_receiving(int fd, uint64_t state) {
    const uint64_t how = random_next(state) % 3;
    uint64_t last = 0;
    int set = -1;
    if (how == 2) {
        set = MUST(epoll_create1(0));
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
    }
}

// --- the other end

void feed(int fd) {
    uint64_t state = 99;
    for (uint64_t number = 1; number < kMessages && !board->stop; ++number) {
        uint64_t message[8];
        for (uint64_t &word : message)
            word = number;
        if (!send_all(fd, message, sizeof message))
            break;
        board->sent_messages = number;
        if (random_next(state) % 1024 == 0)
            usleep(300); // so that receivers sleep
    }
    board->last_messages = true;
}

void check_records(int fd) {
    std::vector<unsigned char> buffer;
    uint64_t state = 77;
    for (;;) {
        unsigned char chunk[16384];
        const size_t want = 1 + random_next(state) % sizeof chunk;
        const ssize_t got = recv(fd, chunk, want, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            break;
        if (got < 0) {
            complain("recv at the other end: %s", strerrorname_np(errno));
            break;
        }
        buffer.insert(buffer.end(), chunk, chunk + got);
        size_t at = 0;
        while (buffer.size() - at >= sizeof(Record)) {
            Record record;
            memcpy(&record, &buffer[at], sizeof record);
            if (record.magic != kMagic || record.length < sizeof record || record.length > 4096 ||
                record.who >= kNames) {
                complain("not a record: %08x %u %u %u", record.magic, record.length, record.who, record.sequence);
                return;
            }
            if (buffer.size() - at < record.length)
                break;
            for (size_t i = sizeof record; i < record.length; ++i)
                if (buffer[at + i] != filling(record.who, record.sequence)) {
                    complain("record %u of %u is torn at %zu of %u", record.sequence, record.who, i,
                             record.length);
                    return;
                }
            const uint32_t before = board->arrived[record.who].load();
            if (record.sequence != before + 1) {
                complain("record %u of %u after %u", record.sequence, record.who, before);
                return;
            }
            board->arrived[record.who] = record.sequence;
            ++board->records;
            at += record.length;
        }
        buffer.erase(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(at));
        if (random_next(state) % 512 == 0)
            usleep(500); // so that senders wait for room
    }
    if (!buffer.empty())
        complain("%zu bytes of an unfinished record", buffer.size());
}

size_t open_descriptors() {
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        ++n;
    if (d)
        closedir(d);
    return n;
}

struct Totals {
    uint64_t kills = 0, rounds = 0, records = 0, messages = 0, lost = 0;
};

void round_of(int listener, unsigned sharers, long ms, uint64_t &state, uint32_t &names, Totals &totals) {
    const uint32_t first_name = names;
    board->stop = board->last_messages = false;
    board->sent_messages = board->messages = board->records = 0;
    const pid_t other_end = spawn([&] {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const int fd = MUST(accept(listener, nullptr, nullptr));
        close(listener);
        std::thread feeder([&] { feed(fd); });
        check_records(fd);
        board->stop = true;
        shutdown(fd, SHUT_RDWR);
        feeder.join();
    });
    const int fd = connect_to(listener);
    struct {
        pid_t pid = 0;
        uint32_t name = 0;
    } child[kSharers];
    const auto start = [&](unsigned i) {
        const uint64_t seed = random_next(state) | 1;
        child[i].name = names++;
        child[i].pid = spawn([&, i, seed] {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (i % 2)
                keep_receiving(fd, seed);
            else
                keep_sending(fd, child[i].name, seed);
        });
    };
    for (unsigned i = 0; i < sharers; ++i)
        start(i);
    Stopwatch watch, quiet;
    uint64_t seen_records = 0, seen_messages = 0, kills_of_receivers = 0;
    while (watch.ms() < ms && !board->wrong && names < kNames - kSharers) {
        usleep(static_cast<useconds_t>(random_next(state) % 1500));
        const unsigned i = static_cast<unsigned>(random_next(state) % sharers);
        kill(child[i].pid, SIGKILL);
        int status;
        MUST(waitpid(child[i].pid, &status, 0));
        if (!WIFSIGNALED(status))
            complain("child %u ended by itself: %d", i, WEXITSTATUS(status));
        ++totals.kills;
        kills_of_receivers += i % 2;
        start(i);
        if (board->records != seen_records && board->messages != seen_messages) {
            seen_records = board->records;
            seen_messages = board->messages;
            quiet = Stopwatch();
        } else if (quiet.ms() > 8000) {
            complain("nothing moves: records %lu, messages %lu of %lu", board->records.load(),
                     board->messages.load(), board->sent_messages.load());
            if (getenv("SHARED_DEATHS_WAIT"))
                pause();
        }
    }
    // Let the receivers have everything, then end all.
    board->stop = true;
    for (Stopwatch patience; patience.ms() < 8000 && !board->wrong;) {
        if (board->last_messages && board->messages + kills_of_receivers >= board->sent_messages) {
            sleep_ms(20); // those in the last receiver's hands
            break;
        }
        sleep_ms(5);
    }
    for (unsigned i = 0; i < sharers; ++i) {
        kill(child[i].pid, SIGKILL);
        int status;
        MUST(waitpid(child[i].pid, &status, 0));
    }
    close(fd);
    int status = 0;
    for (Stopwatch patience; waitpid(other_end, &status, WNOHANG) == 0;) {
        if (patience.ms() > 8000) {
            complain("the other end does not end");
            if (getenv("SHARED_DEATHS_WAIT"))
                pause();
            kill(other_end, SIGKILL);
            waitpid(other_end, &status, 0);
            break;
        }
        sleep_ms(1);
    }
    if (status != 0)
        complain("the other end ended with %x", status);
    for (uint32_t name = first_name; name < names; ++name)
        if (board->arrived[name] < board->acknowledged[name] ||
            board->arrived[name] > board->acknowledged[name] + 1)
            complain("child %u: %u acknowledged, %u arrived", name, board->acknowledged[name].load(),
                     board->arrived[name].load());
    uint64_t lost = 0;
    for (uint64_t m = 1; m <= board->sent_messages; ++m)
        lost += board->got[m].exchange(0) == 0;
    if (lost > kills_of_receivers + kSharers)
        complain("%lu messages lost, %lu receivers killed", lost, kills_of_receivers);
    totals.lost += lost;
    totals.records += board->records;
    totals.messages += board->messages;
    ++totals.rounds;
}

} // namespace

int main(int argc, char **argv) {
    const long seconds = argc > 1 ? atol(argv[1]) : 5;
    uint64_t state = (argc > 2 ? strtoull(argv[2], nullptr, 0) : 1) * 0x9e3779b97f4a7c15ull | 1;
    void *memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        give_up("mmap");
    board = static_cast<Board *>(memory);
    setbuf(stdout, nullptr);
    const int listener = make_listener();
    Totals totals;
    uint32_t names = 0;
    size_t descriptors = 0;
    Stopwatch watch;
    while (watch.ms() < seconds * 1000 && !board->wrong) {
        round_of(listener, 2 + static_cast<unsigned>(random_next(state) % 7), 1000, state, names, totals);
        if (totals.rounds == 1)
            descriptors = open_descriptors();
    }
    if (open_descriptors() > descriptors + 4)
        complain("%zu descriptors open, %zu after the first round", open_descriptors(), descriptors);
    fprintf(stderr, "rounds %lu, killed %lu, records %lu, messages %lu, in a killed receiver's hands %lu\n",
            totals.rounds, totals.kills, totals.records, totals.messages, totals.lost);
    say(board->wrong ? "failed" : "nothing lost, repeated or out of order");
    return board->wrong != 0;
}
