#include "tests/fake_verbs/engine.hpp"
#include "tests/fake_verbs/completion.hpp"
#include "tests/fake_verbs/process.hpp"
#include "tests/fake_verbs/reach.hpp"
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>

namespace sd::fake_verbs {

namespace {

constexpr uint32_t kNone = kQueuePairs;
constexpr uint64_t kLookAtPeerNs = 2'000'000;

uint32_t number_of(const QueuePair &q, uint32_t index) noexcept {
    return queue_pair_number(index, q.number.load(std::memory_order_relaxed));
}

Completion completion(const QueuePair &q, uint32_t index, uint64_t id, ibv_wc_status status,
                      ibv_wc_opcode opcode, uint64_t sequence) noexcept {
    Completion c{};
    c.wc.wr_id = id;
    c.wc.status = status;
    c.wc.opcode = opcode;
    c.wc.qp_num = number_of(q, index);
    c.sequence = sequence;
    c.queue_pair = index;
    c.number = q.number.load(std::memory_order_relaxed);
    c.sending = opcode == IBV_WC_RDMA_WRITE;
    return c;
}

/// Does registered memory of the domain hold [address, address + length), with such rights?
bool allowed(const Fabric &f, uint32_t domain, uint32_t key, uint64_t address, uint64_t length,
             uint32_t access) noexcept {
    const uint32_t i = memory_of(key);
    if (i >= kMemories)
        return false;
    const Memory &m = f.memory[i];
    return m.used.load(std::memory_order_acquire) &&
           key_of(i, m.number.load(std::memory_order_relaxed)) == key && m.domain == domain &&
           (m.access & access) == access && address >= m.address && length <= m.length &&
           address - m.address <= m.length - length;
}

/// The first `n` bytes of the work's, to where they belong.
bool write_out(Fabric &f, const Work &w, uint32_t n) noexcept {
    if (w.flags & IBV_SEND_INLINE)
        return n == 0 || copy_between(f, 0, 0, w.data, memory_of(w.key), w.remote, n);
    uint64_t to = w.remote;
    for (uint32_t i = 0; i < w.pieces && n > 0; ++i) {
        const uint32_t m = w.piece[i].length < n ? w.piece[i].length : n;
        if (m &&
            !copy_between(f, memory_of(w.piece[i].key), w.piece[i].address, nullptr, memory_of(w.key), to, m))
            return false;
        to += m;
        n -= m;
    }
    return true;
}

/// With receive_lock, in the error state.
void flush_receives(Fabric &f, uint32_t index, QueuePair &q) noexcept {
    while (q.received != q.offered) {
        const uint64_t id = q.receive[q.received % kReceiveDepth];
        complete(f, q.receive_queue,
                 completion(q, index, id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV_RDMA_WITH_IMM, ~q.received), true);
        ++q.received;
    }
}

enum class Outcome { done, waits, failed };

struct Carried {
    Outcome outcome;
    ibv_wc_status status = IBV_WC_SUCCESS;
    uint32_t then = kNone; ///< has work to flush
};

/// Of `limit` times as often as the fault says. Where there is none, nothing is written that others share.
bool by_chance(Fabric &f, const std::atomic<uint32_t> &fault, uint32_t limit) noexcept {
    const uint32_t often = fault.load(std::memory_order_relaxed);
    return often && draw(f, limit) < often;
}

/// Does a fault have the work wait now, with some or all of its bytes visible already?
bool held_up(Fabric &f, Work &w) noexcept {
    const Faults &faults = f.faults;
    if (!faults.device.load(std::memory_order_relaxed))
        return false;
    const uint64_t now = now_ns();
    if (w.start_at)
        return now < w.start_at;
    const uint32_t late = faults.late_us.load(std::memory_order_relaxed);
    const bool early = w.length > 0 && by_chance(f, faults.early, 1000);
    if (!late && !early)
        return false;
    w.written = early ? draw(f, w.length) : w.length;
    write_out(f, w, w.written);
    w.start_at = now + 1 + draw(f, 1 + 1000 * (late ? late : 100));
    return true;
}

/// With the peer's receive_lock, under which it looks whether somebody waits once it has done what was
/// missing.
Carried wait_for_peer(Fabric &f, QueuePair &q) noexcept {
    if (q.waits.exchange(1, std::memory_order_seq_cst) == 0)
        f.queue[q.send_queue].waiting.fetch_add(1, std::memory_order_relaxed);
    return {Outcome::waits};
}

Carried carry(Fabric &f, uint32_t index, QueuePair &q, Work &w) noexcept {
    const uint32_t host = f.context[q.context].host, device = f.context[q.context].device;
    const Device &ours = f.device[host][device];
    if (ours.port_down.load() || ours.removed.load() || q.peer_host >= kHosts)
        return {Outcome::failed, IBV_WC_RETRY_EXC_ERR};
    const uint32_t peer = queue_pair_of(q.peer);
    QueuePair &p = f.queue_pair[peer];
    if (!(w.flags & IBV_SEND_INLINE))
        for (uint32_t i = 0; i < w.pieces; ++i)
            if (w.piece[i].length &&
                !allowed(f, q.domain, w.piece[i].key, w.piece[i].address, w.piece[i].length, 0))
                return {Outcome::failed, IBV_WC_LOC_PROT_ERR};
    Guard g(p.receive_lock);
    const Context &theirs = f.context[p.context];
    const uint32_t state = p.state.load(std::memory_order_acquire);
    if (!p.used.load(std::memory_order_acquire) || number_of(p, peer) != q.peer || theirs.host != q.peer_host ||
        state == IBV_QPS_ERR || f.device[theirs.host][theirs.device].removed.load() ||
        f.device[theirs.host][theirs.device].port_down.load())
        return {Outcome::failed, IBV_WC_RETRY_EXC_ERR};
    if (const uint64_t now = now_ns(); now - q.peer_seen > kLookAtPeerNs) {
        if (!alive(p.context))
            return {Outcome::failed, IBV_WC_RETRY_EXC_ERR};
        q.peer_seen = now;
    }
    if (state != IBV_QPS_RTR && state != IBV_QPS_RTS)
        return wait_for_peer(f, q);
    if (p.peer != number_of(q, index) || p.peer_host != host)
        return {Outcome::failed, IBV_WC_RETRY_EXC_ERR};

    const bool immediate = w.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (immediate && p.received == p.offered)
        return q.rnr_retry == 7 ? wait_for_peer(f, q) : Carried{Outcome::failed, IBV_WC_RNR_RETRY_EXC_ERR};
    if (immediate && !w.start_at && by_chance(f, f.faults.rnr, 1000)) {
        w.start_at = now_ns() + 1000 * (1 + draw(f, 2000));
        return {Outcome::waits};
    }
    const bool open = p.access & IBV_ACCESS_REMOTE_WRITE;
    if (!open || (w.length > 0 && !allowed(f, p.domain, w.key, w.remote, w.length, IBV_ACCESS_REMOTE_WRITE))) {
        p.state.store(IBV_QPS_ERR, std::memory_order_release);
        flush_receives(f, peer, p);
        raise_event(p.context, {IBV_EVENT_QP_ACCESS_ERR, peer, p.number.load()});
        return {Outcome::failed, open ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR, peer};
    }
    if (held_up(f, w))
        return {Outcome::waits};
    const bool cut = by_chance(f, f.faults.cut, 1'000'000);
    if (cut && draw(f, 2))
        return {Outcome::failed, IBV_WC_RETRY_EXC_ERR};
    if (!write_out(f, w, w.length))
        return {Outcome::failed, IBV_WC_RETRY_EXC_ERR}; // that process has just ended
    if (immediate) {
        Completion c = completion(p, peer, p.receive[p.received % kReceiveDepth], IBV_WC_SUCCESS,
                                  IBV_WC_RECV_RDMA_WITH_IMM, q.carried);
        c.wc.byte_len = w.length;
        c.wc.imm_data = w.immediate;
        c.wc.wc_flags = IBV_WC_WITH_IMM;
        c.wc.src_qp = number_of(q, index);
        if (!complete(f, p.receive_queue, c, w.flags & IBV_SEND_SOLICITED)) {
            p.state.store(IBV_QPS_ERR, std::memory_order_release);
            return {Outcome::failed, IBV_WC_REM_OP_ERR, peer};
        }
        ++p.received;
    }
    // Its acknowledgement is lost: the bytes are there, and the sender does not know.
    return cut ? Carried{Outcome::failed, IBV_WC_RETRY_EXC_ERR} : Carried{Outcome::done};
}

/// With send_lock.
void write_completions(Fabric &f, uint32_t index, QueuePair &q) noexcept {
    for (; q.completed != q.carried; ++q.completed) {
        const Work &w = q.work[q.completed % kSendDepth];
        if (w.complete_at && q.state.load() == IBV_QPS_RTS && now_ns() < w.complete_at)
            return;
        const auto status = static_cast<ibv_wc_status>(w.status);
        if (status != IBV_WC_SUCCESS || q.all_signaled || (w.flags & IBV_SEND_SIGNALED))
            complete(f, q.send_queue, completion(q, index, w.id, status, IBV_WC_RDMA_WRITE, q.completed), false);
    }
}

void flush_sends(QueuePair &q) noexcept {
    for (const uint64_t end = q.posted.load(std::memory_order_acquire); q.carried != end; ++q.carried)
        q.work[q.carried % kSendDepth].status = IBV_WC_WR_FLUSH_ERR;
}

bool was_written(const CompletionQueue &q, bool sending, uint32_t index, uint32_t number,
                 uint64_t sequence) noexcept {
    for (const Completion &c : q.entry)
        if (c.sending == sending && c.queue_pair == index && c.number == number && c.sequence == sequence)
            return true;
    return false;
}

/// Who had the lock was killed, perhaps between a completion and the note that it was written.
void recover(Fabric &f, uint32_t index, QueuePair &q) noexcept {
    if (q.completed != q.carried && was_written(f.queue[q.send_queue], true, index, q.number.load(), q.completed))
        ++q.completed;
    const uint32_t peer = queue_pair_of(q.peer);
    QueuePair &p = f.queue_pair[peer];
    if (q.carried == q.posted.load() || !p.used.load() || number_of(p, peer) != q.peer)
        return;
    Guard g(p.receive_lock);
    const Work &w = q.work[q.carried % kSendDepth];
    if (w.opcode == IBV_WR_RDMA_WRITE_WITH_IMM &&
        was_written(f.queue[p.receive_queue], false, peer, p.number.load(), q.carried)) {
        if (p.received != p.offered && g.stolen)
            ++p.received;
        ++q.carried;
    }
}

/// Returns another queue pair that has something to flush now.
uint32_t step(Fabric &f, uint32_t index) noexcept {
    QueuePair &q = f.queue_pair[index];
    uint32_t then = kNone;
    Guard g(q.send_lock);
    if (!q.used.load(std::memory_order_acquire))
        return kNone;
    if (g.stolen)
        recover(f, index, q);
    bool waits = false;
    while (!waits && q.carried != q.posted.load(std::memory_order_acquire)) {
        if (q.state.load(std::memory_order_acquire) != IBV_QPS_RTS)
            break;
        Work &w = q.work[q.carried % kSendDepth];
        const Carried c = carry(f, index, q, w);
        if (c.then != kNone)
            then = c.then;
        waits = c.outcome == Outcome::waits;
        if (waits)
            break;
        w.status = static_cast<uint32_t>(c.status);
        if (const uint32_t late = f.faults.late_us.load(std::memory_order_relaxed))
            w.complete_at = now_ns() + draw(f, 1 + 1000 * late);
        ++q.carried;
        if (c.outcome == Outcome::failed)
            q.state.store(IBV_QPS_ERR, std::memory_order_release);
    }
    if (!waits && q.waits.load(std::memory_order_relaxed) && q.waits.exchange(0) != 0)
        f.queue[q.send_queue].waiting.fetch_sub(1, std::memory_order_relaxed);
    const bool ended = q.state.load(std::memory_order_acquire) == IBV_QPS_ERR;
    if (ended)
        flush_sends(q);
    write_completions(f, index, q);
    if (ended) {
        Guard r(q.receive_lock);
        flush_receives(f, index, q);
    }
    return then;
}

} // namespace

void progress(Fabric &f, uint32_t queue_pair) noexcept {
    while (queue_pair != kNone)
        queue_pair = step(f, queue_pair);
}

void posted(Fabric &f, uint32_t queue_pair) noexcept {
    if (!f.faults.device.load(std::memory_order_relaxed))
        return progress(f, queue_pair);
    f.pending[queue_pair / 64].fetch_or(uint64_t{1} << queue_pair % 64, std::memory_order_seq_cst);
    f.bell.fetch_add(1, std::memory_order_seq_cst);
}

void fail(Fabric &f, uint32_t queue_pair) noexcept {
    QueuePair &q = f.queue_pair[queue_pair];
    q.state.store(IBV_QPS_ERR, std::memory_order_seq_cst);
    progress(f, queue_pair);
}

void peer_may_go_on(Fabric &f, const QueuePair &q) noexcept {
    const uint32_t peer = queue_pair_of(q.peer);
    if (f.queue_pair[peer].waits.load(std::memory_order_seq_cst))
        posted(f, peer);
}

void wait_for_writers(Fabric &f, uint32_t domain) noexcept {
    for (QueuePair &q : f.queue_pair)
        if (q.used.load(std::memory_order_acquire) && q.domain == domain) {
            Guard g(q.receive_lock); // a peer that writes to its memory
        }
    for (QueuePair &q : f.queue_pair)
        if (q.used.load(std::memory_order_acquire) && q.domain == domain) {
            Guard g(q.send_lock); // or who reads from it
        }
}

void run_device(Fabric &f, uint32_t parent) noexcept {
    for (uint64_t looks = 0;; ++looks) {
        bool any = false;
        const uint32_t start = draw(f, kQueuePairs / 64);
        for (uint32_t k = 0; k < kQueuePairs / 64; ++k) {
            const uint32_t word = (start + k) % (kQueuePairs / 64);
            uint64_t bits = f.pending[word].load(std::memory_order_acquire);
            for (; bits; bits &= bits - 1) {
                const uint32_t index = word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
                any = true;
                if (by_chance(f, f.faults.reorder, 1000))
                    continue;
                QueuePair &q = f.queue_pair[index];
                f.pending[word].fetch_and(~(uint64_t{1} << index % 64), std::memory_order_seq_cst);
                progress(f, index);
                Guard g(q.send_lock);
                if (q.used.load() && (q.completed != q.posted.load())) // not all yet: again
                    f.pending[word].fetch_or(uint64_t{1} << index % 64, std::memory_order_seq_cst);
            }
        }
        if (!any || looks % 16 == 0)
            usleep(any ? 1 : 50);
        if (looks % 4096 == 0 && syscall(SYS_kill, parent, 0) != 0)
            return;
    }
}

} // namespace sd::fake_verbs
