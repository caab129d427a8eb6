// The first verbs device of this host, and which of its addresses to use.
#pragma once
#include <cstring>
#include <infiniband/verbs.h>

namespace sd::verbs {

struct Device {
    ibv_context *context = nullptr;
    ibv_pd *domain = nullptr;
    uint8_t port = 1, address_index = 0;
    ibv_gid address{};
    ibv_mtu mtu = IBV_MTU_1024;

    bool open() {
        int n = 0;
        ibv_device **list = ibv_get_device_list(&n);
        if (list && n > 0)
            context = ibv_open_device(list[0]);
        if (list)
            ibv_free_device_list(list);
        domain = context ? ibv_alloc_pd(context) : nullptr;
        ibv_port_attr p{};
        if (!domain || ibv_query_port(context, port, &p) != 0)
            return false;
        mtu = p.active_mtu;
        bool found = false;
        for (uint32_t i = 0; i < static_cast<uint32_t>(p.gid_tbl_len); ++i) {
            ibv_gid_entry e;
            if (ibv_query_gid_ex(context, port, i, &e, 0) != 0)
                continue;
            static const uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
            const bool routable = e.gid_type == IBV_GID_TYPE_ROCE_V2 && memcmp(e.gid.raw, kMapped, 12) == 0;
            if (!found || routable) {
                address_index = static_cast<uint8_t>(i);
                address = e.gid;
            }
            found = true;
            if (routable)
                break;
        }
        return found;
    }
};

} // namespace sd::verbs
