// Executes one uncontended send and one receive of 8 bytes instruction by instruction, and looks at each
// instruction: none may lock the bus, be a full fence, or enter the kernel. Run under sdrun; prints how many
// there were.
#include "tests/e2e/instructions.hpp"
#include "tests/programs/process.hpp"

#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

using namespace sdtest;

namespace {

#define MARK() asm volatile("int3" ::: "memory")

[[noreturn]] void play(int client, int server) {
    char buffer[8] = {};
    // The first operations of a new process take the tokens over; ten thousand make sure that there is no
    // lock mode.
    for (int i = 0; i < 10000; ++i) {
        if (send(client, buffer, 8, 0) != 8 || recv(server, buffer, 8, 0) != 8)
            _exit(2);
    }
    MUST(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr));
    for (int i = 0; i < 3; ++i) {
        MARK();
        const ssize_t sent = send(client, buffer, 8, 0);
        MARK();
        const ssize_t got = recv(server, buffer, 8, 0);
        MARK();
        if (sent != 8 || got != 8)
            _exit(3);
    }
    _exit(0);
}

} // namespace

int main() {
    const Pair pair = make_pair();
    const pid_t child = fork();
    if (child == 0)
        play(pair.client, pair.server);
    int status = 0, marks = 0, bad = 0;
    long count[7] = {};
    bool stepping = false;
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
        unsigned char code[16] = {};
        iovec to{code, sizeof code}, from{reinterpret_cast<void *>(registers.rip), sizeof code};
        if (process_vm_readv(child, &to, 1, &from, 1, 0) < 3)
            give_up("process_vm_readv");
        // int3 and a single step are told apart by the kernel. (The byte before does not tell: functions are
        // padded with it.)
        siginfo_t why_stopped{};
        MUST(ptrace(PTRACE_GETSIGINFO, child, nullptr, &why_stopped));
        if (why_stopped.si_code == SI_KERNEL) { // we have just passed a mark
            ++marks;
            stepping = marks % 3 != 0;
        }
        if (stepping && code[0] != 0xcc) {
            ++count[marks < 7 ? marks : 6];
            if (const char *why = dear_instruction(code)) {
                say("%s: %s at %llx", marks % 3 == 1 ? "send" : "recv", why, registers.rip);
                ++bad;
            }
        }
        MUST(ptrace(stepping && code[0] != 0xcc ? PTRACE_SINGLESTEP : PTRACE_CONT, child, nullptr, nullptr));
    }
    fprintf(stderr, "instructions: send %ld, recv %ld\n", count[4], count[5]);
    const bool whole =
        WIFEXITED(status) && WEXITSTATUS(status) == 0 && marks == 9 && count[4] > 20 && count[5] > 20;
    say(whole ? "%d forbidden instructions" : "the run failed (%d forbidden)", bad);
    return !whole || bad;
}
