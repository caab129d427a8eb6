// Text for people: amounts, ages, tables that fit, and output whose failure is noticed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sd::stat {

/// "9999", "10K", "12M": at most five characters.
std::string amount(double value);
/// "59s", "1m01s", "2h05m", "3d04h".
std::string age(double seconds);

/// What a terminal can show of a name that may be any bytes: what is not printable ASCII is a question mark.
std::string printable(std::string_view text);

using Row = std::vector<std::string>;
enum class Fit {
    all,     ///< lines as long as they need to be
    columns, ///< columns that find no room are left out, from the right; what is still too long is cut
};
/// Columns as wide as they need to be; the first row is the header. `width`: of the terminal.
std::vector<std::string> table(const std::vector<Row> &rows, Fit fit, size_t width);

/// Columns of the terminal that `fd` is; 0 if it is none.
size_t terminal_width(int fd);

/// Writes all of it to standard output. Throws Failure, with Exit::done where nobody reads any more.
void put(std::string_view text);
void put_lines(const std::vector<std::string> &lines);

} // namespace sd::stat
