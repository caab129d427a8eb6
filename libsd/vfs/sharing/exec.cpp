// Before an exec: writing down which connections and listeners the next program image inherits.
//
// Called in the process that is about to execute something, often a forked child of a threaded program, or a
// signal handler: nothing here allocates or waits for a lock that another thread may hold for long. Other
// threads of the process die with the exec.
#include "libsd/vfs/sharing/exec.hpp"
#include "libsd/vfs/paths/leave.hpp"

#include "libsd/control/client.hpp"
#include "libsd/control/memory.hpp"
#include "libsd/layout/exec_table.hpp"
#include "libsd/vfs/connections/accept.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/numbers.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/options/option_records.hpp"
#include "libsd/vfs/paths/adopt.hpp"
#include "libsd/vfs/paths/moves.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/sharing/descriptor_passing.hpp"
#include "libsd/vfs/sharing/exec_rights.hpp"
#include "libsd/vfs/sharing/handoff.hpp"
#include "libsd/vfs/sharing/moved.hpp"
#include "libsd/vfs/streams/capture.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd {

namespace {

int table_fd = -1;
ExecTable *table = nullptr;
bool leaving = false;
/// A server with thousands of connections that starts some static tool must not wait for thousands of bridges
/// that nobody uses.
constexpr size_t kMostByAccident = 64;
MapVector<int> bridged; ///< numbers that kernel sockets took, for a program without libsd

bool stays_open(int fd) noexcept {
    const long flags = sys::fcntl(fd, F_GETFD);
    return flags >= 0 && !(flags & FD_CLOEXEC);
}

bool is_handed_on(const File &f) noexcept {
    return f.kind == FileKind::stream || f.kind == FileKind::listener || f.kind == FileKind::fresh;
}

struct Survey {
    uint32_t inherited = 0; ///< numbers that stay open and are to be handed on
    bool listens = false;   ///< a listener is among them
    bool holds = false;     ///< this process holds a connection or a listener, kept or not
};

Survey survey() noexcept {
    Survey s;
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i) {
        const File *f = fd_table[i].load(std::memory_order_acquire);
        if (!f || !is_handed_on(*f))
            continue;
        s.holds |= f->kind != FileKind::fresh;
        if (stays_open(static_cast<int>(i))) {
            ++s.inherited;
            s.listens |= f->kind == FileKind::listener;
        }
    }
    return s;
}

/// Sets a bit for each link that a kept connection is part of.
void mark_links(uint32_t *marks) noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i) {
        const File *f = fd_table[i].load(std::memory_order_acquire);
        if (f && f->kind == FileKind::stream && stays_open(static_cast<int>(i)))
            marks[f->link->index / 32] |= 1u << f->link->index % 32;
    }
}

uint32_t link_ordinal(const LinkMap &l) noexcept {
    for (uint32_t i = 0; i < table->links; ++i)
        if (table->link()[i].id == l.id && table->link()[i].side == l.side)
            return i;
    return UINT32_MAX;
}

void fill_file(ExecFile &e, const File &f) noexcept {
    e.kind = static_cast<uint8_t>(f.kind);
    e.family = f.family;
    e.real_socket = f.real_socket;
    e.bound = f.unconnected.bound;
    e.status = f.status.load(std::memory_order_relaxed);
    if (f.kind == FileKind::stream) {
        write_handoff(f, e.handoff);
        e.segment = f.seg;
        e.link = link_ordinal(*f.link);
    } else if (f.kind == FileKind::listener) {
        e.listener_id = f.listener->id;
        e.backlog = f.listener->backlog;
    } else {
        e.handoff.options = copy_options(f, e.handoff.option);
        e.link = f.unconnected.refuse_cause;
    }
}

void list_files() noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n && table->numbers < table->room; ++i) {
        File *f = fd_table[i].load(std::memory_order_acquire);
        if (!f || !is_handed_on(*f) || !stays_open(static_cast<int>(i)))
            continue;
        // A placeholder would be everybody's in a program that does not know of placeholders.
        if (f->kind == FileKind::fresh && materialise(static_cast<int>(i), *f) < 0)
            continue;
        uint32_t ordinal = table->files;
        if (f->refs.load(std::memory_order_relaxed) > 1)
            for (uint32_t k = 0; k < table->numbers; ++k)
                if (fd_table[table->number()[k].fd].load(std::memory_order_relaxed) == f)
                    ordinal = table->number()[k].file;
        if (ordinal == table->files)
            fill_file(table->file()[table->files++], *f);
        table->number()[table->numbers++] = {static_cast<int32_t>(i), ordinal};
    }
}

void keep_open(bool on) noexcept {
    auto set = [on](int fd) {
        if (fd >= 0)
            sys::fcntl(fd, F_SETFD, on ? 0 : FD_CLOEXEC);
    };
    for (uint32_t i = 0; i < table->segments; ++i)
        set(table->segment()[i].fd);
    for (uint32_t i = 0; i < table->links; ++i)
        set(table->link()[i].fd);
    set(table->channel);
    set(table_fd);
}

void drop_table() noexcept {
    sys::munmap(table, table->bytes);
    table = nullptr;
    close_hidden(table_fd);
    table_fd = -1;
}

bool make_table(uint32_t room) noexcept {
    uint32_t marks[kMaxLinks / 32]{};
    mark_links(marks);
    uint32_t links = 0;
    for (const uint32_t m : marks)
        links += static_cast<uint32_t>(__builtin_popcount(m));
    const uint32_t segs = segment_count.load(std::memory_order_acquire);
    const uint64_t bytes = ExecTable::size_for(segs, links, room);
    SpareNumbers spare;
    long fd = control::make_memory("sd-exec", bytes);
    if (fd < 0 || (fd = hide_fd(static_cast<int>(fd))) < 0)
        return false;
    table_fd = static_cast<int>(fd);
    void *p = sys::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd, 0);
    if (!p) {
        close_hidden(table_fd);
        table_fd = -1;
        return false;
    }
    table = static_cast<ExecTable *>(p);
    table->magic = kExecMagic;
    table->version = kLayoutVersion;
    table->pid = static_cast<uint32_t>(sys::getpid());
    table->bytes = bytes;
    table->client_id = control::client_id();
    table->channel = control::channel();
    table->own_segment = own_segment_index.load(std::memory_order_acquire);
    table->segments = segs;
    table->links = links;
    table->room = room;
    for (uint32_t i = 0; i < segs; ++i)
        table->segment()[i] = {segments[i].fd, segments[i].proc,
                               static_cast<int>(i) == table->own_segment ? 0 : segments[i].owner_client};
    for (uint32_t i = 0, n = 0; i < kMaxLinks && n < links; ++i)
        if (marks[i / 32] >> i % 32 & 1) {
            const LinkMap *l = link_by_index(i);
            table->link()[n++] = l ? ExecLink{l->memfd, l->side, l->id} : ExecLink{-1, 0, 0};
        }
    list_files();
    return true;
}

void tell_leaving(bool on) noexcept {
    leaving = on;
    wire::Leave msg{on, 0};
    control::request(wire::Op::leave, &msg, sizeof msg);
}

bool is_standard(const File &f) noexcept {
    for (int fd = 0; fd < 3; ++fd)
        if (fd_table[fd].load(std::memory_order_acquire) == &f)
            return true;
    return false;
}

/// To a program that will accept from the kernel only.
void hand_over_listener(File &f) noexcept {
    unlist(*f.listener);
    leave_waiting_to_kernel(f);
}

template <class Fn> void for_each_inherited_listener(Fn fn) noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i)
        if (File *f = file_of(static_cast<int>(i));
            f && f->kind == FileKind::listener && stays_open(static_cast<int>(i)))
            fn(*f);
}

/// For a program that will not load the library: each connection that stays open becomes a kernel socket,
/// bridged once this program has gone. One that others hold as well becomes that for them, too, and stays so,
/// whatever becomes of the exec.
void hand_over_as_kernel_sockets() noexcept {
    size_t given = 0;
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i) {
        File *f = fd_table[i].load(std::memory_order_acquire);
        if (!f || !stays_open(static_cast<int>(i)))
            continue;
        if (f->kind == FileKind::fresh)
            (void)materialise(static_cast<int>(i), *f);
        if (f->kind == FileKind::listener)
            hand_over_listener(*f);
        bool done = false;
        for (const int number : bridged)
            done |= number == static_cast<int>(i);
        if (f->kind != FileKind::stream || done)
            continue;
        // Other numbers than the standard ones are often inherited without anybody's intention.
        if (!is_standard(*f) && given >= kMostByAccident)
            continue;
        ++given;
        if (moved(*f) && is_to_adopt(*f))
            follow(*f);
        if (has_paths(*f->ofd)) [[unlikely]] {
            if (!come_home(*f))
                end_in_error(*f); // a part of what was sent would be missing
            continue;
        }
        if (moved(*f) || held_elsewhere(f->seg, f->ofd_index)) {
            (void)move_to_kernel(*f, Cause::passed); // else the program finds a socket that is not connected
            continue;
        }
        const long made = make_parcel(*f, wire::BridgeStart::left);
        if (made == -EBUSY) {
            follow(*f);
            if (has_paths(*f->ofd) && !come_home(*f))
                end_in_error(*f);
            continue;
        }
        if (made < 0)
            continue; // the program finds a socket that is not connected
        count_fallback(Cause::passed, nullptr);
        for_each_number(*f, [&](int number) { // its duplicates, too
            if (stays_open(number) && bridged.push(number))
                (void)sys::dup3(static_cast<int>(made), number, 0); // the number is open, so it cannot fail
        });
        sys::close(static_cast<int>(made));
    }
}

/// The exec failed: the numbers stand for the connections again. Dropping the kernel sockets ends the
/// parcels.
void take_kernel_sockets_back() noexcept {
    const long dummy = dummy_socket();
    for (const int number : bridged)
        (void)sys::dup3(static_cast<int>(dummy), number, 0); // as above
    bridged.truncate(0);
}

} // namespace

int exec_table_fd() noexcept { return table_fd; }

namespace vfs {

void before_exec(bool loadable) noexcept {
    if (!enabled() || table)
        return;
    end_capture(CaptureEnd::exec);
    leave_device(false);
    listeners_given_up(); // the next image may be of a version that does not say so
    const Survey s = survey();
    // An image with other rights can have none of the links that clients wait on, and the process that
    // watches the listener may leave it to that image to accept.
    if (s.listens && exec_changes_rights())
        for_each_inherited_listener(hand_over_listener);
    // The next image is as good as one without the library where it could map no link: a listener that stayed
    // in the directory would get clients that nobody there could take.
    if (s.inherited && loadable && links_can_be_mapped() && make_table(s.inherited)) {
        keep_open(true);
        return;
    }
    if (s.inherited)
        hand_over_as_kernel_sockets();
    // What only this process holds ends with its program image.
    if (s.holds)
        tell_leaving(true);
}

void before_space_limit(uint64_t bytes) noexcept {
    if (enabled() && bytes <= kLinkMapped && links_can_be_mapped())
        for_each_inherited_listener(hand_over_listener);
}

void leave_listeners_to_kernel() noexcept {
    for (uint32_t i = 0, n = fd_high.load(std::memory_order_acquire); i < n; ++i)
        if (File *f = file_of(static_cast<int>(i)); f && f->kind == FileKind::listener)
            hand_over_listener(*f);
}

void after_failed_exec() noexcept {
    if (table) {
        keep_open(false);
        drop_table();
    }
    if (leaving)
        tell_leaving(false);
    if (bridged.size())
        take_kernel_sockets_back();
}

} // namespace vfs

} // namespace sd
