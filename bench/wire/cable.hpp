// Two network namespaces with a cable (veth) between them: one for this process, one for a child.
#pragma once
#include <sys/types.h>

#include <functional>

namespace sd::bench {

constexpr const char *kServerDevice = "server";
constexpr const char *kClientDevice = "client";
constexpr const char *kServerAddress = "10.9.0.1";

// Moves this process into a namespace of its own, with the end kClientDevice, and runs `serve` in a child,
// pinned, that has another one with the end kServerDevice and kServerAddress. Returns the child when both
// ends are up. Needs root and `ip`.
[[nodiscard]] pid_t lay_cable(int server_cpu, const std::function<void()> &serve);

} // namespace sd::bench
