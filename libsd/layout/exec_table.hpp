// What one program image leaves to the next one in the same process: a memfd whose number is in the
// environment (SD_EXEC_FD).
//
// The descriptors named in it are open in the new image because their close-on-exec flag was taken away just
// before. sd-monitor gets the memfd too, with Op::image, and ends whatever the process held that is not
// listed here.
#pragma once
#include "libsd/layout/file_kind.hpp"
#include "libsd/layout/handoff_record.hpp"

namespace sd {

constexpr uint64_t kExecMagic = 0x31434558'4453ULL; // "SDXEC1"

struct ExecSegment {
    int32_t fd;
    uint32_t proc;
    uint64_t name; ///< what the process calls the segment towards the monitor; 0: by its own client id
};
struct ExecLink {
    int32_t fd;
    uint32_t side;
    uint64_t id;
};
struct ExecFile {
    uint8_t kind; ///< FileKind: stream, listener or fresh
    uint8_t family;
    uint8_t real_socket, bound;
    uint32_t status;       ///< without an Ofd: O_NONBLOCK
    uint32_t segment;      ///< stream: ordinal of the ExecSegment
    uint32_t link;         ///< stream: ordinal of the ExecLink; fresh: the Cause that leaves it to the kernel
    uint32_t listener_id;  ///< listener
    uint32_t backlog;      ///< listener
    HandoffRecord handoff; ///< stream; of a fresh socket only the options
};
struct ExecNumber {
    int32_t fd;
    uint32_t file; ///< ordinal of the ExecFile
};

struct ExecTable {
    uint64_t magic;
    uint32_t version, pid;
    uint64_t bytes;
    uint64_t client_id;
    int32_t channel;     ///< to the monitor, -1: there is none
    int32_t own_segment; ///< ordinal, -1: none was made yet
    uint32_t segments, links;
    uint32_t room;           ///< for files, and for numbers
    uint32_t files, numbers; ///< that are valid
    uint32_t pad;
    // Then the arrays, in this order.

    ExecSegment *segment() const noexcept {
        return reinterpret_cast<ExecSegment *>(const_cast<ExecTable *>(this) + 1);
    }
    ExecLink *link() const noexcept { return reinterpret_cast<ExecLink *>(segment() + segments); }
    ExecFile *file() const noexcept { return reinterpret_cast<ExecFile *>(link() + links); }
    ExecNumber *number() const noexcept { return reinterpret_cast<ExecNumber *>(file() + room); }
    static constexpr uint64_t size_for(uint64_t segments, uint64_t links, uint64_t room) noexcept {
        return sizeof(ExecTable) + segments * sizeof(ExecSegment) + links * sizeof(ExecLink) +
               room * (sizeof(ExecFile) + sizeof(ExecNumber));
    }
    /// False: not such a table, or it does not fit into `available` bytes.
    bool sound(uint64_t available) const noexcept {
        return available >= sizeof(ExecTable) && magic == kExecMagic && version == kLayoutVersion &&
               bytes <= available && bytes == size_for(segments, links, room) && files <= room &&
               numbers <= room;
    }
};
static_assert(sizeof(ExecTable) % 8 == 0 && sizeof(ExecFile) % 8 == 0 && sizeof(ExecSegment) % 8 == 0);

/// Name of the environment variable, with the "=".
constexpr char kExecVariable[] = "SD_EXEC_FD=";

} // namespace sd
