// What libsd itself executes for one send and one receive of 8 bytes over RDMA: instruction by instruction,
// in one process that has both ends. Prints how many there were before ibv_post_send, and after the last
// ibv_poll_cq that found something; and of all those that were not the fake's. Not a test: nothing is
// asserted.
//
//   tests/fake_verbs/on_fabric build/tests/fake_verbs build/sdrun build/tests/rdma/steps
#include "tests/programs/process.hpp"

#include <sys/ptrace.h>
#include <sys/user.h>

using namespace sdtest;

namespace {

#define MARK() asm volatile("int3" ::: "memory")

[[noreturn]] void play() {
    const Pair pair = make_pair();
    char buffer[8] = {};
    for (int i = 0; i < 10000; ++i)
        if (send(pair.client, buffer, 8, 0) != 8 || recv(pair.server, buffer, 8, 0) != 8)
            _exit(2);
    MUST(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr));
    for (int i = 0; i < 20; ++i) {
        MARK();
        const ssize_t sent = send(pair.client, buffer, 8, 0);
        MARK();
        const ssize_t got = recv(pair.server, buffer, 8, 0);
        MARK();
        if (sent != 8 || got != 8)
            _exit(3);
    }
    _exit(0);
}

/// Where a library is mapped.
struct Library {
    unsigned long begin = 0, end = 0;
    bool has(unsigned long at) const { return at >= begin && at < end; }
};
Library library_of(pid_t child, const char *which) {
    Library found;
    char name[64], line[512];
    snprintf(name, sizeof name, "/proc/%d/maps", child);
    FILE *maps = fopen(name, "re");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (strstr(line, which) && sscanf(line, "%lx-%lx", &begin, &end) == 2) {
            found.begin = found.begin ? found.begin : begin;
            found.end = end;
        }
    }
    if (maps)
        fclose(maps);
    return found;
}

} // namespace

int main() {
    const pid_t child = fork();
    if (child == 0)
        play();
    int status = 0, marks = 0;
    bool stepping = false, inside = false;
    unsigned long long entered_at = 0;
    FILE *trace = getenv("SD_STEPS") ? fopen(getenv("SD_STEPS"), "we") : nullptr; ///< where each one was
    Library device;
    // Of the part between two marks
    long ours = 0, before_device = 0, since_device = 0, visits = 0, calls = 0;
    for (;;) {
        MUST(waitpid(child, &status, 0));
        if (WIFEXITED(status) || WIFSIGNALED(status))
            break;
        if (WSTOPSIG(status) != SIGTRAP) {
            MUST(ptrace(PTRACE_CONT, child, nullptr, WSTOPSIG(status)));
            continue;
        }
        user_regs_struct registers;
        MUST(ptrace(PTRACE_GETREGS, child, nullptr, &registers));
        siginfo_t why;
        MUST(ptrace(PTRACE_GETSIGINFO, child, nullptr, &why));
        if (why.si_code == SI_KERNEL) { // a mark, and no step
            if (device.end == 0 && trace)
                for (const char *name : {"/libsd.so", "/libsd-rdma.so", "/libc.so"})
                    fprintf(trace, "%s %lx\n", name, library_of(child, name).begin);
            if (device.end == 0)
                device = library_of(child, "libibverbs");
            if (marks % 3 == 1)
                printf("send: %3ld to the post, %3ld in all; ", before_device, ours);
            else if (marks % 3 == 2)
                printf("recv: %3ld from the last poll, %3ld in all; %ld visits, %ld system calls\n",
                       since_device, ours, visits, calls);
            if (marks % 3 == 0 || marks % 3 == 2)
                visits = calls = 0;
            ours = before_device = since_device = 0;
            stepping = ++marks % 3 != 0;
            MUST(ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, child, nullptr, nullptr));
            continue;
        }
        // Inside from the device's first instruction until it has returned, whatever it calls meanwhile.
        if (!inside && device.has(registers.rip)) {
            ++visits;
            before_device = before_device ? before_device : ours;
            since_device = 0;
            inside = true;
            entered_at = registers.rsp;
        } else if (inside && registers.rsp > entered_at) {
            inside = false;
        }
        if (!inside) {
            ++ours;
            ++since_device;
            if (trace)
                fprintf(trace, "%d %llx\n", marks, registers.rip);
        }
        calls += !inside && (ptrace(PTRACE_PEEKTEXT, child, registers.rip, nullptr) & 0xffff) == 0x050f;
        MUST(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
