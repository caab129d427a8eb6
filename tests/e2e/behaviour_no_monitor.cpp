// Programs that find no monitor, or one that is of no use: they run as if libsd were not there.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

#include <atomic>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace sd::e2e {

namespace {

// A listening socket where libsd looks for the monitor, which treats what it gets as told.
class FakeMonitor {
  public:
    enum class Manner {
        never_accepts,  // as a stopped monitor
        hangs_up,       // accepts and closes
        never_answers,  // reads and says nothing
        other_version,  // the right form with another version and EPROTO, as an old monitor would
        talks_nonsense, // bytes that mean nothing
        is_a_stream     // another type of socket altogether
    };

    FakeMonitor(const std::string &path, Manner manner) : manner_(manner) {
        const int type = manner == Manner::is_a_stream ? SOCK_STREAM : SOCK_SEQPACKET;
        listener_ = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        REQUIRE(path.size() < sizeof name.sun_path);
        std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
        REQUIRE(bind(listener_, reinterpret_cast<const sockaddr *>(&name), sizeof name) == 0);
        REQUIRE(chmod(path.c_str(), 0666) == 0);
        REQUIRE(listen(listener_, 64) == 0);
        if (manner != Manner::never_accepts) {
            thread_ = std::thread([this] { serve(); });
        }
    }

    ~FakeMonitor() {
        stop_ = true;
        if (thread_.joinable()) {
            thread_.join();
        }
        for (const pollfd &entry : open_) {
            if (entry.fd != listener_) {
                close(entry.fd);
            }
        }
        close(listener_);
    }

  private:
    void serve() {
        open_.push_back({listener_, POLLIN, 0});
        while (!stop_) {
            if (poll(open_.data(), open_.size(), 20) <= 0) {
                continue;
            }
            for (size_t i = open_.size(); i-- > 0;) {
                if (open_[i].revents == 0) {
                    continue;
                }
                if (i == 0) {
                    welcome(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
                } else if (!answer(open_[i].fd)) {
                    close(open_[i].fd);
                    open_.erase(open_.begin() + static_cast<long>(i));
                }
            }
        }
    }

    void welcome(int fd) {
        if (manner_ == Manner::hangs_up) {
            close(fd);
        } else if (fd >= 0) {
            open_.push_back({fd, POLLIN, 0});
        }
    }

    // False: the channel is done with.
    bool answer(int fd) {
        unsigned char packet[2048];
        const ssize_t got = recv(fd, packet, sizeof packet, 0); // descriptors that come along are dropped
        if (got <= 0) {
            return false;
        }
        if (manner_ == Manner::never_answers) {
            return true;
        }
        if (manner_ == Manner::other_version && got >= 24) {
            // magic(4) version(2) op(2) sequence(4) status(4) cause(2) length(2) descriptors(4)
            const uint16_t version = 0, nothing = 0;
            const int32_t status = -EPROTO;
            const uint32_t none = 0;
            std::memcpy(packet + 4, &version, 2);
            std::memcpy(packet + 12, &status, 4);
            std::memcpy(packet + 16, &nothing, 2);
            std::memcpy(packet + 18, &nothing, 2);
            std::memcpy(packet + 20, &none, 4);
            send(fd, packet, 24, MSG_NOSIGNAL);
            return false;
        }
        std::memset(packet, 0x5a, sizeof packet);
        send(fd, packet, 600, MSG_NOSIGNAL);
        return true;
    }

    Manner manner_;
    int listener_;
    std::atomic<bool> stop_{false};
    std::vector<pollfd> open_;
    std::thread thread_;
};

// A selection that touches connecting, data, readiness, listeners, fork and threads.
constexpr const char *kSelection[][2] = {
    {"addresses", "ipv4"},
    {"addresses", "mapped_server"},
    {"connecting", "refused"},
    {"io_calls", "read_write"},
    {"ending", "shut_write"},
    {"reset", "unread_data_read_first"},
    {"options", "kinds"},
    {"epoll_basics", "level"},
    {"waiting", "mixed_kinds"},
    {"accepting", "readiness"},
    {"processes", "prefork"},
    {"threads", "several_writers"},
    {"images", "exec_keeps_connection"},
};

void same_without_monitor(const std::string &monitor) {
    const TemporaryDirectory directory;
    for (const auto &[name, behaviour] : kSelection) {
        INFO(name << " " << behaviour << " with SD_MONITOR=" << monitor);
        Process oracle({program(name), behaviour}, Mode::kernel);
        const Outcome kernel = oracle.finish();
        require_success(kernel);
        const std::string statistics = directory.file("statistics");
        Process process({program(name), behaviour}, self_check() ? Mode::kernel : Mode::preloaded,
                        {"SD_MONITOR=" + monitor, "SD_STATS_FILE=" + statistics});
        const Outcome other = process.finish();
        const Statistics sum = read_statistics(statistics);
        INFO("statistics:\n" << sum.text << "errors:\n" << other.errors);
        CHECK(difference(kernel.output, other.output) == "");
        require_success(other);
        CHECK(sum.connects + sum.accepts == 0);
    }
}

void same_with(FakeMonitor::Manner manner) {
    const TemporaryDirectory directory;
    REQUIRE(chmod(directory.path().c_str(), 0755) == 0);
    const FakeMonitor monitor(directory.file("monitor.sock"), manner);
    same_without_monitor(directory.file("monitor.sock"));
}

} // namespace

TEST_CASE("no monitor: SD_MONITOR points nowhere", "[monitor]") {
    const TemporaryDirectory directory;
    same_without_monitor(directory.file("nothing-here.sock"));
}

TEST_CASE("no monitor: a path that cannot be walked", "[monitor]") {
    const TemporaryDirectory directory;
    REQUIRE(symlink("loop", directory.file("loop").c_str()) == 0);
    same_without_monitor("/dev/null/monitor.sock");
    same_without_monitor(directory.file("loop/monitor.sock"));
}

TEST_CASE("no monitor: a directory that may not be read", "[monitor]") {
    const TemporaryDirectory directory;
    const std::string closed = directory.file("closed");
    REQUIRE(mkdir(closed.c_str(), 0) == 0); // for root this is just a missing socket
    same_without_monitor(closed + "/monitor.sock");
}

TEST_CASE("no monitor: a path too long for a socket", "[monitor]") {
    same_without_monitor("/tmp/" + std::string(300, 'x'));
}

TEST_CASE("no monitor: a socket file nobody listens on", "[monitor]") {
    const TemporaryDirectory directory;
    { const FakeMonitor gone(directory.file("monitor.sock"), FakeMonitor::Manner::never_accepts); }
    same_without_monitor(directory.file("monitor.sock"));
}

TEST_CASE("useless monitor: hangs up", "[monitor]") { same_with(FakeMonitor::Manner::hangs_up); }
TEST_CASE("useless monitor: another protocol version", "[monitor]") {
    same_with(FakeMonitor::Manner::other_version);
}
TEST_CASE("useless monitor: talks nonsense", "[monitor]") { same_with(FakeMonitor::Manner::talks_nonsense); }
TEST_CASE("useless monitor: another type of socket", "[monitor]") {
    same_with(FakeMonitor::Manner::is_a_stream);
}
TEST_CASE("useless monitor: never accepts", "[monitor]") { same_with(FakeMonitor::Manner::never_accepts); }
TEST_CASE("useless monitor: never answers", "[monitor]") { same_with(FakeMonitor::Manner::never_answers); }

} // namespace sd::e2e
