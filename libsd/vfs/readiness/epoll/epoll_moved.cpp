// Members of epoll instances whose connections have moved to a kernel socket.
#include "libsd/vfs/paths/adopt.hpp"
#include "libsd/vfs/readiness/epoll/epoll_set.hpp"
#include "libsd/vfs/sharing/moved.hpp"

namespace sd {

void follow_moved_members(Epoll &x, unsigned depth) noexcept {
    File *inner[kNestedSets];
    unsigned inners = 0;
    for (;;) {
        File *f = nullptr;
        {
            SetGuard g(x);
            x.has_moved = false;
            for (EpollItem *i : x.items) {
                if (i->link && !i->off && moved(*i->file) && take_reference(*i->file)) {
                    f = i->file;
                    break;
                }
                if (inners < kNestedSets && depth < 5 && i->kernel_too && i->file->kind == FileKind::epoll &&
                    i->file->epoll->has_moved && take_reference(*i->file))
                    inner[inners++] = i->file;
            }
        }
        if (!f)
            break;
        follow(*f);
        {
            SetGuard g(x);
            for (EpollItem *i : x.items)
                // It has no number any more that the kernel's set could have
                if (i->file == f && i->link && moved(*f) && !is_to_adopt(*f)) {
                    i->off = true;
                    leave_list(x, *i);
                }
        }
        release_file(f);
    }
    for (unsigned k = 0; k < inners; ++k) {
        if (inner[k]->kind == FileKind::epoll)
            follow_moved_members(*inner[k]->epoll, depth + 1);
        release_file(inner[k]);
    }
}

} // namespace sd
