// The accept side: SYN queues and names of hostile clients, the words of the listener's segment that
// acceptors of other domains write, and answers with new links.
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/process.hpp"

#include <array>

using namespace sd;

namespace {

SlotAddress name(sdfuzz::Input &in) {
    SlotAddress a = sdfuzz::Process::name(in.below(2) != 0 ? 80 : static_cast<uint16_t>(40000 + in.below(255)));
    switch (in.below(16)) {
    case 0:
        a.port = in.take<uint16_t>();
        break;
    case 1:
        a.family = in.take<uint16_t>();
        break;
    case 2:
        a.family = AF_INET6;
        break;
    case 3:
        in.fill(a.ip, sizeof a.ip);
        break;
    case 4:
        memset(a.ip, 0, sizeof a.ip); // ::, and ::1 with the next
        a.family = AF_INET6;
        a.ip[15] = static_cast<uint8_t>(in.below(2));
        break;
    case 5:
        a.ip[12] = in.take<uint8_t>();
        break;
    case 6:
        memset(a.ip + 12, 0, 4);
        break;
    default:
        break;
    }
    return a;
}

/// A request, or something like it.
void request(sdfuzz::Input &in, sdfuzz::Process &p) {
    const uint32_t i = in.below(sdfuzz::kSlots);
    Slot &s = p.slot(i);
    s.identity.client = name(in);
    s.identity.server = name(in);
    if (s.identity.server.port != 80 && in.below(4) != 0) {
        s.identity.server.port = 80;
    }
    s.identity.arrival = in.take<uint8_t>();
    s.identity.state = in.below(8) != 0 ? static_cast<uint32_t>(SlotState::syn) : in.below(6);
    const uint32_t at = p.listener_segment->link[0].syn_head + in.below(3);
    if ((at & (kSynEntries - 1)) < sdfuzz::kSynUsed) {
        p.link[0]->view.syn(at) = in.below(16) != 0 ? sdfuzz::kFirstSlot + i + 1 : in.take<uint32_t>();
    }
}

void listener_words(sdfuzz::Input &in, sdfuzz::Process &p) {
    ListenerSegment &s = *p.listener_segment;
    switch (in.below(8)) {
    case 0:
        s.link[0].syn_head = in.below(sdfuzz::kSynUsed);
        break;
    case 1:
        s.link[0].syn_end = in.below(2) != 0 ? in.below(8) : in.take<uint32_t>();
        break;
    case 2:
        s.link[0].link_id = in.below(4);
        break;
    case 3:
        s.link_high = in.below(2) != 0 ? in.below(4) : in.take<uint32_t>();
        break;
    case 4:
        s.in_kernel[in.below(kKernelPlaces)] = in.take<uint32_t>();
        break;
    case 5:
        s.link[1].link_id = in.below(4);
        break;
    case 6:
        p.link[0]->view.header().side[0].flags = in.take<uint8_t>() & 7;
        [[fallthrough]];
    default:
        s.link_sequence = in.take<uint8_t>();
    }
}

/// What the monitor says to a question for links. It is believed; the links that come along are not.
void answer(sdfuzz::Input &in, sdfuzz::Process &p) {
    static const int other = sdfuzz::link_memory(2);
    static const int no_link = sdfuzz::sealed_memory("none", 4096);
    static const int no_header = sdfuzz::sealed_memory("empty", kLinkBytes);
    wire::LinksReply reply{};
    reply.count = in.below(4);
    reply.next = in.below(2) != 0 ? UINT32_MAX : in.below(4);
    std::array<int, 4> fds{};
    const unsigned n = in.below(4);
    for (unsigned i = 0; i < n; ++i) {
        reply.link[i].link_id = 1 + in.below(3);
        reply.link[i].place = in.below(4) != 0 ? in.below(3) : in.take<uint32_t>();
        const unsigned kind = in.below(8);
        fds[i] = kind == 0 ? no_link : kind == 1 ? no_header : kind == 2 ? p.listening : other;
    }
    const size_t length = in.below(8) != 0 ? sizeof reply : in.below(sizeof reply);
    wire::Header h = control::make_header(wire::Op::links, p.monitor.next(), length, n);
    switch (in.below(16)) {
    case 0:
        h.magic = in.take<uint32_t>();
        break;
    case 1:
        h.version = in.take<uint16_t>();
        break;
    case 2:
        h.sequence -= 1; // an answer that was given up
        p.monitor.answer_as(h, &reply, fds.data(), 0);
        h.sequence += 1;
        break;
    case 3: {
        std::array<char, 64> rubbish;
        p.monitor.say(rubbish.data(), in.fill(rubbish.data(), in.below(64)));
        break;
    }
    default:
        break;
    }
    p.monitor.answer_as(h, &reply, fds.data(), in.below(8) != 0 ? 0 : -static_cast<int>(in.below(64)));
    // What is said of links that could not be mapped.
    for (unsigned i = 1; i <= n; ++i) {
        p.monitor.answer_as(control::make_header(wire::Op::no_room, h.sequence + i, 0, 0), nullptr, nullptr, 0);
    }
}

void close_accepted(int fd) {
    if (file_of(fd) != nullptr) {
        vfs::close(fd);
    } else {
        close(fd);
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sdfuzz::Process p;
    sdfuzz::Input in(data, size);
    // What the listener is bound to.
    Listener &l = p.listener();
    const unsigned bound = in.below(8);
    l.address = sdfuzz::Process::name(80);
    if (bound > 1) {
        memset(l.address.ip, 0, sizeof l.address.ip);
        l.address.family = bound == 2 ? AF_INET : AF_INET6;
    }
    file_of(p.listening)->family = l.address.family == AF_INET ? AF_INET : AF_INET6;
    std::array<int, 16> accepted{};
    unsigned count = 0;
    for (unsigned step = 0; step < 48 && !in.empty(); ++step) {
        switch (in.below(8)) {
        case 0:
        case 1:
        case 2:
            request(in, p);
            break;
        case 3:
            listener_words(in, p);
            break;
        case 4:
            p.monitor.begin();
            answer(in, p);
            break;
        case 5:
            (void)listener_pending(l);
            break;
        default: {
            sockaddr_storage a{};
            socklen_t n = static_cast<socklen_t>(in.below(2) != 0 ? sizeof a : in.below(32));
            const long fd =
                vfs::accept(p.listening, in.below(2) != 0 ? reinterpret_cast<sockaddr *>(&a) : nullptr, &n,
                            in.below(2) != 0 ? SOCK_CLOEXEC : SOCK_NONBLOCK);
            if (fd >= 0) {
                const File *f = file_of(static_cast<int>(fd));
                sdfuzz::must(f != nullptr && f->kind == FileKind::stream && f->stream.client.port >= 1024 &&
                             f->stream.server.port == 80 && f->stream.client.family == f->stream.server.family);
                if (count < accepted.size()) {
                    accepted[count++] = static_cast<int>(fd);
                } else {
                    close_accepted(static_cast<int>(fd));
                }
            }
        }
        }
    }
    for (unsigned i = 0; i < count; ++i) {
        close_accepted(accepted[i]);
    }
    // Links that came with answers go; the first is put back.
    for (size_t i = l.links.size(); i-- > 0;) {
        LinkMap *m = l.links[i].link;
        if (m != p.link[1]) {
            l.links.remove_unordered(i);
            link_unuse(*m);
        }
    }
    p.reset();
    return 0;
}
