// What a tracer has a thread of ours run (libsd/layout/forced_step.hpp): what the next call on each
// connection would do for its paths, and no more.
//
// It is as if a signal handler came and made calls: so it may only begin where a handler of the program's
// might run, that is outside of the sections that put handlers off, or block them. All signals are blocked
// meanwhile. Other threads run on, and find what they would find if this thread had made those calls.
//
// It waits for other threads as calls do, but for no time: a thread that was stopped in nanosleep is to go on
// with what was left of it, which the kernel keeps in a place that each nanosleep uses.
#include "libsd/layout/forced_step.hpp"
#include "libsd/control/sys.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/queue/token.hpp"
#include "libsd/vfs/descriptors/connection_claim.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/readiness/stream_readiness.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

constexpr int64_t kPatienceNs = 1'000'000'000; ///< without a sign of the tracer
/// Of the C library's own signals, which nobody blocks but it and we, for a short section.
constexpr uint64_t kOwnSections = 1ull << (32 - 1);

/// A thread that somebody has stopped at work would be waited for in vain.
bool is_free(const File &f, const Token &token, uint64_t id) noexcept {
    return !used_elsewhere(f.seg, token, id);
}

/// One step of each direction. False: somebody else is at work on it.
bool take_steps(File &f) noexcept {
    Ofd &o = *f.ofd;
    if (!is_free(f, o.tx.token, f.tx_token_id()) || !is_free(f, o.rx.token, f.rx_token_id()))
        return false;
    const Recipient reader = peers_reader(f), writer = peers_writer(f);
    answer_call_home(f);
    if (const Claim rx{f.seg, o.rx.token, f.rx_token_id(), Claim::patient})
        follow_sender(path_socket(f), f);
    notify_own(f); // who sleeps for it in another thread looks at the other path from now on
    reader.tell();
    writer.tell();
    return true;
}

uint32_t step_all() noexcept {
    uint32_t result = forced::kAll;
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i) {
        File *f = fd_table[i].load(std::memory_order_acquire);
        if (!f || f->kind != FileKind::stream || !take_reference(*f))
            continue;
        if (f->kind == FileKind::stream && moved(*f))
            follow(*f);
        if (f->kind == FileKind::stream && has_paths(*f->ofd) && is_told_home(*f) && !take_steps(*f))
            result = forced::kBusy;
        release_file(f);
    }
    return result;
}

bool is_own_thread() noexcept {
    const auto tid = static_cast<uint32_t>(sys::gettid());
    for (const ThreadRecord *r : self.record)
        if (r && r->tid.load(std::memory_order_relaxed) != tid)
            return false; // one that was made with the variables of another
    return true;
}

uint32_t forced_step(uint64_t mask) noexcept {
    if (!vfs::enabled() || vfs::in_vfork())
        return forced::kOff;
    if (inside_operation() || (mask & kOwnSections) || !is_own_thread())
        return forced::kUnsafe;
    const int error = errno;
    const long refused = self.refused;
    const uint32_t result = step_all();
    self.refused = refused;
    errno = error;
    return result;
}

alignas(64) constinit forced::Call call{};
alignas(64) constinit uint8_t stack[65536]{};

/// Here a thread begins with no caller, and it never comes to an end.
[[noreturn]] void begin() noexcept {
    call.result = forced_step(call.mask);
    call.state.store(forced::kDone, std::memory_order_release);
    uint64_t seen = __atomic_load_n(&call.beat, __ATOMIC_RELAXED);
    for (int64_t since = sys::now_ns();;) {
        for (unsigned n = 0; n < 1000; ++n)
            cpu::pause();
        if (const uint64_t now = __atomic_load_n(&call.beat, __ATOMIC_RELAXED); now != seen) {
            seen = now;
            since = sys::now_ns();
        } else if (sys::now_ns() - since > kPatienceNs) {
            call.state.store(forced::kLeft, std::memory_order_seq_cst);
            cpu::resume(call.frame);
        }
    }
}

// It must be there though nobody asks for it.
[[gnu::used, gnu::retain]] const forced::Entry entry{
    {forced::kMagic, ~forced::kMagic}, forced::kVersion, sizeof(forced::Call), begin, stack + sizeof stack, &call};

} // namespace

} // namespace sd
