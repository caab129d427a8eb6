// Network namespaces of a test's own, what joins them, and connections between them.
#pragma once
#include "monitor/discovery/programs.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <arpa/inet.h>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <netinet/in.h>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sd::test {

using monitor::UniqueFd;

[[noreturn]] inline void fail_with(const std::string &what) {
    throw std::runtime_error(what + ": " + strerror(errno));
}

/// Becomes the caller's thread's namespace for as long as it lives.
class Inside {
  public:
    explicit Inside(int ns) : home_(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
        if (!home_ || setns(ns, CLONE_NEWNET) != 0) {
            fail_with("setns");
        }
    }
    ~Inside() {
        if (setns(home_.get(), CLONE_NEWNET) != 0) {
            perror("setns");
            abort();
        }
    }
    Inside(const Inside &) = delete;
    Inside &operator=(const Inside &) = delete;

  private:
    UniqueFd home_;
};

class Net {
  public:
    Net() {
        const UniqueFd home(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
        if (!home || unshare(CLONE_NEWNET) != 0) {
            fail_with("unshare");
        }
        ns_.reset(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
        if (setns(home.get(), CLONE_NEWNET) != 0) {
            perror("setns");
            abort();
        }
        run("ip link set lo up");
    }
    int fd() const { return ns_.get(); }
    template <typename Fn> auto in(Fn fn) const {
        const Inside inside(ns_.get());
        return fn();
    }
    /// A command of the shell, there.
    void run(const std::string &command) const {
        const Inside inside(ns_.get());
        if (system(command.c_str()) != 0) {
            throw std::runtime_error("fails: " + command);
        }
    }
    /// As ip takes it for a name.
    std::string path() const {
        return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(ns_.get());
    }
    /// Two interfaces, `name` here and `far_name` in `far`, joined like the ends of a cable. Addresses have a
    /// prefix length; empty: none.
    void join(const std::string &name, const std::string &address, const Net &far,
              const std::string &far_name, const std::string &far_address) const {
        run("ip link add " + name + " type veth peer name " + far_name + " netns " + far.path());
        give(name, address);
        far.give(far_name, far_address);
    }
    void give(const std::string &name, const std::string &address) const {
        if (!address.empty()) {
            run("ip addr add " + address + " dev " + name +
                (address.find(':') == std::string::npos ? "" : " nodad"));
        }
        run("ip link set " + name + " up");
    }

  private:
    UniqueFd ns_;
};

/// A control group of this process's own, in which it is meanwhile.
class OwnGroup {
  public:
    OwnGroup() {
        const std::string top = monitor::unified_top();
        std::ifstream groups("/proc/self/cgroup");
        for (std::string line; std::getline(groups, line);) {
            if (line.rfind("0::", 0) == 0) {
                former_ = top + line.substr(3);
            }
        }
        path_ = top + "/sd-test-" + std::to_string(getpid());
        is_made_ = !top.empty() && mkdir(path_.c_str(), 0755) == 0;
        is_made_ = is_made_ && enter(path_);
    }
    ~OwnGroup() {
        if (is_made_) {
            enter(former_);
            rmdir(path_.c_str());
        }
    }
    OwnGroup(const OwnGroup &) = delete;
    OwnGroup &operator=(const OwnGroup &) = delete;
    bool is_made() const { return is_made_; }
    const std::string &path() const { return path_; }

  private:
    static bool enter(const std::string &path) {
        std::ofstream list(path + "/cgroup.procs");
        list << getpid() << std::flush;
        return list.good();
    }
    std::string former_, path_;
    bool is_made_ = false;
};

struct Place {
    sockaddr_storage address{};
    socklen_t length = 0;
    Place(const std::string &ip, uint16_t port) {
        if (auto *v4 = reinterpret_cast<sockaddr_in *>(&address);
            inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
            v4->sin_family = AF_INET;
            v4->sin_port = htons(port);
            length = sizeof *v4;
        } else if (auto *v6 = reinterpret_cast<sockaddr_in6 *>(&address);
                   inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
            v6->sin6_family = AF_INET6;
            v6->sin6_port = htons(port);
            length = sizeof *v6;
        } else {
            throw std::runtime_error("no address: " + ip);
        }
    }
    const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&address); }
    int family() const { return address.ss_family; }
};

/// As libsd does it. 0, or the error.
inline int mark(int socket, int on = 1) {
    return setsockopt(socket, SD_MARK_LEVEL, SD_MARK_NAME, &on, sizeof on) == 0 ? 0 : errno;
}

inline UniqueFd make_socket(int family) {
    UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{10, 0};
    const int on = 1;
    if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0 ||
        setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
        fail_with("socket");
    }
    return fd;
}

/// SO_NETNS_COOKIE, which the headers of Debian 12's C library lack.
inline uint64_t netns_cookie(const UniqueFd &socket) {
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    return getsockopt(socket.get(), SOL_SOCKET, 71, &cookie, &size) == 0 ? cookie : 0;
}

enum class Has { libsd, nothing };

inline UniqueFd listen_at(const Net &net, const Place &at, Has has = Has::libsd) {
    return net.in([&] {
        UniqueFd fd = make_socket(at.family());
        if ((has == Has::libsd && mark(fd.get()) != 0) || bind(fd.get(), at.get(), at.length) != 0 ||
            listen(fd.get(), 16) != 0) {
            fail_with("listen");
        }
        return fd;
    });
}

inline UniqueFd connect_to(const Net &net, const Place &to, Has has = Has::libsd) {
    return net.in([&] {
        UniqueFd fd = make_socket(to.family());
        if ((has == Has::libsd && mark(fd.get()) != 0) || connect(fd.get(), to.get(), to.length) != 0) {
            fail_with("connect");
        }
        return fd;
    });
}

inline UniqueFd accept_at(int listener) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) {
        fail_with("accept");
    }
    return fd;
}

/// Until neighbours know each other a packet may take so long that it is sent again: nobody listens there,
/// but answers.
inline void meet(const Net &from, const Place &at) {
    from.in([&] {
        for (int tries = 0; tries < 10; ++tries) {
            const UniqueFd fd = make_socket(at.family());
            if (connect(fd.get(), at.get(), at.length) != 0 && errno == ECONNREFUSED) {
                return;
            }
            usleep(100000);
        }
        fail_with("nobody is at that address");
    });
}

/// A connection with both ends in this process's hands.
struct Joined {
    UniqueFd listener, client, server;
    Joined(const Net &from, const Net &to, const Place &listens, const Place &asked,
           Has client_has = Has::libsd, Has server_has = Has::libsd)
        : listener(listen_at(to, listens, server_has)), client(connect_to(from, asked, client_has)),
          server(accept_at(listener.get())) {}
    Joined(const Net &from, const Net &to, const Place &at) : Joined(from, to, at, at) {}
};

} // namespace sd::test
