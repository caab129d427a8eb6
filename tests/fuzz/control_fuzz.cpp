// The monitor, and clients that send any packet with any descriptors: it answers or closes the channel, and
// stays. There are some monitors with settings of their own: the input's last byte says to which it goes.
#include "libsd/layout/pool_layout.hpp"
#include "monitor/operations/monitor.hpp"
#include "monitor/service/event_loop.hpp"
#include "tests/fuzz/circumstances.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/kept_files.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <iterator>
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

UniqueFd pool_memory(size_t bytes, int seals) {
    UniqueFd fd(memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    must(fd.get() >= 0 && ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
    fcntl(fd.get(), F_ADD_SEALS, seals);
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

/// How a monitor is set.
enum class Settings { usual, little, refusing, picky, contained };
constexpr unsigned kSettings = 5;
/// The last byte of an input from here on chooses others than the usual ones.
constexpr uint8_t kOthers = 240;
constexpr uid_t kStranger = 54321;

monitor::Config config_of(Settings settings) {
    monitor::Config config;
    config.limits.links_per_client = 8;
    if (settings == Settings::usual) {
        return config;
    }
    config.all_users = true;
    config.bridge_socket = "/nonexistent/bridge";
    if (settings == Settings::little) {
        config.limits.clients = 6;
        config.limits.links_per_client = config.limits.links_per_server = 2;
        config.limits.listeners_per_client = config.limits.bells_per_client = 2;
        config.limits.segments_per_client = 2;
        config.limits.per_user = {3, 3, 2, 3, 2, 1, 1, 1};
    }
    config.policy.fallback = settings == Settings::refusing ? monitor::Verdict::deny : monitor::Verdict::allow;
    if (settings == Settings::picky) { // it may listen, and not be connected to
        monitor::Rule rule;
        rule.action = monitor::Verdict::deny;
        rule.client.uids = {getuid()};
        config.policy.rules.push_back(rule);
    }
    return config;
}

class Server {
  public:
    explicit Server(Settings settings) {
        spdlog::set_level(spdlog::level::off);
        listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        address_.sun_family = AF_UNIX;
        const int n = snprintf(address_.sun_path + 1, sizeof address_.sun_path - 1, "sd-fuzz-%d-%d", getpid(),
                               static_cast<int>(settings));
        length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
        must(bind(listener_.get(), reinterpret_cast<sockaddr *>(&address_), length_) == 0 &&
             listen(listener_.get(), 64) == 0);
        monitor_ = std::make_unique<monitor::Monitor>(loop_, config_of(settings), "fuzzed", false);
        if (settings == Settings::contained) {
            other_door_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
            const sockaddr_un any{AF_UNIX, {}}; // a name that the kernel chooses
            must(bind(other_door_.get(), reinterpret_cast<const sockaddr *>(&any), sizeof any.sun_family) == 0 &&
                 listen(other_door_.get(), 1) == 0);
            monitor_->serve(other_door_.get(), listener_.get());
        } else {
            monitor_->serve(listener_.get());
        }
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
    UniqueFd listener_, other_door_;
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

/// What an operation comes with when it is honest. Descriptors: segment, tcp socket, listener, eventfd, unix
/// socket, memory, a pool's bytes or its ledger, or whatever the monitor has sent.
struct Shape {
    wire::Op op;
    size_t length;
    const char *fds;
};
constexpr Shape kShapes[] = {
    {wire::Op::hello, sizeof(wire::Hello), "st"},
    {wire::Op::presence, 0, ""},
    {wire::Op::fork, sizeof(wire::Fork), ""},
    {wire::Op::child, sizeof(wire::Child), ""},
    {wire::Op::segment, sizeof(wire::Segment), "s"},
    {wire::Op::listen, sizeof(wire::Listen), "l"},
    {wire::Op::unlisten, sizeof(wire::ListenerRef), ""},
    {wire::Op::links, sizeof(wire::Links), ""},
    {wire::Op::connect, sizeof(wire::Connect), ""},
    {wire::Op::drop_link, sizeof(wire::LinkRef), ""},
    {wire::Op::bell, sizeof(wire::Bell), "e"},
    {wire::Op::unbell, sizeof(wire::BellRef), ""},
    {wire::Op::peer_bell, sizeof(wire::BellRef), ""},
    {wire::Op::accept_bell, sizeof(wire::ListenerRef), "e"},
    {wire::Op::adopt_link, sizeof(wire::Adopt), "r"},
    {wire::Op::log, sizeof(wire::Log), ""},
    {wire::Op::status, 0, ""},
    {wire::Op::image, sizeof(wire::Image), "mt"},
    {wire::Op::pass, sizeof(wire::Pass), "tt"},
    {wire::Op::claim, 0, "t"},
    {wire::Op::claimed, sizeof(wire::ParcelRef), ""},
    {wire::Op::unlist, sizeof(wire::ListenerRef), ""},
    {wire::Op::ring, sizeof(wire::BellRef), ""},
    {wire::Op::enter, 0, "u"},
    {wire::Op::foreign_bell, sizeof(wire::BellRef), "u"},
    {wire::Op::mute_bell, 0, "e"},
    {wire::Op::memory, sizeof(wire::Memory), ""},
    {wire::Op::ends, 0, ""},
    {wire::Op::check, sizeof(wire::ListenerRef), ""},
    {wire::Op::moved, sizeof(wire::Moved), ""},
    {wire::Op::let_go, sizeof(wire::Moved), ""},
    {wire::Op::part, sizeof(wire::SegmentRef), ""},
    {wire::Op::leave, sizeof(wire::Leave), ""},
    {wire::Op::stay, 0, ""},
    {wire::Op::no_room, sizeof(wire::LinkRef), ""},
    {wire::Op::withdraw, sizeof(wire::LinkRef), ""},
    {wire::Op::renew, sizeof(wire::LinkRef), ""},
    {wire::Op::sandbox, 0, ""},
    {wire::Op::offer, sizeof(wire::Offer), "t"},
    {wire::Op::other_end, 0, "t"},
    {wire::Op::take_back, sizeof(wire::Offered), ""},
    {wire::Op::carry, sizeof(wire::Carry), ""},
    {wire::Op::pool, sizeof(wire::Pool), "bg"},
    {wire::Op::peer_pool, sizeof(wire::PoolRef), ""},
    {wire::Op::end_pool, sizeof(wire::PoolRef), ""},
};
/// Those that the shape's byte names from kLaterByte on: inputs found before they were added keep what they
/// say.
constexpr Shape kLaterShapes[] = {
    {wire::Op::greet, sizeof(wire::Greeting), ""},
    {wire::Op::snapshot, 0, ""},
    {wire::Op::steer, sizeof(wire::Steer), ""},
    {wire::Op::steer_mine, sizeof(wire::Steer), "s"},
};
constexpr uint8_t kLaterByte = 220;

const Shape &shape_of(uint8_t byte) {
    return byte >= kLaterByte ? kLaterShapes[(byte - kLaterByte) % std::size(kLaterShapes)]
                              : kShapes[byte % std::size(kShapes)];
}

UniqueFd descriptor_of(char kind, sdfuzz::Input &in, const std::vector<UniqueFd> &received) {
    int pair[2];
    switch (kind) {
    case 's':
        return segment();
    case 't':
        return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    case 'l':
        return tcp_listener();
    case 'e':
        return UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    case 'u':
        must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
        close(pair[1]);
        return UniqueFd(pair[0]);
    case 'b':
        return pool_memory(8192, kPoolSeals);
    case 'g':
        return pool_memory(sizeof(PoolLedger), kLedgerSeals);
    case 'r':
        if (!received.empty()) {
            return UniqueFd(
                fcntl(received[in.below(static_cast<unsigned>(received.size()))].get(), F_DUPFD_CLOEXEC, 0));
        }
        [[fallthrough]];
    default:
        return sealed_memory(in, 4096);
    }
}

/// What even a hostile client would rather get right.
void fill_in(wire::Op op, unsigned char *body, sdfuzz::Input &in) {
    const auto put = [body](size_t at, uint32_t value) { memcpy(body + at, &value, sizeof value); };
    switch (op) {
    case wire::Op::hello:
        put(offsetof(wire::Hello, layout_version), kLayoutVersion);
        put(offsetof(wire::Hello, pid), static_cast<uint32_t>(getpid()));
        put(offsetof(wire::Hello, proc_index), in.below(2));
        break;
    case wire::Op::image:
        put(offsetof(wire::Image, layout_version), kLayoutVersion);
        put(offsetof(wire::Image, pid), static_cast<uint32_t>(getpid()));
        break;
    case wire::Op::connect:
        put(offsetof(wire::Connect, wanted), 1 + in.below(2));
        break;
    case wire::Op::links:
        put(offsetof(wire::Links, from), in.below(2));
        break;
    case wire::Op::segment:
        put(offsetof(wire::Segment, proc_index), in.below(2) != 0 ? wire::kAnyProc : in.below(4));
        break;
    case wire::Op::drop_link:
    case wire::Op::no_room:
    case wire::Op::withdraw:
        put(offsetof(wire::LinkRef, side), in.below(2));
        break;
    case wire::Op::bell:
    case wire::Op::unbell:
    case wire::Op::peer_bell:
    case wire::Op::ring:
    case wire::Op::foreign_bell:
        put(offsetof(wire::BellRef, side), in.below(2));
        put(offsetof(wire::BellRef, id), in.below(3));
        break;
    case wire::Op::pass:
        put(offsetof(wire::Pass, handoff.ofd_index), 1 + in.below(3));
        put(offsetof(wire::Pass, handoff.slot), in.below(8));
        put(offsetof(wire::Pass, start), 0); // else an sd-bridge would be started
        break;
    case wire::Op::pool:
        put(offsetof(wire::Pool, side), in.below(2));
        put(offsetof(wire::Pool, slot), in.below(8));
        break;
    case wire::Op::steer:
    case wire::Op::steer_mine:
        put(offsetof(wire::Steer, to), in.below(5));
        put(offsetof(wire::Steer, pid), static_cast<uint32_t>(getpid()));
        put(offsetof(wire::Steer, slot), in.below(4));
        break;
    case wire::Op::greet:
        put(offsetof(wire::Greeting, side), in.below(2));
        put(offsetof(wire::Greeting, step), in.below(4));
        break;
    case wire::Op::peer_pool:
    case wire::Op::end_pool:
        put(offsetof(wire::PoolRef, side), in.below(2));
        break;
    default:
        break;
    }
}

/// Sends it `times`, in the name of that process; where we may not, in ours.
void send_as(int channel, msghdr message, const ucred *sender, unsigned times) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control{};
    msghdr theirs = message;
    if (sender != nullptr) {
        if (message.msg_controllen != 0) {
            memcpy(control.data(), message.msg_control, message.msg_controllen);
        }
        auto *c = reinterpret_cast<cmsghdr *>(control.data() + message.msg_controllen);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_CREDENTIALS;
        c->cmsg_len = CMSG_LEN(sizeof *sender);
        memcpy(CMSG_DATA(c), sender, sizeof *sender);
        theirs.msg_control = control.data();
        theirs.msg_controllen += CMSG_SPACE(sizeof *sender);
    }
    for (; times > 0; --times) {
        if (sendmsg(channel, &theirs, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EPERM) {
            (void)sendmsg(channel, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
    }
}

void send_packet(int channel, sdfuzz::Input &in, std::vector<UniqueFd> &received,
                 const std::vector<uint64_t> &words, std::vector<UniqueFd> &kept,
                 const ucred *sender = nullptr, unsigned times = 1) {
    alignas(8) std::array<unsigned char, sizeof(wire::Header) + wire::kMaxBody> packet{};
    const bool honest = !in.rarely(8);
    const Shape &shape = shape_of(in.take<uint8_t>());
    wire::Header header{};
    header.magic = honest || in.below(4) != 0 ? wire::kMagic : in.take<uint32_t>();
    header.version = honest || in.below(4) != 0 ? wire::kVersion : in.take<uint16_t>();
    header.op = honest || in.below(4) != 0 ? static_cast<uint16_t>(shape.op) : in.take<uint16_t>();
    header.sequence = !in.rarely(8) ? 1 + in.below(200) : 0;
    const auto length = static_cast<unsigned>(honest ? shape.length : in.take<uint16_t>() % wire::kMaxBody);
    header.length = honest || in.below(4) != 0 ? static_cast<uint16_t>(length) : in.take<uint16_t>();
    unsigned char *body = packet.data() + sizeof header;
    in.fill(body, std::min(length, 64U));
    for (unsigned k = 0; k + 8 <= length && k < 64; k += 8) {
        if (const unsigned how = in.below(8); how < 4 && !words.empty()) {
            const uint64_t word = words[in.below(static_cast<unsigned>(words.size()))];
            memcpy(body + k, &word, sizeof word);
        }
    }
    if (honest) {
        fill_in(shape.op, body, in);
        if (sender != nullptr && shape.op == wire::Op::hello) {
            const auto pid = static_cast<uint32_t>(sender->pid);
            memcpy(body + offsetof(wire::Hello, pid), &pid, sizeof pid);
        }
    }
    const bool right_kinds = honest || in.below(2) != 0;
    const auto fds = static_cast<unsigned>(right_kinds ? strlen(shape.fds) : in.below(4));
    header.fds = honest || in.below(4) != 0 ? fds : in.take<uint8_t>();
    memcpy(packet.data(), &header, sizeof header);
    iovec io{packet.data(), honest || in.below(4) != 0 ? sizeof header + length : in.below(200)};
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
            passed.push_back(right_kinds && !in.rarely(16) ? descriptor_of(shape.fds[k], in, received)
                                                           : descriptor(in, received));
            if (passed.back().get() < 0) {
                return;
            }
            const int fd = passed.back().get();
            memcpy(CMSG_DATA(c) + k * sizeof fd, &fd, sizeof fd);
        }
    }
    send_as(channel, message, sender, times);
    if (!in.rarely(4)) { // what listens is closed, or it goes on
        std::move(passed.begin(), passed.end(), std::back_inserter(kept));
    }
}

/// What is out of the ordinary in a step, by its first byte from kRare on, which is one for each channel.
enum class Rare : uint8_t {
    few_descriptors,
    deaf,
    closes_early,
    stranger,
    time_passes,
    many,
    silent,
    impatient
};
constexpr uint8_t kRare = 224;

/// The clients of one input.
class Clients {
  public:
    Clients(Server &server, sdfuzz::Input &in) : server_(server), in_(in) {}
    void step() {
        const uint8_t first = in_.take<uint8_t>();
        Channel &c = channel_[first % kChannels];
        const bool is_rare = first >= kRare;
        const auto rare = static_cast<Rare>((first - kRare) / 4);
        const auto is = [&](Rare what) { return is_rare && rare == what; };
        if (c.fd.get() < 0) {
            c = {server_.connect()};
        } else if (in_.below(24) == 0) {
            c = {};
        }
        if (is(Rare::deaf)) {
            c.is_deaf = !c.is_deaf;
        }
        if (is(Rare::time_passes)) {
            sdfuzz::seconds_passed += 1 + in_.below(3);
        }
        if (is(Rare::silent)) {
            for (unsigned n = 1 + in_.below(8); n > 0 && silent_.size() < 32; --n) {
                silent_.push_back(server_.connect());
            }
        }
        if (is(Rare::stranger)) {
            c.is_strangers = !c.is_strangers;
        }
        static const pid_t stranger = sdfuzz::make_stranger(kStranger);
        const ucred theirs{stranger, kStranger, kStranger};
        const ucred *const sender = c.is_strangers ? &theirs : nullptr;
        if (c.fd.get() >= 0) {
            send_packet(c.fd.get(), in_, received_, words_, kept_, sender, is(Rare::many) ? 2 + in_.below(8) : 1);
            if (is(Rare::impatient)) { // does not wait for the answer
                send_packet(c.fd.get(), in_, received_, words_, kept_, sender);
            }
        }
        if (is(Rare::closes_early)) {
            c = {};
        }
        if (is(Rare::few_descriptors)) {
            const unsigned left = in_.below(4);
            if (in_.below(4) == 0 && silent_.size() < 32) {
                silent_.push_back(server_.connect());
            }
            const sdfuzz::FewDescriptors few(left);
            server_.work();
        } else {
            server_.work();
        }
        for (const Channel &each : channel_) {
            if (each.fd.get() >= 0 && !each.is_deaf) {
                read_replies(each.fd.get(), received_, words_);
            }
        }
    }

  private:
    struct Channel {
        UniqueFd fd;
        bool is_deaf = false;      ///< does not receive what it is answered
        bool is_strangers = false; ///< another process sends
    };
    Server &server_;
    sdfuzz::Input &in_;
    std::array<Channel, kChannels> channel_;
    std::vector<UniqueFd> received_, silent_;
    std::vector<uint64_t> words_;
    std::vector<UniqueFd> kept_;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sdfuzz::keeps_files = true;
    static std::array<std::unique_ptr<Server>, kSettings> servers;
    unsigned settings = 0;
    if (size != 0 && data[size - 1] >= kOthers) {
        settings = 1 + data[size - 1] % (kSettings - 1);
        --size;
    }
    if (servers[settings] == nullptr) {
        servers[settings] = std::make_unique<Server>(static_cast<Settings>(settings));
    }
    Server &server = *servers[settings];
    sdfuzz::Input in(data, size);
    {
        Clients clients(server, in);
        for (unsigned step = 0; step < kSteps && !in.empty(); ++step) {
            clients.step();
        }
    }
    server.work();
    return 0;
}
