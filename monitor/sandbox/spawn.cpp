// Starting a helper of the monitor, and giving it work.
#include "monitor/sandbox/spawn.hpp"

#include <climits>
#include <csignal>
#include <cstring>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

/// As execve() takes them. The texts stay the vector's.
std::vector<char *> pointers(const std::vector<std::string> &texts) {
    std::vector<char *> list;
    list.reserve(texts.size() + 1);
    for (const std::string &text : texts) {
        list.push_back(const_cast<char *>(text.c_str()));
    }
    list.push_back(nullptr);
    return list;
}

} // namespace

int spawn_beside(const std::string &name, const std::vector<std::string> &arguments,
                 const std::vector<std::string> &environment, int channel, int number, pid_t &pid) {
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    const std::string own(path, n > 0 ? static_cast<size_t>(n) : 0);
    const std::string program = own.substr(0, own.rfind('/') + 1) + name;
    std::vector<std::string> all{name};
    all.insert(all.end(), arguments.begin(), arguments.end());
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, channel, number);
    posix_spawnattr_init(&attributes);
    sigset_t none, every;
    sigemptyset(&none);
    sigfillset(&every);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &every);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes, pointers(all).data(),
                                  pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error;
}

bool send_order(int channel, const void *order, size_t bytes, std::span<const int> fds) {
    iovec io{const_cast<void *>(order), bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))]{};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    return sendmsg(channel, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

} // namespace sd::monitor
