// What a stranger writes into the header of a SYN: the real kernel and the real program answer it as the
// fuzzer's stand-in for the kernel would have them do (tests/fuzz/option).
#include "monitor/discovery/discovery.hpp"
#include "tests/fuzz/option/find_option.hpp"
#include "tests/support/skip.hpp"
#include "tests/unit/box.hpp"

#include <catch2/catch.hpp>
#include <optional>
#include <random>

using namespace sd;
using namespace sd::test;
using sdfuzz::kernel::Bytes;

namespace {

constexpr uint16_t kPort = 700, kPlain = 1000;
constexpr size_t kMostOptions = 40;
constexpr uint8_t kId[] = {SD_OPTION_ID >> 8, SD_OPTION_ID & 0xff};

/// The other end of a network device: who holds it is the network.
class Wire {
  public:
    explicit Wire(const Net &net) {
        end_ = net.in([] {
            UniqueFd made(open("/dev/net/tun", O_RDWR | O_CLOEXEC));
            ifreq name{};
            strcpy(name.ifr_name, "wire");
            name.ifr_flags = IFF_TUN | IFF_NO_PI;
            if (!made || ioctl(made.get(), TUNSETIFF, &name) != 0) {
                fail_with("tun");
            }
            return made;
        });
        net.run("ip addr add 10.6.0.2 peer 10.6.0.1 dev wire && ip link set wire up");
    }

    /// The SYN-ACK's options; nothing: the kernel has not answered, but to a plain SYN that came behind. It
    /// forgets both connections again.
    std::optional<Bytes> answer_to(const Bytes &options, uint16_t port) const {
        std::optional<Bytes> answer;
        send(port, 1, true, options);
        send(kPlain, 1, true, {});
        pollfd polled{end_.get(), POLLIN, 0};
        while (true) {
            REQUIRE(poll(&polled, 1, 10'000) > 0);
            TcpPacket packet;
            packet.bytes.resize(2048);
            const ssize_t n = read(end_.get(), packet.bytes.data(), packet.bytes.size());
            packet.bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
            if (n < static_cast<ssize_t>(sizeof(iphdr) + sizeof(tcphdr)) || packet.ip().version != 4 ||
                packet.ip().protocol != IPPROTO_TCP || !packet.is_syn_ack()) {
                continue;
            }
            send(ntohs(packet.tcp().dest), 2, false, {});
            if (packet.tcp().dest == htons(kPlain)) {
                return answer;
            }
            const auto *begin = reinterpret_cast<const uint8_t *>(&packet.tcp() + 1);
            answer = Bytes(begin, reinterpret_cast<const uint8_t *>(&packet.tcp()) + packet.tcp().doff * 4);
        }
    }

  private:
    /// A SYN, or a reset.
    void send(uint16_t port, uint32_t sequence, bool is_syn, const Bytes &options) const {
        TcpPacket packet;
        packet.bytes.resize(sizeof(iphdr) + sizeof(tcphdr) + options.size());
        packet.ip().version = 4;
        packet.ip().ihl = 5;
        packet.ip().ttl = 64;
        packet.ip().protocol = IPPROTO_TCP;
        packet.ip().tot_len = htons(static_cast<uint16_t>(packet.bytes.size()));
        inet_pton(AF_INET, "10.6.0.1", &packet.ip().saddr);
        inet_pton(AF_INET, "10.6.0.2", &packet.ip().daddr);
        packet.tcp().source = htons(port);
        packet.tcp().dest = htons(kPort);
        packet.tcp().seq = htonl(sequence);
        packet.tcp().doff = static_cast<uint16_t>((sizeof(tcphdr) + options.size()) / 4) & 0xf;
        packet.tcp().syn = is_syn ? 1 : 0;
        packet.tcp().rst = is_syn ? 0 : 1;
        packet.tcp().window = htons(1000);
        std::copy(options.begin(), options.end(), packet.bytes.end() - static_cast<long>(options.size()));
        packet.sum_up();
        REQUIRE(write(end_.get(), packet.bytes.data(), packet.bytes.size()) ==
                static_cast<ssize_t>(packet.bytes.size()));
    }

    UniqueFd end_;
};

/// Ours, or nearly; pads; others', whole and cut off. Kinds at which the kernel drops a SYN (signatures) or
/// does more (Fast Open, MPTCP) are left out.
Bytes odd_options(std::mt19937 &random) {
    const auto below = [&](unsigned limit) { return static_cast<uint8_t>(random() % limit); };
    Bytes result;
    for (unsigned pieces = below(5); pieces > 0; --pieces) {
        const size_t start = result.size();
        switch (below(4)) {
        case 0:
            result.insert(result.end(), below(6), 1);
            break;
        case 1:
            result.insert(result.end(), below(3) == 0 ? 1 : 0, 0);
            break;
        case 2: {
            const uint8_t kinds[] = {2, 3, 4, 8, 200, 253, 254};
            const uint8_t length = below(12);
            result.insert(result.end(), {kinds[below(7)], length});
            for (unsigned i = 2; i < length; ++i) {
                result.push_back(below(256));
            }
            break;
        }
        default:
            result.insert(result.end(), {SD_OPTION_KIND, sizeof(sd_option), kId[0], kId[1], SD_OPTION_VERSION});
            for (size_t i = 5; i < sizeof(sd_option); ++i) {
                result.push_back(below(256));
            }
            if (below(3) == 0) { // nearly
                result[start + below(5)] ^= static_cast<uint8_t>(1 << below(8));
            }
        }
    }
    result.resize(std::min(result.size(), kMostOptions));
    result.resize((result.size() + 3) / 4 * 4, below(2)); // a header ends at a word
    return result;
}

/// No option that is longer than what is left, or none at all.
bool is_whole(const Bytes &options) {
    for (size_t at = 0; at < options.size() && options[at] != 0; at += options[at] == 1 ? 1 : options[at + 1]) {
        if (options[at] != 1 &&
            (options.size() - at < 2 || options[at + 1] < 2 || options[at + 1] > options.size() - at)) {
            return false;
        }
    }
    return true;
}

} // namespace

TEST_CASE("whatever a SYN carries, it is answered as the fuzzer's kernel would have it") {
    const OwnGroup group;
    monitor::Paths paths;
    paths.discovery = true;
    paths.group = group.path().substr(monitor::unified_top().size());
    if (geteuid() != 0 || !group.is_made() || !monitor::Discovery(paths).is_on()) {
        SKIP_TEST("it takes root, CAP_BPF, CAP_NET_ADMIN and a unified hierarchy of control groups");
    }
    const monitor::Discovery discovery(paths);
    const Net net;
    const Wire wire(net);
    const UniqueFd listener = listen_at(net, Place("10.6.0.2", kPort));
    std::mt19937 random(1);
    const char *more = getenv("SD_TEST_SYNS"); // millions, by hand
    const unsigned syns = more != nullptr ? static_cast<unsigned>(atoi(more)) : 20000;
    unsigned taken = 0, not_taken = 0;
    for (unsigned i = 0; i < syns; ++i) {
        const Bytes options = odd_options(random);
        const auto answer = wire.answer_to(options, static_cast<uint16_t>(1024 + i % 60000));
        CAPTURE(i, options);
        if (!answer) { // newer kernels drop these, to be on the safe side with signatures
            REQUIRE(!is_whole(options));
            continue;
        }
        const uint8_t *asked = sdfuzz::kernel::find_option(options, SD_OPTION_KIND, kId, sizeof kId);
        const bool is_ours = asked != nullptr && asked[1] == sizeof(sd_option) && asked[4] == SD_OPTION_VERSION;
        const uint8_t *said = sdfuzz::kernel::find_option(*answer, SD_OPTION_KIND, kId, sizeof kId);
        CAPTURE(*answer);
        REQUIRE((said != nullptr) == is_ours);
        if (is_ours) {
            REQUIRE(said[1] == sizeof(sd_option));
            REQUIRE(memcmp(said, asked, sizeof(sd_option)) != 0);
        }
        (is_ours ? taken : not_taken) += 1;
    }
    CHECK(taken > syns / 10);
    CHECK(not_taken > syns / 10);
}
