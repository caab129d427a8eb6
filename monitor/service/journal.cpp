// Lines of the log about a process: where they go to the journal, with fields of their own.
#include "monitor/service/journal.hpp"

#include <fmt/core.h>
#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>
#include <vector>

namespace sd::monitor {

namespace {
bool has_journal = false;
}

void use_journal() { has_journal = true; }

void log_about(const About &about, log::Level level, const std::string &text) {
    if (!has_journal) {
        log::write(level, "{}", fmt::make_format_args(text));
        return;
    }
    if (!log::is_wanted(level)) {
        return;
    }
    const int priority = level == log::Level::error  ? LOG_ERR
                         : level == log::Level::warn ? LOG_WARNING
                         : level == log::Level::info ? LOG_INFO
                                                     : LOG_DEBUG;
    std::vector<std::string> fields = {
        "MESSAGE=" + text, fmt::format("PRIORITY={}", priority), "SYSLOG_IDENTIFIER=sd-monitor",
        fmt::format("SOCKSDIRECT_PID={}", about.pid), fmt::format("SOCKSDIRECT_UID={}", about.uid)};
    if (!about.program.empty()) {
        fields.push_back("SOCKSDIRECT_PROGRAM=" + about.program);
    }
    if (about.cause != 0) {
        fields.push_back(fmt::format("SOCKSDIRECT_CAUSE={}", about.cause));
        fields.push_back(fmt::format("SOCKSDIRECT_CAUSE_NAME={}", cause_name(about.cause)));
    }
    std::vector<iovec> parts;
    parts.reserve(fields.size());
    for (std::string &field : fields) {
        parts.push_back({field.data(), field.size()});
    }
    sd_journal_sendv(parts.data(), static_cast<int>(parts.size()));
}

} // namespace sd::monitor
