// The monitor, and clients that send any packet with any descriptors: it answers or closes the channel, and
// stays.
#include "monitor/operations/monitor.hpp"
#include "monitor/service/event_loop.hpp"
#include "tests/fuzz/input.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

using namespace sd;
using monitor::UniqueFd;

namespace {

constexpr unsigned kChannels = 3;
constexpr unsigned kSteps = 48;

void must(bool ok) {
    if (!ok) {
        abort();
    }
}

UniqueFd sealed_memory(sdfuzz::Input &in, size_t bytes) {
    UniqueFd fd(memfd_create("fuzzed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    must(fd.get() >= 0 && ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
    std::array<char, 256> head{};
    const size_t n = in.fill(head.data(), std::min(bytes, size_t{in.take<uint8_t>()}));
    must(pwrite(fd.get(), head.data(), n, 0) == static_cast<ssize_t>(n));
    if (in.below(4) != 0) {
        fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    return fd;
}

/// A segment as an honest process would bring it.
UniqueFd segment() {
    UniqueFd fd(memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    must(fd.get() >= 0 && ftruncate(fd.get(), static_cast<off_t>(kSegmentBytes)) == 0);
    SegmentHeader header{};
    header.magic = kSegmentMagic;
    header.version = kLayoutVersion;
    header.bytes = kSegmentBytes;
    must(pwrite(fd.get(), &header, 32, 0) == 32);
    fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

UniqueFd tcp_listener() {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd.get() >= 0 && bind(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0) {
        listen(fd.get(), 4);
    }
    return fd;
}

UniqueFd descriptor(sdfuzz::Input &in, const std::vector<UniqueFd> &received) {
    int pair[2];
    switch (in.below(10)) {
    case 0:
        return segment();
    case 1:
        return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    case 2:
        return tcp_listener();
    case 3:
        return UniqueFd(eventfd(0, EFD_CLOEXEC | (in.below(2) != 0 ? EFD_NONBLOCK : 0)));
    case 4:
        must(pipe2(pair, O_CLOEXEC) == 0);
        close(pair[1]);
        return UniqueFd(pair[0]);
    case 5:
        must(socketpair(AF_UNIX, in.below(2) != 0 ? SOCK_SEQPACKET : SOCK_STREAM, 0, pair) == 0);
        close(pair[1]);
        return UniqueFd(pair[0]);
    case 6:
        return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC));
    case 7:
        return sealed_memory(in, kLinkBytes);
    case 8:
        if (!received.empty()) {
            return UniqueFd(
                fcntl(received[in.below(static_cast<unsigned>(received.size()))].get(), F_DUPFD_CLOEXEC, 0));
        }
        return segment();
    default:
        return sealed_memory(in, 4096);
    }
}

class Server {
  public:
    Server() {
        spdlog::set_level(spdlog::level::off);
        listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        address_.sun_family = AF_UNIX;
        const int n = snprintf(address_.sun_path + 1, sizeof address_.sun_path - 1, "sd-fuzz-%d", getpid());
        length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
        must(bind(listener_.get(), reinterpret_cast<sockaddr *>(&address_), length_) == 0 &&
             listen(listener_.get(), 16) == 0);
        monitor::Config config;
        config.limits.links_per_client = 8;
        monitor_ = std::make_unique<monitor::Monitor>(loop_, config, "fuzzed", false);
        monitor_->serve(listener_.get());
    }
    UniqueFd connect() {
        UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        must(::connect(fd.get(), reinterpret_cast<sockaddr *>(&address_), length_) == 0);
        return fd;
    }
    /// Does what there is to do by now: accepts, hears, and begins to end what has gone.
    void work() {
        for (int turn = 0; turn < 3; ++turn) {
            loop_.soon([] {}); // so that it does not wait
            loop_.step();
        }
    }

  private:
    monitor::EventLoop loop_;
    UniqueFd listener_;
    sockaddr_un address_{};
    socklen_t length_ = 0;
    std::unique_ptr<monitor::Monitor> monitor_;
};

void read_replies(int channel, std::vector<UniqueFd> &received, std::vector<uint64_t> &words) {
    for (;;) {
        alignas(8) std::array<char, wire::kMaxBody + sizeof(wire::Header)> packet{};
        alignas(cmsghdr) std::array<char, CMSG_SPACE(wire::kMaxFds * sizeof(int))> control{};
        iovec io{packet.data(), packet.size()};
        msghdr message{};
        message.msg_iov = &io;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        const ssize_t n = recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n <= 0) {
            return;
        }
        must(n >= static_cast<ssize_t>(sizeof(wire::Header)));
        for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
            if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                for (size_t k = 0; k * sizeof(int) < c->cmsg_len - CMSG_LEN(0); ++k) {
                    int fd;
                    memcpy(&fd, CMSG_DATA(c) + k * sizeof fd, sizeof fd);
                    if (received.size() < 16) {
                        received.emplace_back(fd);
                    } else {
                        close(fd);
                    }
                }
            }
        }
        // Names that the monitor gives are used in later requests.
        for (size_t k = sizeof(wire::Header); k + 8 <= static_cast<size_t>(n) && words.size() < 32; k += 8) {
            uint64_t word;
            memcpy(&word, packet.data() + k, sizeof word);
            words.push_back(word);
        }
    }
}

void send_packet(int channel, sdfuzz::Input &in, std::vector<UniqueFd> &received,
                 const std::vector<uint64_t> &words) {
    alignas(8) std::array<unsigned char, sizeof(wire::Header) + wire::kMaxBody> packet{};
    wire::Header header{};
    header.magic = in.below(50) != 0 ? wire::kMagic : in.take<uint32_t>();
    header.version = in.below(50) != 0 ? wire::kVersion : in.take<uint16_t>();
    header.op = in.below(20) != 0 ? static_cast<uint16_t>(1 + in.below(40)) : in.take<uint16_t>();
    header.sequence = in.below(8) != 0 ? 1 + in.below(200) : 0;
    const unsigned length = in.below(static_cast<unsigned>(std::min<size_t>(wire::kMaxBody, 255)));
    header.length = in.below(30) != 0 ? static_cast<uint16_t>(length) : in.take<uint16_t>();
    unsigned char *body = packet.data() + sizeof header;
    in.fill(body, length);
    for (unsigned k = 0; k + 8 <= length; k += 8) {
        if (const unsigned how = in.below(8); how < 4 && !words.empty()) {
            const uint64_t word = words[in.below(static_cast<unsigned>(words.size()))];
            memcpy(body + k, &word, sizeof word);
        }
    }
    const unsigned fds = in.below(4);
    header.fds = in.below(30) != 0 ? fds : in.take<uint8_t>();
    memcpy(packet.data(), &header, sizeof header);
    iovec io{packet.data(), in.below(40) != 0 ? sizeof header + length : in.below(200)};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
    std::vector<UniqueFd> passed;
    if (fds != 0) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fds * sizeof(int));
        for (unsigned k = 0; k < fds; ++k) {
            passed.push_back(descriptor(in, received));
            if (passed.back().get() < 0) {
                return;
            }
            const int fd = passed.back().get();
            memcpy(CMSG_DATA(c) + k * sizeof fd, &fd, sizeof fd);
        }
    }
    (void)sendmsg(channel, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Server server;
    sdfuzz::Input in(data, size);
    std::array<UniqueFd, kChannels> channel;
    std::vector<UniqueFd> received;
    std::vector<uint64_t> words;
    for (unsigned step = 0; step < kSteps && !in.empty(); ++step) {
        UniqueFd &c = channel[in.below(kChannels)];
        if (c.get() < 0) {
            c = server.connect();
        } else if (in.below(24) == 0) {
            c = UniqueFd();
        }
        if (c.get() >= 0) {
            send_packet(c.get(), in, received, words);
        }
        server.work();
        for (const UniqueFd &each : channel) {
            if (each.get() >= 0) {
                read_replies(each.get(), received, words);
            }
        }
    }
    for (UniqueFd &each : channel) {
        each = UniqueFd();
    }
    received.clear();
    server.work();
    return 0;
}
