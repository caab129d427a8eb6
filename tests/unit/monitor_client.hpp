// For tests of the monitor: a monitor process of one's own, and a client that says exactly what the test
// wants.
#pragma once
#include "libsd/layout/directory_layout.hpp"
#include "libsd/layout/protocol.hpp"
#include "libsd/layout/segment_layout.hpp"
#include "monitor/kernel/shared_memory.hpp"
#include "monitor/tools/paths.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <netinet/in.h>
#include <poll.h>
#include <set>
#include <stdexcept>
#include <string>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <vector>

namespace sd::test {

using monitor::Mapping;
using monitor::UniqueFd;

/// The line of /proc/PID/status that begins with `name`, without it.
inline std::string status_line(pid_t pid, const std::string &name) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind(name + ":", 0) == 0) {
            const size_t value = line.find_first_not_of(" \t", name.size() + 1);
            return value == std::string::npos ? "" : line.substr(value);
        }
    }
    return {};
}

inline std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> result;
    for (const auto &entry : std::filesystem::directory_iterator("/proc")) {
        const auto pid = static_cast<pid_t>(atoi(entry.path().filename().c_str()));
        if (pid > 0 && status_line(pid, "PPid") == std::to_string(parent)) {
            result.push_back(pid);
        }
    }
    return result;
}

/// Runs sd-monitor at a socket in a temporary directory until the object goes.
class MonitorProcess {
  public:
    explicit MonitorProcess(std::vector<std::string> arguments = {}) {
        char name[] = "/tmp/sd-monitor-test-XXXXXX";
        if (mkdtemp(name) == nullptr) {
            throw std::runtime_error("mkdtemp");
        }
        directory = name;
        socket = directory + "/monitor.sock";
        start(std::move(arguments));
    }
    ~MonitorProcess() {
        if (pid > 0) {
            // A bridge whose peer has ended unnoticed waits for the next monitor, and would keep our output
            // open.
            kill(pid, SIGSTOP);
            const std::vector<pid_t> helpers = children_of(pid);
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
            for (const pid_t helper : helpers) {
                kill(helper, SIGKILL);
            }
        }
        for (const char *file : {"/monitor.sock", "/monitor.sock.lock", "/monitor.toml", "/log"}) {
            unlink((directory + file).c_str());
        }
        rmdir(directory.c_str());
    }
    /// `before`: what its process does before it becomes the monitor.
    void start(std::vector<std::string> arguments = {}, const std::function<void()> &before = {}) {
        arguments.insert(arguments.begin(), {SD_MONITOR_PROGRAM, "--socket", socket});
        pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const int log = open((directory + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
            dup2(log, 2);
            if (before) {
                before();
            }
            std::vector<char *> argv;
            for (auto &a : arguments) {
                argv.push_back(a.data());
            }
            argv.push_back(nullptr);
            execv(argv[0], argv.data());
            _exit(127);
        }
        for (int i = 0; i < 60000; ++i) { // a busy machine may not run it for seconds
            if (const int fd = monitor::connect_monitor(socket.c_str()); fd >= 0) {
                close(fd);
                return;
            }
            usleep(1000);
        }
        throw std::runtime_error("the monitor does not answer");
    }
    void stop(int signal) {
        kill(pid, signal);
        waitpid(pid, nullptr, 0);
        pid = -1;
    }
    /// Exit status once it has ended by itself.
    int wait() {
        int status = 0;
        waitpid(pid, &status, 0);
        pid = -1;
        return status;
    }
    std::string log() const {
        std::string text(1 << 16, '\0');
        UniqueFd fd(open((directory + "/log").c_str(), O_RDONLY));
        const ssize_t n = read(fd.get(), text.data(), text.size());
        text.resize(n > 0 ? static_cast<size_t>(n) : 0);
        return text;
    }

    std::string directory, socket;
    pid_t pid = -1;
};

struct Answer {
    bool closed = false; ///< the monitor closed the channel instead
    wire::Header header{};
    alignas(8) unsigned char body[wire::kMaxBody]{};
    std::vector<UniqueFd> fds;
    template <typename T> const T &as() const { return *reinterpret_cast<const T *>(body); }
};

class Channel {
  public:
    Channel() = default;
    explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}
    explicit Channel(const MonitorProcess &monitor) : fd_(monitor::connect_monitor(monitor.socket.c_str())) {}
    int fd() const { return fd_.get(); }
    void close() { fd_.reset(); }
    /// Sends any bytes as one packet.
    bool raw(const void *bytes, size_t length, const std::vector<int> &fds = {}) {
        iovec io{const_cast<void *>(bytes), length};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)]{};
        msghdr m{};
        m.msg_iov = &io;
        m.msg_iovlen = 1;
        if (!fds.empty()) {
            m.msg_control = control;
            m.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
            cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
            memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
        }
        return sendmsg(fd_.get(), &m, MSG_NOSIGNAL) == static_cast<ssize_t>(length);
    }
    Answer answer() {
        Answer a;
        iovec io[2] = {{&a.header, sizeof a.header}, {a.body, sizeof a.body}};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)]{};
        msghdr m{};
        m.msg_iov = io;
        m.msg_iovlen = 2;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        const ssize_t n = recvmsg(fd_.get(), &m, MSG_CMSG_CLOEXEC);
        if (n <= 0) {
            a.closed = true;
            return a;
        }
        for (cmsghdr *c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
            if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
                    int fd;
                    memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
                    a.fds.emplace_back(fd);
                }
            }
        }
        return a;
    }
    Answer ask(wire::Op op, const void *body, size_t length, const std::vector<int> &fds = {}) {
        wire::Packet packet{};
        packet.header.magic = wire::kMagic;
        packet.header.version = wire::kVersion;
        packet.header.op = static_cast<uint16_t>(op);
        packet.header.sequence = ++sequence_;
        packet.header.length = static_cast<uint16_t>(length);
        packet.header.fds = static_cast<uint32_t>(fds.size());
        memcpy(packet.body, body, length);
        if (!raw(&packet, sizeof packet.header + length, fds)) {
            Answer gone;
            gone.closed = true;
            return gone;
        }
        return answer();
    }
    /// A request that is not answered.
    template <typename T> bool tell(wire::Op op, const T &body, const std::vector<int> &fds = {}) {
        wire::Packet packet{};
        packet.header.magic = wire::kMagic;
        packet.header.version = wire::kVersion;
        packet.header.op = static_cast<uint16_t>(op);
        packet.header.sequence = wire::kNoAnswer;
        packet.header.length = sizeof body;
        packet.header.fds = static_cast<uint32_t>(fds.size());
        memcpy(packet.body, &body, sizeof body);
        return raw(&packet, sizeof packet.header + sizeof body, fds);
    }
    Answer ask(wire::Op op) { return ask(op, "", 0); }
    template <typename T> Answer ask(wire::Op op, const T &body, const std::vector<int> &fds = {}) {
        return ask(op, &body, sizeof body, fds);
    }

  private:
    UniqueFd fd_;
    uint32_t sequence_ = 0;
};

/// A family segment as libsd makes it.
struct TestSegment {
    UniqueFd fd;
    Mapping map;
    SegmentView view;
    explicit TestSegment(int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        : fd(monitor::make_memfd("test-segment", kSegmentBytes)), map(fd.get(), kSegmentBytes) {
        if (seals != 0) {
            monitor::seal(fd.get(), seals);
        }
        view.base = map.base();
        view.header().version = kLayoutVersion;
        view.header().bytes = kSegmentBytes;
        view.header().magic = kSegmentMagic;
        view.proc(0).state = 1;
        view.proc(0).pid = static_cast<uint32_t>(getpid());
    }
    void open(unsigned index, uint64_t link_id, uint32_t slot, unsigned side, unsigned proc = 0) {
        Ofd &ofd = view.ofd(index);
        ofd.link_id = link_id;
        ofd.slot = slot;
        ofd.side = static_cast<uint8_t>(side);
        ofd.state = static_cast<uint32_t>(OfdState::open);
        view.proc(proc).held[index / 64].fetch_or(uint64_t{1} << index % 64);
    }
};

/// Something that has said hello.
struct TestProcess {
    TestSegment segment;
    UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    Channel channel;
    uint64_t id = 0;
    UniqueFd directory_fd;

    TestProcess() = default;
    explicit TestProcess(const MonitorProcess &monitor) { hello(monitor); }
    void hello(const MonitorProcess &monitor) {
        channel = Channel(monitor);
        const wire::Hello body{kLayoutVersion, static_cast<uint32_t>(getpid()), 0, 0};
        Answer a = channel.ask(wire::Op::hello, body, {segment.fd.get(), socket.get()});
        if (a.closed || a.header.status != 0 || a.fds.size() != 1) {
            throw std::runtime_error("hello failed");
        }
        id = a.as<wire::HelloReply>().client_id;
        directory_fd = std::move(a.fds[0]);
    }
    const Directory *directory() {
        void *p = mmap(nullptr, sizeof(Directory), PROT_READ, MAP_SHARED, directory_fd.get(), 0);
        return p == MAP_FAILED ? nullptr : static_cast<const Directory *>(p);
    }
};

/// A listening socket at 127.0.0.1. Its port is none that the kernel chooses for others, so that a test that
/// runs beside takes none that this one has just closed and binds again.
struct TestListener {
    UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    uint16_t port = 0;
    /// `any_port`: the kernel chooses the port, and chooses again when the socket is disconnected.
    explicit TestListener(bool any_port = false) {
        constexpr uint16_t kFirst = 10000, kPorts = 20000; // below ip_local_port_range
        static uint16_t next = static_cast<uint16_t>(getpid() * 64 % kPorts);
        sockaddr_in name{};
        name.sin_family = AF_INET;
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int status;
        do {
            name.sin_port = any_port ? 0 : htons(static_cast<uint16_t>(kFirst + next++ % kPorts));
            status = bind(fd.get(), reinterpret_cast<sockaddr *>(&name), sizeof name);
        } while (status != 0 && errno == EADDRINUSE);
        socklen_t length = sizeof name;
        if (status != 0 || ::listen(fd.get(), 16) != 0 ||
            getsockname(fd.get(), reinterpret_cast<sockaddr *>(&name), &length) != 0) {
            throw std::runtime_error("listen");
        }
        port = ntohs(name.sin_port);
    }
};

struct TestLink {
    UniqueFd fd;
    Mapping map;
    LinkView view;
    explicit TestLink(UniqueFd memfd) : fd(std::move(memfd)), map(fd.get(), kLinkMapped) {
        view.base = map.base();
    }
};

inline const DirectoryEntry *find_entry(const Directory *directory, uint16_t port) {
    uint32_t i = directory_hash(port);
    for (unsigned n = 0; n < kDirectoryEntries; ++n, i = (i + 1) % kDirectoryEntries) {
        const DirectoryEntry &entry = directory->entry[i];
        if (entry.used.load() == 0) {
            return nullptr;
        }
        if (entry.id.load() != 0 && entry.port == port) {
            return &entry;
        }
    }
    return nullptr;
}

/// Whether an eventfd gets written within a generous time.
inline bool rang(int eventfd) {
    pollfd p{eventfd, POLLIN, 0};
    uint64_t n;
    return poll(&p, 1, 5000) == 1 && read(eventfd, &n, sizeof n) == sizeof n;
}

/// Where each descriptor of the process leads; "": it was gone by then.
inline std::vector<std::string> descriptor_paths(pid_t pid) {
    std::vector<std::string> result;
    for (const auto &each : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        std::error_code gone;
        result.push_back(std::filesystem::read_symlink(each.path(), gone));
    }
    return result;
}

template <typename Condition> bool eventually(Condition condition) {
    for (int i = 0; i < 20000; ++i) {
        if (condition()) {
            return true;
        }
        usleep(1000);
    }
    return false;
}

} // namespace sd::test
