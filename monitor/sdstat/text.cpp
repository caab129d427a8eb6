// Text for people.
#include "monitor/sdstat/text.hpp"
#include "monitor/sdstat/snapshot.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/core.h>
#include <iterator>
#include <sys/ioctl.h>
#include <unistd.h>

namespace sd::stat {

std::string amount(double value) {
    static constexpr const char *units[] = {"", "K", "M", "G", "T", "P"};
    size_t unit = 0;
    while (value >= 10000 && unit + 1 < std::size(units)) {
        value /= 1000;
        ++unit;
    }
    return fmt::format("{:.0f}{}", value, units[unit]);
}

std::string age(double seconds) {
    const auto s = static_cast<long>(std::max(0.0, seconds));
    return s < 60      ? fmt::format("{}s", s)
           : s < 3600  ? fmt::format("{}m{:02}s", s / 60, s % 60)
           : s < 86400 ? fmt::format("{}h{:02}m", s / 3600, s / 60 % 60)
                       : fmt::format("{}d{:02}h", s / 86400, s / 3600 % 24);
}

std::string printable(std::string_view text) {
    std::string result(text);
    std::replace_if(
        result.begin(), result.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
    return result;
}

std::vector<std::string> table(const std::vector<Row> &rows, Fit fit, size_t width) {
    std::vector<size_t> widths;
    for (const Row &row : rows) {
        widths.resize(std::max(widths.size(), row.size()));
        for (size_t i = 0; i < row.size(); ++i) {
            widths[i] = std::max(widths[i], row[i].size());
        }
    }
    size_t columns = widths.size();
    if (fit == Fit::columns && width > 0) {
        size_t sum = 0;
        for (size_t i = 0; i < widths.size(); ++i) {
            sum += widths[i] + (i > 0 ? 2 : 0);
            if (sum > width && i > 0) {
                columns = i;
                break;
            }
        }
    }
    std::vector<std::string> lines;
    for (const Row &row : rows) {
        std::string line;
        for (size_t i = 0; i < std::min(row.size(), columns); ++i) {
            line += i + 1 < columns ? fmt::format("{:<{}}  ", row[i], widths[i]) : row[i];
        }
        line.erase(line.find_last_not_of(' ') + 1);
        lines.push_back(fit == Fit::columns && width > 0 ? line.substr(0, width) : line);
    }
    return lines;
}

size_t terminal_width(int fd) {
    winsize size{};
    return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void put(std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            throw Failure(errno == EPIPE ? Exit::done : Exit::failed,
                          std::string("standard output: ") + strerror(errno));
        }
        text.remove_prefix(static_cast<size_t>(n));
    }
}

void put_lines(const std::vector<std::string> &lines) {
    std::string text;
    for (const std::string &line : lines) {
        text += line;
        text += '\n';
    }
    put(text);
}

} // namespace sd::stat
