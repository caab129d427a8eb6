// A stopped thread is helped out of an operation, and nobody else is made to run.
#include "libsd/queue/run_stopped.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>
#include <csignal>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace sd;

namespace {

/// Memory that children share, as a segment is.
struct Shared {
    void *at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ~Shared() { munmap(at, 4096); }
    std::atomic<uint64_t> &word(unsigned i) const { return static_cast<std::atomic<uint64_t> *>(at)[i]; }
};

/// Counts for as long as it runs.
class Counting {
  public:
    explicit Counting(uid_t user = 0) {
        pid_ = fork();
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (user != 0 && setuid(user) != 0) {
                _exit(1);
            }
            for (;;) {
                ++count_.word(0);
            }
        }
        while (count_.word(0) == 0) {
            usleep(1000);
        }
        kill(pid_, SIGSTOP);
        waitpid(pid_, nullptr, WUNTRACED);
    }
    ~Counting() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    Counting(const Counting &) = delete;
    Counting &operator=(const Counting &) = delete;

    /// Whether it ran because somebody says that it is the thread of a record.
    bool runs_for(const std::atomic<uint64_t> &word) const {
        ThreadRecord record{};
        record.tid = record.pid = static_cast<uint32_t>(pid_);
        const uint64_t before = count_.word(0);
        run_stopped(record, word, 0);
        return count_.word(0) != before;
    }

  private:
    Shared count_;
    pid_t pid_ = -1;
};

} // namespace

TEST_CASE("a stopped thread that shares the memory is run until it has left the operation") {
    if (prctl(PR_GET_SECCOMP) != 0) {
        SKIP_TEST("a filter forbids it");
    }
    const Shared segment;
    const Counting relative;
    CHECK(relative.runs_for(segment.word(0)));
}

TEST_CASE("a stopped process that does not share the memory stays stopped, whatever is written there") {
    const Counting stranger;
    const Shared segment; // made afterwards
    CHECK_FALSE(stranger.runs_for(segment.word(0)));
    static std::atomic<uint64_t> own{0};
    CHECK_FALSE(stranger.runs_for(own));
}

TEST_CASE("a stopped process of another user stays stopped, also if it shares the memory") {
    if (geteuid() != 0) {
        SKIP_TEST("needs root to become another user");
    }
    const Shared segment;
    const Counting stranger(65534);
    CHECK_FALSE(stranger.runs_for(segment.word(0)));
}
