#include "tests/differential/apart.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <stdexcept>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sd::differential {

namespace {

constexpr int kOwnFds = 600; // as in hosts.cpp

[[noreturn]] void fail(const char *what) {
    throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

int open_namespace(const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, kOwnFds);
    if (high < 0) {
        fail(path);
    }
    close(fd);
    return high;
}

/// A shell in a namespace; descriptors of this process are below /proc/$PPID/fd.
void shell(int place, const std::string &lines) {
    const pid_t pid = fork();
    if (pid == 0) {
        if (setns(place, CLONE_NEWNET) == 0) {
            execlp("sh", "sh", "-ec", lines.c_str(), nullptr);
        }
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        throw std::runtime_error("the namespaces cannot be joined by veth");
    }
}

/// Neighbours are known, so that no packet waits for one to be found; and the two have other ports, as a
/// trace tells ports by their number.
std::string end_of_cable(int own, int other, const char *ports) {
    std::ostringstream text;
    text << "ip link set dev lo up\n"
         << "ip link set dev cable address 02:00:00:00:00:0" << own << " mtu 65535 up\n"
         << "ip addr add 10.77.0." << own << "/24 dev cable\n"
         << "ip addr add fd77::" << own << "/64 dev cable nodad\n"
         << "ip neigh replace 10.77.0." << other << " lladdr 02:00:00:00:00:0" << other
         << " dev cable nud permanent\n"
         << "ip neigh replace fd77::" << other << " lladdr 02:00:00:00:00:0" << other
         << " dev cable nud permanent\n"
         << "echo " << ports << " > /proc/sys/net/ipv4/ip_local_port_range\n";
    return text.str();
}

std::string unified_top() {
    std::ifstream mounts("/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream words(line);
        std::string id, parent, device, root, at;
        words >> id >> parent >> device >> root >> at;
        if (root == "/" && line.find(" - cgroup2 ") != std::string::npos) {
            return at;
        }
    }
    throw std::runtime_error("no unified hierarchy of control groups");
}

} // namespace

Apart::Apart() : home_(open_namespace("/proc/self/ns/net")) {
    for (int &place : places_) {
        if (unshare(CLONE_NEWNET) != 0) {
            fail("unshare");
        }
        place = open_namespace("/proc/self/ns/net");
    }
    if (setns(home_, CLONE_NEWNET) != 0) {
        fail("setns");
    }
    shell(places_[0], "ip link add name cable type veth peer name cable netns /proc/$PPID/fd/" +
                          std::to_string(places_[1]) + "\n");
    shell(places_[0], end_of_cable(1, 2, "'20000 39999'"));
    shell(places_[1], end_of_cable(2, 1, "'40000 59999'"));
}

Apart::~Apart() {
    for (const int fd : {places_[0], places_[1], home_}) {
        close(fd);
    }
}

bool Apart::enter(int place) const { return setns(places_[place], CLONE_NEWNET) == 0; }

Group::Group() : top_(unified_top()) {
    static std::atomic<int> made{0};
    name_ = "/sd-differential-" + std::to_string(getpid()) + "-" + std::to_string(made++);
    if (mkdir((top_ + name_).c_str(), 0755) != 0) {
        fail("a control group");
    }
}

Group::~Group() {
    for (int tries = 0; rmdir((top_ + name_).c_str()) != 0 && errno == EBUSY && tries < 2000; ++tries) {
        usleep(1000); // somebody is still ending
    }
}

bool Group::join() const {
    const int fd = open((top_ + name_ + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && write(fd, "0", 1) == 1;
    close(fd);
    return done;
}

} // namespace sd::differential
