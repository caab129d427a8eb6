// Directory::discovery: what processes that connect or accept in the kernel are to do. 0: nothing.
#pragma once
#include <cstdint>

namespace sd {

constexpr uint32_t kDiscoveryMarks = 1; ///< mark their sockets (kMarkLevel); always with the others
constexpr uint32_t kDiscoveryRdma = 2;  ///< open an RDMA device: connections with other hosts may need it
constexpr uint32_t kDiscoverySoft = 4;  ///< with that: one that the kernel emulates is a device, too

constexpr uint32_t kDiscoveryAsk = 8; ///< with that: the monitor is asked about each of a device's addresses
/// From here on: MiB that a process may register at most; 0: as it sees fit
constexpr unsigned kDiscoveryRegistered = 16;

} // namespace sd
