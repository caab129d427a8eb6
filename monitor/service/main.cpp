// sd-monitor: options, logging, signals, and the service manager.
#include "monitor/operations/monitor.hpp"
#include "monitor/service/config.hpp"
#include "monitor/service/control_socket.hpp"
#include "monitor/tools/paths.hpp"

#include <CLI/CLI.hpp>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

namespace {

using namespace sd::monitor;

struct Options {
    std::string config, socket;
    bool private_mode = false, check = false;
};

void start_logging(const std::string &level) {
    if (secure_getenv("JOURNAL_STREAM") != nullptr) {
        spdlog::set_default_logger(spdlog::systemd_logger_st("sd-monitor"));
    } else {
        spdlog::set_default_logger(spdlog::stderr_logger_st("sd-monitor"));
        spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e sd-monitor[%P] %l: %v");
    }
    spdlog::set_level(spdlog::level::from_str(level));
}

/// Which file to read: the one asked for, else the usual one if it is there.
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
    return access(usual.c_str(), F_OK) == 0 ? usual : std::string();
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
    }
    // Users are not kept apart when they talk over TCP either, so root's monitor connects them all. To a
    // private one they come as programs that root has started and that have become somebody else.
    config.policy.fallback = geteuid() == 0 ? Verdict::allow : Verdict::same_user;
    if (const std::string file = config_file(options); !file.empty()) {
        config = load_config(file, config);
    }
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

void feed_watchdog(EventLoop &loop, std::chrono::milliseconds period) {
    sd_notify(0, "WATCHDOG=1");
    loop.after(period, [&loop, period] { feed_watchdog(loop, period); });
}

/// SIGHUP: the configuration is read again. What is wrong with it is said, and changes nothing.
void reload(const Options &options, Monitor &monitor) {
    sd_notify(0, "RELOADING=1");
    try {
        Config config = configure(options);
        spdlog::set_level(spdlog::level::from_str(config.log_level));
        spdlog::info("{} is in force for new connections",
                     config.file.empty() ? "default policy" : "policy of " + config.file);
        monitor.reconfigure(std::move(config));
    } catch (const ConfigError &error) {
        spdlog::error("the configuration stays as it was: {}", error.what());
    }
    sd_notify(0, "READY=1");
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
    if (sd_listen_fds(0) >= 1) {
        socket = std::make_unique<ControlSocket>(SD_LISTEN_FDS_START);
    } else {
        prepare_directory(options, config.socket);
        socket = std::make_unique<ControlSocket>(config.socket,
                                                 options.private_mode || geteuid() != 0 ? 0600 : 0666);
    }
    Monitor monitor(loop, config, socket->path(), options.private_mode);
    loop.add(signal_fd.get(), EPOLLIN, [&](uint32_t) {
        signalfd_siginfo received{};
        if (read(signal_fd.get(), &received, sizeof received) != sizeof received) {
            return;
        }
        if (received.ssi_signo == SIGHUP) {
            reload(options, monitor);
            return;
        }
        spdlog::info("asked to end");
        loop.stop();
    });
    monitor.serve(socket->fd());
    spdlog::info("version {} at {}, {}", SD_VERSION, socket->path(),
                 config.file.empty() ? "default policy" : "policy of " + config.file);
    sd_notify(0, "READY=1");
    uint64_t watchdog_us = 0;
    if (sd_watchdog_enabled(0, &watchdog_us) > 0) {
        feed_watchdog(loop, std::chrono::milliseconds(watchdog_us / 2000));
    }
    loop.run();
    sd_notify(0, "STOPPING=1");
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
    app.add_flag("--private", options.private_mode, "serve this user only, and end when nobody uses it any more");
    app.add_flag("--check", options.check, "only check the configuration");
    app.set_version_flag("--version", "sd-monitor " SD_VERSION);
    CLI11_PARSE(app, argc, argv);
    if (getauxval(AT_SECURE) != 0) { // options name files, and clients believe its user
        fprintf(stderr, "sd-monitor: not to be installed set-user-ID, or with capabilities\n");
        return 2;
    }
    try {
        const Config config = configure(options);
        if (options.check) {
            printf("%s: ok, %zu rules\n", config.file.empty() ? "built-in defaults" : config.file.c_str(),
                   config.policy.rules.size());
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
