// sd-monitor: options, logging, signals, and the service manager.
#include "monitor/operations/monitor.hpp"
#include "monitor/service/config.hpp"
#include "monitor/service/control_socket.hpp"
#include "monitor/service/journal.hpp"
#include "monitor/service/metrics_server.hpp"
#include "monitor/service/profiles.hpp"
#include "monitor/tools/command_line.hpp"
#include "monitor/tools/paths.hpp"

#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

namespace {

using namespace sd::monitor;

struct Options {
    std::string config, socket, bridge_socket, peers_socket;
    bool private_mode = false, all_users = false, check = false;
};

void start_logging(const std::string &level) {
    if (secure_getenv("JOURNAL_STREAM") != nullptr) {
        spdlog::set_default_logger(spdlog::systemd_logger_st("sd-monitor"));
        use_journal();
    } else {
        spdlog::set_default_logger(spdlog::stderr_logger_st("sd-monitor"));
        spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e sd-monitor[%P] %l: %v");
    }
    spdlog::set_level(spdlog::level::from_str(level));
}

/// Which file to read: the one asked for, else the usual one, whether it is there or not.
std::string config_file(const Options &options) {
    if (!options.config.empty()) {
        return options.config;
    }
    std::string usual = kSystemConfig;
    if (options.private_mode) {
        const char *base = secure_getenv("XDG_CONFIG_HOME");
        const char *home = secure_getenv("HOME");
        usual = base != nullptr && *base == '/' ? base : std::string(home == nullptr ? "" : home) + "/.config";
        usual += "/socksdirect/sd-monitor.toml";
    }
    return usual;
}

Config configure(const Options &options) {
    Config config;
    if (options.private_mode) {
        char path[kMaxPath];
        if (private_socket(path)) {
            config.socket = path;
        }
    } else {
        config.socket = kSystemSocket;
        config.containers_socket = options.socket.empty() ? kContainersSocket : "";
    }
    // Users are not kept apart when they talk over TCP either, so the system's monitor connects them all. To
    // a private one they come as programs that root has started and that have become somebody else.
    config.all_users = geteuid() == 0 || options.all_users;
    config.bridge_socket = options.bridge_socket;
    config.peers_socket = options.peers_socket;
    config.policy.fallback = config.all_users ? Verdict::allow : Verdict::same_user;
    const std::string file = config_file(options);
    if (!options.config.empty() || access(file.c_str(), F_OK) == 0) {
        config = load_config(file, config);
    }
    config.policy.profiles =
        load_profiles(file.substr(0, file.rfind('/') + 1) + "profiles.d", !options.private_mode);
    if (!options.socket.empty()) {
        config.socket = options.socket;
    }
    if (config.socket.empty()) {
        throw ConfigError("the path of the private directory is too long for a socket; use --socket");
    }
    return config;
}

/// Makes the directory of the socket if it is one of ours to make.
void prepare_directory(const Options &options, const std::string &socket) {
    const std::string directory = socket.substr(0, socket.rfind('/'));
    char own[kMaxPath];
    if (options.private_mode && private_directory(own) && directory == own) {
        if (const int error = make_private_directory(own); error != 0) {
            throw SocketError(directory + (error == EPERM ? ": is not a directory of mode 0700 of this user"
                                                          : ": cannot be made"));
        }
    } else if (socket == kSystemSocket) {
        mkdir(directory.c_str(), 0755);
    }
}

/// A private monitor has the limits of the program that was started first, which were not meant for it.
void raise_limits() {
    for (const auto resource : {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_DATA, RLIMIT_CPU}) {
        rlimit limit;
        if (getrlimit(resource, &limit) == 0) {
            limit.rlim_cur = limit.rlim_max;
            setrlimit(resource, &limit);
        }
    }
}

/// Remembers whether anything was logged that somebody may want to read.
class TroubleSink : public spdlog::sinks::base_sink<std::mutex> {
  public:
    bool seen() const { return seen_; }

  protected:
    void sink_it_(const spdlog::details::log_msg &message) override {
        seen_ = seen_ || message.level >= spdlog::level::warn;
    }
    void flush_() override {}

  private:
    bool seen_ = false;
};

/// A private monitor that ends in order, and has nothing to complain of, leaves no log file behind.
void drop_log(const std::string &socket) {
    const std::string directory = socket.substr(0, socket.rfind('/') + 1);
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/fd/2", path, sizeof path);
    if (n > 0 && std::string(path, static_cast<size_t>(n)) == directory + "monitor.log") {
        unlink((directory + "monitor.log").c_str());
    }
}

constexpr const char *kStoredName = "listeners";

/// What the service manager hands over: the socket, and what a former monitor has had it keep.
struct Inherited {
    UniqueFd socket, containers_socket, listeners;
    bool by_service_manager = false; ///< it says which sockets there are
};

/// Does this socket listen at the path?
bool is_at(int fd, const std::string &path) {
    sockaddr_un name{};
    socklen_t length = sizeof name;
    return getsockname(fd, reinterpret_cast<sockaddr *>(&name), &length) == 0 && name.sun_family == AF_UNIX &&
           path == std::string(name.sun_path, strnlen(name.sun_path, sizeof name.sun_path));
}

Inherited take_inherited(const Config &config) {
    Inherited result;
    char **names = nullptr;
    const int count = sd_listen_fds_with_names(0, &names);
    for (int i = 0; i < count; ++i) {
        UniqueFd fd(SD_LISTEN_FDS_START + i);
        if (strcmp(names[i], kStoredName) == 0) {
            result.listeners = std::move(fd);
        } else if (!config.containers_socket.empty() && is_at(fd.get(), config.containers_socket)) {
            result.containers_socket = std::move(fd);
        } else if (!result.socket) {
            result.socket = std::move(fd);
            result.by_service_manager = true;
        }
        free(names[i]);
    }
    free(names);
    return result;
}

/// Under a service manager that keeps descriptors; none elsewhere.
UniqueFd file_for_listeners(UniqueFd former) {
    if (former) {
        return former;
    }
    UniqueFd file;
    if (secure_getenv("NOTIFY_SOCKET") != nullptr) {
        file.reset(memfd_create("sd-kept-listeners", MFD_CLOEXEC));
        const int fd = file.get();
        if (fd < 0 || sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDNAME=listeners", &fd, 1) <= 0) {
            file.reset();
        }
    }
    return file;
}

void feed_watchdog(EventLoop &loop, std::chrono::milliseconds period) {
    sd_notify(0, "WATCHDOG=1");
    loop.after(period, [&loop, period] { feed_watchdog(loop, period); });
}

/// What has changed and cannot be applied to what runs, one line for each.
std::vector<std::string> left_for_later(const Config &before, const Config &now) {
    std::vector<std::string> lines;
    if (before.socket != now.socket || before.containers_socket != now.containers_socket) {
        lines.emplace_back("the place of a socket holds from the next start of sd-monitor on");
    }
    if (before.limits.per_user != now.limits.per_user || before.limits.per_cgroup != now.limits.per_cgroup ||
        before.limits.clients != now.limits.clients) {
        lines.emplace_back("limits of all clients, of users and of control groups hold from the next start "
                           "of sd-monitor on");
    }
    const auto own = [](const Config &config) {
        std::vector<std::tuple<std::string, std::optional<sd::wire::Spin>, std::optional<unsigned>>> list;
        for (const Profile &profile : config.policy.profiles) {
            list.emplace_back(profile.file, profile.spin, profile.most_ring);
        }
        return list;
    };
    if (own(before) != own(now)) {
        lines.emplace_back("spin and buffer of profiles hold for programs from their next start on");
    }
    return lines;
}

/// SIGHUP: the configuration is read again. What is wrong with it is said, and changes nothing.
void reload(const Options &options, Config &current, Monitor &monitor) {
    sd_notify(0, "RELOADING=1");
    try {
        Config config = configure(options);
        spdlog::set_level(spdlog::level::from_str(config.log_level));
        spdlog::info("{} is in force for new connections",
                     config.file.empty() ? "default policy" : "policy of " + config.file);
        for (const std::string &line : left_for_later(current, config)) {
            spdlog::info("{}", line);
        }
        current = config;
        monitor.reconfigure(std::move(config));
    } catch (const ConfigError &error) {
        spdlog::error("the configuration stays as it was: {}", error.what());
    }
    sd_notify(0, "READY=1");
}

/// Where they cannot be offered, programs are served all the same.
std::unique_ptr<MetricsServer> offer_metrics(const Config &config, EventLoop &loop, Monitor &monitor) {
    if (config.metrics.listen.empty()) {
        return nullptr;
    }
    try {
        return std::make_unique<MetricsServer>(loop, listen_for_metrics(config.metrics.listen),
                                               [&monitor] { return monitor.metrics(); });
    } catch (const std::runtime_error &error) {
        spdlog::error("no metrics: {}", error.what());
        return nullptr;
    }
}

/// The socket of containers. Where it cannot be had, the host's programs are served all the same.
std::unique_ptr<ControlSocket> open_for_containers(const Config &config, Inherited &inherited) {
    if (inherited.containers_socket) {
        return std::make_unique<ControlSocket>(inherited.containers_socket.release());
    }
    if (config.containers_socket.empty() || inherited.by_service_manager) {
        return nullptr;
    }
    const std::string directory = config.containers_socket.substr(0, config.containers_socket.rfind('/'));
    mkdir(directory.c_str(), 0755);
    try {
        // Not in the directory: root of a container could lock it there.
        return std::make_unique<ControlSocket>(config.containers_socket, 0666, directory + ".lock");
    } catch (const SocketError &error) {
        spdlog::error("no socket for containers: {}", error.what());
        return nullptr;
    }
}

/// sdrun's lock is this process's standard input: it holds back others that would start a monitor. They find
/// this one's socket now.
void let_others_start() {
    const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (null) {
        dup2(null.get(), STDIN_FILENO);
    }
}

int run(const Options &options, const Config &config) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (!options.private_mode) {
        sigaddset(&signals, SIGHUP);
    }
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    signal(SIGPIPE, SIG_IGN);
    if (options.private_mode) {
        signal(SIGHUP, SIG_IGN); // of the terminal where it was started
    }
    signal(SIGCHLD, SIG_IGN); // sd-bridge is not waited for
    UniqueFd signal_fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    signal(SIGXFSZ, SIG_IGN); // where files may not grow, clients are told that there is no memory
    raise_limits();

    const auto trouble = std::make_shared<TroubleSink>();
    spdlog::default_logger()->sinks().push_back(trouble);

    EventLoop loop;
    std::unique_ptr<ControlSocket> socket;
    Inherited inherited = take_inherited(config);
    if (inherited.socket) {
        socket = std::make_unique<ControlSocket>(inherited.socket.release());
    } else {
        prepare_directory(options, config.socket);
        socket = std::make_unique<ControlSocket>(config.socket,
                                                 options.private_mode || !config.all_users ? 0600 : 0666);
    }
    const std::unique_ptr<ControlSocket> containers = open_for_containers(config, inherited);
    if (options.private_mode) {
        let_others_start();
    }
    Monitor monitor(loop, config, socket->path(), options.private_mode);
    Config current = config;
    loop.add(signal_fd.get(), EPOLLIN, [&](uint32_t) {
        signalfd_siginfo received{};
        if (read(signal_fd.get(), &received, sizeof received) != sizeof received) {
            return;
        }
        if (received.ssi_signo == SIGHUP) {
            reload(options, current, monitor);
            return;
        }
        spdlog::info("asked to end");
        loop.stop();
    });
    if (UniqueFd file = file_for_listeners(std::move(inherited.listeners))) {
        monitor.keep_listeners(std::move(file));
    }
    const std::unique_ptr<MetricsServer> metrics = offer_metrics(config, loop, monitor);
    monitor.serve(socket->fd(), containers ? containers->fd() : -1);
    spdlog::info("version {} at {}, {}", SD_VERSION, socket->path(),
                 config.file.empty() ? "default policy" : "policy of " + config.file);
    sd_notify(0, "READY=1");
    uint64_t watchdog_us = 0;
    if (sd_watchdog_enabled(0, &watchdog_us) > 0) {
        feed_watchdog(loop, std::chrono::milliseconds(watchdog_us / 2000));
    }
    loop.run();
    sd_notify(0, "STOPPING=1");
    monitor.write_listeners();
    monitor.announce_end();
    if (options.private_mode && !trouble->seen()) {
        drop_log(config.socket);
    }
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("The SocksDirect monitor: brings programs on this host together over shared memory.",
                 "sd-monitor");
    app.add_option("--config", options.config, "configuration file")->type_name("FILE");
    app.add_option("--socket", options.socket, "where to listen")->type_name("PATH");
    app.add_flag("--all-users", options.all_users, "serve all users, as root's monitor does");
    app.add_option("--bridge-socket", options.bridge_socket, "have the service manager start sd-bridge there")
        ->type_name("PATH");
    app.add_option("--peers-socket", options.peers_socket, "have the service manager start sd-peers there")
        ->type_name("PATH");
    app.add_flag("--private", options.private_mode, "serve this user only, and end when nobody uses it any more");
    app.add_flag("--check", options.check, "only check the configuration");
    app.set_version_flag("--version", "sd-monitor " SD_VERSION);
    app.failure_message([](const CLI::App *, const CLI::Error &error) {
        return "sd-monitor: " + std::string(error.what()) + "\nsd-monitor --help shows the options\n";
    });
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return sd::tools::end_of_parsing(app, error, "sd-monitor", 2);
    }
    if (getauxval(AT_SECURE) != 0) { // options name files, and clients believe its user
        fprintf(stderr, "sd-monitor: not to be installed set-user-ID, or with capabilities\n");
        return 2;
    }
    try {
        const Config config = configure(options);
        if (options.check) {
            printf("%s: ok, %zu rules, %zu profiles\n",
                   config.file.empty() ? "built-in defaults" : config.file.c_str(),
                   config.policy.rules.size(), config.policy.profiles.size());
            return 0;
        }
        start_logging(config.log_level);
        return run(options, config);
    } catch (const ConfigError &error) {
        fprintf(stderr, "sd-monitor: %s\n", error.what());
        return 2;
    } catch (const std::exception &error) {
        fprintf(stderr, "sd-monitor: %s\n", error.what());
        return 1;
    }
}
