// Getting ready for a sandbox: what cannot be asked for afterwards is asked for now.
#include "libsd/control/client.hpp"
#include "libsd/vfs/listener.hpp"
#include "libsd/vfs/segment.hpp"
#include "libsd/vfs/vfs.hpp"

namespace sd::vfs {

void prepare_confinement(bool for_good) noexcept {
    if (!enabled())
        return;
    if (for_good) {
        close_all_foreign_ends();
        withdraw_listeners(); // new links could not be fetched: whoever connects from now on comes through the kernel
    }
    for (unsigned s = 0; s < kMaxSegments; ++s)
        if (segments[s].view.base && self.id[s] == 0)
            register_thread(s);
    Bell *bell = link_table_high() ? thread_bell() : nullptr;
    if (!bell || !for_good)
        return;
    for (uint32_t i = 0, n = link_table_high(); i < n; ++i)
        if (LinkMap *l = link_by_index(i))
            bell_id(*bell, *l);
}

} // namespace sd::vfs
