// Getting ready for a sandbox, or another network namespace: what cannot be asked for afterwards is asked for
// now.
#include "libsd/vfs/family/prepare_sandbox.hpp"
#include "libsd/control/client.hpp"
#include "libsd/control/kernel_sockets/kernel_listener.hpp"
#include "libsd/vfs/connections/connect.hpp"
#include "libsd/vfs/connections/connection.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/family/crossing.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/paths/leave.hpp"
#include "libsd/vfs/paths/offer.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd::vfs {

namespace {

/// The links that stay have connections; they get no more.
void withdraw_links() noexcept {
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i); l && link_use(*l)) {
            const wire::LinkRef ref{l->id, l->side, 0};
            control::request(wire::Op::withdraw, &ref, sizeof ref);
            link_unuse(*l);
        }
}

} // namespace

void prepare_sandbox(Sandbox how) noexcept {
    if (!enabled())
        return;
    const bool for_good = how != Sandbox::fewer_numbers;
    if (for_good) {
        paths_before_sandbox(how == Sandbox::no_calls);
        close_all_foreign_ends();
        materialise_all();
        // New links could not be fetched: whoever connects from now on comes through the kernel
        withdraw_listeners(true);
        const Crossing crossing(true, how == Sandbox::no_calls); // no listener is left that asks for links
        retire_client_links();                                   // unmaps those without connections
    }
    for (unsigned s = 0; s < kMaxSegments; ++s)
        if (segments[s].view.base && self.id[s] == 0)
            upward.register_thread(s);
    Bell *bell = link_table_high() ? thread_bell() : nullptr;
    if (for_good) {
        give_up_dummy();
        narrow_arenas(true);
        withdraw_links();
    }
    if (!bell || !for_good)
        return;
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i))
            bell_id(*bell, *l);
}

void sandboxed_now() noexcept { control::request(wire::Op::sandbox); }

void prepare_namespace_change() noexcept {
    if (enabled())
        materialise_all();
}

void namespace_has_changed() noexcept {
    namespace_changed = true;
    if (!enabled())
        return;
    control::forget_kernel_listener_socket();
    replace_dummy();
}

} // namespace sd::vfs
