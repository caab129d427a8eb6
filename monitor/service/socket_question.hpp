// Questions to the kernel about a client's socket that wait for the socket's lock.
//
// Who is in a call on a socket may have its lock for as long as he likes: the call reads his memory, which
// may lie in a file system of his own (FUSE). Who asks for the socket's name, or for its state, sleeps for as
// long, and no signal ends that. So a thread asks; where it does not come back, it is left to itself.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <fcntl.h>
#include <functional>
#include <memory>
#include <optional>
#include <sys/types.h>
#include <type_traits>

namespace sd::monitor {

/// Runs it in a thread. False: it does not come back in time, or what `user` has sent has lately not been
/// answered in time; then it may still run, or does not.
bool run_beside(std::function<void()> question, uid_t user);

/// What question(socket) says; nothing: it could not be asked in time. `question` is to refer to nothing of
/// the caller's.
template <typename Fn>
std::optional<std::invoke_result_t<Fn, int>> ask_about(int socket, uid_t user, Fn question) {
    using Result = std::invoke_result_t<Fn, int>;
    const auto own = std::make_shared<UniqueFd>(fcntl(socket, F_DUPFD_CLOEXEC, 0));
    const auto result = std::make_shared<std::optional<Result>>();
    if (!*own || !run_beside([own, result, question] { *result = question(own->get()); }, user)) {
        return std::nullopt;
    }
    return std::move(*result);
}

} // namespace sd::monitor
