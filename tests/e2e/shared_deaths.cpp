// Processes that share one connection and are killed at random moments while they use it.
//
//   shared_deaths SECONDS [SEED [WAYS [ROLES]]]
//
// Two to eight processes send numbered records and receive numbered messages on one end. They came to have it
// by fork, exec, posix_spawn, or over a Unix socket, and those who pass it on are killed, too. Their parent
// kills one at a time and puts another in its place. A process at the other end reads the records and sends
// the messages. Every record whose send returned must have arrived, once, whole and in order; every message
// must have been received once, but for the one that a killed process had in hand. The other end must see
// what the kernel shows: the end of the stream, or a reset where something was left unread. After each round
// nothing may be left behind. Prints what it did; exit status 1 and a line that says why when something is
// wrong.
#include "tests/e2e/deaths/census.hpp"
#include "tests/e2e/deaths/sharer.hpp"

#include <sys/ioctl.h>
#include <sys/prctl.h>

using namespace sdtest;
using namespace deaths;

namespace {

constexpr unsigned kSharers = 8;
constexpr int kPatient = 15000; // ms for what takes milliseconds on a machine that is not busy

// --- the other end

void feed(int fd) {
    uint64_t state = 99;
    for (uint64_t number = 1; number < kMessages && !board->stop; ++number) {
        uint64_t message[8];
        for (uint64_t &word : message)
            word = number;
        size_t sent = 0;
        while (sent < sizeof message && !board->stop) {
            const ssize_t n = send(fd, reinterpret_cast<char *>(message) + sent, sizeof message - sent,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n > 0)
                sent += static_cast<size_t>(n);
            else if (errno == EAGAIN)
                poll_now(fd, POLLOUT, 20);
            else
                break;
        }
        if (sent < sizeof message) {
            if (sent)
                complain("a message of 64 bytes was sent in part");
            break;
        }
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
        if (got <= 0) {
            board->ending = got == 0 ? 0 : errno;
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
                    std::string there;
                    for (size_t k = i; k < buffer.size() && k < i + 24; ++k) {
                        char hex[4];
                        snprintf(hex, sizeof hex, " %02x", buffer[at + k]);
                        there += hex;
                    }
                    complain("record %u of %u is torn at %zu of %u:%s", record.sequence, record.who, i,
                             record.length, there.c_str());
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

void other_end(int fd) {
    std::thread feeder([&] { feed(fd); });
    check_records(fd);
    board->stop = true;
    feeder.join();
}

// Digits that choose among all ways and roles, to find out what it takes for something to go wrong.
std::string ways = "01234", roles = "012";

struct Totals {
    uint64_t kills = 0, rounds = 0, records = 0, messages = 0, lost = 0, resets = 0;
    uint64_t made[static_cast<unsigned>(Way::count)] = {};
};

class Round {
  public:
    Round(uint64_t &state, const std::string &board_path, Totals &totals)
        : state_(state), path_(board_path), totals_(totals) {}

    void run(long ms) {
        const uint32_t first_name = board->names;
        board->stop = board->last_messages = board->asleep = false;
        board->sent_messages = board->messages = board->records = board->may_lose = 0;
        board->ending = -1;
        connect();
        const unsigned sharers = 2 + static_cast<unsigned>(dice() % (kSharers - 1));
        sharer_.assign(sharers, {});
        for (unsigned i = 0; i < sharers; ++i)
            start(i);
        kill_again_and_again(ms);
        left_unread_ = dice() % 3 == 0;
        settle();
        const int expected = end_all();
        other_end_ends(expected);
        judge(first_name);
    }

  private:
    uint64_t dice() { return random_next(state_); }

    // Either end may be the shared one.
    void connect() {
        const int listener = make_listener("127.0.0.1", 16, SOCK_CLOEXEC);
        const Address address = local_address(listener);
        const bool accepts = dice() % 2;
        other_ = spawn([&] {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const int fd = accepts ? connect_to(address) : MUST(accept(listener, nullptr, nullptr));
            close(listener);
            other_end(fd);
        });
        fd_ = accepts ? MUST(accept(listener, nullptr, nullptr)) : connect_to(address);
        MUST(fcntl(fd_, F_SETFD, FD_CLOEXEC));
        close(listener);
    }

    void start(unsigned i) {
        const auto way = static_cast<Way>(ways[dice() % ways.size()] - '0');
        // There is always somebody who sends and somebody who receives.
        const bool both = dice() % 6 == 0 && roles.find('2') != std::string::npos;
        const Role role = both ? Role::both : i % 2 ? Role::receives : Role::sends;
        ++totals_.made[static_cast<unsigned>(way)];
        sharer_[i] = make_sharer(fd_, way, role, dice() % 3 == 0, dice() | 1, path_);
    }

    void kill_again_and_again(long ms) {
        Stopwatch watch, quiet;
        uint64_t seen_records = 0, seen_messages = 0;
        while (watch.ms() < ms && !board->wrong && board->names < kNames - 10000) {
            // Often at once, so that many die on their way here; now and then time enough to do some work.
            usleep(static_cast<useconds_t>(dice() % 8 ? dice() % 1500 : dice() % 30000));
            const unsigned i = static_cast<unsigned>(dice() % sharer_.size());
            end_sharer(sharer_[i], state_);
            ++totals_.kills;
            start(i);
            if (board->records != seen_records && board->messages != seen_messages) {
                seen_records = board->records;
                seen_messages = board->messages;
                quiet = Stopwatch();
            } else if (quiet.ms() > kPatient) {
                complain("nothing moves: records %lu, messages %lu of %lu", board->records.load(),
                         board->messages.load(), board->sent_messages.load());
                hold();
            }
        }
    }

    static void hold() {
        if (getenv("SHARED_DEATHS_WAIT"))
            pause();
    }

    // Lets the receivers have everything; or else, sees to it that something is left unread.
    void settle() {
        if (left_unread_) {
            for (Sharer &s : sharer_)
                if (s.role != Role::sends)
                    end(s);
            for (Stopwatch patience; unread() == 0 && patience.ms() < kPatient && !board->wrong;)
                sleep_ms(1);
        }
        board->stop = true;
        for (Stopwatch patience; !board->wrong; sleep_ms(2)) {
            if (board->last_messages &&
                (left_unread_ || board->messages + board->may_lose >= board->sent_messages))
                break;
            if (patience.ms() > kPatient) {
                complain("not everything is received: %lu messages of %lu, %d bytes unread",
                         board->messages.load(), board->sent_messages.load(), unread());
                hold();
            }
        }
        if (!left_unread_)
            sleep_ms(5); // those in the last receiver's hands
    }

    int unread() const {
        int n = 0;
        MUST(ioctl(fd_, FIONREAD, &n));
        return n;
    }

    void end(Sharer &s) {
        if (s.pid)
            end_sharer(s, state_);
    }

    // Ends all who have the connection, the parent or a sharer last. What the other end must see then.
    int end_all() {
        for (Sharer &s : sharer_)
            end(s);
        Sharer last;
        if (dice() % 2) {
            last = make_sharer(fd_, static_cast<Way>(ways[dice() % ways.size()] - '0'), Role::sleeps, false,
                               dice() | 1, path_);
            for (Stopwatch patience; !board->asleep; sleep_ms(1))
                if (patience.ms() > kPatient) {
                    complain("the last sharer (%s) did not come", name_of(last.way));
                    break;
                }
        }
        const int expected = unread() > 0 ? ECONNRESET : 0;
        if (expected) // a reset takes along what is held back
            set_option(fd_, IPPROTO_TCP, TCP_CORK, 0);
        totals_.resets += expected != 0;
        close(fd_);
        if (last.pid) {
            sleep_ms(static_cast<long>(dice() % 5));
            if (board->ending != -1)
                complain("the connection has ended with %d although somebody has it", board->ending.load());
            end_sharer(last, state_);
        }
        return expected;
    }

    void other_end_ends(int expected) {
        int status = 0;
        for (Stopwatch patience; waitpid(other_, &status, WNOHANG) == 0; sleep_ms(1))
            if (patience.ms() > kPatient) {
                complain("the other end does not end");
                hold();
                kill(other_, SIGKILL);
                waitpid(other_, &status, 0);
                break;
            }
        if (status != 0)
            complain("the other end ended with %x", status);
        else if (board->ending != expected)
            complain("the other end saw %d at the end, not %d", board->ending.load(), expected);
    }

    void judge(uint32_t first_name) {
        for (uint32_t name = first_name; name < board->names; ++name)
            if (board->arrived[name] < board->acknowledged[name] ||
                board->arrived[name] > board->acknowledged[name] + 1)
                complain("sender %u: %u acknowledged, %u arrived", name, board->acknowledged[name].load(),
                         board->arrived[name].load());
        // What came after the last one that was received, if it was left unread on purpose, is not lost.
        uint64_t lost = 0, since = 0;
        for (uint64_t m = 1; m <= board->sent_messages; ++m) {
            ++since;
            if (board->got[m].exchange(0) != 0) {
                lost += since - 1;
                since = 0;
            }
        }
        if (!left_unread_)
            lost += since;
        if (lost > board->may_lose)
            complain("%lu messages lost, %lu could be in the hands of the dead", lost, board->may_lose.load());
        totals_.lost += lost;
        totals_.records += board->records;
        totals_.messages += board->messages;
        ++totals_.rounds;
    }

    uint64_t &state_;
    const std::string &path_;
    Totals &totals_;
    int fd_ = -1;
    pid_t other_ = 0;
    bool left_unread_ = false;
    std::vector<Sharer> sharer_;
};

} // namespace

int main(int argc, char **argv) {
    if (argc == 8 && strcmp(argv[1], "sharer") == 0)
        run_sharer(argv);
    const long seconds = argc > 1 ? atol(argv[1]) : 5;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 0) : 1;
    if (argc > 3)
        ways = argv[3];
    if (argc > 4)
        roles = argv[4];
    uint64_t state = seed * 0x9e3779b97f4a7c15ull | 1;
    setbuf(stdout, nullptr);
    const std::string board_path = make_board();
    open_board(board_path.c_str());
    Totals totals;
    Census before;
    Stopwatch watch;
    while (watch.ms() < seconds * 1000 && !board->wrong && board->names < kNames - 20000) {
        Round(state, board_path, totals).run(totals.rounds ? 1000 : 200);
        if (totals.rounds == 1) {
            sleep_ms(500);
            before = take_census();
        } else {
            returns_to(before, 10000);
        }
    }
    fprintf(stderr, "seed %lu: rounds %lu, killed %lu, records %lu, messages %lu, in the hands of the dead %lu\n",
            seed, totals.rounds, totals.kills, totals.records, totals.messages, totals.lost);
    fprintf(stderr, "replaced themselves by exec %lu, arrived by SCM_RIGHTS %lu, ended by a reset %lu, made by",
            board->images.load(), board->arrived_at_sharer.load(), totals.resets);
    for (unsigned way = 0; way < static_cast<unsigned>(Way::count); ++way)
        fprintf(stderr, "%s %s %lu", way ? "," : "", name_of(static_cast<Way>(way)), totals.made[way]);
    fprintf(stderr, "\n");
    const Census now = take_census();
    for (const auto &[name, value] : before) {
        fprintf(stderr, "%s %ld (%ld)%s", name.c_str(), now.count(name) ? now.at(name) : -1, value,
                name == before.rbegin()->first ? "\n" : ", ");
    }
    say(board->wrong ? "failed" : "nothing lost, repeated, out of order or left behind");
    return board->wrong != 0;
}
