// sdstat: who is connected to whom, over which path, and why some sockets stayed with the kernel.
#include "libsd/layout/causes.hpp"
#include "monitor/sdstat/export.hpp"
#include "monitor/sdstat/terminal.hpp"
#include "monitor/sdstat/text.hpp"
#include "monitor/sdstat/view.hpp"
#include "monitor/sdstat/watch.hpp"
#include "monitor/tools/command_line.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fmt/core.h>
#include <unistd.h>

namespace {

using namespace sd;
using namespace sd::stat;

struct Options {
    std::string socket;
    bool json = false, csv = false, causes = false, each = false, sockets = false;
    uint32_t pid = 0;
    double watch = 0;
    std::vector<std::string> words;
};

void print_causes() {
    std::string text;
    for (unsigned i = 1; i < kMaxCauses; ++i) {
        if (*cause_text(i) != '\0') {
            text += fmt::format("{:>3}  {:<18}  {}\n", i, cause_name(i), cause_text(i));
        }
    }
    put(text);
}

/// Of the process that was named, or of all; the kernel's as well for one process.
std::vector<Socket> chosen_sockets(const Snapshot &snapshot, const Filter &filter, uint32_t pid,
                                   std::vector<Socket> kernel) {
    std::vector<Socket> result;
    for (const monitor::ConnectionRow &row : snapshot.rows) {
        for (unsigned side = 0; side < 2; ++side) {
            const monitor::RowEnd &end = row.end[side];
            const auto first = snapshot.pids.begin() + end.first_pid;
            if (pid != 0 && std::find(first, first + end.pids, pid) == first + end.pids) {
                continue;
            }
            if (Socket s = socket_of(snapshot, row, side); filter.matches(s)) {
                result.push_back(std::move(s));
            }
        }
    }
    for (Socket &s : kernel) {
        if (const auto it = snapshot.processes.find(s.pid); it != snapshot.processes.end()) {
            s.comm = it->second.comm;
            s.unit = it->second.unit;
        }
        if (filter.matches(s)) {
            result.push_back(std::move(s));
        }
    }
    return result;
}

struct Chosen {
    Filter filter;
    std::string connection; ///< empty: none was named
};

/// Words are a filter, or one of them names a connection.
Chosen chosen_by(const Options &options) {
    if (options.words.size() == 1 && is_connection_name(options.words[0])) {
        return {Filter({}), options.words[0]};
    }
    std::vector<std::string> words = options.words;
    if (options.pid != 0 && options.json) { // of its connections; other output shows its sockets only
        const std::string pid = std::to_string(options.pid);
        words = words.empty() ? std::vector<std::string>{"state", "all", "pid", "=", pid} : words;
    }
    return {Filter(words), ""};
}

void look(const Options &options, const Chosen &chosen) {
    const Snapshot snapshot = take_snapshot(options.socket);
    const size_t width = terminal_width(STDOUT_FILENO);
    std::string why;
    std::vector<Socket> kernel = options.pid != 0 ? kernel_sockets(options.pid, &why) : std::vector<Socket>();
    if (options.pid != 0 && access(fmt::format("/proc/{}", options.pid).c_str(), F_OK) != 0) {
        throw Failure(Exit::nothing, fmt::format("there is no process {}", options.pid));
    }
    if (!why.empty()) {
        fmt::print(stderr, "sdstat: process {}: {}\n", options.pid, why);
    }
    if (!chosen.connection.empty()) {
        if (options.json || options.csv) {
            Snapshot one = snapshot;
            one.rows.clear();
            for (const monitor::ConnectionRow *row : find_connections(snapshot, chosen.connection)) {
                one.rows.push_back(*row);
            }
            if (one.rows.empty()) {
                (void)one_view(snapshot, chosen.connection); // which says so
            }
            put(options.json ? json_text(one, chosen.filter, {}) : csv_text(one, chosen.filter));
        } else {
            put_lines(one_view(snapshot, chosen.connection));
        }
    } else if (options.json) {
        put(json_text(snapshot, chosen.filter, kernel));
    } else if (options.pid != 0 || options.sockets) {
        const auto sockets = chosen_sockets(snapshot, chosen.filter, options.pid, std::move(kernel));
        if (options.csv) {
            put(csv_text(sockets));
        } else {
            put_lines(sockets_view(sockets, snapshot.when, width));
        }
    } else if (options.csv) {
        put(csv_text(snapshot, chosen.filter));
    } else {
        put_lines(connections_view(snapshot, chosen.filter, options.each, width));
        if (chosen.filter.is_empty()) {
            put_lines(rest_view(snapshot, width));
        }
    }
}

void watch_screen(const Options &options, const Chosen &chosen) {
    using Clock = std::chrono::steady_clock;
    Watch watch(chosen.filter);
    watch.take(take_snapshot(options.socket)); // before the screen is taken: who is not there is said as ever
    Terminal terminal;
    std::string note;
    for (Clock::time_point next = Clock::now();;) {
        terminal.show(watch.screen(terminal.width(), terminal.height(), note));
        next += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.watch));
        next = std::max(next, Clock::now());
        for (bool is_over = false; !is_over;) {
            char key = 0;
            const double left = std::chrono::duration<double>(next - Clock::now()).count();
            switch (terminal.wait(left, &key)) {
            case Terminal::Event::end:
                return;
            case Terminal::Event::key:
                if (!watch.key(key)) {
                    return;
                }
                break;
            case Terminal::Event::resized:
                break;
            case Terminal::Event::timeout:
                is_over = true;
                continue;
            }
            terminal.show(watch.screen(terminal.width(), terminal.height(), note));
        }
        if (!watch.is_paused()) {
            try { // a monitor that is restarted is there again soon
                watch.take(take_snapshot(options.socket));
                note.clear();
            } catch (const Failure &failure) {
                note = failure.what();
            }
        }
    }
}

/// "--watch" takes a number, and does without: CLI11 would take the next word for one.
std::vector<std::string> words_of(int argc, char **argv) {
    std::vector<std::string> words(argv + 1, argv + argc);
    for (size_t i = 0; i < words.size(); ++i) {
        if (words[i] == "--watch") {
            const bool has_number = i + 1 < words.size() && !words[i + 1].empty() &&
                                    strchr(".0123456789-", words[i + 1][0]) != nullptr;
            words[i] += has_number ? "=" + words[i + 1] : "=1";
            if (has_number) {
                words.erase(words.begin() + static_cast<ptrdiff_t>(i) + 1);
            }
        }
    }
    std::reverse(words.begin(), words.end()); // as CLI11 wants them
    return words;
}

int run(const Options &options) {
    if (options.causes) {
        print_causes();
        return 0;
    }
    const Chosen chosen = chosen_by(options);
    const bool has_screen = options.watch > 0 && !options.json && !options.csv && !options.each &&
                            !options.sockets && options.pid == 0 && chosen.connection.empty();
    if (has_screen && Terminal::is_there()) {
        watch_screen(options, chosen);
        return 0;
    }
    for (;;) {
        look(options, chosen);
        if (options.watch <= 0) {
            return 0;
        }
        usleep(static_cast<useconds_t>(options.watch * 1e6));
        if (!options.json && !options.csv) {
            put("\n");
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); // who reads no more has had enough: see Exit
    Options options;
    CLI::App app("Shows which connections SocksDirect carries, and why others were left to the kernel.",
                 "sdstat");
    app.add_flag("--json", options.json, "print one JSON document");
    app.add_flag("--csv", options.csv, "print comma-separated values")->excludes("--json");
    app.add_flag("--each", options.each, "a line for each connection, not for each pair of programs");
    app.add_flag("--sockets", options.sockets, "a line for each socket, as ss has it");
    app.add_option("-p,--process", options.pid, "the sockets of a process, the kernel's as well")
        ->type_name("PID")
        ->check(CLI::Range(1U, 1U << 22));
    app.add_flag("--causes", options.causes, "explain the numbered causes for leaving a socket to the kernel");
    app.add_option("--watch", options.watch, "look again every so many seconds (1)")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.05, 86400.0));
    app.add_option("--socket", options.socket, "the monitor's socket")->type_name("PATH");
    app.add_option("FILTER", options.words,
                   "a connection's id or address, or a filter: state established dst 10.0.0.1:80");
    app.set_version_flag("--version", "sdstat " SD_VERSION);
    app.failure_message([](const CLI::App *, const CLI::Error &error) {
        return fmt::format("sdstat: {}\nsdstat --help shows the options\n", error.what());
    });
    try {
        app.parse(words_of(argc, argv));
        return run(options);
    } catch (const CLI::ParseError &error) {
        return sd::tools::end_of_parsing(app, error, "sdstat", static_cast<int>(Exit::usage));
    } catch (const Failure &failure) {
        if (failure.status != Exit::done) {
            fmt::print(stderr, "sdstat: {}\n", failure.what());
        }
        return static_cast<int>(failure.status);
    } catch (const nlohmann::json::exception &) {
        fputs("sdstat: the running sd-monitor is of another version; restart it\n", stderr);
        return static_cast<int>(Exit::failed);
    } catch (const std::exception &error) {
        fmt::print(stderr, "sdstat: {}\n", error.what());
        return static_cast<int>(Exit::failed);
    }
}
