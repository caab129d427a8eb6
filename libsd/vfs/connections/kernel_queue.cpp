// Taking connections from the kernel's queue; see kernel_queue.hpp.
#include "libsd/vfs/connections/kernel_queue.hpp"
#include "libsd/control/client.hpp"
#include "libsd/cpu/instructions.hpp"
#include "libsd/transport/slots.hpp"
#include "libsd/vfs/connections/listener_links.hpp"
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/vfs/streams/cancel.hpp"

namespace sd {

namespace {

/// How this process signs places. Never 0.
uint32_t signature() noexcept {
    const uint32_t id = wire::folded(control::client_id());
    return id ? id : UINT32_MAX;
}

/// A place, or kKernelPlaces.
unsigned take_place(ListenerSegment &seg, bool insist) noexcept {
    const uint32_t mine = signature();
    for (unsigned i = 0; i < (insist ? kKernelPlaces : 1); ++i)
        if (uint32_t free = 0; seg.in_kernel[i].load(std::memory_order_relaxed) == 0 &&
                               seg.in_kernel[i].compare_exchange_strong(free, mine, std::memory_order_seq_cst))
            return i;
    return kKernelPlaces;
}

uint64_t mark_of(const Bell &bell, const LinkMap &l) noexcept {
    const unsigned id = bell.id[l.index];
    return id ? uint64_t{1} << id : kInKernelUnnamed;
}

/// A link of the listener on which the thread's bell has no id yet, with a reference; null: there is none.
LinkMap *link_without_id(Listener &l, const Bell &bell) noexcept {
    QuietGuard g(l.lock);
    for (auto &ref : l.links)
        if (bell.id[ref.link->index] == 0) {
            ref.link->users.fetch_add(1, std::memory_order_acq_rel);
            return ref.link;
        }
    return nullptr;
}

void enter(Listener &l, Bell &bell) noexcept {
    listener_refresh(l);
    while (LinkMap *link = link_without_id(l, bell)) {
        const unsigned id = bell_id(bell, *link);
        link_unuse(*link);
        if (id == 0)
            break; // no more ids: unnamed
    }
    QuietGuard g(l.lock);
    for (auto &ref : l.links)
        ref.link->view.header().side[1].in_kernel.fetch_or(mark_of(bell, *ref.link), std::memory_order_seq_cst);
}

/// Gives place `extra` back. What `what` is stays one even if the listener was closed meanwhile: then it has
/// no links.
void leave(void *what, size_t extra) noexcept {
    Listener &l = *static_cast<Listener *>(what);
    listener_refresh(l); // one that came meanwhile carries the unnamed mark
    QuietGuard g(l.lock);
    // With the lock no link comes to the list: one that is made from here on is marked for the others, and is
    // not unmarked below.
    l.seg->in_kernel[extra].store(0, std::memory_order_seq_cst);
    uint64_t gone = kInKernelUnnamed;
    for (const auto &place : l.seg->in_kernel)
        if (place.load(std::memory_order_seq_cst) != 0)
            gone = 0;
    const Bell *bell = self.bell;
    for (auto &ref : l.links) {
        auto &marks = ref.link->view.header().side[1].in_kernel;
        const uint64_t mine = gone | (bell && bell->id[ref.link->index] ? mark_of(*bell, *ref.link) : 0);
        if (marks.load(std::memory_order_relaxed) & mine)
            marks.fetch_and(~mine, std::memory_order_release);
    }
}

void cancelled(void *) noexcept { CleanupStack::give_back_all(); }

/// `r` of accept4, with what every call that has the kernel give out a number does.
long numbered(long r) noexcept {
    given_out(r);
    return r;
}

} // namespace

bool has_kernel_client(int fd) noexcept {
    pollfd p{fd, POLLIN, 0};
    timespec zero{0, 0};
    return sys::ppoll(&p, 1, &zero, nullptr) > 0 && (p.revents & ~POLLOUT);
}

bool is_nonblocking_socket(int fd) noexcept {
    const long fl = sys::fcntl(fd, F_GETFL);
    return fl >= 0 && (fl & O_NONBLOCK);
}

long accept_from_kernel(int fd, const AcceptCall &call, bool insist, bool its_turn) noexcept {
    if (!has_kernel_client(fd))
        return -EAGAIN;
    make_room_below();
    const auto accept = [&call](int number) noexcept {
        return sys::accept4(number, call.address, call.length, call.flags);
    };
    if (is_nonblocking_socket(fd)) {
        const long r = accept(fd);
        return numbered(r == -EMFILE && vacated() ? accept(fd) : r);
    }
    Bell *bell = looking_bell();
    if (!bell)
        return -EMFILE;
    (void)call.pin.acquire(call.listener, call.number); // where that fails, this tells:
    fd = listener_fd(call.listener, call.number);
    if (fd < 0)
        return -EAGAIN; // closed just now
    Listener &l = *call.listener.listener;
    const unsigned place = take_place(*l.seg, insist);
    if (place == kKernelPlaces)
        return -EBUSY;
    const unsigned mark = CleanupStack::mark();
    if (!CleanupStack::push(leave, &l, place, &call)) {
        l.seg->in_kernel[place].store(0, std::memory_order_release);
        return -EBUSY;
    }
    long r = -EAGAIN;
    if (has_kernel_client(fd)) {
        enter(l, *bell);
        const auto wait = [&] { return cancellable(cancelled, nullptr, [&] { return accept(fd); }); };
        r = !its_turn && listener_pending(l) ? -EBUSY : wait();
        if (r == -EMFILE && vacated())
            r = wait();
    }
    CleanupStack::give_back_to(mark);
    return numbered(r);
}

bool accepted_soon(const LinkMap &l, uint32_t slot) noexcept {
    constexpr unsigned kLooks = 2000;
    constexpr int64_t kPatienceNs = 1'000'000;
    auto &state = l.far.slot(slot).identity.state;
    const auto over = [&] {
        return state.load(std::memory_order_acquire) != static_cast<uint32_t>(SlotState::syn) ||
               !acceptor_in_kernel(l);
    };
    // Taking a connection from the kernel's queue takes some microseconds, and longer where the acceptor
    // loses its core meanwhile.
    for (unsigned n = 0; n < kLooks; ++n) {
        if (over())
            return true;
        cpu::pause();
    }
    for (const int64_t until = sys::now_ns() + kPatienceNs; sys::now_ns() < until; sys::sched_yield())
        if (over())
            return true;
    return !take_request_back(l, slot);
}

} // namespace sd
