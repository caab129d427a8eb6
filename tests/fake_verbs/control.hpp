// What a test may ask of the fake verbs beyond verbs. With the real library these are not there: look them up
// by name (control_of()).
#pragma once
#include <cstdint>
#include <dlfcn.h>

namespace sd::fake_verbs {

enum class Fault : uint32_t { device, late, reorder, early, cut, rnr };

/// All of these work on the fabric of $SD_FAKE_VERBS, from any process that has it.
struct Control {
    /// How often, as Faults has it (fabric.hpp), from now on.
    void (*set_fault)(Fault, uint32_t value) = nullptr;
    /// The device goes away: as when it is unplugged. 1: it is there again, for who opens it anew.
    void (*device)(uint32_t host, uint32_t device, int present) = nullptr;
    void (*port)(uint32_t host, uint32_t device, int up) = nullptr;
    /// 1: no further queue pair can be made on the device.
    void (*full)(uint32_t host, uint32_t device, int is_full) = nullptr;
    /// The queue pair of that number ends, as after a fatal error of its own.
    void (*fail)(uint32_t queue_pair_number) = nullptr;
    /// The device process: carries out what is posted, until process `parent` has gone.
    void (*run_device)(uint32_t parent) = nullptr;
    /// Objects that are in use, of processes that live: kind is 'c'ontext, 'd'omain, 'm'emory, 'q'ueue,
    /// 'p'air.
    uint32_t (*count)(char kind) = nullptr;
    /// Bytes that were copied by the kernel, since no file lies at the memory.
    uint64_t (*through_kernel)() = nullptr;
};

/// nullptr: these are not the fake verbs.
inline const Control *control() {
    return static_cast<const Control *>(dlsym(RTLD_DEFAULT, "sd_fake_verbs_control"));
}

} // namespace sd::fake_verbs
