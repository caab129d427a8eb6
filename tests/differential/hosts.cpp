// Starting and ending what a side consists of: channels, the monitor, and the hosts that fork actors.
#include "tests/differential/controller.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <grp.h>
#include <regex>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sd::differential {

namespace {

constexpr int kOwnFds = 600; // this program's own, out of the way of the numbers that hosts get
constexpr uid_t kUsers[] = {60001, 60002, 60003}; // of the hosts, where they are strangers

int checked(const char *what, int result) {
    if (result < 0) {
        throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
    }
    return result;
}

int moved_up(int fd) {
    const int high = checked("fcntl", fcntl(fd, F_DUPFD_CLOEXEC, kOwnFds));
    close(fd);
    return high;
}

void make_pair(int type, int &a, int &b) {
    int ends[2];
    checked("socketpair", socketpair(AF_UNIX, type, 0, ends));
    a = moved_up(ends[0]);
    b = moved_up(ends[1]);
}

std::string monitor_socket(const Setting &setting) { return setting.directory + "/monitor.sock"; }

bool is_listening(const std::string &path) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, path.c_str(), sizeof name.sun_path - 1);
    const bool there = connect(fd, reinterpret_cast<sockaddr *>(&name), sizeof name) == 0;
    close(fd);
    return there;
}

} // namespace

void provide_programs(Setting &setting) {
    setting.programs = setting.directory;
    std::filesystem::permissions(setting.programs, std::filesystem::perms(0711));
    for (const char *name : {"sdrun", "libsd.so", "tests/differential/differential-actor"}) {
        const std::filesystem::path from = setting.build + "/" + name;
        std::filesystem::copy_file(from, setting.programs / from.filename());
    }
    // Its place is beside libsd.so.
    if (const std::filesystem::path plugin = setting.build + "/libsd-rdma.so"; exists(plugin)) {
        std::filesystem::copy_file(plugin, setting.programs / plugin.filename());
    }
}

Side::Side(const Setting &setting, bool accelerated) : accelerated_(accelerated) {
    for (Channel &channel : channels_) {
        make_pair(SOCK_SEQPACKET, channel.ours, channel.theirs);
        make_pair(SOCK_DGRAM, channel.mail_in, channel.mail_out);
    }
    if (setting.apart) {
        apart_.emplace();
        if (accelerated) {
            group_.emplace();
        }
    }
    if (accelerated) {
        start_monitor(setting);
    }
    for (int i = 0; i < (setting.apart ? 4 : 3); ++i) {
        const uid_t user = setting.users == Users::two ? kUsers[std::min(i, 2)] : geteuid();
        hosts_.push_back(start_host(setting, accelerated && i < 2, user, i % 2));
    }
}

void Side::start_monitor(const Setting &setting) {
    const std::string path = monitor_socket(setting), program = setting.build + "/sd-monitor",
                      configuration = setting.directory + "/monitor.toml";
    monitor_socket_ = path;
    sdstat_ = setting.build + "/sdstat";
    if (setting.apart) {
        std::ofstream(configuration) << "[paths]\ndiscovery = true\ngroup = \"" << group_->name() << "\"\n";
    }
    monitor_ = checked("fork", fork());
    if (monitor_ == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const int log = open((setting.directory + "/monitor.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        if (setting.apart) {
            execl(program.c_str(), program.c_str(), "--socket", path.c_str(), "--config",
                  configuration.c_str(), nullptr);
        }
        execl(program.c_str(), program.c_str(), "--socket", path.c_str(), nullptr);
        _exit(127);
    }
    for (int tries = 0; !is_listening(path); ++tries) {
        if (tries > 5000) {
            throw std::runtime_error("the monitor does not start");
        }
        usleep(1000);
    }
    if (setting.users == Users::given_up) {
        const std::string own = "/proc/" + std::to_string(monitor_) + "/task/" + std::to_string(monitor_);
        bridges_ = moved_up(checked("children", open((own + "/children").c_str(), O_RDONLY)));
    }
}

long Side::joined() const {
    if (monitor_ < 0) {
        return 0;
    }
    FILE *const answer = popen((sdstat_ + " --json --socket " + monitor_socket_).c_str(), "re");
    std::string text;
    char part[4096];
    for (size_t n; answer != nullptr && (n = fread(part, 1, sizeof part, answer)) > 0;) {
        text.append(part, n);
    }
    if (answer != nullptr) {
        pclose(answer);
    }
    static const std::regex word("\"totals\"[^}]*\"joined\": *([0-9]+)");
    std::smatch found;
    return std::regex_search(text, found, word) ? std::stol(found[1]) : 0;
}

int Side::start_host(const Setting &setting, bool accelerated, uid_t user, int place) {
    int ours, theirs;
    make_pair(SOCK_SEQPACKET, ours, theirs);
    const pid_t pid = checked("fork", fork());
    if (pid == 0) {
        dup2(theirs, kHostChannel);
        for (int i = 0; i < kMaxActors; ++i) {
            const Channel &channel = channels_[static_cast<size_t>(i)];
            dup2(channel.theirs, kFirstChannel + i);
            dup2(channel.mail_in, mailbox_in(i));
            dup2(channel.mail_out, mailbox_out(i));
        }
        const int nothing = open("/dev/null", O_RDWR);
        dup2(nothing, STDIN_FILENO);
        if (nothing > STDERR_FILENO) {
            close(nothing);
        }
        close_range(3, kHostChannel - 1, 0);
        unsetenv("LD_PRELOAD");
        if ((apart_ && !apart_->enter(place)) || (group_ && !group_->join())) {
            _exit(126);
        }
        const std::string actor = setting.programs + "/differential-actor",
                          sdrun = setting.programs + "/sdrun";
        if (user != geteuid() && (setgroups(0, nullptr) != 0 || setresgid(user, user, user) != 0 ||
                                  setresuid(user, user, user) != 0)) {
            _exit(126);
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a change of the user takes it back
        if (setting.users == Users::given_up) {
            setenv(kGivesUp, "60001", 1);
        }
        if (!accelerated) {
            execl(actor.c_str(), actor.c_str(), nullptr);
        } else {
            for (const std::string &entry : setting.environment) {
                putenv(const_cast<char *>(entry.c_str()));
            }
            setenv("SD_MONITOR", monitor_socket(setting).c_str(), 1);
            execl(sdrun.c_str(), sdrun.c_str(), "--no-monitor", actor.c_str(), nullptr);
        }
        _exit(127);
    }
    close(theirs);
    host_pids_.push_back(pid);
    return ours;
}

Side::~Side() {
    end_all();
    for (const pid_t pid : host_pids_) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
    }
    if (monitor_ > 0) {
        kill(monitor_, SIGTERM);
        waitpid(monitor_, nullptr, 0);
    }
    for (const int fd : hosts_) {
        close(fd);
    }
    for (const Channel &channel : channels_) {
        for (const int fd : {channel.ours, channel.theirs, channel.mail_in, channel.mail_out}) {
            close(fd);
        }
    }
    if (bridges_ >= 0) {
        close(bridges_);
    }
    close_monitor_threads();
}

} // namespace sd::differential
