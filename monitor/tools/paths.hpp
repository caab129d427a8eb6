// Where the monitor's socket is. Shared by sd-monitor, sdrun and sdstat; plain C, because sdrun must start
// fast.
#pragma once
#include <cstddef>
#include <sys/types.h>

namespace sd::monitor {

constexpr const char *kSystemSocket = "/run/socksdirect/monitor.sock";
/// In a directory of its own, which is what containers are shown.
constexpr const char *kContainersSocket = "/run/socksdirect/containers/monitor.sock";
constexpr const char *kSystemConfig = "/etc/socksdirect/sd-monitor.toml";
constexpr size_t kMaxPath = 108; ///< sizeof(sockaddr_un::sun_path)

/// The user's own directory, ${XDG_RUNTIME_DIR or /tmp}/socksdirect-UID. False if the name is too long for
/// a socket in it.
[[nodiscard]] bool private_directory(char (&path)[kMaxPath]);
/// Its socket, monitor.sock.
[[nodiscard]] bool private_socket(char (&path)[kMaxPath]);
/// Makes the directory (0700) or checks that it is a directory that only this user can change: in /tmp
/// anybody could have made one of that name. 0 or a positive errno; EPERM: it is there but not safe.
[[nodiscard]] int make_private_directory(const char *path);

/// A connected SOCK_SEQPACKET channel, close-on-exec; or -errno.
[[nodiscard]] int connect_monitor(const char *path);
/// The same for a path that nobody named: -EPERM if it is this user's private one and somebody else (but not
/// root) listens there, as anybody can in a directory of that name in /tmp.
[[nodiscard]] int connect_default_monitor(const char *path);
/// As that, at a path that the user named: EPERM for another user's that is not root.
[[nodiscard]] int connect_named_monitor(const char *path);

} // namespace sd::monitor
