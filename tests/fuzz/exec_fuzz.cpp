// The table that an exec leaves, as the next program reads it, and the segments and links it names: what is
// sound is taken over, and the rest left alone.
#include "libsd/layout/exec_table.hpp"
#include "libsd/vfs/sharing/exec_resume.hpp"
#include "tests/fuzz/segments.hpp"

#include <array>
#include <vector>

using namespace sd;

namespace {

constexpr int kFirstNumber = 300; ///< descriptors that tables may name
constexpr unsigned kNumbers = 8;

/// Of what an honest former program left open, or another number.
int32_t number(sdfuzz::Input &in, int honest) {
    switch (in.below(16)) {
    case 13:
        return -1 - static_cast<int32_t>(in.below(3));
    case 14:
        return static_cast<int32_t>(in.take<uint32_t>() | 0x40000000);
    case 15:
        return kFirstNumber + static_cast<int32_t>(in.below(kNumbers)); // open as something else
    default:
        return honest;
    }
}

struct Writer {
    std::vector<unsigned char> bytes;
    template <typename T> void put(const T &what) {
        const auto *from = reinterpret_cast<const unsigned char *>(&what);
        bytes.insert(bytes.end(), from, from + sizeof what);
    }
};

Writer write_table(sdfuzz::Input &in, const sdfuzz::Process &p, const sdfuzz::ForeignSegment &segment,
                   std::vector<int> &opened) {
    const auto open = [&](int fd) {
        opened.push_back(sdfuzz::copy_of(fd));
        return opened.back();
    };
    ExecTable head{};
    head.magic = kExecMagic;
    head.version = kLayoutVersion;
    head.pid = !in.rarely(32) ? static_cast<uint32_t>(getpid()) : in.take<uint32_t>();
    head.client_id = 77;
    head.channel = -1; // the fuzzer's own is put in its place
    head.own_segment = static_cast<int32_t>(in.below(4)) - 1;
    head.segments = !in.rarely(16) ? in.below(3) : in.below(20);
    head.links = in.below(4);
    head.room = in.below(12);
    head.files = !in.rarely(16) ? in.below(head.room + 1) : in.take<uint8_t>();
    head.numbers = !in.rarely(16) ? in.below(head.room + 1) : in.take<uint8_t>();
    head.bytes = ExecTable::size_for(head.segments, head.links, head.room);
    if (in.rarely(16)) {
        const uint32_t lie = in.take<uint32_t>();
        constexpr size_t kCounts[] = {offsetof(ExecTable, magic), offsetof(ExecTable, version),
                                      offsetof(ExecTable, bytes), offsetof(ExecTable, segments),
                                      offsetof(ExecTable, links), offsetof(ExecTable, room)};
        memcpy(reinterpret_cast<char *>(&head) + kCounts[in.below(6)], &lie, sizeof lie);
        if (in.below(2) != 0) {
            head.bytes = ExecTable::size_for(head.segments, head.links, head.room);
        }
    }
    Writer w;
    w.put(head);
    for (uint32_t i = 0; i < head.segments && i < 20; ++i) {
        w.put(ExecSegment{number(in, open(segment.fd)), !in.rarely(8) ? in.below(3) : in.take<uint32_t>(), 0x700});
    }
    for (uint32_t i = 0; i < head.links && i < 4; ++i) {
        w.put(ExecLink{number(in, open(p.link_fd)), !in.rarely(16) ? in.below(2) : in.take<uint32_t>(),
                       !in.rarely(4) ? sdfuzz::kLinkId : in.below(4)});
    }
    for (uint32_t i = 0; i < head.room && i < 12; ++i) {
        ExecFile f{};
        constexpr FileKind kKinds[] = {FileKind::stream, FileKind::stream, FileKind::fresh, FileKind::listener};
        f.kind = !in.rarely(16) ? static_cast<uint8_t>(kKinds[in.below(4)]) : in.take<uint8_t>();
        f.family = static_cast<uint8_t>(!in.rarely(8) ? AF_INET : in.take<uint8_t>());
        f.real_socket = f.kind == static_cast<uint8_t>(FileKind::listener);
        f.bound = static_cast<uint8_t>(in.below(2));
        f.segment = !in.rarely(8) ? in.below(2) : in.take<uint32_t>();
        f.link = !in.rarely(8) ? in.below(2) : in.take<uint32_t>();
        f.backlog = in.take<uint8_t>();
        HandoffRecord &pass = f.handoff;
        const uint32_t index = sdfuzz::ForeignSegment::index(in.below(sdfuzz::kOfdsUsed));
        pass.link_id = sdfuzz::kLinkId;
        pass.ofd_index = !in.rarely(16) ? index : in.take<uint32_t>();
        pass.slot = !in.rarely(16) ? sdfuzz::kFirstSlot + in.below(sdfuzz::kSlots) : in.take<uint32_t>();
        pass.generation = !in.rarely(8) ? segment.generation(index) : in.take<uint8_t>();
        pass.side = static_cast<uint8_t>(!in.rarely(16) ? in.below(2) : in.take<uint8_t>());
        pass.options = !in.rarely(4) ? 0 : in.below(32);
        for (uint32_t k = 0; k < pass.options && k < kMaxFreshOptions; ++k) {
            pass.option[k] = {SOL_SOCKET,
                              static_cast<int32_t>(in.below(64)),
                              static_cast<int32_t>(!in.rarely(8) ? in.below(17) : in.take<uint32_t>()),
                              {}};
        }
        w.put(f);
    }
    for (uint32_t i = 0; i < head.room && i < 12; ++i) {
        w.put(ExecNumber{!in.rarely(16) ? kFirstNumber + static_cast<int32_t>(in.below(kNumbers))
                                        : static_cast<int32_t>(in.take<uint32_t>() | 0x40000000),
                         !in.rarely(8) ? in.below(12) : in.take<uint32_t>()});
    }
    return w;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sdfuzz::Process p;
    static sdfuzz::ForeignSegment segment;
    static const uint32_t kept = segment_count.load();
    static const int directory = [] {
        Directory d{};
        d.magic = kDirectoryMagic;
        d.version = kLayoutVersion;
        return sdfuzz::sealed_memory("directory", sizeof d, &d, 32);
    }();
    static const int no_directory = sdfuzz::sealed_memory("none", sizeof(Directory));
    sdfuzz::Input in(data, size / 2), about_segment(data + size / 2, size - size / 2);
    segment.scribble(about_segment);
    std::vector<int> opened;
    Writer w = write_table(in, p, segment, opened);
    if (in.rarely(32)) {
        w.bytes.resize(in.take<uint16_t>() % (w.bytes.size() + 1));
    }
    const int table = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    sdfuzz::must(table >= 0);
    // The channel, with the answers to image, and then to listen.
    const bool with_channel = !in.rarely(4);
    p.monitor.begin();
    int channel = -1;
    if (with_channel) {
        channel = control::chan.exchange(-1);
        memcpy(w.bytes.data() + offsetof(ExecTable, channel), &channel,
               w.bytes.size() >= sizeof(ExecTable) ? sizeof channel : 0);
        const wire::HelloReply hello{77, 0, wire::Spin::automatic, 0};
        const int answered = !in.rarely(16) ? directory : in.below(2) != 0 ? no_directory : p.listening;
        p.monitor.answer(&hello, !in.rarely(16) ? sizeof hello : 0, &answered, !in.rarely(32) ? 1 : 0);
        for (unsigned i = 0; i < 3; ++i) {
            const wire::ListenReply reply{3, in.below(2)};
            p.monitor.answer(&reply, sizeof reply, &p.listener_segment_fd, 1);
        }
    }
    sdfuzz::must(write(table, w.bytes.data(), w.bytes.size()) == static_cast<ssize_t>(w.bytes.size()) &&
                 fcntl(table, F_ADD_SEALS, !in.rarely(32) ? F_SEAL_SHRINK : F_SEAL_GROW) == 0);
    for (unsigned i = 0; i < kNumbers; ++i) {
        sdfuzz::must(dup2(p.listening, kFirstNumber + static_cast<int>(i)) >= 0);
    }
    const Directory *before = control::directory();
    const int channel_before = control::chan.load();
    resume_after_exec(table);
    if (!with_channel) {
        control::chan.store(channel_before);
    } else if (control::chan.load() != channel && !p.monitor.hung_up()) {
        close_hidden(channel); // the table was none, so nobody took it
    }
    if (const Directory *now = control::directory(); before != nullptr && now != before) {
        munmap(const_cast<Directory *>(before), sizeof(Directory));
    }
    for (int fd = kFirstNumber; fd < kFirstNumber + static_cast<int>(kNumbers); ++fd) {
        if (const File *f = file_of(fd); f != nullptr) {
            sdfuzz::must(f->kind != FileKind::stream || (f->slot < kLinkSlots && f->ofd_index < kOfds));
            sockaddr_storage a{};
            socklen_t n = sizeof a;
            (void)vfs::getsockname(fd, reinterpret_cast<sockaddr *>(&a), &n);
        }
    }
    for (int fd = kFirstNumber; fd < kFirstNumber + static_cast<int>(kNumbers); ++fd) {
        unhide(fd); // where the table said that it was a segment's or a link's
        if (file_of(fd) != nullptr) {
            vfs::close(fd);
        } else {
            close(fd);
        }
    }
    resume_own_segment(0);
    close(table);
    for (const int fd : opened) {
        unhide(fd);
        close(fd);
    }
    sdfuzz::forget_segments(kept);
    segment.wipe();
    p.reset();
    return 0;
}
