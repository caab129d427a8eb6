// Tells when a listening socket has been closed for good.
#include "monitor/kernel/listener_watch.hpp"

#include <cstring>
#include <string>
#include <sys/inotify.h>

namespace sd::monitor {

ListenerWatch::ListenerWatch() : inotify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {}

int ListenerWatch::add(int socket) {
    // The link in /proc leads to the socket's own inode.
    const std::string path = "/proc/self/fd/" + std::to_string(socket);
    return inotify_ ? inotify_add_watch(inotify_.get(), path.c_str(), IN_CLOSE | IN_ONESHOT) : -1;
}

void ListenerWatch::remove(int watch) {
    if (watch >= 0) {
        inotify_rm_watch(inotify_.get(), watch);
    }
}

ListenerWatch::Ended ListenerWatch::take_ended() {
    Ended ended;
    alignas(inotify_event) char buffer[4096];
    for (ssize_t n; inotify_ && (n = read(inotify_.get(), buffer, sizeof buffer)) > 0;) {
        for (ssize_t at = 0; at < n;) {
            inotify_event event;
            memcpy(&event, buffer + at, sizeof event);
            at += static_cast<ssize_t>(sizeof event + event.len);
            if ((event.mask & IN_CLOSE) != 0) {
                ended.watches.push_back(event.wd);
            }
            ended.lost = ended.lost || (event.mask & IN_Q_OVERFLOW) != 0;
        }
    }
    return ended;
}

} // namespace sd::monitor
