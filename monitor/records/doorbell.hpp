// A waiter's doorbell as the monitor keeps it, and who may have which end of it.
#pragma once
#include "monitor/kernel/client_socket.hpp"
#include "monitor/kernel/domain.hpp"
#include "monitor/records/accounts.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace sd::monitor {

struct Client;

/// What two processes must have in common to be given each other's eventfds. Who has an eventfd can do more
/// than ring: read it, which takes wake-ups away; fill it and make it block, which stops whoever writes it.
struct BellDomain {
    std::array<uid_t, 3> uid{}; ///< as Domain has it, like the rest
    std::array<gid_t, 3> gid{};
    uint64_t permitted = 0;
    ino_t user = 0, pid = 0, mount = 0;
    std::string label;
    unsigned filters = 0;
    /// Where there are filters, Domain::lineage; of a process that cannot be looked at, its client's id
    uint64_t alone = 0;
    auto operator<=>(const BellDomain &) const = default;
};
/// Of one that is known.
BellDomain bell_domain_of(const Domain &domain);
/// Read when it is needed first, and again when the client has become another user or executed something.
const BellDomain &bell_domain(const Client &client);
bool may_share_bell(const Client &one, const Client &other);
/// Of one user on one host, who could share memory without us: not the roots of two containers. Where one of
/// them cannot be looked at, its user counts.
bool is_one_user(const Client &one, const Client &other);

/// Domains that one waiter gives something to ring with. For those beyond that the monitor rings.
constexpr size_t kMostForeignDomains = 16;

/// One eventfd, however often it is registered.
struct BellFd {
    UniqueFd fd;
    uint64_t id = 0;
    /// For each other domain a socket whose other end the waiter has. All that can be done with it is to
    /// ring: what is written there cannot be read back, each domain has a queue of its own to fill, and
    /// MSG_DONTWAIT does not depend on the flags of a file that others have, too.
    std::map<BellDomain, ClientSocket> foreign;
    std::vector<Charge> charges; ///< for all of these
    bool is_noted = false;       ///< see RingTogether
};

/// Asks no file system.
bool is_eventfd(int fd);
/// Kernel-wide number of an eventfd object, or nothing if fd is no eventfd. Only of what is_kernels_own().
std::optional<uint64_t> eventfd_id(int fd);
/// Whether it is one end of a connected pair of SOCK_SEQPACKET Unix sockets that a process of `owner` has
/// made. One with a name at the other end could be a service, which would take the ring for a request of
/// whoever rings.
bool is_bell_socket(int fd, uid_t owner);

/// Adds 1 to an eventfd that a client can do anything with, without ever blocking.
void ring(const BellFd &bell);
/// While one lives, ring_together() notes whom to ring, and each eventfd is rung once when the outermost one
/// goes. What a ring costs is up to who waits for it (an epoll set, a thousand of them), and one eventfd may
/// be the doorbell of everything that a client has. For the loop's thread.
class RingTogether {
  public:
    RingTogether();
    ~RingTogether();
    RingTogether(const RingTogether &) = delete;
    RingTogether &operator=(const RingTogether &) = delete;
};
/// Rings at once where no RingTogether lives.
void ring_together(const std::shared_ptr<BellFd> &bell);
/// Makes what ring() needs, before clients can have used it up.
void prepare_to_ring();

} // namespace sd::monitor
