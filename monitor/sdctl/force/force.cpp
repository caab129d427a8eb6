// Which thread of a process does the work that is forced; see force.hpp.
#include "monitor/sdctl/force/force.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/sdctl/command.hpp"
#include "monitor/sdctl/force/forced_entry.hpp"
#include "monitor/sdctl/force/tracee.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sd::ctl {

using monitor::UniqueFd;

namespace {

std::string proc(pid_t pid, const char *name) { return fmt::format("/proc/{}/{}", pid, name); }

/// The main thread first: its variables are its own, however the others were made.
std::vector<pid_t> threads_of(pid_t pid) {
    std::vector<pid_t> result;
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator(proc(pid, "task"), error)) {
        result.push_back(std::stoi(entry.path().filename()));
    }
    std::sort(result.begin(), result.end(),
              [pid](pid_t a, pid_t b) { return (a == pid) != (b == pid) ? a == pid : a < b; });
    return result;
}

/// Of two that force the same process one waits: both would write the same memory of it. What the lock lies
/// on, only who may trace the process can open.
UniqueFd lock_of(pid_t pid, bool *is_taken) {
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator(proc(pid, "fd"), error)) {
        std::error_code gone;
        if (std::filesystem::read_symlink(entry.path(), gone) == "/memfd:sd-family (deleted)") {
            UniqueFd file(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
            if (file) {
                *is_taken = flock(file.get(), LOCK_EX | LOCK_NB) != 0;
                return file;
            }
        }
    }
    return {};
}

/// Who traces the thread already; 0: nobody.
pid_t tracer_of(pid_t pid, pid_t tid) {
    const std::string text = text_of_file(proc(pid, "task/") + std::to_string(tid) + "/status");
    const size_t at = text.find("\nTracerPid:\t");
    return at == std::string::npos ? 0 : atoi(text.c_str() + at + strlen("\nTracerPid:\t"));
}

std::string comm_of(pid_t pid) {
    std::string comm = text_of_file(proc(pid, "comm"));
    comm.erase(comm.find_last_not_of('\n') + 1);
    return comm;
}

Forced refused(pid_t pid, pid_t tid, int error) {
    if (const pid_t tracer = tracer_of(pid, tid); tracer != 0 && error == EPERM) {
        return {false, true, fmt::format("it is traced by process {} ({}) already", tracer, comm_of(tracer))};
    }
    switch (error) {
    case EPERM:
    case EACCES:
        return {false, false, "the kernel does not let you trace it"};
    case EBUSY:
        return {false, true, "a thread of it cannot be stopped just now"};
    case ESRCH:
        return {false, true, "it has ended"};
    default:
        return {false, false, strerror(error)};
    }
}

/// Until it is gone nothing that ends us takes effect: the thread is to be put back first.
class SignalsWait {
  public:
    SignalsWait() {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, &before_);
    }
    ~SignalsWait() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
    SignalsWait(const SignalsWait &) = delete;
    SignalsWait &operator=(const SignalsWait &) = delete;

  private:
    sigset_t before_{};
};

Forced step_in(pid_t pid, pid_t tid, int pidfd) {
    const SignalsWait wait;
    Tracee thread(tid);
    if (const int error = thread.stop(); error != 0) {
        return refused(pid, tid, error);
    }
    // It cannot execute another program from here on, and it is the process that was meant.
    if (syscall(SYS_pidfd_send_signal, pidfd, 0, nullptr, 0) != 0) {
        return refused(pid, tid, ESRCH);
    }
    const auto entry = find_entry(
        parse_mappings(text_of_file(proc(pid, "maps"))),
        [tid](uint64_t address, void *to, size_t bytes) { return read_memory(tid, address, to, bytes); });
    if (!entry) {
        return {false, false, "its library is older, or was tampered with"};
    }
    switch (thread.run(*entry)) {
    case Tracee::Step::done:
        return {true, true, ""};
    case Tracee::Step::busy:
    case Tracee::Step::unsafe:
        return {false, true, "it is in the middle of an operation"};
    case Tracee::Step::off:
        return {false, false, "the library is out of use there"};
    case Tracee::Step::left:
        return {false, false, "an earlier sdctl was killed while it had stopped it"};
    case Tracee::Step::overdue:
        return {false, false, "what it was to do takes too long"};
    case Tracee::Step::ended:
        return refused(pid, tid, ESRCH);
    case Tracee::Step::unreachable:
        break;
    }
    return {false, false, "its library was tampered with"};
}

} // namespace

Forced force_step(pid_t pid) {
    const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd) {
        return {false, false, strerror(errno)};
    }
    bool is_taken = false;
    const UniqueFd lock = lock_of(pid, &is_taken);
    if (is_taken) {
        return {false, true, "another sdctl has stopped it"};
    }
    Forced last{false, false, "it has no segment that you may open: the kernel does not let you trace it"};
    if (!lock) {
        return last;
    }
    for (const pid_t tid : threads_of(pid)) {
        last = step_in(pid, tid, pidfd.get());
        if (last.is_done || !last.again) {
            return last;
        }
    }
    return last;
}

} // namespace sd::ctl
