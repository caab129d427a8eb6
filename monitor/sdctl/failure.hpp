// How sdctl fails: a message and an exit status, as in the table of sdctl(1).
#pragma once
#include <stdexcept>
#include <string>

namespace sd::ctl {

enum class Exit {
    done = 0,
    failed = 1,   ///< the system refused: rights, a full disk, systemd
    usage = 2,    ///< a command, option or name that cannot be
    obstacle = 3, ///< something of the unit stands in the way; nothing was changed
    no_unit = 4,
    trouble = 5, ///< sdctl doctor has found something that is wrong
    cannot_run = 125,
};

struct Failure : std::runtime_error {
    Failure(Exit status, const std::string &message) : std::runtime_error(message), status(status) {}
    Exit status;
};

} // namespace sd::ctl
