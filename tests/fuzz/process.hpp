// A process that uses libsd, which is the fuzzer itself: both sides of a link, each as a process has it
// mapped, and a listener to whose queue the link leads. Everything is made once; between two inputs the words
// are put back.
#pragma once
#include "libsd/cpu/copy.hpp"
#include "libsd/transport/slots.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/connections/listener_links.hpp"
#include "libsd/vfs/options/option_inherit.hpp"
#include "libsd/vfs/options/options.hpp"
#include "libsd/vfs/vfs.hpp"
#include "tests/fuzz/fake_monitor.hpp"

#include <array>
#include <csignal>
#include <cstring>
#include <sys/socket.h>

namespace sdfuzz {

constexpr uint64_t kLinkId = 1;
constexpr uint32_t kFirstSlot = 7, kSlots = 4; ///< those that inputs use
constexpr uint32_t kSynUsed = 16;              ///< entries of the queue that are put back

/// From now on a bad pointer that the library copies from, or to, ends in EFAULT, as libsd has it in a
/// program. All other faults are for whoever was told of them before.
inline void recover_from_bad_pointers() {
    static std::array<struct sigaction, 2> before;
    constexpr std::array<int, 2> kFaults{SIGSEGV, SIGBUS};
    struct sigaction ours {};
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    ours.sa_sigaction = [](int signal, siginfo_t *, void *context) {
        if (!sd::leave_copy(context)) {
            sigaction(signal, &before[signal == SIGBUS ? 1 : 0], nullptr); // and then it comes again
        }
    };
    for (unsigned i = 0; i < 2; ++i) {
        must(sigaction(kFaults[i], &ours, &before[i]) == 0);
    }
}

struct Process {
    FakeMonitor monitor;
    int link_fd = -1, listener_segment_fd = -1, listening = -1;
    sd::LinkMap *link[2] = {};
    sd::ListenerSegment *listener_segment = nullptr;

    Process() {
        setenv("SD_MONITOR", "/nowhere", 1);
        signal(SIGPIPE, SIG_IGN);
        sd::vfs::init();
        must(sd::own_segment());
        link_fd = link_memory(kLinkId);
        for (unsigned side = 0; side < 2; ++side) {
            long error = 0;
            leave_gap(sd::kLinkMapped);
            const long hidden = sd::hide_copy(link_fd);
            must(hidden >= 0);
            link[side] = sd::map_link(static_cast<int>(hidden), kLinkId, side, 0, sd::LinkPeer::own, &error);
            must(link[side] != nullptr);
        }
        listen();
        reset();
    }
    sd::Listener &listener() const { return *sd::file_of(listening)->listener; }
    sd::Slot &slot(uint32_t i) const { return link[0]->view.slot(kFirstSlot + i); }

    /// The link as it was made, without connections, and the listener's queue empty.
    void reset() {
        monitor.begin();
        const sd::LinkView v = link[0]->view;
        bool larger_rings = false;
        for (uint32_t i = 0; i < kSlots; ++i) {
            memset(static_cast<void *>(&slot(i)), 0, sizeof(sd::Slot));
            for (unsigned side = 0; side < 2; ++side) {
                for (unsigned cls = 1; cls < sd::kRingClasses; ++cls) {
                    larger_rings |= v.piece(kFirstSlot + i, side, cls).exchange(0) != 0;
                }
            }
        }
        if (larger_rings) {
            wipe(link_fd, sd::kFirstArenas, sd::kLinkBytes);
        }
        sd::LinkHeader &h = v.header();
        memset(static_cast<void *>(h.side), 0, sizeof h.side);
        memset(static_cast<void *>(h.bell_generation), 0, sizeof h.bell_generation);
        for (auto &side : h.side) {
            side.arena_open = sd::kArenaBytes;
        }
        for (uint32_t i = 0; i < kSynUsed; ++i) {
            v.syn(i) = 0;
        }
        for (sd::LinkMap *l : link) {
            l->users = 1000; // never the last
            l->retired = l->narrow = false;
            l->slot_high = kFirstSlot;
            l->idle_slots.truncate(0);
            l->zombie_slots.truncate(0);
            l->zombie_first = 0;
            l->syn_tail = 0;
        }
        listener_segment->link_sequence = 1;
        listener_segment->link_high = 1;
        listener_segment->link[0].link_id = kLinkId;
        listener_segment->link[0].syn_head = 0;
        listener_segment->link[0].syn_end = 0;
        for (auto &place : listener_segment->in_kernel) {
            place = 0;
        }
        sd::Listener &l = listener();
        l.links.truncate(0);
        (void)l.links.push({link[1], &listener_segment->link[0]});
        l.seen_sequence = 1;
        l.next = l.last = l.in_a_row = 0;
        l.turns = 0;
    }

    /// A connection over the slot, in the hands of that side; nobody has the other.
    int connection(uint32_t i, unsigned side, int family = AF_INET) {
        const long made = sd::vfs::socket(family, SOCK_STREAM, 0);
        must(made >= 0);
        const int fd = static_cast<int>(made);
        sd::File &f = *sd::file_of(fd);
        f.stream.client = name(41000);
        f.stream.server = name(80);
        must(sd::bind_stream(f, *link[side], kFirstSlot + i, static_cast<unsigned>(family)));
        sd::inherit_options(*f.ofd, f, fd);
        return fd;
    }
    static sd::SlotAddress name(uint16_t port) {
        sd::SlotAddress a{};
        a.ip[10] = a.ip[11] = 0xff;
        a.ip[12] = 127;
        a.ip[15] = 1;
        a.family = AF_INET;
        a.port = port;
        return a;
    }

  private:
    void listen() {
        listener_segment_fd = memfd_create("listener", MFD_CLOEXEC);
        must(listener_segment_fd >= 0 && ftruncate(listener_segment_fd, sizeof(sd::ListenerSegment)) == 0);
        void *p = mmap(nullptr, sizeof(sd::ListenerSegment), PROT_READ | PROT_WRITE, MAP_SHARED,
                       listener_segment_fd, 0);
        must(p != MAP_FAILED);
        listener_segment = static_cast<sd::ListenerSegment *>(p);
        listener_segment->magic = sd::kListenerMagic;
        listener_segment->version = sd::kLayoutVersion;
        monitor.begin();
        const sd::wire::ListenReply reply{3, 0};
        monitor.answer(&reply, sizeof reply, &listener_segment_fd, 1);
        const long made = sd::vfs::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        must(made >= 0);
        listening = static_cast<int>(made);
        must(sd::vfs::listen(listening, 16) == 0 && sd::file_of(listening) != nullptr);
        listener().address = name(80);
    }
};

} // namespace sdfuzz
