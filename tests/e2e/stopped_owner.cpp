// A process is stopped with SIGSTOP while it sends on a connection that its parent shares: the parent's own
// sends go on at once, the stopped process stays stopped, and the stream stays whole. Run under sdrun; an
// argument says how many times (default 300).
#include "tests/programs/process.hpp"

#include <sys/prctl.h>

using namespace sdtest;

namespace {

struct Record {
    uint32_t who, sequence;
};

char state_of(pid_t pid) {
    char path[64], text[256] = {};
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const int fd = open(path, O_RDONLY);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    close(fd);
    const char *end = n > 0 ? strrchr(text, ')') : nullptr;
    return end ? end[2] : '?';
}

} // namespace

int main(int argc, char **argv) {
    int scope = 0;
    if (FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "r")) {
        if (fscanf(file, "%d", &scope) != 1)
            scope = 0;
        fclose(file);
    }
    if (scope == 3 || (scope > 0 && geteuid() != 0)) {
        say("not run: ptrace is restricted here, so a stopped owner is waited for");
        close(make_pair().client);
        return 0;
    }
    const int times = argc > 1 ? atoi(argv[1]) : 300;
    const Pair pair = make_pair();
    const pid_t reader = spawn([&] {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair.client);
        uint32_t last[2] = {0, 0};
        for (;;) {
            const std::string data = receive(pair.server, sizeof(Record));
            if (data.size() < sizeof(Record))
                exit(data.empty() ? 0 : 3);
            Record record;
            memcpy(&record, data.data(), sizeof record);
            if (record.who > 1 || record.sequence != last[record.who] + 1) {
                say("record %u of %u after %u", record.sequence, record.who, last[record.who & 1]);
                exit(2);
            }
            last[record.who] = record.sequence;
        }
    });
    close(pair.server);
    const pid_t victim = spawn([&] {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (Record record{1, 1};; ++record.sequence)
            if (send(pair.client, &record, sizeof record, 0) != sizeof record)
                exit(4);
    });
    Record mine{0, 0};
    long worst = 0, busy = 0;
    bool stayed = true;
    for (int i = 0; i < times; ++i) {
        usleep(200 + i * 37 % 1000);
        kill(victim, SIGSTOP);
        int status;
        MUST(waitpid(victim, &status, WUNTRACED));
        if (!WIFSTOPPED(status))
            give_up("the victim ended");
        Stopwatch watch;
        alarm(15); // ends a run that hangs
        for (int k = 0; k < 3; ++k) {
            ++mine.sequence;
            if (send(pair.client, &mine, sizeof mine, 0) != sizeof mine)
                give_up("send");
        }
        worst = std::max(worst, watch.ms());
        busy += watch.ms() >= 2;
        char state = state_of(victim);
        // On its way back, without leaving the kernel
        for (Stopwatch patience; state != 'T' && patience.ms() < 1000;)
            state = state_of(victim);
        const pid_t news = waitpid(victim, &status, WUNTRACED | WCONTINUED | WNOHANG);
        if (state != 'T' || news != 0) {
            say("round %d: state %c, news %d status %x", i, state, news, status);
            stayed = false;
        }
        kill(victim, SIGCONT);
        MUST(waitpid(victim, &status, WCONTINUED));
    }
    alarm(0);
    kill(victim, SIGKILL);
    int status;
    MUST(waitpid(victim, &status, 0));
    close(pair.client);
    MUST(waitpid(reader, &status, 0));
    fprintf(stderr, "stopped %d times, %ld of them in an operation; the longest wait was %ld ms\n", times,
            busy, worst);
    SHOW_BOOL(stayed);
    SHOW_BOOL(status == 0);
    return !stayed || status != 0;
}
