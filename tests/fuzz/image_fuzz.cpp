// The table that an exec leaves, as the monitor reads it: what it says is kept is something that the client
// has.
#include "libsd/layout/exec_table.hpp"
#include "monitor/operations/image_table.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/memory.hpp"

using namespace sd;
using namespace sd::monitor;

namespace {

struct Table {
    int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    static constexpr size_t kBytes = 1 << 16;
    Table() {
        sdfuzz::must(fd >= 0 && unsealed >= 0 && ftruncate(fd, kBytes) == 0 &&
                     ftruncate(unsealed, kBytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    }
};

/// Of what the client has, or another.
uint64_t link_name(sdfuzz::Input &in) { return in.below(4) != 0 ? 1 + in.below(3) : in.take<uint64_t>(); }

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Table memory;
    static const std::unique_ptr<Link> links[2] = {Link::create(1, 1, 40000), Link::create(2, 1, 40000)};
    static Listener listener(3, ListenProof{}, nullptr);
    static Client client = [] {
        Client c;
        c.id = 77;
        c.links[1] = {links[0].get(), {true, false}};
        c.links[2] = {links[1].get(), {true, true}};
        c.listeners.insert(&listener);
        return c;
    }();
    sdfuzz::Input in(data, size);
    const bool honest = in.below(8) != 0;
    ExecTable head{};
    head.magic = kExecMagic;
    head.version = kLayoutVersion;
    head.segments = in.below(honest ? 4 : 255);
    head.links = in.below(honest ? 4 : 255);
    head.room = in.below(honest ? 16 : 255);
    head.files = honest && head.room != 0 ? in.below(head.room + 1) : in.below(255);
    head.numbers = in.below(16);
    head.bytes = ExecTable::size_for(head.segments, head.links, head.room);
    switch (in.below(16)) {
    case 0:
        in.fill(&head, in.below(sizeof head));
        break;
    case 1:
        head.segments = in.take<uint32_t>();
        break;
    case 2:
        head.links = in.take<uint32_t>();
        head.bytes = ExecTable::size_for(head.segments, head.links, head.room);
        break;
    case 3:
        head.room = head.files = in.take<uint32_t>();
        head.bytes = ExecTable::size_for(head.segments, head.links, head.room);
        break;
    default:
        break;
    }
    static std::vector<unsigned char> table(Table::kBytes);
    size_t at = 0;
    const auto put = [&](const auto &what) {
        if (at + sizeof what <= table.size()) {
            memcpy(table.data() + at, &what, sizeof what);
            at += sizeof what;
        }
    };
    put(head);
    for (unsigned i = 0; i < head.segments && i < 32; ++i) {
        put(ExecSegment{-1, 0, in.below(2) != 0 ? 0 : uint64_t{in.below(4)}});
    }
    for (unsigned i = 0; i < head.links && i < 64; ++i) {
        put(ExecLink{-1, in.below(8) != 0 ? in.below(2) : in.take<uint32_t>(), link_name(in)});
    }
    for (unsigned i = 0; i < head.room && i < 64; ++i) {
        ExecFile f{};
        f.kind = static_cast<uint8_t>(in.below(8));
        f.segment = in.below(8) != 0 ? in.below(4) : in.take<uint32_t>();
        f.listener_id = 2 + in.below(3);
        f.handoff.ofd_index = in.below(4) != 0 ? in.take<uint16_t>() : in.take<uint32_t>();
        put(f);
    }
    const bool sealed = in.below(32) != 0;
    const int fd = sealed ? memory.fd : memory.unsealed;
    sdfuzz::must(pwrite(fd, table.data(), at, 0) == static_cast<ssize_t>(at));
    const std::optional<Retained> kept = read_table(fd, client);
    if (!kept) {
        return 0;
    }
    sdfuzz::must(sealed);
    for (const auto &[name, bits] : kept->ofds) {
        sdfuzz::must(bits.size() == kOfds / 64);
    }
    for (const auto &[name, side] : kept->links) {
        sdfuzz::must(client.link(name, side) != nullptr);
    }
    for (const uint32_t id : kept->listeners) {
        sdfuzz::must(id == listener.id);
    }
    return 0;
}
