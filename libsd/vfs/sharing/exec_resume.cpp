// After an exec: the new program image takes over what the former one left.
#include "libsd/vfs/sharing/exec_resume.hpp"
#include "libsd/control/client.hpp"
#include "libsd/layout/exec_table.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/sharing/handoff.hpp"
#include "libsd/vfs/vfs.hpp"
#include <sys/stat.h>

namespace sd {

namespace {

/// Ours again: hidden, and not handed on by the next exec without our doing.
void take_back(int fd) noexcept {
    if (fd < 0)
        return;
    sys::fcntl(fd, F_SETFD, FD_CLOEXEC);
    mark_hidden(fd);
}

ExecTable *open_table(int fd, uint64_t *bytes) noexcept {
    struct stat st;
    const long seals = sys::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || sys::call(SYS_fstat, fd, sys::arg(&st)) < 0)
        return nullptr;
    *bytes = static_cast<uint64_t>(st.st_size);
    if (*bytes < sizeof(ExecTable))
        return nullptr;
    // A copy: relatives of the former image may have the memory, too.
    auto *t = static_cast<ExecTable *>(
        sys::mmap(nullptr, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (t && (sys::call(SYS_pread64, fd, sys::arg(t), static_cast<long>(*bytes), 0) != static_cast<long>(*bytes) ||
              !t->sound(*bytes) || t->pid != static_cast<uint32_t>(sys::getpid()))) {
        sys::munmap(t, *bytes);
        t = nullptr;
    }
    return t;
}

File *resume_stream(const ExecTable &t, const ExecFile &e, const int *segment, LinkMap *const *link) noexcept {
    if (e.segment >= t.segments || e.link >= t.links || segment[e.segment] < 0 || !link[e.link])
        return nullptr;
    const auto seg = static_cast<unsigned>(segment[e.segment]);
    return handoff_valid(e.handoff, seg, *link[e.link]) ? admit(e.handoff, seg, *link[e.link]) : nullptr;
}

File *resume_fresh(const ExecFile &e) noexcept {
    File *f = e.handoff.options <= FreshState::kMax ? new_file(FileKind::fresh) : nullptr;
    if (!f)
        return nullptr;
    if (e.handoff.options)
        restore_options(*f, e.handoff.option, e.handoff.options);
    f->family = e.family;
    f->unconnected.bound = e.bound;
    if (e.kind == static_cast<uint8_t>(FileKind::fresh))
        f->unconnected.refuse_cause = static_cast<uint8_t>(e.link);
    f->status.store(e.status, std::memory_order_relaxed);
    return f;
}

void resume_files(const ExecTable &t, const int *segment, LinkMap *const *link, File **files) noexcept {
    for (uint32_t i = 0; i < t.numbers; ++i) {
        const ExecNumber &n = t.number()[i];
        if (n.file >= t.files || static_cast<unsigned>(n.fd) >= kMaxFd)
            continue;
        const ExecFile &e = t.file()[n.file];
        File *&f = files[n.file];
        if (!f) {
            if (e.kind == static_cast<uint8_t>(FileKind::stream))
                f = resume_stream(t, e, segment, link);
            else if (e.kind == static_cast<uint8_t>(FileKind::fresh) ||
                     e.kind == static_cast<uint8_t>(FileKind::listener))
                f = resume_fresh(e);
            if (!f)
                continue;
            f->real_socket = e.real_socket;
            Cause why = Cause::none;
            if (e.kind == static_cast<uint8_t>(FileKind::listener) &&
                register_listener(n.fd, f, static_cast<int>(e.backlog) - 1, &why) < 0) {
                count_fallback(why, nullptr);
                discard_file(f);
                f = nullptr;
                continue;
            }
            f->refs.store(1, std::memory_order_relaxed); // until all are in: a table can name a number twice
        }
        install_file(n.fd, f);
    }
    for (uint32_t i = 0; i < t.files; ++i)
        if (files[i])
            release_file(files[i]);
}

} // namespace

void resume_after_exec(int table_fd) noexcept {
    uint64_t bytes;
    ExecTable *t = open_table(table_fd, &bytes);
    if (!t)
        return;
    take_back(table_fd);
    take_back(t->channel);
    int segment[kMaxSegments];
    for (uint32_t i = 0; i < t->segments && i < kMaxSegments; ++i) {
        const ExecSegment &s = t->segment()[i];
        take_back(s.fd);
        segment[i] = map_segment(s.fd, s.proc, s.name);
        if (segment[i] < 0)
            continue;
        forget_threads_of_former_image(static_cast<unsigned>(segment[i]));
        if (static_cast<int>(i) == t->own_segment)
            resume_own_segment(segment[i]);
    }
    LinkMap *link[kMaxLinks];
    for (uint32_t i = 0; i < t->links && i < kMaxLinks; ++i) {
        const ExecLink &l = t->link()[i];
        long error;
        take_back(l.fd);
        // For no new connections: which slots are free is not known any more
        link[i] = l.fd < 0 || l.side > 1 ? nullptr : map_link(l.fd, l.id, l.side, 0, LinkPeer::stranger, &error);
    }
    // The monitor ends what is not listed; from here on requests work.
    control::resume(t->channel, t->client_id, table_fd);
    auto **files = static_cast<File **>(sys::mmap(nullptr, (t->files + 1) * sizeof(File *),
                                                  PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (files && t->segments <= kMaxSegments && t->links <= kMaxLinks) {
        resume_files(*t, segment, link, files);
        sys::munmap(files, (t->files + 1) * sizeof(File *));
    }
    for (uint32_t i = 0; i < t->links && i < kMaxLinks; ++i)
        if (link[i])
            link_unuse(*link[i]); // the reference it was mapped with; the connections have their own
    sys::munmap(t, bytes);
    close_hidden(table_fd);
}

} // namespace sd
