// Who has the monitor hold how much.
#include "monitor/records/accounts.hpp"
#include "libsd/control/assert.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <algorithm>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <utility>

namespace sd::monitor {

namespace {

/// Descriptors that no client's holdings take: replies that are made, files of /proc, what the monitor began
/// with, and what has come with requests and is on its way to be closed. Where there are many, more.
constexpr rlim_t kReserve = 128, kMostReserve = 2048, kShareOfReserve = 64;

/// The monitor's own group: who is in it, too, is in the same container or session, whose only bounds are its
/// users.
const std::string &own_group() {
    static const std::string group =
        group_of(getpid(), UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))).get());
    return group;
}

} // namespace

const char *resource_name(Resource what) {
    constexpr const char *names[kResources] = {"clients",  "links",   "listeners", "bells",
                                               "segments", "parcels", "pools",     "offers"};
    return names[static_cast<unsigned>(what)];
}

Charge::Charge(Charge &&other) noexcept { *this = std::move(other); }

Charge &Charge::operator=(Charge &&other) noexcept {
    if (this != &other) {
        end();
        accounts_ = std::exchange(other.accounts_, nullptr);
        payer_ = std::exchange(other.payer_, {});
        what_ = other.what_;
        descriptors_ = other.descriptors_;
    }
    return *this;
}

Charge::~Charge() { end(); }

void Charge::end() {
    if (accounts_ == nullptr) {
        return;
    }
    SD_ASSERT(accounts_->used_ >= descriptors_);
    SD_ASSERT(what_ != Resource::clients || accounts_->clients_ != 0);
    accounts_->used_ -= descriptors_;
    accounts_->clients_ -= what_ == Resource::clients ? 1 : 0;
    accounts_ = nullptr;
    for (Account *account : {payer_.user.get(), payer_.group.get()}) {
        if (account != nullptr) {
            SD_ASSERT(account->count[static_cast<unsigned>(what_)] != 0 && account->descriptors >= descriptors_);
            --account->count[static_cast<unsigned>(what_)];
            account->descriptors -= descriptors_;
        }
    }
    payer_ = {};
}

Copies::Copies(const Payer &payer, size_t count) : payer_(payer), count_(count) {
    SD_ASSERT(has_room(payer, count));
    for (Account *account : {payer_.user.get(), payer_.group.get()}) {
        if (account != nullptr) {
            account->copies += count_;
        }
    }
}

Copies &Copies::operator=(Copies &&other) noexcept {
    std::swap(payer_, other.payer_);
    std::swap(count_, other.count_);
    return *this;
}

Copies::~Copies() {
    for (Account *account : {payer_.user.get(), payer_.group.get()}) {
        if (account != nullptr) {
            SD_ASSERT(account->copies >= count_);
            account->copies -= count_;
        }
    }
}

bool Copies::has_room(const Payer &payer, size_t count) {
    const auto fits = [count](const Account *account) {
        return account == nullptr || account->copies + count <= kMost;
    };
    return fits(payer.user.get()) && fits(payer.group.get());
}

Accounts::Accounts(const ResourceLimits &user, const ResourceLimits &group, unsigned clients, bool all_users)
    : user_(user), group_(group), most_clients_(clients) {
    rlimit limit{};
    if (all_users && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        const rlim_t all = limit.rlim_cur < (1u << 30) ? limit.rlim_cur : 1u << 30;
        const rlim_t reserve = std::clamp(all / kShareOfReserve, kReserve, kMostReserve);
        capacity_ = static_cast<unsigned>(all > 2 * reserve ? all - reserve : all / 2);
    }
}

std::shared_ptr<Account> Accounts::account(const std::string &name, bool is_group) {
    std::erase_if(accounts_, [](const auto &entry) { return entry.second.expired(); });
    auto &entry = accounts_[name];
    std::shared_ptr<Account> found = entry.lock();
    if (!found) {
        found = std::make_shared<Account>();
        found->name = name;
        found->is_group = is_group;
        entry = found;
    }
    return found;
}

Payer Accounts::payer(uid_t uid, const std::string &group) {
    Payer payer;
    if (uid != 0) {
        payer.user = account("user " + std::to_string(uid), false);
    }
    if (group != "/" && group != own_group()) {
        payer.group = account("group " + group, true);
    }
    return payer;
}

/// Descriptors and clients: as many as are still free for everybody. So one that takes all he can gets a
/// half, the next a half of the rest, and something is always left.
bool Accounts::fits(const Account *account, Resource what, unsigned descriptors, std::string *over) const {
    if (account == nullptr) {
        return true;
    }
    const unsigned most = (account->is_group ? group_ : user_)[static_cast<unsigned>(what)];
    if (most != 0 && account->count[static_cast<unsigned>(what)] >= most) {
        *over = account->name + " has all of its " + std::to_string(most) + " " + resource_name(what);
        return false;
    }
    if (capacity_ != 0 && what == Resource::clients &&
        (clients_ >= most_clients_ || account->count[0] >= most_clients_ - clients_)) {
        *over = account->name + " has its share of limits.clients, " + std::to_string(account->count[0]);
        return false;
    }
    if (capacity_ != 0 && (used_ >= capacity_ || account->descriptors + descriptors > capacity_ - used_)) {
        *over = account->name + " has its share of descriptors, " + std::to_string(account->descriptors);
        return false;
    }
    return true;
}

Charge Accounts::charge(const Payer &payer, Resource what, unsigned descriptors, std::string *over) {
    Charge charge;
    if (!fits(payer.user.get(), what, descriptors, over) || !fits(payer.group.get(), what, descriptors, over)) {
        return charge;
    }
    charge.accounts_ = this;
    charge.payer_ = payer;
    charge.what_ = what;
    charge.descriptors_ = descriptors;
    used_ += descriptors;
    clients_ += what == Resource::clients ? 1 : 0;
    for (Account *account : {payer.user.get(), payer.group.get()}) {
        if (account != nullptr) {
            ++account->count[static_cast<unsigned>(what)];
            account->descriptors += descriptors;
        }
    }
    return charge;
}

std::string group_part(const std::string &path) {
    size_t end = 0;
    for (unsigned parts = 0; parts < 3 && end != std::string::npos; ++parts) {
        const size_t begin = end;
        end = path.find('/', begin + 1);
        const std::string part = path.substr(begin, end == std::string::npos ? end : end - begin);
        // A user can have any number of sessions.
        if (part.ends_with(".service") || part.ends_with(".scope") || part.starts_with("/user-")) {
            break;
        }
    }
    return path.substr(0, end);
}

std::string unit_of(const std::string &group) {
    return group.starts_with("/system.slice/") && group.ends_with(".service")
               ? group.substr(group.rfind('/') + 1)
               : "";
}

std::string group_of(pid_t pid, int pidfd) {
    const std::string whole = whole_group_of(pid, pidfd);
    return whole == "?" ? whole : group_part(whole);
}

std::string whole_group_of(pid_t pid, int pidfd) {
    char text[8192];
    const std::string name = "/proc/" + std::to_string(pid) + "/cgroup";
    const UniqueFd file(pid > 0 && pidfd >= 0 ? open(name.c_str(), O_RDONLY | O_CLOEXEC) : -1);
    const ssize_t n = file ? read(file.get(), text, sizeof text) : -1;
    pollfd ended{pidfd, POLLIN, 0};
    if (n < 0 || poll(&ended, 1, 0) != 0) {
        return "?";
    }
    // "0::/path" of the one hierarchy; with several, that of processes' numbers or of memory is what
    // containers have.
    const std::string all(text, static_cast<size_t>(n));
    std::string unified = "/", other;
    for (size_t at = 0; at < all.size();) {
        const size_t end = std::min(all.find('\n', at), all.size());
        const std::string line = all.substr(at, end - at);
        at = end + 1;
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1),
                          path = line.substr(second + 1);
        if (controllers.empty()) {
            unified = path;
        } else if (controllers == "pids" || controllers == "memory") {
            other = path;
        }
    }
    return unified != "/" || other.empty() ? unified : other;
}

} // namespace sd::monitor
