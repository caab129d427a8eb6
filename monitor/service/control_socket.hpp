// The socket clients connect to: taking its path safely, and leaving nothing behind.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <stdexcept>
#include <string>

namespace sd::monitor {

struct SocketError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class ControlSocket {
  public:
    /// Binds at `path`, replacing what a dead monitor left. Throws SocketError; if another monitor runs
    /// there, the text says so.
    /// `lock`: the file that says who runs there; empty: PATH.lock. Whoever can read it can lock it.
    ControlSocket(const std::string &path, mode_t mode, const std::string &lock = {});
    /// Takes a listening socket that was handed over (socket activation); its path is not ours to remove.
    explicit ControlSocket(int inherited);
    ~ControlSocket();
    ControlSocket(const ControlSocket &) = delete;
    ControlSocket &operator=(const ControlSocket &) = delete;

    int fd() const { return socket_.get(); }
    const std::string &path() const { return path_; }

  private:
    /// A file that is locked, and removed before it is let go.
    struct Lock {
        std::string name;
        UniqueFd fd;
        ~Lock();
    };
    void take_lock(const std::string &name);
    std::string path_;
    bool ours_ = false;
    Lock lock_;
    UniqueFd socket_;
};

} // namespace sd::monitor
