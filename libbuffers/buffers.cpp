// libsocksdirect-buffers: the calls of include/socksdirect/buffers.h, for programs that may run with libsd or
// without it. What libsd can do is found at run time; where it cannot, bytes are copied by the socket's own
// calls.
#include "include/socksdirect/buffers.h"
#include "libbuffers/page_cache.hpp"
#include "libbuffers/shared_pool.hpp"
#include "libsd/layout/buffer_calls.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <new>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/single_threaded.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using sd::BufferCalls;
using socksdirect::SharedPool;

constexpr size_t kDefaultQuota = size_t{64} << 20;
constexpr size_t kPage = socksdirect::kPage;
/// Less is copied: what a receiver pays for a view, its page faults above all, is more than a copy.
constexpr size_t kLeastInPlace = 4096;
constexpr size_t kMostAsked = size_t{1} << 38;

size_t round_up(size_t n) { return (n + kPage - 1) / kPage * kPage; }

/// Children have another number.
std::atomic<uint32_t> forks{0};
void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

const BufferCalls *find_calls() {
    using Find = const BufferCalls *(*)();
    const auto find = reinterpret_cast<Find>(dlsym(RTLD_DEFAULT, sd::kBufferCallsSymbol));
    const BufferCalls *calls = find ? find() : nullptr;
    return calls && calls->version == sd::kBufferCallsVersion && calls->size >= sizeof(BufferCalls) ? calls
                                                                                                    : nullptr;
}

const BufferCalls *libsd() {
    static const BufferCalls *const calls = (pthread_atfork(nullptr, nullptr, count_fork), find_calls());
    return calls;
}

/// Never destroyed: views may be released while the program ends.
socksdirect::PageCache &pages() {
    static auto &cache = *new socksdirect::PageCache;
    return cache;
}

struct Counters {
    std::atomic<uint64_t> sent_in_place{0}, received_in_place{0}, received_copied{0};
    std::atomic<uint64_t> small{0}, foreign{0}, not_taken{0};
};

/// A locked instruction would be a good part of what a small message costs.
void add(std::atomic<uint64_t> &counter, uint64_t n) {
    if (__libc_single_threaded) {
        counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    } else {
        counter.fetch_add(n, std::memory_order_relaxed);
    }
}

int fail(int error) {
    errno = error;
    return -1;
}

} // namespace

struct sd_buffers {
    int fd;
    const BufferCalls *calls; ///< null: without libsd
    size_t quota;
    uint32_t made_in = 0; ///< forks then
    std::mutex lock;
    std::shared_ptr<SharedPool> pool; ///< null: not made yet
    unsigned refused = 0;             ///< how often one could not be made
    Counters counts;
};

struct sd_buffer {
    void *data;
    size_t size, room;
    std::shared_ptr<SharedPool> pool; ///< null: ordinary memory
    SharedPool::Place place;
    uint32_t made_in;
};

namespace {

constexpr unsigned kTries = 3; ///< to make a pool: a monitor may be away just now

/// With the lock. The pool in use, or a new one; null: the connection has none.
std::shared_ptr<SharedPool> pool_of(sd_buffers &c) {
    const BufferCalls *calls = c.calls;
    if (!calls) {
        return nullptr;
    }
    if (c.pool && c.made_in != forks.load(std::memory_order_relaxed)) {
        c.pool.reset(); // the parent's
        c.refused = 0;
    }
    if (!c.pool && c.refused < kTries) {
        sd::OwnPoolView view{};
        const long r = calls->make_pool(c.fd, round_up(c.quota), &view);
        if (r == 0) {
            c.pool = std::make_shared<SharedPool>(*calls, view);
            c.made_in = forks.load(std::memory_order_relaxed);
        } else if (r != sd::kNotAccelerated) { // it may become so
            ++c.refused;
        }
    }
    return c.pool;
}

class Deadline {
  public:
    explicit Deadline(int timeout_ms)
        : forever_(timeout_ms < 0), end_(Clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0))) {}
    /// How long may be slept at a time: nobody tells of a receiver that was killed.
    std::chrono::nanoseconds step() const {
        constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(20);
        return forever_ ? kLook : std::clamp<std::chrono::nanoseconds>(end_ - Clock::now(), {}, kLook);
    }
    bool is_over() const { return !forever_ && Clock::now() >= end_; }

  private:
    using Clock = std::chrono::steady_clock;
    bool forever_;
    Clock::time_point end_;
};

std::optional<SharedPool::Place> take_place(sd_buffers &c, size_t bytes, int timeout_ms,
                                            std::shared_ptr<SharedPool> &pool) {
    {
        const std::lock_guard guard(c.lock);
        pool = pool_of(c);
    }
    if (!pool || bytes > pool->size()) {
        return std::nullopt;
    }
    for (const Deadline deadline(timeout_ms);;) {
        const uint32_t seen = pool->releases();
        if (auto place = pool->take(bytes)) {
            return place;
        }
        if (timeout_ms == 0 || deadline.is_over() || c.calls->is_usable(c.fd, pool->handle()) == 0) {
            return std::nullopt;
        }
        pool->wait_for_release(seen, deadline.step());
    }
}

/// Which of the counters of copied bytes a piece belongs to.
std::atomic<uint64_t> &reason(Counters &counts, const sd_piece &piece) {
    return !piece.buffer || !piece.buffer->pool ? counts.foreign
           : piece.size < kLeastInPlace         ? counts.small
                                                : counts.not_taken;
}

bool may_hand(const sd_piece &piece) {
    const sd_buffer *b = piece.buffer;
    return b && b->pool && piece.size >= kLeastInPlace && b->made_in == forks.load(std::memory_order_relaxed);
}

/// Hands over what it can of a piece: how much, 0 to copy it, or -errno.
long hand(sd_buffers &c, const sd_piece &piece, int flags) {
    const sd_buffer *b = piece.buffer;
    if (!may_hand(piece) || (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0) {
        return 0;
    }
    const auto offset = static_cast<uint64_t>(static_cast<const uint8_t *>(piece.data) - b->pool->bytes());
    if (offset < b->place.offset || offset - b->place.offset > b->room ||
        piece.size > b->room - (offset - b->place.offset)) {
        return -EINVAL;
    }
    const long r = c.calls->hand(c.fd, b->pool->handle(), offset, piece.size, b->place.number, flags);
    if (r > 0) {
        b->pool->count_sent(b->place.number, static_cast<uint64_t>(r));
        add(c.counts.sent_in_place, static_cast<uint64_t>(r));
    }
    return r;
}

sd_piece rest_of(const sd_piece &piece, size_t from) {
    return {static_cast<const uint8_t *>(piece.data) + from, piece.size - from, piece.buffer};
}

/// Copies piece `first` from `handed` on, and those behind it that would be copied as well. As sendmsg();
/// `*last` is the next piece, and `*wanted` how many bytes these have.
ssize_t copy(sd_buffers &c, const sd_piece *pieces, size_t count, size_t first, size_t handed, int flags,
             size_t &last, size_t &wanted) {
    std::array<iovec, 64> parts;
    msghdr m{};
    m.msg_iov = parts.data();
    wanted = 0;
    for (last = first; last < count && m.msg_iovlen < parts.size(); ++last) {
        if (last != first && may_hand(pieces[last])) {
            break;
        }
        const sd_piece rest = rest_of(pieces[last], last == first ? handed : 0);
        parts[m.msg_iovlen++] = {const_cast<void *>(rest.data), rest.size};
        wanted += rest.size;
    }
    const ssize_t r = sendmsg(c.fd, &m, flags);
    for (size_t k = 0, left = r > 0 ? static_cast<size_t>(r) : 0; left != 0; ++k) {
        const size_t n = std::min(left, parts[k].iov_len);
        add(reason(c.counts, pieces[first + k]), n);
        left -= n;
    }
    return r;
}

/// What sd_view::reserved3 holds of bytes in place, or the size of memory that the view owns.
uint64_t pack(const sd::ReceivedBytes &r) { return uint64_t{r.epoch} << 32 | r.buffer; }

/// One call: what lies back to back, or what a recv() gives. Memory for copies is `spare`, of `most` bytes.
ssize_t receive_once(sd_buffers &c, void *spare, size_t spare_size, size_t most, int flags, sd_view &view) {
    sd::ReceivedBytes got{spare, nullptr, 0, 0};
    long r = sd::kNotAccelerated;
    if (const BufferCalls *calls = c.calls) {
        r = calls->receive(c.fd, spare, spare_size, most, flags, &got);
    }
    if (r == sd::kNotAccelerated && spare_size != 0) {
        r = recv(c.fd, spare, std::min(spare_size, most), flags);
        r = r < 0 ? -errno : r;
    }
    if (r < 0 && r != sd::kWantsSpare && r != sd::kNotAccelerated) {
        errno = static_cast<int>(-r);
        return -1;
    }
    view.data = got.data;
    view.size = r > 0 ? static_cast<size_t>(r) : 0;
    view.is_in_place = got.pool != nullptr;
    view.reserved2 = got.pool;
    view.reserved3 = got.pool ? pack(got) : 0;
    return r;
}

/// Memory of the view's own.
bool give_memory(sd_view &view, size_t bytes) {
    view.reserved3 = round_up(bytes);
    view.reserved2 = pages().take(view.reserved3);
    view.data = view.reserved2;
    return view.reserved2 != nullptr;
}

void release_in_place(const sd_view &view, size_t bytes) {
    libsd()->release(view.reserved2, static_cast<uint32_t>(view.reserved3 >> 32),
                     static_cast<uint32_t>(view.reserved3), bytes);
}

/// Does `next` go on where `view` ends?
bool continues(const sd_view &view, const sd_view &next) {
    return next.is_in_place && next.reserved2 == view.reserved2 && next.reserved3 == view.reserved3 &&
           static_cast<const uint8_t *>(view.data) + view.size == next.data;
}

/// How much memory a copy of what waits needs; the first bytes are waited for.
ssize_t waiting(int fd, size_t most, int flags) {
    char first;
    const ssize_t r = recv(fd, &first, 1, MSG_PEEK | (flags & MSG_DONTWAIT));
    int there = 0;
    if (r <= 0) {
        return r;
    }
    return ioctl(fd, FIONREAD, &there) == 0 && there > 0 ? static_cast<ssize_t>(std::min(most, size_t(there)))
                                                         : r;
}

/// The first bytes, with memory for them if they have to be copied. `room`: how much that has.
ssize_t receive_first(sd_buffers &c, size_t most, int flags, void *spare, size_t spare_size, sd_view &view,
                      size_t &room) {
    const int now = flags & (MSG_DONTWAIT | MSG_NOSIGNAL);
    const bool usable = spare != nullptr && spare_size >= most;
    room = usable ? spare_size : 0;
    ssize_t r = receive_once(c, usable ? spare : nullptr, room, most, now, view);
    while (r == sd::kWantsSpare || r == sd::kNotAccelerated) {
        const ssize_t there = (flags & MSG_WAITALL) ? static_cast<ssize_t>(most) : waiting(c.fd, most, flags);
        if (there <= 0) {
            return there;
        }
        sd_view own{};
        if (!give_memory(own, static_cast<size_t>(there))) {
            return fail(ENOMEM);
        }
        room = static_cast<size_t>(there);
        r = receive_once(c, own.reserved2, room, std::min(most, room), now, view);
        if (r > 0 && !view.is_in_place) {
            view.reserved2 = own.reserved2;
            view.reserved3 = own.reserved3;
        } else {
            const int error = errno;
            pages().give(own.reserved2, own.reserved3);
            errno = error;
        }
    }
    return r;
}

void count_received(sd_buffers &c, const sd_view &view) {
    add(view.is_in_place ? c.counts.received_in_place : c.counts.received_copied, view.size);
}

/// What a call returns; where that is no count, the view is empty.
ssize_t finish(sd_buffers &c, ssize_t r, sd_view *view) {
    if (r > 0) {
        count_received(c, *view);
        return r;
    }
    const int error = errno;
    sd_view_release(view);
    errno = error;
    return r;
}

/// Makes a copy of a view that cannot go on where it ends. False: no memory.
bool turn_into_copy(sd_view &view, void *spare, size_t most) {
    sd_view copy{};
    if (spare) {
        copy.data = spare;
    } else if (!give_memory(copy, most)) {
        return false;
    }
    memcpy(const_cast<void *>(copy.data), view.data, view.size);
    copy.size = view.size;
    release_in_place(view, view.size);
    view = copy;
    return true;
}

/// The rest of `most` bytes behind those of `view`. `room`: of memory that the view has.
ssize_t receive_rest(sd_buffers &c, size_t most, int flags, void *spare, sd_view &view, size_t room) {
    const int now = flags & (MSG_DONTWAIT | MSG_NOSIGNAL);
    while (view.size < most) {
        const size_t left = most - view.size;
        if (view.is_in_place) {
            sd_view next{};
            const ssize_t r = receive_once(c, nullptr, 0, left, now, next);
            if (r > 0 && continues(view, next)) {
                release_in_place(next, 0); // one of the two references
                view.size += next.size;
                continue;
            }
            if (r <= 0 && r != sd::kWantsSpare && r != sd::kNotAccelerated) {
                break;
            }
            const bool copied = turn_into_copy(view, spare, most);
            room = most;
            if (r > 0) {
                if (copied) {
                    memcpy(static_cast<uint8_t *>(const_cast<void *>(view.data)) + view.size, next.data,
                           next.size);
                    view.size += next.size;
                }
                release_in_place(next, next.size);
            }
            if (!copied) {
                return fail(ENOMEM);
            }
            continue;
        }
        sd_view next{};
        auto *to = static_cast<uint8_t *>(const_cast<void *>(view.data)) + view.size;
        const ssize_t r = receive_once(c, to, std::min(left, room - view.size), left, now, next);
        if (r <= 0) {
            break;
        }
        if (next.is_in_place) {
            memcpy(to, next.data, next.size);
            release_in_place(next, next.size);
        }
        view.size += next.size;
    }
    return static_cast<ssize_t>(view.size);
}

} // namespace

extern "C" {

sd_buffers *sd_buffers_open(int fd, size_t quota) {
    auto *c = new (std::nothrow) sd_buffers{};
    if (!c) {
        errno = ENOMEM;
        return nullptr;
    }
    c->fd = fd;
    c->calls = libsd();
    c->quota = quota == 0 ? kDefaultQuota : std::min(quota, kMostAsked);
    return c;
}

void sd_buffers_close(sd_buffers *c) { delete c; }

sd_buffer *sd_buffers_get(sd_buffers *c, size_t size, int timeout_ms) {
    if (size > kMostAsked) {
        errno = ENOMEM;
        return nullptr;
    }
    const size_t room = round_up(std::max(size, size_t{1}));
    try {
        auto b = std::make_unique<sd_buffer>();
        b->size = size;
        b->room = room;
        b->made_in = forks.load(std::memory_order_relaxed);
        if (const auto place = take_place(*c, room, timeout_ms, b->pool)) {
            b->place = *place;
            b->data = b->pool->bytes() + place->offset;
            return b.release();
        }
        b->pool.reset();
        b->data = pages().take(room);
        if (b->data) {
            return b.release();
        }
    } catch (const std::bad_alloc &) {
    }
    errno = ENOMEM;
    return nullptr;
}

void *sd_buffer_data(const sd_buffer *b) { return b->data; }
size_t sd_buffer_size(const sd_buffer *b) { return b->size; }
int sd_buffer_is_pooled(const sd_buffer *b) { return b->pool != nullptr; }
int sd_buffer_is_read(const sd_buffer *b) { return b->pool && b->pool->is_read(b->place.number); }

void sd_buffer_put(sd_buffer *b) {
    if (!b) {
        return;
    }
    if (!b->pool) {
        pages().give(b->data, b->room);
    } else if (b->made_in == forks.load(std::memory_order_relaxed)) {
        b->pool->give(b->place);
    }
    delete b;
}

ssize_t sd_buffers_send(sd_buffers *c, const sd_piece *pieces, size_t count, int flags) {
    if (count == 1 && !may_hand(*pieces)) { // what most small messages are
        const ssize_t r = send(c->fd, pieces->data, pieces->size, flags);
        if (r > 0) {
            add(reason(c->counts, *pieces), static_cast<size_t>(r));
        }
        return r;
    }
    size_t done = 0;
    for (size_t i = 0, handed = 0; i < count;) { // `handed`: of piece i
        if (handed == pieces[i].size) {
            ++i;
            handed = 0;
            continue;
        }
        const long r = hand(*c, rest_of(pieces[i], handed), flags);
        if (r < 0) {
            return done ? static_cast<ssize_t>(done) : fail(static_cast<int>(-r));
        }
        if (r > 0) {
            handed += static_cast<size_t>(r);
            done += static_cast<size_t>(r);
            continue;
        }
        size_t last, wanted;
        const ssize_t sent = copy(*c, pieces, count, i, handed, flags, last, wanted);
        if (sent < 0) {
            return done ? static_cast<ssize_t>(done) : -1;
        }
        done += static_cast<size_t>(sent);
        if (static_cast<size_t>(sent) < wanted) {
            break;
        }
        i = last;
        handed = 0;
    }
    return static_cast<ssize_t>(done);
}

ssize_t sd_buffers_recv(sd_buffers *c, size_t most, int flags, void *spare, size_t spare_size, sd_view *view) {
    *view = sd_view{};
    if ((flags & ~(MSG_DONTWAIT | MSG_WAITALL | MSG_NOSIGNAL)) != 0) {
        return fail(EINVAL);
    }
    if (most == 0) {
        return 0;
    }
    if (c->calls && spare && spare_size >= most) { // what most small messages are
        const ssize_t r = receive_once(*c, spare, spare_size, most, flags & ~MSG_WAITALL, *view);
        if (r == static_cast<ssize_t>(most) || (r > 0 && (flags & MSG_WAITALL) == 0)) {
            count_received(*c, *view);
            return r;
        }
        if (r > 0) {
            return finish(*c, receive_rest(*c, most, flags, spare, *view, spare_size), view);
        }
        if (r != sd::kNotAccelerated) {
            return r;
        }
    }
    size_t room = 0;
    ssize_t r = receive_first(*c, most, flags, spare, spare_size, *view, room);
    if (r > 0 && (flags & MSG_WAITALL) != 0 && view->size < most) {
        r = receive_rest(*c, most, flags, spare != nullptr && spare_size >= most ? spare : nullptr, *view, room);
    }
    return finish(*c, r, view);
}

void sd_view_release(sd_view *view) {
    if (!view->reserved2) {
        view->data = nullptr;
        view->size = 0;
        return;
    }
    if (view->is_in_place) {
        release_in_place(*view, view->size);
    } else {
        pages().give(view->reserved2, view->reserved3);
    }
    *view = sd_view{};
}

void sd_buffers_count(const sd_buffers *c, sd_buffers_counts *counts) {
    const auto now = [](const std::atomic<uint64_t> &n) { return n.load(std::memory_order_relaxed); };
    const Counters &k = c->counts;
    *counts = sd_buffers_counts{};
    counts->sent_in_place = now(k.sent_in_place);
    counts->copied_small = now(k.small);
    counts->copied_foreign = now(k.foreign);
    counts->copied_not_taken = now(k.not_taken);
    counts->sent_copied = counts->copied_small + counts->copied_foreign + counts->copied_not_taken;
    counts->received_in_place = now(k.received_in_place);
    counts->received_copied = now(k.received_copied);
}

} // extern "C"
