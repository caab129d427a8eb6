// Going over to the kernel socket that the others who hold a connection use, too.
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/paths/adopt.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/pools/channels.hpp"
#include "libsd/vfs/sharing/descriptor_passing.hpp"

namespace sd {

namespace {

/// One thread at a time: the others find their numbers changed. Held while the monitor is asked, as its own
/// lock is.
SD_FORK_STATE constinit Lock following;

wire::Moved name_of(unsigned seg, uint32_t ofd_index, uint16_t generation, uint32_t serial) noexcept {
    const auto adoption = static_cast<uint16_t>(serial);
    const bool own = static_cast<int>(seg) == own_segment_index.load(std::memory_order_acquire);
    return {own ? 0 : segments[seg].owner_client, ofd_index, generation, adoption};
}

/// moved(), and not about to get one more path: of one look at the marks, which may change meanwhile.
bool is_the_kernels(const File &f) noexcept {
    const uint32_t block = f.ofd->tx_block.load(std::memory_order_acquire);
    return f.kind == FileKind::stream && (block & (kTxMoved | kTxAdopt)) == kTxMoved && !f.stream.carried;
}

} // namespace

long ask_for_socket(const File &f, uint32_t adoption) noexcept {
    Cause why;
    if (!control::ensure(&why))
        return -ECONNREFUSED;
    const wire::Moved msg = name_of(f.seg, f.ofd_index, f.ofd->generation, adoption);
    auto r = control::request(wire::Op::moved, &msg, sizeof msg);
    if (r.status >= 0 && r.fds == 1)
        return r.fd[0];
    control::close_received(r);
    return r.status < 0 ? r.status : -EPROTO;
}

bool follow(File &f) noexcept {
    if (!take_reference(f))
        return true;
    bool done = true;
    {
        const LockGuard g(following);
        SpareNumbers spare;
        if (moved(f) && is_to_adopt(f)) {
            adopt_socket(f);
            done = false;
        } else if (moved(f) && any_number(f) >= 0) {
            long made = ask_for_socket(f, 0);
            if (is_to_adopt(f)) { // it is about something else by now
                if (made >= 0)
                    sys::close(static_cast<int>(made));
                made = -ENOENT;
            }
            done = made >= 0 || is_the_kernels(f); // else the bridge could not be started
            if (made < 0 && done) {
                // The monitor that had the socket is gone. What the numbers stand for from now on is not
                // connected.
                count_fallback(Cause::no_monitor, nullptr);
                made = sys::socket(f.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
            }
            if (made >= 0) {
                exchange_numbers(f, static_cast<int>(made));
                sys::close(static_cast<int>(made));
            }
        } else {
            done = is_the_kernels(f);
        }
    }
    release_file(&f);
    leave_pages_if_told();
    return done;
}

File *followed(int fd, File *f) noexcept {
    follow(*f);
    return file_of(fd);
}

long move_to_kernel(File &f, Cause why) noexcept {
    long made = -EBUSY;
    for (unsigned n = 0; made == -EBUSY && n < kTriesToPass; ++n) {
        if (moved(f) && follow(f))
            return 0;
        if (has_paths(*f.ofd)) [[unlikely]]
            return come_home(f) && leave_paths(f) ? 0 : -ENOBUFS;
        made = make_parcel(f, wire::BridgeStart::for_all);
    }
    if (made < 0) // or somebody else has just done the same
        return moved(f) && follow(f) ? 0 : made == -EBUSY ? -ENOBUFS : made;
    count_fallback(why, nullptr);
    exchange_numbers(f, static_cast<int>(made));
    sys::close(static_cast<int>(made));
    return 0;
}

void tell_moved_let_go(unsigned seg, uint32_t ofd_index, uint16_t generation) noexcept {
    const wire::Moved msg = name_of(seg, ofd_index, generation, 0);
    control::tell(wire::Op::let_go, &msg, sizeof msg);
}

bool say_has_socket(const File &f, uint32_t adoption) noexcept {
    const wire::Moved msg = name_of(f.seg, f.ofd_index, f.ofd->generation, adoption);
    return control::request(wire::Op::let_go, &msg, sizeof msg).status >= 0;
}

SD_FORK_CODE void moved_fork_child() noexcept { following.reset(); }

} // namespace sd
