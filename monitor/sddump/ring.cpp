// Reading what a process copies; layout/capture_layout.hpp has the rules.
#include "monitor/sddump/ring.hpp"
#include "libsd/cpu/instructions.hpp"
#include "monitor/sdstat/snapshot.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utility>

namespace sd::dump {

using monitor::UniqueFd;
using stat::Exit;
using stat::Failure;

namespace {

constexpr uint32_t kOpen = static_cast<uint32_t>(OfdState::open);

/// The connections of the process, as far as the mark goes that only rises.
template <class Function> void for_each_held(const SegmentView &view, unsigned proc, Function function) {
    const uint32_t high = std::min<uint32_t>(view.header().ofd_high.load(), kOfds);
    for (uint32_t i = 1; i < high; ++i) {
        const uint64_t held = view.proc(proc).held[i / 64].load();
        if (held == 0) {
            i |= 63;
        } else if ((held >> i % 64 & 1) != 0 && view.ofd(i).state.load() == kOpen) {
            function(view.ofd(i));
        }
    }
}

bool is_chosen(const Ofd &ofd, const Choice &choice) {
    return choice.all || (static_cast<uint32_t>(ofd.link_id) == choice.link && ofd.slot == choice.slot &&
                          (!choice.side || *choice.side == ofd.side));
}

} // namespace

SegmentMap::SegmentMap(UniqueFd fd) : fd_(std::move(fd)) {
    struct ::stat status {};
    const int seals = fcntl(fd_.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd_.get(), &status) < 0 ||
        static_cast<size_t>(status.st_size) != kSegmentBytes) {
        throw Failure(Exit::failed, "the program's libsd is of another version than sddump");
    }
    void *base = mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
    if (base == MAP_FAILED) {
        throw Failure(Exit::failed, fmt::format("mmap: {}", strerror(errno)));
    }
    view_.base = static_cast<uint8_t *>(base);
    if (is_ready() && (view_.header().magic != kSegmentMagic || view_.header().version != kLayoutVersion)) {
        munmap(base, kSegmentBytes);
        throw Failure(Exit::failed, "the program's libsd is of another version than sddump");
    }
}

SegmentMap::SegmentMap(SegmentMap &&other) noexcept
    : fd_(std::move(other.fd_)), view_{std::exchange(other.view_.base, nullptr)} {}

SegmentMap::~SegmentMap() {
    if (view_.base != nullptr) {
        munmap(view_.base, kSegmentBytes);
    }
}

Ring::Ring(SegmentMap segment, unsigned proc, uint32_t bytes, uint32_t snap)
    : segment_(std::move(segment)), proc_(proc), bytes_(bytes) {
    const std::string path = fmt::format("/proc/self/fd/{}", segment_.fd());
    lock_ = UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!lock_) {
        throw Failure(Exit::failed, fmt::format("the program's records: {}", strerror(errno)));
    }
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_start = kCaptureAreaOffset;
    whole.l_len = sizeof(CaptureArea);
    if (fcntl(lock_.get(), F_OFD_SETLK, &whole) < 0) {
        throw Failure(Exit::failed, "another sddump captures this process, or a relative of it");
    }
    segment_.view().header().capture.store(0); // one that was killed may have left it
    CaptureArea &a = area();
    // The memory is ours from the first touch, and the program never waits for a page.
    memset(capture_ring(segment_.view()), 0, bytes_);
    const uint64_t at = (a.tail.load() + 7) & ~uint64_t{7};
    a.tail.store(at);
    a.head.store(at);
    a.proc = proc_;
    a.ring_size = bytes_;
    a.snap = snap;
    a.ended.store(static_cast<uint32_t>(CaptureEnd::none));
    a.dropped.store(0);
    a.dropped_bytes.store(0);
    a.looked.store(cpu::cycles());
}

Ring::~Ring() {
    if (segment_.view().base == nullptr) {
        return; // moved from
    }
    stop();
    // Nothing of it stays; a thread that is writing at this moment leaves one page.
    fallocate(lock_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kSegCaptureOffset, bytes_);
}

unsigned Ring::start(const Choice &choice) {
    const CaptureMode mode = choice.all ? CaptureMode::newborn : CaptureMode::marked;
    // First: who finds a mark without it takes the mark away.
    segment_.view().header().capture.store(static_cast<uint32_t>(mode));
    is_started_ = true;
    unsigned marked = 0;
    for_each_held(segment_.view(), proc_, [&](Ofd &ofd) {
        if (is_chosen(ofd, choice) && (ofd.tx_block.load() & kTxMoved) == 0) {
            ofd.tx_block.fetch_or(kTxCapture);
            ofd.rcvlowat.fetch_or(kCaptureLowat);
            ++marked;
        }
    });
    return marked;
}

void Ring::stop() {
    if (!std::exchange(is_started_, false)) {
        return;
    }
    segment_.view().header().capture.store(0);
    for_each_held(segment_.view(), proc_, unmark_captured);
}

CaptureEnd Ring::ended() const {
    if (segment_.view().header().capture.load() != 0) {
        return CaptureEnd::none;
    }
    const uint32_t why = area().ended.load();
    return why >= static_cast<uint32_t>(CaptureEnd::exec) && why <= static_cast<uint32_t>(CaptureEnd::abandoned)
               ? static_cast<CaptureEnd>(why)
               : CaptureEnd::abandoned;
}

bool Ring::read(const std::function<uint64_t(uint64_t)> &ns_of,
                const std::function<bool(const Captured &)> &take) {
    CaptureArea &a = area();
    a.looked.store(cpu::cycles());
    bool any = false;
    for (;;) {
        const uint64_t head = a.head.load(std::memory_order_relaxed);
        const uint64_t tail = a.tail.load(std::memory_order_acquire);
        if (head == tail) {
            return any;
        }
        auto &first =
            *reinterpret_cast<std::atomic<uint64_t> *>(capture_ring(segment_.view()) + (head & (bytes_ - 8)));
        const uint64_t bytes = first.load(std::memory_order_acquire);
        if (bytes == 0) {
            return any;
        }
        alignas(CaptureRecord) unsigned char raw[sizeof(CaptureRecord)];
        copy_out(head, raw, sizeof raw);
        const auto &record = *reinterpret_cast<const CaptureRecord *>(raw);
        const uint32_t kept = record.kept;
        if (bytes != sizeof raw + ((uint64_t{kept} + 7) & ~uint64_t{7}) || bytes > tail - head ||
            bytes > bytes_ || kept > record.length || record.side > 1 || record.kind < CaptureKind::data ||
            record.kind > CaptureKind::born) {
            throw Failure(Exit::failed, "the program has spoilt what it copied");
        }
        payload_.resize(kept);
        copy_out(head + sizeof raw, payload_.data(), kept);
        clear(head, bytes);
        a.head.store(head + bytes, std::memory_order_release);
        any = true;
        Captured c;
        c.ns = ns_of(record.when);
        c.position = record.position;
        c.other = record.other;
        c.link = record.link;
        c.slot = record.slot;
        c.length = record.length;
        c.kind = record.kind;
        c.side = record.side;
        c.received = record.received != 0;
        c.client = record.client;
        c.server = record.server;
        c.payload = payload_;
        if (!take(c)) {
            return true;
        }
    }
}

void Ring::copy_out(uint64_t at, void *to, size_t n) const {
    const uint8_t *ring = capture_ring(segment_.view());
    const size_t offset = at & (bytes_ - 1), first = std::min<size_t>(n, bytes_ - offset);
    memcpy(to, ring + offset, first);
    memcpy(static_cast<char *>(to) + first, ring, n - first);
}

void Ring::clear(uint64_t at, size_t n) const {
    uint8_t *ring = capture_ring(segment_.view());
    const size_t offset = at & (bytes_ - 1), first = std::min<size_t>(n, bytes_ - offset);
    memset(ring + offset, 0, first);
    memset(ring, 0, n - first);
}

} // namespace sd::dump
