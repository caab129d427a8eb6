// Lines of the log about a process: where they go to the journal, with fields of their own.
#pragma once
#include "libsd/layout/causes.hpp"
#include "monitor/service/log.hpp"

#include <string>
#include <sys/types.h>

namespace sd::monitor {

/// A process that a line is about.
struct About {
    pid_t pid = 0;
    uid_t uid = 0;
    std::string program; ///< its short name, or empty
    unsigned cause = 0;  ///< Cause, or 0
};

/// From here on lines about processes go to the journal with the fields SOCKSDIRECT_PID, SOCKSDIRECT_UID,
/// SOCKSDIRECT_PROGRAM, SOCKSDIRECT_CAUSE and SOCKSDIRECT_CAUSE_NAME; the text says it all as well.
void use_journal();
void log_about(const About &about, log::Level level, const std::string &text);

} // namespace sd::monitor
