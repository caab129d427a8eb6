// Who has the monitor hold how much: for each user and each control group, so that nobody takes what others
// need.
//
// A user is a uid. Uid 0 is not one: the roots of all containers have it, and the host's would pay for
// theirs; they are told apart by their control groups, which also bound a container that has many uids. What
// is in the root group is bounded by its users only.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>

namespace sd::monitor {

enum class Resource { clients, links, listeners, bells, segments, parcels, pools, offers };
constexpr unsigned kResources = 8;
const char *resource_name(Resource what);

/// The most that one of them may have of each; 0: no limit.
using ResourceLimits = std::array<unsigned, kResources>;

struct Account {
    std::string name; ///< "user 1000", "group /system.slice/a.service"
    std::array<unsigned, kResources> count{};
    unsigned descriptors = 0;
    size_t copies = 0; ///< see Copies
    bool is_group = false;
    uint64_t turn = 0;                           ///< of the loop, in which requests were answered last
    std::chrono::steady_clock::duration spent{}; ///< on them in that turn
    /// Its next request that takes long (Monitor::steer_mine) is not answered before
    std::chrono::steady_clock::time_point next_steering{};
};

/// Its channel and its pidfd.
constexpr unsigned kDescriptorsOfClient = 2;

/// Who pays. An empty pointer: nobody.
struct Payer {
    std::shared_ptr<Account> user, group;
};

class Accounts;

/// One thing that is held, for as long as this lives.
class Charge {
  public:
    Charge() = default;
    Charge(Charge &&other) noexcept;
    Charge &operator=(Charge &&other) noexcept;
    ~Charge();
    explicit operator bool() const { return accounts_ != nullptr; }
    const Payer &payer() const { return payer_; }

  private:
    friend class Accounts;
    void end();
    Accounts *accounts_ = nullptr;
    Payer payer_;
    Resource what_{};
    unsigned descriptors_ = 0;
};

/// What a forked child has of its parent's links and listeners, for as long as this lives: the monitor keeps
/// a note of each. The number of children is bounded, and that of links; this bounds what both come to.
class Copies {
  public:
    Copies() = default;
    /// Of a payer who has room for them.
    Copies(const Payer &payer, size_t count);
    Copies(Copies &&other) noexcept
        : payer_(std::exchange(other.payer_, {})), count_(std::exchange(other.count_, 0)) {}
    Copies &operator=(Copies &&other) noexcept;
    ~Copies();
    /// Whether the payer may have so many more.
    static bool has_room(const Payer &payer, size_t count);
    /// Of one payer, in all: some 150 bytes each.
    static constexpr size_t kMost = 1u << 20;

  private:
    Payer payer_;
    size_t count_ = 0;
};

class Accounts {
  public:
    /// `clients`: of all together. `all_users`: not only one of them comes here.
    Accounts(const ResourceLimits &user, const ResourceLimits &group, unsigned clients, bool all_users);

    /// `group`: as group_of() says. Accounts last as long as somebody pays with them.
    Payer payer(uid_t uid, const std::string &group);
    /// An empty charge if that is more than the payer's share; *over says whose and of what.
    Charge charge(const Payer &payer, Resource what, unsigned descriptors, std::string *over);

    /// Descriptors, of all together.
    unsigned used() const { return used_; }
    template <typename Fn> void for_each(Fn fn) const {
        for (const auto &[key, weak] : accounts_) {
            if (const auto account = weak.lock()) {
                fn(*account);
            }
        }
    }

  private:
    friend class Charge;
    std::shared_ptr<Account> account(const std::string &name, bool is_group);
    bool fits(const Account *account, Resource what, unsigned descriptors, std::string *over) const;

    std::map<std::string, std::weak_ptr<Account>> accounts_;
    ResourceLimits user_, group_;
    unsigned most_clients_;
    unsigned clients_ = 0;
    unsigned used_ = 0;     ///< descriptors, all together
    unsigned capacity_ = 0; ///< without the reserve; 0: nobody but one user comes here, who need not share
};

/// The part of a control group's path that stands for a container, a service or all sessions of a user: a
/// program may make groups below its own. "/" for the root group, "?" where it cannot be known. `pidfd`: of
/// that process, opened before, which proves that what is read was not about another one that came to have
/// its number.
std::string group_of(pid_t pid, int pidfd);
/// The same, not shortened to that part.
std::string whole_group_of(pid_t pid, int pidfd);
std::string group_part(const std::string &path);
/// The service of the system's manager that such a group belongs to, as "nginx.service"; empty: none. Users
/// cannot make groups there.
std::string unit_of(const std::string &group);

} // namespace sd::monitor
