// A connection that is passed here with a segment and a handoff record which both lie: it is claimed or
// refused, what a dead thread left half done is put right, and it is looked at and closed.
#include "libsd/vfs/family/orphans.hpp"
#include "libsd/vfs/sharing/descriptor_passing.hpp"
#include "tests/fuzz/segments.hpp"

#include <array>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

using namespace sd;

namespace {

/// A descriptor that looks as if a parcel was behind it.
int parcel() {
    static const int marked = [] {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sdfuzz::must(setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kParcelMark, sizeof kParcelMark) == 0);
        return fd;
    }();
    // One that could not be claimed is marked no more.
    sdfuzz::must(setsockopt(marked, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kParcelMark, sizeof kParcelMark) == 0);
    return sdfuzz::copy_of(marked);
}

void scribble_slot(sdfuzz::Input &in, sdfuzz::Process &p) {
    auto *words = reinterpret_cast<std::atomic<uint64_t> *>(&p.slot(in.below(sdfuzz::kSlots)));
    words[in.take<uint8_t>() % (sizeof(Slot) / 8)] = in.take<uint64_t>();
}

int claim(sdfuzz::Input &in, sdfuzz::Process &p, const sdfuzz::ForeignSegment &segment, bool again) {
    static const int no_segment = sdfuzz::sealed_memory("none", 4096);
    static const int other_link = sdfuzz::link_memory(2);
    wire::ClaimReply reply{};
    HandoffRecord &pass = reply.handoff;
    if (in.rarely(16)) {
        in.fill(&pass, sizeof pass);
    }
    const uint32_t index = sdfuzz::ForeignSegment::index(in.below(sdfuzz::kOfdsUsed));
    pass.link_id = !in.rarely(16) ? sdfuzz::kLinkId : in.below(4);
    pass.ofd_index = !in.rarely(16) ? index : in.take<uint32_t>();
    pass.slot = !in.rarely(16) ? sdfuzz::kFirstSlot + in.below(sdfuzz::kSlots) : in.take<uint32_t>();
    pass.generation = !in.rarely(4) ? segment.generation(index) : in.take<uint8_t>();
    pass.side = static_cast<uint8_t>(!in.rarely(16) ? in.below(2) : in.take<uint8_t>());
    pass.family = AF_INET;
    pass.options = !in.rarely(4) ? 0 : in.below(32);
    for (FreshOption &o : pass.option) {
        if (pass.options != 0) {
            o = {SOL_SOCKET, static_cast<int32_t>(in.below(64)), static_cast<int32_t>(in.below(24)), {}};
        }
    }
    reply.segment = 0x700 + (in.rarely(8) ? 1 : 0);
    reply.tell = in.rarely(4);
    p.monitor.begin();
    const std::array<int, 2> fds{!in.rarely(16)     ? segment.fd
                                 : in.below(2) != 0 ? no_segment
                                                    : p.listening,
                                 !in.rarely(16)     ? p.link_fd
                                 : in.below(2) != 0 ? other_link
                                                    : no_segment};
    const bool plain = !in.rarely(16);
    p.monitor.answer(&reply, plain ? sizeof reply : in.take<uint16_t>() % sizeof reply, fds.data(),
                     plain ? 2 : in.below(3), !in.rarely(16) ? 0 : -EPERM);
    if (!again || in.rarely(4)) { // it is asked for a record
        const wire::SegmentReply record{!in.rarely(16) ? 2 : in.take<uint32_t>(), 0};
        p.monitor.answer(&record, !in.rarely(16) ? sizeof record : 0, nullptr, 0);
    }
    p.monitor.answer(nullptr, 0, nullptr, 0);
    const int fd = parcel();
    claim_parcel(fd);
    return fd;
}

void look(sdfuzz::Input &in, int fd, sdfuzz::ForeignSegment &segment) {
    switch (in.below(6)) {
    case 0:
    case 1:
        segment.die();
        look_after_orphans();
        break;
    case 2: {
        pollfd p{fd, POLLIN | POLLOUT, 0};
        const timespec now{0, 0};
        (void)vfs::poll(&p, 1, &now, nullptr);
        break;
    }
    case 3: {
        sockaddr_storage a{};
        socklen_t n = sizeof a;
        (void)vfs::getpeername(fd, reinterpret_cast<sockaddr *>(&a), &n);
        break;
    }
    case 4: {
        tcp_info info{};
        socklen_t n = sizeof info;
        (void)vfs::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n);
        break;
    }
    default: {
        int n = 0;
        (void)vfs::ioctl(fd, FIONREAD, &n);
    }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sdfuzz::Process p;
    static sdfuzz::ForeignSegment segment;
    static const uint32_t kept = segment_count.load();
    sdfuzz::Input in(data, size / 2), about_segment(data + size / 2, size - size / 2);
    segment.scribble(about_segment);
    std::array<int, 3> fds{};
    unsigned count = 0;
    for (unsigned n = 1 + in.below(3); n > 0; --n) {
        fds[count++] = claim(in, p, segment, count > 1);
    }
    for (unsigned step = 0; step < 16 && !in.empty(); ++step) {
        if (in.below(2) != 0) {
            scribble_slot(in, p);
        } else {
            const int fd = fds[in.below(count)];
            if (const File *f = file_of(fd); f != nullptr && f->kind == FileKind::stream) {
                sdfuzz::must(f->slot < kLinkSlots && f->side < 2 && f->ofd_index < kOfds);
                look(in, fd, segment);
            }
        }
    }
    for (unsigned i = 0; i < count; ++i) {
        if (file_of(fds[i]) != nullptr) {
            vfs::close(fds[i]);
        } else {
            close(fds[i]);
        }
    }
    sdfuzz::forget_segments(kept);
    segment.wipe();
    p.reset();
    return 0;
}
