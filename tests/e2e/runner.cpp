// Starting, watching and comparing programs.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

namespace sd::e2e {

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail_here(const std::string &what) {
    throw std::runtime_error(what + ": " + std::strerror(errno));
}

// Private monitors of these tests meet in a directory of their own, not in that of the user's programs.
const std::string &runtime_directory() {
    static const TemporaryDirectory directory;
    return directory.path();
}

bool starts_with(const std::string &text, const char *prefix) { return text.rfind(prefix, 0) == 0; }

std::vector<std::string> environment_for(Mode mode, std::vector<std::string> extra) {
    std::vector<std::string> all;
    for (char **entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        bool replaced = starts_with(text, "LD_PRELOAD=") || starts_with(text, "SD_MONITOR=") ||
                        starts_with(text, "SD_CONTROL_FD=") || starts_with(text, "XDG_RUNTIME_DIR=") ||
                        starts_with(text, "SD_STATS_FILE=");
        for (const std::string &added : extra) {
            replaced = replaced || starts_with(text, added.substr(0, added.find('=') + 1).c_str());
        }
        if (!replaced) {
            all.push_back(text);
        }
    }
    if (std::none_of(extra.begin(), extra.end(),
                     [](const std::string &added) { return starts_with(added, "XDG_RUNTIME_DIR="); })) {
        all.push_back("XDG_RUNTIME_DIR=" + runtime_directory());
    }
    if (mode == Mode::preloaded) {
        all.push_back("LD_PRELOAD=" + build_file("libsd.so"));
    }
    all.insert(all.end(), extra.begin(), extra.end());
    return all;
}

std::vector<char *> pointers(std::vector<std::string> &strings) {
    std::vector<char *> result;
    for (std::string &text : strings) {
        result.push_back(text.data());
    }
    result.push_back(nullptr);
    return result;
}

void append_available(int &fd, std::string &text) {
    char buffer[65536];
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got > 0) {
        text.append(buffer, static_cast<size_t>(got));
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        close(fd);
        fd = -1;
    }
}

long number_after(const std::string &line, const std::string &key) {
    const size_t at = line.find("\"" + key + "\"");
    const size_t colon = at == std::string::npos ? at : line.find(':', at);
    return colon == std::string::npos ? 0 : std::strtol(line.c_str() + colon + 1, nullptr, 10);
}

Outcome run(const std::string &name, const std::string &behaviour, Mode mode, const std::string &statistics) {
    Process process({program(name), behaviour}, mode, {"SD_STATS_FILE=" + statistics});
    return process.finish();
}

} // namespace

TemporaryDirectory::TemporaryDirectory() {
    std::string name = "/tmp/sd-e2e-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
        fail_here("mkdtemp");
    }
    path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

Process::Process(std::vector<std::string> arguments, Mode mode, std::vector<std::string> environment) {
    if (mode == Mode::sdrun) {
        arguments.insert(arguments.begin(), build_file("sdrun"));
    }
    environment = environment_for(mode, std::move(environment));
    const std::vector<char *> argv = pointers(arguments), envp = pointers(environment);
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        fail_here("pipe");
    }
    pid_ = fork();
    if (pid_ < 0) {
        fail_here("fork");
    }
    if (pid_ == 0) {
        setpgid(0, 0);
        const int nothing = open("/dev/null", O_RDONLY);
        dup2(nothing, STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        close_range(3, ~0u, 0);
        execve(argv[0], argv.data(), envp.data());
        dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], std::strerror(errno));
        _exit(127);
    }
    setpgid(pid_, pid_); // here too: whoever comes first
    close(out[1]);
    close(err[1]);
    output_ = out[0];
    errors_ = err[0];
}

Process::~Process() {
    if (pid_ > 0) {
        kill(-pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    if (output_ >= 0) {
        close(output_);
    }
    if (errors_ >= 0) {
        close(errors_);
    }
}

Outcome Process::finish(std::chrono::seconds limit) {
    Outcome outcome;
    const Clock::time_point deadline = Clock::now() + limit;
    while (output_ >= 0 || errors_ >= 0) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
        if (left <= 0) {
            outcome.timed_out = true;
            break;
        }
        pollfd entries[] = {{output_, POLLIN, 0}, {errors_, POLLIN, 0}};
        if (poll(entries, 2, static_cast<int>(left)) <= 0) {
            continue;
        }
        if (entries[0].revents != 0) {
            append_available(output_, outcome.output);
        }
        if (entries[1].revents != 0) {
            append_available(errors_, outcome.errors);
        }
    }
    // It has closed its output, so it is about to end; or it has had its time.
    while (!outcome.timed_out && waitpid(pid_, &outcome.status, WNOHANG) == 0) {
        if (Clock::now() > deadline) {
            outcome.timed_out = true;
        }
        usleep(1000);
    }
    if (outcome.timed_out) {
        kill(-pid_, SIGKILL);
        waitpid(pid_, &outcome.status, 0);
    }
    pid_ = -1;
    return outcome;
}

std::string build_file(const std::string &name) {
    const char *directory = std::getenv("SD_BUILD_DIR");
    if (directory == nullptr) {
        throw std::runtime_error("SD_BUILD_DIR is not set");
    }
    return std::string(directory) + "/" + name;
}

std::string program(const std::string &name) { return build_file("tests/e2e/" + name); }

bool self_check() { return std::getenv("SD_E2E_SELF_CHECK") != nullptr; }

Statistics read_statistics(const std::string &path) {
    Statistics sum;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        sum.text += line + "\n";
        sum.processes += 1;
        sum.connects += number_after(line, "accelerated_connects");
        sum.accepts += number_after(line, "accelerated_accepts");
        sum.fallbacks = sum.fallbacks || line.find("\"fallbacks\":{}") == std::string::npos;
    }
    return sum;
}

std::string make_statistics(const TemporaryDirectory &directory) {
    const std::string path = directory.file("statistics");
    std::ofstream(path).flush();
    std::filesystem::permissions(directory.path(), std::filesystem::perms(0711));
    std::filesystem::permissions(path, std::filesystem::perms(0666));
    return path;
}

std::string difference(const std::string &kernel, const std::string &other) {
    std::istringstream left(kernel), right(other);
    std::string expected, got, before;
    for (int number = 1;; ++number) {
        const bool more_left = static_cast<bool>(std::getline(left, expected));
        const bool more_right = static_cast<bool>(std::getline(right, got));
        if (!more_left && !more_right) {
            return "";
        }
        if (more_left != more_right || expected != got) {
            return "\nline " + std::to_string(number) + " after:  " + before +
                   "\n  kernel:      " + (more_left ? expected : "(end)") +
                   "\n  accelerated: " + (more_right ? got : "(end)");
        }
        before = expected;
    }
}

void require_success(const Outcome &outcome) {
    INFO("output:\n" << outcome.output << "errors:\n" << outcome.errors);
    CHECK_FALSE(outcome.timed_out);
    REQUIRE(WIFEXITED(outcome.status));
    REQUIRE(WEXITSTATUS(outcome.status) == 0);
}

namespace {

std::vector<std::string> lines_of(const std::string &text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);)
        lines.push_back(line);
    return lines;
}

/// Where the outcome is not that of the kernel's first run: the kernel's own answers may vary on a busy
/// machine (room appears in a full buffer, a timer runs out), so it is asked again. A line that the kernel
/// shows in that place in none of its runs differs.
std::string difference_from_kernel(const char *program_name, const char *behaviour, const Outcome &kernel,
                                   const Outcome &other) {
    constexpr int kMoreRuns = 6;
    const std::string first = difference(kernel.output, other.output);
    if (first.empty() || other.timed_out)
        return first;
    const std::vector<std::string> lines = lines_of(other.output);
    std::vector<bool> seen(lines.size());
    const auto all_seen = [&](const std::string &answers) {
        const std::vector<std::string> from_kernel = lines_of(answers);
        for (size_t i = 0; i < lines.size() && from_kernel.size() == lines.size(); ++i)
            seen[i] = seen[i] || lines[i] == from_kernel[i];
        return std::find(seen.begin(), seen.end(), false) == seen.end();
    };
    all_seen(kernel.output);
    for (int i = 0; i < kMoreRuns; ++i)
        if (all_seen(run(program_name, behaviour, Mode::kernel, "/dev/null").output)) {
            WARN(program_name << " " << behaviour << ": the kernel's answers vary:" << first);
            return "";
        }
    return first;
}

} // namespace

void same_as_kernel(const char *program_name, const char *behaviour, Expect expect) {
    const TemporaryDirectory directory;
    const std::string statistics = make_statistics(directory);
    INFO(program_name << " " << behaviour);
    const Outcome kernel = run(program_name, behaviour, Mode::kernel, statistics);
    {
        INFO("on kernel sockets");
        require_success(kernel);
    }
    const Outcome other = run(program_name, behaviour, self_check() ? Mode::kernel : Mode::sdrun, statistics);
    const Statistics sum = read_statistics(statistics);
    INFO("statistics:\n" << sum.text << "errors:\n" << other.errors);
    CHECK(difference_from_kernel(program_name, behaviour, kernel, other) == "");
    require_success(other);
    if (self_check()) {
        return;
    }
    CHECK(sum.processes > 0);
    if (getenv("SD_TEST_PATHS") != nullptr) {
        return;
    }
    if (expect == Expect::accelerated || expect == Expect::all_accelerated) {
        CHECK(sum.connects + sum.accepts > 0);
        CHECK((expect == Expect::accelerated || !sum.fallbacks));
    } else if (expect == Expect::untouched) {
        CHECK(sum.connects + sum.accepts == 0);
    }
}

} // namespace sd::e2e
