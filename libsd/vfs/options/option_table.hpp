// What we know about single socket options: which are kept here, which values the kernel takes, which need
// the kernel.
#pragma once
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

inline constexpr int kSoBufLock = 72; ///< SO_BUF_LOCK, which older headers lack

enum class Rule : uint8_t {
    boolean, ///< any int; reads back as 0 or 1
    range,   ///< int from lo to hi, EINVAL outside; reads back unchanged
    plain,   ///< int from lo to hi; what becomes of it is the kernel's affair
    linger,
    timeout,
};

/// An option that is recorded before connecting, and kept in the Ofd afterwards if `stored` is not null.
struct KnownOption {
    int level, name;
    Rule rule;
    bool exact; ///< the kernel reads back what was set
    int lo, hi;
    std::atomic<int32_t> Ofd::Options::*stored;
};

/// Where the first entries of the table are kept: those of InheritedSet::stored, in its order.
constexpr std::atomic<int32_t> Ofd::Options::*kStoredOptions[] = {
    &Ofd::Options::reuseaddr,    &Ofd::Options::reuseport, &Ofd::Options::keepalive,
    &Ofd::Options::oobinline,    &Ofd::Options::nodelay,   &Ofd::Options::cork,
    &Ofd::Options::keepidle,     &Ofd::Options::keepintvl, &Ofd::Options::keepcnt,
    &Ofd::Options::user_timeout, &Ofd::Options::quickack,  &Ofd::Options::zerocopy_next,
};

const KnownOption *known_option(int level, int name) noexcept;
/// The same for entry i of the table, in fixed order; nullptr at the end.
const KnownOption *known_option_at(unsigned i) noexcept;

/// A value as the kernel would take it.
struct ParsedOption {
    int32_t number = 0;          ///< boolean, range, plain
    int32_t on = 0, seconds = 0; ///< linger
    int64_t ns = 0;              ///< timeout
    FreshOption record{};        ///< to be replayed
};

/// What the kernel says about a value: 0 and the parsed option, -errno as setsockopt reports it, or
/// kAskKernel where only the kernel can tell.
constexpr long kAskKernel = 1;
[[nodiscard]] long parse_option(const KnownOption &k, const void *value, socklen_t n, ParsedOption &out) noexcept;

/// True if an option, once set to something else than zero, keeps a socket from being accelerated.
bool needs_kernel(int level, int name) noexcept;
/// True if the value on a socket where it was not set is the same for all new sockets of the family, so that
/// any can be asked.
bool has_common_default(int level, int name, unsigned family) noexcept;
/// For options that a connected socket answers otherwise than the unconnected one that holds its options:
/// -errno to report at once, or 0.
[[nodiscard]] long refuse_on_stream(int level, int name, unsigned family, const void *value, socklen_t n) noexcept;

/// Timeouts are kept by the kernel in ticks: the next representable one, as getsockopt reports it.
timeval timeout_read_back(int64_t ns) noexcept;
/// SO_RCVTIMEO of {-1, 0}: do not wait at all. Differs from every value that microseconds can give.
constexpr int64_t kNoWait = 1;

} // namespace sd
