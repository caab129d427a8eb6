// io_uring as far as it passes through syscall(), which is how event loops batch their epoll_ctl calls, and
// what liburing.cpp shares with that.
//
// The kernel knows nothing of our sockets, so before it takes submissions we look through them. A change of
// an epoll set, and a close, is carried out here, and its entry becomes a NOP that completes with the result:
// completions stay the kernel's to write, in the program's order. A socket that anything else is asked of
// becomes a kernel socket first. Rings are mapped anew each time; a mapping that lasted would keep a ring
// that the program closes.
#include "libsd/api/syscalls/uring.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/control/fork_sections.hpp"
#include "libsd/control/lock.hpp"
#include "libsd/control/text.hpp"
#include "libsd/vfs/descriptors/fd.hpp"
#include <climits>
#include <linux/io_uring.h>
#include <sys/utsname.h>

namespace sd {

namespace {

// Newer than the headers may be.
constexpr unsigned kSetupNoMmap = 1U << 14;
constexpr unsigned kSetupNoSqArray = 1U << 16;
constexpr unsigned kNopInjectResult = 1U << 0;
constexpr unsigned kOpSendZc = 47, kOpSendmsgZc = 48;

struct Ring {
    int fd = 0; ///< all zero until it is used: so none of them lies in the file
    unsigned flags = 0, entries = 0, head = 0, tail = 0, array = 0;
    char *rings = nullptr, *sqes = nullptr; ///< the program's own memory, or null
};

constexpr unsigned kRings = 256;
constinit Ring rings[kRings];
SD_FORK_STATE constinit Lock rings_lock;
constinit std::atomic<unsigned> rings_used{0};

bool is_ring(int fd) noexcept {
    char path[32], target[32] = {};
    descriptor_name(fd, path);
    sys::call(SYS_readlinkat, AT_FDCWD, sys::arg(path), sys::arg(target), sizeof target - 1);
    return memcmp(target, "anon_inode:[io_uring]", 21) == 0;
}

/// A place for the ring `fd`: that of an earlier ring of this number, a new one, or that of a ring that is
/// gone.
Ring *place_for(int fd) noexcept {
    const unsigned used = rings_used.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < used; ++i)
        if (rings[i].fd == fd)
            return &rings[i];
    if (used < kRings) {
        rings_used.store(used + 1, std::memory_order_release);
        return &rings[used];
    }
    for (Ring &r : rings)
        if (!is_ring(r.fd))
            return &r;
    return nullptr;
}

/// The last word of the offsets, under a name that only newer headers have.
template <class Offsets> char *user_address(const Offsets &o) noexcept {
    char *p;
    memcpy(&p, reinterpret_cast<const char *>(&o + 1) - sizeof p, sizeof p);
    return p;
}

bool note_ring(int fd, const io_uring_params &p) noexcept {
    LockGuard g(rings_lock);
    Ring *r = place_for(fd);
    if (!r)
        return false;
    const bool own = p.flags & kSetupNoMmap;
    *r = {fd,
          p.flags,
          p.sq_entries,
          p.sq_off.head,
          p.sq_off.tail,
          p.sq_off.array,
          own ? user_address(p.cq_off) : nullptr,
          own ? user_address(p.sq_off) : nullptr};
    return true;
}

bool find_ring(int fd, Ring *out) noexcept {
    if (rings_used.load(std::memory_order_acquire) == 0)
        return false;
    LockGuard g(rings_lock);
    for (unsigned i = 0; i < rings_used.load(std::memory_order_relaxed); ++i)
        if (rings[i].fd == fd) {
            *out = rings[i];
            return true;
        }
    return false;
}

/// A NOP of this kernel can complete with any result (Linux 6.10).
bool nop_takes_result() noexcept {
    static std::atomic<int> known{-1};
    int v = known.load(std::memory_order_relaxed);
    if (v < 0) {
        utsname name{};
        sys::call(SYS_uname, sys::arg(&name));
        unsigned part[2] = {};
        const char *p = name.release;
        for (unsigned &n : part) {
            for (; *p >= '0' && *p <= '9'; ++p)
                n = n * 10 + static_cast<unsigned>(*p - '0');
            if (*p == '.')
                ++p;
        }
        v = part[0] > 6 || (part[0] == 6 && part[1] >= 10);
        known.store(v, std::memory_order_relaxed);
    }
    return v != 0;
}

/// Lets the kernel complete the entry with `result`.
void complete_with(io_uring_sqe &e, long result) noexcept {
    io_uring_sqe done{};
    done.flags = e.flags;
    done.user_data = e.user_data;
    done.personality = e.personality;
    done.opcode = IORING_OP_NOP;
    done.fd = -1;
    if (nop_takes_result()) {
        done.len = static_cast<uint32_t>(result);
        done.rw_flags = kNopInjectResult;
    } else if (result == -EEXIST) { // an operation that ends in just this way
        done.opcode = IORING_OP_MKDIRAT;
        done.fd = AT_FDCWD;
        done.addr = reinterpret_cast<uintptr_t>("/");
    } else if (result == -ENOENT) {
        done.opcode = IORING_OP_UNLINKAT;
        done.fd = AT_FDCWD;
        done.addr = reinterpret_cast<uintptr_t>("");
    } else if (result < 0) {
        done.opcode = IORING_OP_EPOLL_CTL;
        done.len = EPOLL_CTL_DEL;
    }
    e = done;
}

bool uses_descriptor(unsigned opcode) noexcept {
    switch (opcode) {
    case IORING_OP_READV:
    case IORING_OP_WRITEV:
    case IORING_OP_READ_FIXED:
    case IORING_OP_WRITE_FIXED:
    case IORING_OP_READ:
    case IORING_OP_WRITE:
    case IORING_OP_POLL_ADD:
    case IORING_OP_SENDMSG:
    case IORING_OP_RECVMSG:
    case IORING_OP_SEND:
    case IORING_OP_RECV:
    case IORING_OP_ACCEPT:
    case IORING_OP_CONNECT:
    case IORING_OP_SHUTDOWN:
    case IORING_OP_SPLICE:
    case kOpSendZc:
    case kOpSendmsgZc:
        return true;
    default:
        return false;
    }
}

void give_to_kernel(int fd) noexcept {
    File *f = file_of(fd);
    if (f && f->kind != FileKind::epoll)
        (void)leave_to_kernel(fd, *f, Cause::raw_use); // without room for it the ring is told by the kernel
}

/// An accept gets the accelerated client that is there for it. False: there is none, or another acceptor was
/// faster; those to come will be told that the listener is the kernel's, where the ring waits.
bool accepted(io_uring_sqe &e) noexcept {
    if (e.file_index != 0)
        return false;
    const long r = vfs::accept_waiting(e.fd, reinterpret_cast<sockaddr *>(e.addr),
                                       reinterpret_cast<socklen_t *>(e.off), static_cast<int>(e.accept_flags));
    if (r == vfs::kPass || r == -EAGAIN)
        return false;
    complete_with(e, static_cast<int>(r));
    return true;
}

} // namespace

void uring_serve(io_uring_sqe &e) noexcept {
    if (e.flags & IOSQE_FIXED_FILE)
        return;
    const int saved = errno;
    if (e.opcode == IORING_OP_EPOLL_CTL) {
        const int fd = static_cast<int>(e.off);
        if (file_of(e.fd) || file_of(fd) || is_hidden(e.fd) || is_hidden(fd)) {
            const int r = epoll_ctl(e.fd, static_cast<int>(e.len), fd, reinterpret_cast<epoll_event *>(e.addr));
            complete_with(e, r < 0 ? -errno : r);
        }
    } else if (e.opcode == IORING_OP_CLOSE) {
        if (has_entry(e.fd) || is_hidden(e.fd)) {
            const int r = close(e.fd);
            complete_with(e, r < 0 ? -errno : r);
        }
    } else if (e.opcode == IORING_OP_ACCEPT && accepted(e)) {
        // done
    } else if (uses_descriptor(e.opcode)) {
        give_to_kernel(e.fd);
        if (e.opcode == IORING_OP_SPLICE)
            give_to_kernel(e.splice_fd_in);
    }
    errno = saved;
}

void uring_keep(const int *fds, unsigned count) noexcept {
    const int saved = errno;
    int fd;
    for (unsigned i = 0; i < count && sd_copy(&fd, fds + i, sizeof fd) == 0; ++i)
        give_to_kernel(fd);
    errno = saved;
}

namespace {

char *map(int fd, size_t length, size_t offset) noexcept {
    return static_cast<char *>(sys::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset));
}

uint32_t &word(char *base, unsigned offset) noexcept { return *reinterpret_cast<uint32_t *>(base + offset); }

void serve_submissions(const Ring &r, unsigned count) noexcept {
    const size_t entry = r.flags & IORING_SETUP_SQE128 ? 128 : 64;
    const size_t sqe_bytes = r.entries * entry;
    const bool array = !(r.flags & kSetupNoSqArray);
    const size_t ring_bytes = array ? r.array + r.entries * sizeof(uint32_t)
                                    : (r.head > r.tail ? r.head : r.tail) + sizeof(uint32_t);
    char *base = r.rings ? r.rings : map(r.fd, ring_bytes, IORING_OFF_SQ_RING);
    char *sqes = r.sqes ? r.sqes : map(r.fd, sqe_bytes, IORING_OFF_SQES);
    if (base && sqes) {
        const uint32_t head = std::atomic_ref(word(base, r.head)).load(std::memory_order_acquire);
        const uint32_t tail = std::atomic_ref(word(base, r.tail)).load(std::memory_order_acquire);
        const uint32_t waiting = tail - head;
        for (uint32_t i = 0; i < count && i < waiting && i < r.entries; ++i) {
            uint32_t index = (head + i) & (r.entries - 1);
            if (array)
                index = word(base, r.array + index * sizeof(uint32_t));
            if (index < r.entries)
                uring_serve(*reinterpret_cast<io_uring_sqe *>(sqes + index * entry));
        }
    }
    if (base && !r.rings)
        sys::munmap(base, ring_bytes);
    if (sqes && !r.sqes)
        sys::munmap(sqes, sqe_bytes);
}

} // namespace

bool uring_refused(unsigned flags) noexcept { return active() && (flags & IORING_SETUP_SQPOLL); }

long uring_setup(unsigned entries, void *params) noexcept {
    make_room_below();
    io_uring_params p{};
    if (active() && params && sd_copy(&p, params, sizeof p) == 0 && uring_refused(p.flags))
        return with_errno(-EPERM);
    const long fd = sys::call(SYS_io_uring_setup, entries, sys::arg(params));
    if (fd < 0)
        return with_errno(fd);
    noted(static_cast<int>(fd));
    if (active() && (sd_copy(&p, params, sizeof p) || !note_ring(static_cast<int>(fd), p))) {
        sys::close(static_cast<int>(fd));
        return with_errno(-ENOMEM);
    }
    return fd;
}

long uring_enter(const long *a) noexcept {
    Ring r;
    // Nothing costs anything as long as the program has no sockets of ours.
    if (a[1] && fd_high.load(std::memory_order_relaxed) != 0 && find_ring(static_cast<int>(a[0]), &r))
        serve_submissions(r, static_cast<unsigned>(a[1]));
    return with_errno(sys::call(SYS_io_uring_enter, a[0], a[1], a[2], a[3], a[4], a[5]));
}

long uring_register(int ring, unsigned operation, void *what, unsigned count) noexcept {
    if (fd_high.load(std::memory_order_relaxed) != 0) {
        io_uring_files_update update;
        io_uring_rsrc_register tagged;
        io_uring_rsrc_update2 tagged_update;
        const auto at = [](uint64_t address) { return reinterpret_cast<const int *>(address); };
        if (operation == IORING_REGISTER_FILES)
            uring_keep(static_cast<const int *>(what), count);
        else if (operation == IORING_REGISTER_FILES_UPDATE && sd_copy(&update, what, sizeof update) == 0)
            uring_keep(at(update.fds), count);
        else if (operation == IORING_REGISTER_FILES2 && sd_copy(&tagged, what, sizeof tagged) == 0)
            uring_keep(at(tagged.data), tagged.nr);
        else if (operation == IORING_REGISTER_FILES_UPDATE2 &&
                 sd_copy(&tagged_update, what, sizeof tagged_update) == 0)
            uring_keep(at(tagged_update.data), tagged_update.nr);
    }
    return with_errno(sys::call(SYS_io_uring_register, ring, operation, sys::arg(what), count));
}

SD_FORK_CODE void reset_urings_in_child() noexcept { rings_lock.reset(); }

} // namespace sd
