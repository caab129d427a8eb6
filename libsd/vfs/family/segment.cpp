// Making and sharing family segments; allocation of their records.
#include "libsd/vfs/family/segment.hpp"
#include "libsd/base/probes.hpp"
#include "libsd/control/assert.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/libc_threads.hpp"
#include "libsd/control/lock.hpp"
#include "libsd/control/memory.hpp"
#include "libsd/queue/bell.hpp"
#include "libsd/queue/thread_liveness.hpp"
#include "libsd/transport/link.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include <ctime>
#include <initializer_list>
#include <sys/stat.h>

namespace sd {

SD_FORK_STATE MappedSegment segments[kMaxSegments];
SD_FORK_STATE std::atomic<uint32_t> segment_count{0};
SD_FORK_STATE std::atomic<int> own_segment_index{-1};

namespace {

SD_FORK_STATE constinit Lock make_lock;
SD_FORK_STATE constinit Lock join_lock;    // one segment is joined once
SD_FORK_STATE constinit Lock own_lock;     // of several threads: who makes Ofds in the own one, or leaves it
constinit SegmentStats no_segment_stats{}; // counts until there is a segment; moved there when it is made
SD_FORK_STATE uint32_t child_proc[kMaxSegments];
SD_FORK_STATE uint32_t ofd_hint = 1;

/// own_lock, where there is anybody to wait for: a thread that is alone starts no other one meanwhile.
class OwnGuard {
  public:
    OwnGuard() noexcept : taken_(!one_thread()) {
        if (taken_)
            own_lock.lock_unmasked();
    }
    ~OwnGuard() {
        if (taken_)
            own_lock.unlock_unmasked();
    }
    OwnGuard(const OwnGuard &) = delete;
    OwnGuard &operator=(const OwnGuard &) = delete;

  private:
    PutOff put_off_; // begins before the lock is taken, ends after it is given back
    const bool taken_;
};

/// The lock word of a segment, shared by processes: held for a few instructions, with signal handlers put
/// off. If its holder died, the lock is broken after a while: what it protects (finding a free record) is
/// done with atomic state words anyway.
class SegmentLock {
  public:
    explicit SegmentLock(SegmentView v) noexcept : word_(v.header().ofd_lock) {
        for (unsigned n = 0; word_.exchange(1, std::memory_order_acquire) != 0 && n < 100'000; ++n)
            sys::sched_yield();
    }
    ~SegmentLock() { word_.store(0, std::memory_order_release); }
    SegmentLock(const SegmentLock &) = delete;
    SegmentLock &operator=(const SegmentLock &) = delete;

  private:
    PutOff put_off_; // begins before the word is taken, ends after it is given back
    std::atomic<uint32_t> &word_;
};

void note_high(std::atomic<uint32_t> &high, uint32_t index) noexcept {
    uint32_t h = high.load(std::memory_order_relaxed);
    while (h <= index && !high.compare_exchange_weak(h, index + 1, std::memory_order_acq_rel)) {
    }
}

/// Takes a free record; kSegProcs: there is none. The monitor takes some as well, without the segment's lock.
uint32_t claim_proc(SegmentView v) noexcept {
    for (uint32_t i = 0; i < kSegProcs; ++i) {
        uint32_t free = 0;
        if (i != kParcelProc && v.proc(i).state.load(std::memory_order_acquire) == 0 &&
            v.proc(i).state.compare_exchange_strong(free, 1, std::memory_order_seq_cst))
            return i;
    }
    return kSegProcs;
}

/// What happened while there was no segment, or another one.
void move_stats(SegmentStats &from, SegmentStats &to) noexcept {
    to.connects.fetch_add(from.connects.exchange(0), std::memory_order_relaxed);
    to.accepts.fetch_add(from.accepts.exchange(0), std::memory_order_relaxed);
    to.joined.fetch_add(from.joined.exchange(0), std::memory_order_relaxed);
    for (unsigned i = 0; i < kMaxCauses; ++i)
        to.fallbacks[i].fetch_add(from.fallbacks[i].exchange(0), std::memory_order_relaxed);
}

} // namespace

bool register_in_segment(unsigned seg) noexcept {
    if (seg >= segment_count.load(std::memory_order_acquire))
        return false;
    SegmentView v = segments[seg].view;
    const PutOff handlers; // one that registers the thread too, in between, would get it a second record
    if (self.id[seg])
        return true; // a handler that ran before the lock did it
    uint32_t high = v.header().thread_high.load(std::memory_order_relaxed);
    for (uint32_t i = 1; i < kSegThreads; ++i) {
        ThreadRecord &t = v.thread(i);
        uint32_t free = 0;
        if (t.state.load(std::memory_order_acquire) != 0 ||
            !t.state.compare_exchange_strong(free, segments[seg].proc + 1, std::memory_order_acq_rel))
            continue;
        // Before the marks go: who waits for one of them sees that it is not its thread's any more.
        const uint32_t generation = t.generation.load(std::memory_order_relaxed) + 1;
        t.generation.store(generation, std::memory_order_release);
        note_identity(t);
        for (auto &b : t.busy)
            b.store(0, std::memory_order_release);
        if (i >= high)
            note_high(v.header().thread_high, i);
        self.record[seg] = &t;
        self.id[seg] = make_thread_id(i, generation);
        return true;
    }
    return false;
}

bool own_segment(int greeting) noexcept {
    if (own_segment_index.load(std::memory_order_acquire) >= 0)
        return true;
    LockGuard g(make_lock);
    if (own_segment_index.load(std::memory_order_relaxed) >= 0)
        return true;
    uint32_t n = segment_count.load(std::memory_order_relaxed);
    if (n >= kMaxSegments || mappings_are_locked.load(std::memory_order_relaxed))
        return false;
    long fd = control::make_memory("sd-family", kSegmentBytes, greeting);
    if (fd < 0 || (fd = hide_fd(static_cast<int>(fd))) < 0)
        return false;
    void *p = sys::mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        static_cast<int>(fd), 0);
    if (!p) {
        close_hidden(static_cast<int>(fd));
        return false;
    }
    sys::madvise(p, kSegmentBytes, MADV_DONTDUMP);
    MappedSegment &m = segments[n];
    m.view.base = static_cast<uint8_t *>(p);
    m.fd = static_cast<int>(fd);
    m.proc = 0;
    m.owner_client = 0;
    SegmentHeader &h = m.view.header();
    h.version = kLayoutVersion;
    h.creator_pid = static_cast<uint32_t>(sys::getpid());
    h.bytes = kSegmentBytes;
    h.capture_known.fetch_or(kKnownToLibrary, std::memory_order_relaxed);
    h.steering.fetch_or(kKnowsSteering | kKnowsShared, std::memory_order_relaxed);
    h.listeners_given_up.store(1, std::memory_order_relaxed);
    h.ofd_high.store(1, std::memory_order_relaxed);
    h.thread_high.store(1, std::memory_order_relaxed);
    h.proc_high.store(1, std::memory_order_relaxed);
    m.view.proc(0).pid.store(h.creator_pid, std::memory_order_relaxed);
    m.view.proc(0).state.store(1, std::memory_order_relaxed);
    move_stats(no_segment_stats, h.stats);
    h.magic = kSegmentMagic;
    ofd_hint = 1;
    thread_table[n] = &m.view.thread(0);
    takeover_count = &h.stats.takeovers;
    segment_count.store(n + 1, std::memory_order_release);
    own_segment_index.store(static_cast<int>(n), std::memory_order_release);
    if (control::connected()) { // a forked child, whose channel was greeted with its parent's segments
        wire::Segment msg{0, 0, 0};
        control::request(wire::Op::segment, &msg, sizeof msg, &m.fd, 1);
    }
    return true;
}

int map_segment(int fd, uint32_t proc, uint64_t owner_client) noexcept {
    struct stat st;
    const long seals = sys::fcntl(fd, F_GET_SEALS);
    if (proc >= kSegProcs || seals < 0 || !(seals & F_SEAL_SHRINK) ||
        sys::call(SYS_fstat, fd, sys::arg(&st)) < 0 || static_cast<size_t>(st.st_size) != kSegmentBytes)
        return -1;
    LockGuard g(make_lock);
    const uint32_t n = segment_count.load(std::memory_order_relaxed);
    if (n >= kMaxSegments || mappings_are_locked.load(std::memory_order_relaxed))
        return -1;
    void *p = sys::mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (!p)
        return -1;
    MappedSegment &m = segments[n];
    m.view.base = static_cast<uint8_t *>(p);
    if (m.view.header().magic != kSegmentMagic || m.view.header().version != kLayoutVersion) {
        sys::munmap(p, kSegmentBytes);
        return -1;
    }
    sys::madvise(p, kSegmentBytes, MADV_DONTDUMP);
    m.fd = fd;
    m.proc = proc;
    m.owner_client = owner_client;
    thread_table[n] = &m.view.thread(0);
    segment_count.store(n + 1, std::memory_order_release);
    return static_cast<int>(n);
}

namespace {

int find_segment(uint64_t name) noexcept {
    const int own = own_segment_index.load(std::memory_order_acquire);
    if (own >= 0 && name == control::client_id())
        return own;
    for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i)
        if (static_cast<int>(i) != own && segments[i].owner_client == name)
            return static_cast<int>(i);
    return -1;
}

} // namespace

int join_segment(int fd, uint64_t name) noexcept {
    LockGuard g(join_lock);
    if (const int known = find_segment(name); known >= 0) {
        close_hidden(fd);
        return known;
    }
    const int seg = map_segment(fd, 0, name);
    if (seg < 0) {
        close_hidden(fd);
        return -1;
    }
    MappedSegment &m = segments[seg];
    m.proc = kSegProcs;
    // The monitor chooses the record: one that we took ourselves would never be freed if we were killed
    // before it heard of it.
    wire::Segment msg{wire::kAnyProc, 0, name};
    const auto r = control::request(wire::Op::segment, &msg, sizeof msg, &m.fd, 1);
    if (r.status == 0 && r.length == sizeof(wire::SegmentReply) &&
        r.as<wire::SegmentReply>().proc_index < kSegProcs) {
        m.proc = r.as<wire::SegmentReply>().proc_index;
        m.view.proc(m.proc).pid.store(static_cast<uint32_t>(sys::getpid()), std::memory_order_relaxed);
        note_high(m.view.header().proc_high, m.proc);
        return seg;
    }
    // Others may have looked at the entry meanwhile; as one without a record of ours it does no harm.
    m.owner_client = 0;
    return -1;
}

bool leave_segment(unsigned seg) noexcept {
    LockGuard g(join_lock);
    MappedSegment &m = segments[seg];
    const bool own = static_cast<int>(seg) == own_segment_index.load(std::memory_order_acquire);
    // Another thread that opens a connection in its own has done so, or makes it in the next one: the lock
    // word of a segment that was left would stay taken for those who have it still.
    const OwnGuard o;
    if (m.fd < 0 || holds_any(seg))
        return false;
    wire::SegmentRef msg{own ? control::client_id() : m.owner_client};
    // Nothing is held there, so nothing is lost when it is not told
    control::request(wire::Op::part, &msg, sizeof msg);
    if (own) {
        move_stats(m.view.header().stats, no_segment_stats);
        takeover_count = &no_segment_stats.takeovers;
        own_segment_index.store(-1, std::memory_order_release);
    }
    if (!sys::mmap(m.view.base, kSegmentBytes, PROT_READ | PROT_WRITE, // private memory would count as data
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0))
        return false;
    sys::madvise(m.view.base, kSegmentBytes, MADV_DONTDUMP);
    close_hidden(m.fd);
    m.fd = -1;
    m.owner_client = 0;
    m.proc = kSegProcs;
    self.id[seg] = 0;
    self.record[seg] = nullptr;
    return true;
}

void hold_ofd(unsigned seg, uint32_t index) noexcept {
    SD_ASSERT(index != 0 && index < kOfds); // who else holds it, relatives may lie about
    if (segments[seg].proc < kSegProcs)     // see segments_fork_prepare
        segments[seg].view.proc(segments[seg].proc).held[index / 64].fetch_or(uint64_t{1} << index % 64, std::memory_order_seq_cst);
}

bool holds_any(unsigned seg) noexcept {
    if (segments[seg].proc >= kSegProcs)
        return false;
    for (const auto &word : segments[seg].view.proc(segments[seg].proc).held)
        if (word.load(std::memory_order_seq_cst))
            return true;
    return false;
}

bool holds_ofd(unsigned seg, uint32_t index) noexcept {
    if (segments[seg].proc >= kSegProcs)
        return false;
    return segments[seg].view.proc(segments[seg].proc).held[index / 64].load(std::memory_order_seq_cst) >>
               index % 64 &
           1;
}

namespace {

/// Whether a record other than this process's names the Ofd; that of connections on their way to another
/// process only with `parcels`.
bool held_by_others(unsigned seg, uint32_t index, bool parcels) noexcept {
    SegmentView v = segments[seg].view;
    uint32_t forks;
    do { // see SegmentHeader::forks
        forks = v.header().forks.load(std::memory_order_seq_cst);
        for (uint32_t i = 0, n = v.header().proc_high.load(std::memory_order_acquire); i < n && i < kSegProcs;
             ++i)
            if (i != segments[seg].proc && (parcels || i != kParcelProc) &&
                v.proc(i).state.load(std::memory_order_acquire) == 1 &&
                (v.proc(i).held[index / 64].load(std::memory_order_seq_cst) >> index % 64 & 1))
                return true;
    } while (forks != v.header().forks.load(std::memory_order_seq_cst));
    return false;
}

} // namespace

bool held_elsewhere(unsigned seg, uint32_t index) noexcept { return held_by_others(seg, index, false); }

bool hold_for_parcel(unsigned seg, uint32_t index) noexcept {
    SegmentView v = segments[seg].view;
    const uint64_t bit = uint64_t{1} << index % 64;
    v.proc(kParcelProc).state.store(1, std::memory_order_relaxed);
    const uint64_t held = v.proc(kParcelProc).held[index / 64].fetch_or(bit, std::memory_order_seq_cst);
    note_high(v.header().proc_high, kParcelProc);
    return !(held & bit);
}

void unhold_for_parcel(unsigned seg, uint32_t index) noexcept {
    segments[seg].view.proc(kParcelProc).held[index / 64].fetch_and(~(uint64_t{1} << index % 64), std::memory_order_seq_cst);
}

void resume_own_segment(int index) noexcept {
    ofd_hint = 1;
    own_segment_index.store(index, std::memory_order_release);
}

void forget_threads_of_former_image(unsigned seg) noexcept {
    SegmentView v = segments[seg].view;
    SegmentLock g(v);
    const uint32_t high = v.header().thread_high.load(std::memory_order_relaxed);
    for (uint32_t i = 1; i < high && i < kSegThreads; ++i) {
        ThreadRecord &t = v.thread(i);
        uint32_t ours = segments[seg].proc + 1;
        // The marks stay, see token.hpp: they show where the thread ended
        t.state.compare_exchange_strong(ours, 0);
    }
}

SegmentStats &stats() noexcept {
    int i = own_segment_index.load(std::memory_order_acquire);
    return i < 0 ? no_segment_stats : segments[i].view.header().stats;
}

void count_fallback(Cause c, const SlotAddress *to) noexcept {
    SD_PROBE2(fallback, static_cast<unsigned>(c), to ? to->port : 0);
    SegmentStats &s = stats();
    s.fallbacks[static_cast<unsigned>(c)].fetch_add(1, std::memory_order_relaxed);
    uint32_t n = s.fallback_next.fetch_add(1, std::memory_order_relaxed);
    FallbackRecord &r = s.recent[n % kFallbackRing];
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    r.cause = static_cast<uint16_t>(c);
    r.port = to ? to->port : 0;
    for (unsigned i = 0; i < 16; ++i)
        r.ip[i] = to ? to->ip[i] : 0;
    r.when_ns = static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
    r.sequence.store(n + 1, std::memory_order_release);
}

namespace {

/// One store after the other, which is half the instructions of a loop over their addresses.
template <class... Words> void zero(Words &...words) noexcept {
    (words.store(0, std::memory_order_relaxed), ...);
}

} // namespace

Ofd *allocate_ofd(uint64_t link_id, uint32_t slot, unsigned side, unsigned *segment, uint32_t *index) noexcept {
    const OwnGuard own;
    const int seg = own_segment_index.load(std::memory_order_acquire);
    if (seg < 0)
        return nullptr;
    *segment = static_cast<unsigned>(seg);
    SegmentView v = segments[seg].view;
    SegmentLock g(v);
    uint32_t start = ofd_hint < kOfds ? ofd_hint : 1, i = start;
    do {
        Ofd &o = v.ofd(i);
        if (o.state.load(std::memory_order_acquire) == static_cast<uint32_t>(OfdState::free)) {
            uint16_t gen = static_cast<uint16_t>(o.generation + 1);
            zero(o.status, o.tx_block, o.so_error, o.rx_shut, o.flags_seen);
            o.rcvlowat.store(1, std::memory_order_relaxed);
            o.rcvtimeo_ns.store(0, std::memory_order_relaxed);
            o.sndtimeo_ns.store(0, std::memory_order_relaxed);
            o.tx.s = TxState{};
            o.rx.s = RxState{};
            for (Token *t : {&o.tx.token, &o.rx.token})
                zero(t->owner, t->lock, t->prev, t->last, t->streak, t->bounces, t->stamp);
            zero(o.opt.nodelay, o.opt.cork, o.opt.keepalive, o.opt.oobinline, o.opt.reuseaddr, o.opt.reuseport,
                 o.opt.linger_on, o.opt.linger_s, o.opt.keepidle, o.opt.keepintvl, o.opt.keepcnt,
                 o.opt.quickack, o.opt.user_timeout, o.opt.zerocopy_next, o.opt.zerocopy_told, o.opt.sndbuf);
            capture_newborn(v, segments[seg].proc, o);
            o.generation = gen;
            o.link_id = link_id;
            o.slot = slot;
            o.side = static_cast<uint8_t>(side);
            // The monitor may find the bit at any time from here on; link_id, slot and side are what it
            // needs.
            o.state.store(static_cast<uint32_t>(OfdState::open), std::memory_order_release);
            v.proc(segments[seg].proc).held[i / 64].fetch_or(uint64_t{1} << (i % 64), std::memory_order_release);
            if (i >= v.header().ofd_high.load(std::memory_order_relaxed))
                note_high(v.header().ofd_high, i);
            ofd_hint = i + 1;
            *index = i;
            return &o;
        }
        if (++i == kOfds)
            i = 1;
    } while (i != start);
    return nullptr;
}

bool drop_ofd(unsigned seg, uint32_t index) noexcept {
    SegmentView v = segments[seg].view;
    uint64_t bit = uint64_t{1} << (index % 64);
    if (segments[seg].proc >= kSegProcs)
        // This process got no record (see segments_fork_prepare), so it never counts as a holder
        return false;
    const uint64_t held = v.proc(segments[seg].proc).held[index / 64].fetch_and(~bit, std::memory_order_seq_cst);
    // Not so in a forked child, if a thread of the parent was just closing it: that one ends it.
    if (!(held & bit) || held_by_others(seg, index, true))
        return false;
    // Two last holders may both get here: only one wins the right to close.
    uint32_t open = static_cast<uint32_t>(OfdState::open);
    return v.ofd(index).state.compare_exchange_strong(open, static_cast<uint32_t>(OfdState::closing));
}

void free_ofd(unsigned seg, uint32_t index) noexcept {
    SD_ASSERT(index != 0 && index < kOfds && !holds_ofd(seg, index));
    segments[seg].view.ofd(index).state.store(static_cast<uint32_t>(OfdState::free), std::memory_order_release);
    if (static_cast<int>(seg) == own_segment_index.load(std::memory_order_relaxed) && index < ofd_hint)
        ofd_hint = index; // low numbers again, so that few pages are touched
}

void unregister_thread() noexcept {
    for (unsigned i = 0; i < kMaxSegments; ++i)
        if (self.record[i]) {
            ThreadRecord *r = self.record[i];
            self.id[i] = 0; // first: a signal handler that uses a socket just now registers again
            self.record[i] = nullptr;
            r->state.store(0, std::memory_order_release);
        }
    if (self.bell) {
        Bell *b = self.bell;
        self.bell = nullptr;
        free_bell(b, true);
    }
}

SD_FORK_CODE bool segments_fork_lock() noexcept { return make_lock.try_lock_unmasked(); }

SD_FORK_CODE void segments_fork_prepare(wire::Fork *message, bool without_records) noexcept {
    *message = wire::Fork{};
    uint32_t n = segment_count.load(std::memory_order_relaxed);
    for (uint32_t s = 0; s < n; ++s) {
        SegmentView v = segments[s].view;
        uint32_t mine = segments[s].proc;
        SegmentLock g(v);
        // Not yet joined: holds nothing
        uint32_t c = child_proc[s] = mine < kSegProcs && !without_records ? claim_proc(v) : kSegProcs;
        if (c == kSegProcs)
            // The child then works on the sockets, but its death is not seen for those it alone holds
            continue;
        ProcRecord &r = v.proc(c);
        r.pid.store(0, std::memory_order_relaxed);
        uint32_t words = (v.header().ofd_high.load(std::memory_order_relaxed) + 63) / 64;
        for (uint32_t w = 0; w < kOfds / 64 && w < words; ++w)
            r.held[w].store(v.proc(mine).held[w].load(std::memory_order_relaxed), std::memory_order_relaxed);
        note_high(v.header().proc_high, c);
        v.header().forks.fetch_add(1, std::memory_order_seq_cst); // before the parent can close anything
        uint64_t owner =
            static_cast<int>(s) == own_segment_index.load() ? control::client_id() : segments[s].owner_client;
        auto &m = message->child_in[message->segments++];
        m.owner_client = owner;
        m.proc_index = c;
    }
}

bool holds_nothing() noexcept {
    for (uint32_t s = 0, n = segment_count.load(std::memory_order_relaxed); s < n; ++s) {
        if (segments[s].proc >= kSegProcs)
            continue;
        const SegmentView v = segments[s].view;
        const ProcRecord &r = v.proc(segments[s].proc);
        const uint32_t words = (v.header().ofd_high.load(std::memory_order_relaxed) + 63) / 64;
        for (uint32_t w = 0; w < kOfds / 64 && w < words; ++w)
            if (r.held[w].load(std::memory_order_relaxed))
                return false;
    }
    return true;
}

SD_FORK_CODE void segments_fork_parent() noexcept { make_lock.unlock_unmasked(); }

SD_FORK_CODE void segments_fork_child() noexcept {
    int own = own_segment_index.load(std::memory_order_relaxed);
    for (uint32_t s = 0, n = segment_count.load(); s < n; ++s) {
        if (static_cast<int>(s) == own) {
            segments[s].owner_client = control::client_id(); // still the parent's name
        }
        segments[s].proc = child_proc[s];
        if (child_proc[s] < kSegProcs)
            segments[s].view.proc(child_proc[s]).pid.store(static_cast<uint32_t>(sys::getpid()), std::memory_order_relaxed);
    }
    if (own >= 0)
        own_segment_index.store(-1, std::memory_order_release);
    make_lock.reset();
    join_lock.reset();
    own_lock.reset();
    // The one thread of the child is a new user of every segment.
    for (uint32_t i = 0, n = segment_count.load(); i < n; ++i) {
        self.id[i] = 0;
        self.record[i] = nullptr;
    }
    self.depth = 0;
}

bool was_a_segment(uint64_t from, uint64_t to) noexcept {
    for (uint32_t i = 0, n = segment_count.load(std::memory_order_acquire); i < n; ++i) {
        const auto base = reinterpret_cast<uint64_t>(segments[i].view.base);
        if (base && segments[i].fd < 0 && from >= base && to <= base + kSegmentBytes)
            return true;
    }
    return false;
}

} // namespace sd
