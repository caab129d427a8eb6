// Lines of the monitor's log.
#include "monitor/service/log.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace sd::monitor::log {

namespace {

spdlog::level::level_enum of_spdlog(Level level) {
    switch (level) {
    case Level::debug:
        return spdlog::level::debug;
    case Level::info:
        return spdlog::level::info;
    case Level::warn:
        return spdlog::level::warn;
    case Level::error:
        break;
    }
    return spdlog::level::err;
}

} // namespace

bool is_wanted(Level level) { return spdlog::should_log(of_spdlog(level)); }

void write(Level level, fmt::string_view text, fmt::format_args values) {
    if (is_wanted(level)) {
        spdlog::log(of_spdlog(level), fmt::vformat(text, values));
    }
}

} // namespace sd::monitor::log
