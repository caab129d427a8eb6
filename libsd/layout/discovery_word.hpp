// Directory::discovery: what processes that connect or accept in the kernel are to do. 0: nothing.
#pragma once
#include <cstdint>

namespace sd {

constexpr uint32_t kDiscoveryMarks = 1; ///< mark their sockets (kMarkLevel); always with the others
constexpr uint32_t kDiscoveryRdma = 2;  ///< open an RDMA device: connections with other hosts may need it
constexpr uint32_t kDiscoverySoft = 4;  ///< with that: one that the kernel emulates is a device, too

} // namespace sd
