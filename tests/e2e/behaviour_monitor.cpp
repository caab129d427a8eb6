// What happens around the life of the monitor: it dies and comes back, programs die, the last user leaves.
#include "tests/e2e/runner.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace sd::e2e {

namespace {

using namespace std::chrono_literals;

bool eventually(const std::function<bool()> &condition, std::chrono::seconds limit = 10s) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > deadline) {
            return false;
        }
        std::this_thread::sleep_for(10ms);
    }
    return true;
}

bool somebody_listens(const std::string &path) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, path.c_str(), std::min(path.size(), sizeof name.sun_path - 1));
    const bool there = connect(fd, reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0;
    close(fd);
    return there;
}

// A monitor of the test's own.
class Monitor {
  public:
    explicit Monitor(const std::string &path) : path_(path) { start(); }

    void start() {
        process_ = std::make_unique<Process>(
            std::vector<std::string>{build_file("sd-monitor"), "--socket", path_}, Mode::kernel);
        REQUIRE(eventually([this] { return somebody_listens(path_); }));
    }

    void kill() { process_.reset(); } // SIGKILL

    long descriptors() const {
        long count = 0;
        for ([[maybe_unused]] const auto &entry :
             std::filesystem::directory_iterator("/proc/" + std::to_string(process_->pid()) + "/fd")) {
            ++count;
        }
        return count;
    }

  private:
    std::string path_;
    std::unique_ptr<Process> process_;
};

// The parts of tests/programs/dialogue.cpp, preloaded and pointed at a monitor.
class Stage {
  public:
    std::unique_ptr<Process> start(const std::string &role, const std::string &scene) {
        statistics_ = directory_.file("statistics-" + std::to_string(++runs_));
        return std::make_unique<Process>(
            std::vector<std::string>{program("dialogue"), role, scene, directory_.file("port")}, Mode::preloaded,
            std::vector<std::string>{"SD_MONITOR=" + monitor_path(), "SD_STATS_FILE=" + statistics_});
    }

    /// Plays a client's part to its end; how many of its connections were accelerated.
    long play(const std::string &scene) {
        const auto client = start("client", scene);
        const std::string statistics = statistics_;
        require_success(client->finish());
        return read_statistics(statistics).connects;
    }

    std::string monitor_path() const { return directory_.file("monitor.sock"); }
    void sign(const char *name) const { std::ofstream(directory_.file("port") + name); }
    void clear() const {
        for (const char *name : {"", ".held", ".go"}) {
            std::filesystem::remove(directory_.file("port") + name);
        }
    }
    bool has_sign(const char *name) const { return std::filesystem::exists(directory_.file("port") + name); }

  private:
    TemporaryDirectory directory_;
    std::string statistics_;
    int runs_ = 0;
};

} // namespace

TEST_CASE("monitor: connections outlive it, and new ones are accelerated when it is back", "[monitor]") {
    if (self_check()) {
        SKIP_TEST("needs libsd");
    }
    Stage stage;
    Monitor monitor(stage.monitor_path());
    const auto server = stage.start("server", "steady");
    CHECK(stage.play("steady") > 0);
    const auto held = stage.start("client", "held");
    REQUIRE(eventually([&] { return stage.has_sign(".held"); }));
    monitor.kill();
    stage.play("steady"); // by whatever way
    stage.sign(".go");
    require_success(held->finish());
    monitor.start();
    CHECK(eventually([&] { return stage.play("steady") > 0; }));
    stage.play("quit");
    require_success(server->finish());
}

TEST_CASE("monitor: one that appears later is found", "[monitor]") {
    if (self_check()) {
        SKIP_TEST("needs libsd");
    }
    Stage stage;
    const auto server = stage.start("server", "steady");
    CHECK(stage.play("steady") == 0);
    Monitor monitor(stage.monitor_path());
    CHECK(eventually([&] { return stage.play("steady") > 0; }));
    stage.play("quit");
    require_success(server->finish());
}

TEST_CASE("monitor: nothing stays behind after SIGKILL of both ends", "[monitor]") {
    if (self_check()) {
        SKIP_TEST("needs libsd");
    }
    Stage stage;
    Monitor monitor(stage.monitor_path());
    std::this_thread::sleep_for(100ms); // until it has seen our looking for it end
    const long idle = monitor.descriptors();
    long settled = 0; // after the first round: the monitor keeps one descriptor it makes when first needed
    for (int i = 0; i < 5; ++i) {
        auto server = stage.start("server", "steady");
        REQUIRE(eventually([&] { return stage.has_sign(""); }));
        auto client = stage.start("client", "held");
        REQUIRE(eventually([&] { return stage.has_sign(".held"); }));
        CHECK(monitor.descriptors() > settled);
        i % 2 ? client.reset() : server.reset(); // SIGKILL
        client.reset();
        server.reset();
        if (i == 0) {
            std::this_thread::sleep_for(1s);
            settled = monitor.descriptors();
            CHECK(settled <= idle + 1);
        }
        CHECK(eventually([&] { return monitor.descriptors() == settled; }));
        stage.clear();
    }
}

TEST_CASE("monitor: a private one ends after its last user", "[monitor]") {
    if (self_check()) {
        SKIP_TEST("needs libsd");
    }
    const TemporaryDirectory directory;
    const std::string socket = directory.file("socksdirect-" + std::to_string(geteuid()) + "/monitor.sock");
    std::filesystem::permissions(directory.path(), std::filesystem::perms::owner_all);
    {
        Process sleeper({"/bin/sleep", "0.5"}, Mode::sdrun, {"XDG_RUNTIME_DIR=" + directory.path()});
        if (!eventually([&] { return somebody_listens(socket); }, 2s)) {
            require_success(sleeper.finish());
            SKIP_TEST("a system monitor serves this host");
        }
        require_success(sleeper.finish());
    }
    CHECK(eventually([&] { return !std::filesystem::exists(socket); }));
}

} // namespace sd::e2e
