// Lines of the monitor's log. They go to spdlog, whose own functions would have each file that logs compile
// all of formatting.
#pragma once
#include <fmt/core.h>

namespace sd::monitor::log {

enum class Level { debug, info, warn, error };

/// Are lines of this level written at all?
bool is_wanted(Level level);
void write(Level level, fmt::string_view text, fmt::format_args values);

template <typename... Values> void debug(fmt::format_string<Values...> text, Values &&...values) {
    write(Level::debug, text, fmt::make_format_args(values...));
}
template <typename... Values> void info(fmt::format_string<Values...> text, Values &&...values) {
    write(Level::info, text, fmt::make_format_args(values...));
}
template <typename... Values> void warn(fmt::format_string<Values...> text, Values &&...values) {
    write(Level::warn, text, fmt::make_format_args(values...));
}
template <typename... Values> void error(fmt::format_string<Values...> text, Values &&...values) {
    write(Level::error, text, fmt::make_format_args(values...));
}

} // namespace sd::monitor::log
