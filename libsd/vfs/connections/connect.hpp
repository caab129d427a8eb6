// What others need of connect(): the links that new connections use.
#pragma once

namespace sd {

/// The process has moved to another network namespace (setns, unshare): nothing new is accelerated.
extern bool namespace_changed;
/// No new connections over the links there are: the monitor that made them has gone, or they were another
/// domain's.
void retire_client_links() noexcept;
void connect_fork_child() noexcept;

} // namespace sd
