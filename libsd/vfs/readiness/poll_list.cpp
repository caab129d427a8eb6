// The arrays of a poll, and holding its sockets open.
#include "libsd/vfs/readiness/poll_list.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/readiness/poll_wait.hpp"

namespace sd {

namespace {

bool can_be_kept(const File &f) noexcept {
    return f.kind == FileKind::stream || f.kind == FileKind::listener || f.kind == FileKind::epoll;
}

} // namespace

bool PinnedList::begin() noexcept {
    if (on_)
        return true;
    on_ = true;
    bool all = true;
    mark_ = CleanupStack::mark();
    for (size_t i = 0; i < l_.n; ++i) {
        l_.link[i] = nullptr;
        l_.keep[i] = PollList::Keep::not_at_all;
        File *f = l_.file[i];
        if (!f)
            continue;
        const bool pinned = can_be_kept(*f) && pin(*f);
        const bool same = file_of(l_.all[i].fd) == f;
        all = all && same;
        if (!pinned)
            continue;
        LinkMap *l = f->link;
        if (same && can_be_kept(*f)) {
            const bool stream = f->kind == FileKind::stream;
            if (stream)
                l_.link[i] = l;
            if (CleanupStack::push(unpin, f, 0, this)) {
                l_.keep[i] = PollList::Keep::open;
                continue;
            }
            if (stream)
                l->users.fetch_add(1, std::memory_order_acq_rel);
        }
        unpin(f, 0);
    }
    return all;
}

void PinnedList::end() noexcept {
    if (!on_)
        return;
    on_ = false;
    CleanupStack::forget_to(mark_);
    for (size_t i = 0; i < l_.n; ++i) {
        LinkMap *l = l_.link[i];
        l_.link[i] = nullptr;
        if (kept(i))
            unpin(l_.file[i], 0);
        else if (l)
            link_unuse(*l);
    }
}

void PinnedList::find_listeners(size_t n) noexcept {
    if (!on_)
        return;
    for (size_t k = 0; k < n; ++k) {
        const size_t i = l_.from[k];
        if (!kept(i) || l_.file[i]->kind == FileKind::stream)
            continue;
        const int fd = listener_fd(*l_.file[i], l_.all[i].fd);
        l_.kernel[k].fd = spent(i) ? -1 : fd >= 0 ? fd : l_.all[i].fd;
    }
}

bool PinnedList::missed(size_t k) const noexcept {
    const size_t i = l_.from[k];
    if (!on_ || !kept(i))
        return false;
    const int fd = listener_fd(*l_.file[i], l_.all[i].fd);
    return fd >= 0 && fd != l_.kernel[k].fd;
}

short PinnedList::look_anew(size_t i) noexcept {
    l_.keep[i] = PollList::Keep::spent;
    PollSpace one(1);
    one.list.all[0] = {l_.all[i].fd, l_.all[i].events, 0};
    timespec zero{0, 0};
    const long ready = poll_classify(one.list) ? poll_wait(one.list, 0, nullptr)
                                               : sys::ppoll(one.list.all, 1, &zero, nullptr);
    return ready > 0 ? one.list.all[0].revents : short{0};
}

long PinnedList::look_anew() noexcept {
    long ready = 0;
    for (size_t i = 0; i < l_.n; ++i)
        if (taken_away(i)) [[unlikely]]
            ready += (l_.all[i].revents = look_anew(i)) != 0;
    return ready;
}

PollSpace::PollSpace(size_t n) noexcept {
    unsigned char *at = here_;
    if (n > kInline) {
        bytes_ = kEach * n + kWakers * sizeof(pollfd);
        mapped_ = sys::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!mapped_)
            return;
        mark_ = CleanupStack::mark();
        CleanupStack::push(unmap_cleanup, mapped_, bytes_, this);
        at = static_cast<unsigned char *>(mapped_);
    }
    list.n = n;
    list.file = reinterpret_cast<File **>(at);
    list.link = reinterpret_cast<LinkMap **>(list.file + n);
    list.all = reinterpret_cast<pollfd *>(list.link + n);
    list.kernel = list.all + n;
    list.from = reinterpret_cast<uint32_t *>(list.kernel + n + kWakers);
    list.keep = reinterpret_cast<PollList::Keep *>(list.from + n);
}

PollSpace::~PollSpace() {
    if (mapped_) {
        CleanupStack::forget_to(mark_);
        sys::munmap(mapped_, bytes_);
    }
}

} // namespace sd
