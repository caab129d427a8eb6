// A family segment of somebody else, as inputs write it, for those who come to share it.
#pragma once
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/process.hpp"

#include <sys/stat.h>

namespace sdfuzz {

constexpr unsigned kOfdsUsed = 4; ///< 1 and so on; the last one stands for that at the end of the table

class ForeignSegment {
  public:
    const int fd = segment_memory();

    ForeignSegment() {
        void *p = mmap(nullptr, sd::kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        must(p != MAP_FAILED);
        view_.base = static_cast<uint8_t *>(p);
        struct stat st;
        must(stat("/proc/self/ns/pid", &st) == 0);
        pid_namespace_ = static_cast<uint32_t>(st.st_ino);
    }
    static uint32_t index(unsigned i) { return i + 1 < kOfdsUsed ? i + 1 : sd::kOfds - 1; }

    void scribble(Input &in) {
        sd::SegmentHeader &h = view_.header();
        h.magic = !in.rarely(32) ? sd::kSegmentMagic : in.take<uint64_t>();
        h.version = !in.rarely(32) ? sd::kLayoutVersion : in.take<uint32_t>();
        for (unsigned i = 0; i < kOfdsUsed; ++i) {
            scribble_ofd(in, view_.ofd(index(i)));
        }
        for (unsigned i = 1; i < 4; ++i) {
            scribble_thread(in, view_.thread(i));
        }
        h.proc_high = !in.rarely(8) ? in.below(4) : in.take<uint32_t>();
        h.thread_high = !in.rarely(8) ? 4 : in.take<uint32_t>();
        h.ofd_high = in.take<uint32_t>();
        for (unsigned i = 0; i < 3; ++i) {
            view_.proc(i).state = in.below(3);
            view_.proc(i).held[0] = in.take<uint8_t>();
        }
        h.deaths = in.take<uint8_t>();
    }
    void die() { view_.header().deaths.fetch_add(1); }
    void wipe() const { sdfuzz::wipe(fd, 0, sd::kSegmentBytes); }
    uint16_t generation(uint32_t i) const { return view_.ofd(i).generation; }

  private:
    static constexpr uint32_t kNobodys = 3; ///< a generation
    /// Nobody: a lie about a thread that lives has its relatives wait for it, which is theirs to bear.
    static uint32_t nobody(Input &in) { return sd::make_thread_id(1 + in.below(3), kNobodys); }
    void scribble_ofd(Input &in, sd::Ofd &o) {
        o.state = !in.rarely(8) ? 1 : in.take<uint32_t>();
        o.link_id = !in.rarely(16) ? kLinkId : in.take<uint64_t>();
        o.slot = !in.rarely(16) ? kFirstSlot + in.below(kSlots) : in.take<uint32_t>();
        o.side = static_cast<uint8_t>(!in.rarely(16) ? in.below(2) : in.take<uint8_t>());
        o.family = static_cast<uint8_t>(in.below(2) != 0 ? AF_INET : in.take<uint8_t>());
        o.generation = in.below(4);
        o.tx_block = !in.rarely(4) ? 0 : in.take<uint8_t>() & ~uint32_t{sd::kTxMoved};
        o.rcvlowat = !in.rarely(4) ? 1 : static_cast<int32_t>(in.take<uint32_t>() & 0x3fffffff);
        o.flags_seen = !in.rarely(4) ? 0 : in.take<uint8_t>();
        o.opt.linger_on = static_cast<int32_t>(in.below(2));
        if (in.below(2) != 0) {
            in.fill(&o.tx.s, sizeof o.tx.s);
            o.tx.s.cls &= !in.rarely(8) ? 7 : ~0U;
        } else {
            o.tx.s = sd::TxState{};
        }
        if (in.below(2) != 0) {
            in.fill(&o.rx.s, sizeof o.rx.s);
            o.rx.s.cls = static_cast<uint16_t>(o.rx.s.cls & (!in.rarely(8) ? 7 : 0xffff));
        } else {
            o.rx.s = sd::RxState{};
        }
        for (sd::Token *t : {&o.tx.token, &o.rx.token}) {
            t->owner = in.below(2) != 0 ? nobody(in) : in.rarely(4) ? sd::Token::kShared : 0;
            t->lock = !in.rarely(64) ? 0 : nobody(in);
            t->prev = !in.rarely(8) ? 0 : nobody(in);
            t->streak = t->bounces = t->last = in.take<uint8_t>();
        }
    }
    void scribble_thread(Input &in, sd::ThreadRecord &t) const {
        t.generation = in.below(2) != 0 ? kNobodys : in.take<uint32_t>();
        t.pid = 0x7ffffff0; // no process has it
        t.tid = 0x7ffffff0;
        t.pid_namespace = pid_namespace_;
        t.birth = in.take<uint8_t>();
        t.state = in.rarely(4) ? 1 + in.below(3) : 0;
        // This process, when it takes the record, is not who nobody() names.
        if (t.state == 0 && sd::make_thread_id(0, t.generation + 1) == sd::make_thread_id(0, kNobodys))
            t.generation = kNobodys;
        t.busy[in.below(sd::kBusyDepth)] = !in.rarely(16) ? 0 : in.below(8);
    }
    sd::SegmentView view_;
    uint32_t pid_namespace_ = 0;
};

/// Segments that this process came to share since there were `kept` of them; no File is part of one.
inline void forget_segments(uint32_t kept) {
    const uint32_t n = sd::segment_count.exchange(kept);
    for (uint32_t i = kept; i < n; ++i) {
        munmap(sd::segments[i].view.base, sd::kSegmentBytes);
        if (sd::segments[i].fd >= 0) {
            sd::close_hidden(sd::segments[i].fd);
        }
        sd::segments[i] = sd::MappedSegment{};
        sd::thread_table[i] = nullptr;
        sd::self.id[i] = 0;
        sd::self.record[i] = nullptr;
    }
}

} // namespace sdfuzz
