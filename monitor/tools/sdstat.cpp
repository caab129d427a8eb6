// sdstat: who is connected to whom, over which transport, and why some sockets stayed with the kernel.
#include "libsd/layout/protocol.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/tools/paths.hpp"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace sd;
using namespace sd::monitor;
using nlohmann::json;

struct Options {
    std::string socket;
    bool json = false, causes = false, each = false;
    double watch = 0;
};

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Connects to the monitor that programs of this user would use.
UniqueFd find_monitor(const Options &options) {
    std::vector<std::string> tried;
    char own[kMaxPath];
    bool named_one = true;
    if (!options.socket.empty()) {
        tried = {options.socket};
    } else if (const char *named = secure_getenv("SD_MONITOR"); named != nullptr && *named != '\0') {
        tried = {named};
    } else {
        named_one = false;
        tried = {kSystemSocket};
        if (private_socket(own)) {
            tried.emplace_back(own);
        }
    }
    std::string reasons;
    for (const std::string &path : tried) {
        const int fd = named_one ? connect_monitor(path.c_str()) : connect_default_monitor(path.c_str());
        if (fd >= 0) {
            return UniqueFd(fd);
        }
        reasons += fmt::format("\n  {}: {}", path, strerror(-fd));
    }
    throw Failure("no sd-monitor is running; looked at" + reasons);
}

std::string request_status(const Options &options) {
    const UniqueFd channel = find_monitor(options);
    wire::Header header{};
    header.magic = wire::kMagic;
    header.version = wire::kVersion;
    header.op = static_cast<uint16_t>(wire::Op::status);
    header.sequence = 1;
    iovec io{&header, sizeof header};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    pollfd p{channel.get(), POLLIN, 0};
    if (send(channel.get(), &header, sizeof header, MSG_NOSIGNAL) < 0 || poll(&p, 1, 5000) != 1) {
        throw Failure("the monitor does not answer");
    }
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(channel.get(), &message, MSG_CMSG_CLOEXEC);
    const cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (n < static_cast<ssize_t>(sizeof header) || header.magic != wire::kMagic ||
        header.version != wire::kVersion) {
        throw Failure("the monitor speaks another protocol version");
    }
    if (header.status != 0 || c == nullptr || c->cmsg_type != SCM_RIGHTS) {
        throw Failure(fmt::format("the monitor answers: {}", strerror(-header.status)));
    }
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    const UniqueFd memfd(fd);
    std::string text;
    char chunk[65536];
    off_t offset = 0;
    for (ssize_t got; (got = pread(fd, chunk, sizeof chunk, offset)) > 0; offset += got) {
        text.append(chunk, static_cast<size_t>(got));
    }
    return text;
}

std::string amount(double value) {
    static constexpr const char *units[] = {"", "K", "M", "G", "T", "P"};
    size_t unit = 0;
    while (value >= 10000 && unit + 1 < std::size(units)) {
        value /= unit == 0 ? 1000 : 1000;
        ++unit;
    }
    return fmt::format("{:.0f}{}", value, units[unit]);
}

/// Columns as wide as they need to be; the first row is the header.
void print_table(const std::vector<std::vector<std::string>> &rows) {
    std::vector<size_t> width;
    for (const auto &row : rows) {
        width.resize(std::max(width.size(), row.size()));
        for (size_t i = 0; i < row.size(); ++i) {
            width[i] = std::max(width[i], row[i].size());
        }
    }
    for (const auto &row : rows) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i) {
            line += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], width[i]) : row[i];
        }
        puts(line.c_str());
    }
}

std::string program(const json &end) {
    return end["pid"].is_null() ? "(gone)"
                                : fmt::format("{}[{}]", end["comm"].get<std::string>(), end["pid"].get<int>());
}

std::string age(double seconds) {
    const auto s = static_cast<long>(std::max(0.0, seconds));
    return s < 60     ? fmt::format("{}s", s)
           : s < 3600 ? fmt::format("{}m{:02}s", s / 60, s % 60)
                      : fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

void print_connections(const json &connections, bool each) {
    struct Sum {
        unsigned count = 0;
        double bytes[2] = {0, 0}, messages[2] = {0, 0};
        double since = INFINITY;
        std::string state;
    };
    // One line per pair of programs and server address, unless each connection is asked for.
    std::map<std::vector<std::string>, Sum> groups;
    for (const json &c : connections) {
        const std::string from = each ? c["client"]["address"].get<std::string>() : "";
        Sum &sum =
            groups[{program(c["client"]), from, program(c["server"]), c["server"]["address"], c["transport"]}];
        ++sum.count;
        sum.bytes[0] += c["to_server"]["bytes"].get<double>();
        sum.bytes[1] += c["to_client"]["bytes"].get<double>();
        sum.messages[0] += c["to_server"]["messages"].get<double>();
        sum.messages[1] += c["to_client"]["messages"].get<double>();
        sum.since = std::min(sum.since, c["since"].get<double>());
        sum.state = c["state"];
    }
    const double now = static_cast<double>(time(nullptr));
    std::vector<std::vector<std::string>> rows;
    if (each) {
        rows.push_back({"CLIENT", "FROM", "SERVER", "AT", "OVER", "BYTES ->", "<-", "MESSAGES ->", "<-",
                        "AGE", "STATE"});
    } else {
        rows.push_back(
            {"CLIENT", "SERVER", "AT", "OVER", "CONNECTIONS", "BYTES ->", "<-", "MESSAGES ->", "<-", "AGE"});
    }
    for (const auto &[key, sum] : groups) {
        std::vector<std::string> row{key[0]};
        if (each) {
            row.push_back(key[1]);
        }
        row.insert(row.end(), {key[2], key[3], key[4]});
        if (!each) {
            row.push_back(std::to_string(sum.count));
        }
        row.insert(row.end(), {amount(sum.bytes[0]), amount(sum.bytes[1]), amount(sum.messages[0]),
                               amount(sum.messages[1]), age(now - sum.since)});
        if (each) {
            row.push_back(sum.state);
        }
        rows.push_back(row);
    }
    if (groups.empty()) {
        puts("No accelerated connections now.");
    } else {
        print_table(rows);
    }
}

void print_human(const json &status, bool each) {
    print_connections(status["connections"], each);
    if (!status["listeners"].empty()) {
        puts("");
        std::vector<std::vector<std::string>> rows{{"LISTENING AT", "PROGRAMS", "LINKS"}};
        std::map<int, std::string> names;
        for (const json &process : status["processes"]) {
            names[process["pid"]] = process["comm"];
        }
        for (const json &listener : status["listeners"]) {
            std::string programs;
            for (const json &pid : listener["pids"]) {
                programs += fmt::format("{}{}[{}]", programs.empty() ? "" : " ", names[pid], pid.get<int>());
            }
            rows.push_back({listener["address"], programs, std::to_string(listener["links"].get<unsigned>())});
        }
        print_table(rows);
    }
    puts("");
    fmt::print("Accelerated since the monitor started: {} connects, {} accepts.\n",
               status["totals"]["connects"].get<uint64_t>(), status["totals"]["accepts"].get<uint64_t>());
    if (status["causes"].empty()) {
        puts("No socket was left to kernel TCP.");
    } else {
        puts("Left to kernel TCP (sdstat --causes explains):");
        std::vector<std::vector<std::string>> rows{{"  CAUSE", "NAME", "COUNT"}};
        for (const json &cause : status["causes"]) {
            rows.push_back({fmt::format("  {}", cause["number"].get<unsigned>()), cause["name"],
                            std::to_string(cause["count"].get<uint64_t>())});
        }
        print_table(rows);
    }
    for (size_t i = 0; i < status["recent_fallbacks"].size() && i < 5; ++i) {
        const json &recent = status["recent_fallbacks"][i];
        const auto when = static_cast<time_t>(recent["when"].get<double>());
        char text[32];
        strftime(text, sizeof text, "%H:%M:%S", localtime(&when));
        const std::string address =
            recent["address"].is_null() ? "" : " " + recent["address"].get<std::string>();
        fmt::print("  {} {}{}: {}\n", text, program(recent), address, recent["name"].get<std::string>());
    }
    // Only for root: who has the monitor hold how much.
    if (status.contains("resources") && !status["resources"].value("accounts", json::array()).empty()) {
        puts("\nHeld by the monitor for each user and control group:");
        std::vector<std::vector<std::string>> rows{
            {"  WHO", "DESCRIPTORS", "CLIENTS", "LINKS", "LISTENERS", "BELLS", "SEGMENTS", "PARCELS"}};
        for (const json &account : status["resources"]["accounts"]) {
            std::vector<std::string> row{"  " + account["name"].get<std::string>()};
            for (const char *what :
                 {"descriptors", "clients", "links", "listeners", "bells", "segments", "parcels"}) {
                row.push_back(std::to_string(account[what].get<unsigned>()));
            }
            rows.push_back(std::move(row));
        }
        print_table(rows);
    }
    const json &monitor = status["monitor"];
    fmt::print("\nsd-monitor {} [{}] at {}, up {}.\n", monitor["version"].get<std::string>(),
               monitor["pid"].get<int>(), monitor["socket"].get<std::string>(),
               age(monitor["uptime"].get<double>()));
}

void print_causes() {
    for (unsigned i = 1; i < kMaxCauses; ++i) {
        if (*cause_text(i) != '\0') {
            fmt::print("{:>3}  {:<18}  {}\n", i, cause_name(i), cause_text(i));
        }
    }
}

void look(const Options &options) {
    const std::string text = request_status(options);
    if (options.json) {
        puts(text.c_str());
    } else {
        print_human(json::parse(text), options.each);
    }
    fflush(stdout);
}

} // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("Shows which connections SocksDirect carries, and why others were left to the kernel.",
                 "sdstat");
    app.add_flag("--json", options.json, "print one JSON document");
    app.add_flag("--each", options.each, "a line for each connection, not for each pair of programs");
    app.add_flag("--causes", options.causes, "explain the numbered causes for leaving a socket to the kernel");
    app.add_option("--watch", options.watch, "look again every so many seconds")
        ->type_name("SECONDS")
        ->check(CLI::PositiveNumber);
    app.add_option("--socket", options.socket, "the monitor's socket")->type_name("PATH");
    app.set_version_flag("--version", "sdstat " SD_VERSION);
    CLI11_PARSE(app, argc, argv);
    if (options.causes) {
        print_causes();
        return 0;
    }
    try {
        for (;;) {
            if (options.watch > 0 && !options.json && isatty(1)) {
                fputs("\033[H\033[2J", stdout);
            }
            look(options);
            if (options.watch <= 0) {
                return 0;
            }
            usleep(static_cast<useconds_t>(options.watch * 1e6));
        }
    } catch (const json::exception &) {
        fputs("sdstat: the running sd-monitor is of another version; --json shows what it says\n", stderr);
        return 1;
    } catch (const std::exception &error) {
        fprintf(stderr, "sdstat: %s\n", error.what());
        return 1;
    }
}
