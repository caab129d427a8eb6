// Getting ready for a sandbox, or another network namespace: what cannot be asked for afterwards is asked for
// now.
#include "libsd/control/client.hpp"
#include "libsd/control/kernel_listener.hpp"
#include "libsd/vfs/connections/connect.hpp"
#include "libsd/vfs/connections/listener.hpp"
#include "libsd/vfs/descriptors/file.hpp"
#include "libsd/vfs/descriptors/socket.hpp"
#include "libsd/vfs/family/process.hpp"
#include "libsd/vfs/family/segment.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd::vfs {

void prepare_confinement(bool for_good) noexcept {
    if (!enabled())
        return;
    if (for_good) {
        close_all_foreign_ends();
        materialise_all();
        // New links could not be fetched: whoever connects from now on comes through the kernel
        withdraw_listeners();
    }
    for (unsigned s = 0; s < kMaxSegments; ++s)
        if (segments[s].view.base && self.id[s] == 0)
            register_thread(s);
    Bell *bell = link_table_high() ? thread_bell() : nullptr;
    if (for_good) {
        give_up_dummy();
        narrow_arenas(true);
    }
    if (!bell || !for_good)
        return;
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i))
            bell_id(*bell, *l);
}

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
