// Programs that sdctl asks: systemctl, sdstat.
#include "monitor/sdctl/command.hpp"
#include "monitor/kernel/unique_fd.hpp"
#include "monitor/sdctl/failure.hpp"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace sd::ctl {

using monitor::UniqueFd;

namespace {

struct Pipe {
    UniqueFd read, write;
    Pipe() {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) {
            throw Failure(Exit::failed, std::string("pipe: ") + strerror(errno));
        }
        read.reset(ends[0]);
        write.reset(ends[1]);
    }
};

/// Both at once, so that neither fills up while the other one is waited for.
void collect(const Pipe &out, const Pipe &err, Outcome &outcome) {
    pollfd waiting[2] = {{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}};
    std::string *const texts[2] = {&outcome.output, &outcome.errors};
    for (int open = 2; open > 0;) {
        if (poll(waiting, 2, -1) < 0 && errno != EINTR) {
            return;
        }
        for (int i = 0; i < 2; ++i) {
            if (waiting[i].fd < 0 || waiting[i].revents == 0) {
                continue;
            }
            char chunk[4096];
            const ssize_t n = read(waiting[i].fd, chunk, sizeof chunk);
            if (n > 0) {
                texts[i]->append(chunk, static_cast<size_t>(n));
            } else if (n == 0 || errno != EINTR) {
                waiting[i].fd = -1;
                --open;
            }
        }
    }
}

} // namespace

Outcome run(std::vector<std::string> arguments) {
    Pipe out, err;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out.write.get(), 1);
    posix_spawn_file_actions_adddup2(&actions, err.write.get(), 2);
    std::vector<char *> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string &argument : arguments) {
        argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    pid_t pid;
    const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        throw Failure(Exit::failed, arguments[0] + ": " + strerror(error));
    }
    out.write.reset();
    err.write.reset();
    Outcome outcome;
    collect(out, err, outcome);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome;
}

std::string own_directory() {
    char program[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program);
    const std::string own(program, n > 0 ? static_cast<size_t>(n) : 0);
    return own.substr(0, own.rfind('/'));
}

std::string text_of_file(const std::string &path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string Manager::directory() const {
    if (!user_) {
        return "/etc/systemd/system";
    }
    const char *base = secure_getenv("XDG_CONFIG_HOME");
    if (base != nullptr && *base == '/') {
        return std::string(base) + "/systemd/user";
    }
    const char *home = secure_getenv("HOME");
    if (home == nullptr || *home != '/') {
        throw Failure(Exit::failed, "HOME is not set: where are the units of this user?");
    }
    return std::string(home) + "/.config/systemd/user";
}

std::string Manager::call(const std::vector<std::string> &arguments) const {
    std::vector<std::string> command{"systemctl", "--no-pager"};
    if (user_) {
        command.emplace_back("--user");
    }
    command.insert(command.end(), arguments.begin(), arguments.end());
    Outcome outcome = run(command);
    if (outcome.status != 0) {
        while (!outcome.errors.empty() && outcome.errors.back() == '\n') {
            outcome.errors.pop_back();
        }
        throw Failure(Exit::failed,
                      "systemctl: " + (outcome.errors.empty() ? "status " + std::to_string(outcome.status)
                                                              : outcome.errors));
    }
    return outcome.output;
}

Properties Manager::show(const std::string &unit, const std::vector<std::string> &names) const {
    std::vector<std::string> arguments{"show"};
    for (const std::string &name : names) {
        arguments.push_back("--property=" + name);
    }
    arguments.insert(arguments.end(), {"--", unit});
    std::istringstream in(call(arguments));
    Properties result;
    for (std::string line; std::getline(in, line);) {
        const size_t at = line.find('=');
        if (at == std::string::npos) {
            continue;
        }
        std::string &text = result[line.substr(0, at)];
        if (!text.empty()) {
            text += '\n';
        }
        text.append(line, at + 1);
    }
    return result;
}

} // namespace sd::ctl
