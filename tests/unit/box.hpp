// A box on the way between two network namespaces, which may change or lose what passes.
#pragma once
#include "monitor/discovery/option_layout.h"
#include "tests/unit/networks.hpp"

#include <atomic>
#include <functional>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <thread>
#include <vector>

namespace sd::test {

/// An IPv4 packet with TCP in it.
struct TcpPacket {
    std::vector<uint8_t> bytes;

    iphdr &ip() { return *reinterpret_cast<iphdr *>(bytes.data()); }
    tcphdr &tcp() { return *reinterpret_cast<tcphdr *>(bytes.data() + ip().ihl * 4); }
    bool is_syn() { return tcp().syn != 0 && tcp().ack == 0; }
    bool is_syn_ack() { return tcp().syn != 0 && tcp().ack != 0; }
    /// Ours; null: it has none.
    sd_option *option() {
        auto *const begin = reinterpret_cast<uint8_t *>(&tcp() + 1);
        const uint8_t *const end = reinterpret_cast<uint8_t *>(&tcp()) + tcp().doff * 4;
        for (uint8_t *p = begin; p < end && *p != 0; p += *p == 1 ? 1 : p[1]) {
            if (*p != 1 && (p + 1 >= end || p[1] < 2)) {
                break;
            }
            auto *const found = reinterpret_cast<sd_option *>(p);
            if (*p == SD_OPTION_KIND && p + sizeof *found <= end && found->length == sizeof *found) {
                return found;
            }
        }
        return nullptr;
    }
    /// Made room for at the end of the header.
    void add(const sd_option &option) {
        const auto *raw = reinterpret_cast<const uint8_t *>(&option);
        bytes.insert(bytes.begin() + ip().ihl * 4 + tcp().doff * 4, raw, raw + sizeof option);
        tcp().doff = tcp().doff + sizeof option / 4;
        ip().tot_len = htons(static_cast<uint16_t>(bytes.size()));
    }
    void remove_option() {
        if (sd_option *found = option()) {
            memset(static_cast<void *>(found), 1, sizeof *found); // no operation
        }
    }
    void sum_up() {
        ip().check = 0;
        ip().check = fold(sum(bytes.data(), static_cast<size_t>(ip().ihl) * 4, 0));
        const size_t length = bytes.size() - static_cast<size_t>(ip().ihl) * 4;
        tcp().check = 0;
        uint64_t pseudo = sum(reinterpret_cast<uint8_t *>(&ip().saddr), 8, htons(IPPROTO_TCP));
        pseudo = sum(reinterpret_cast<uint8_t *>(&tcp()), length, pseudo + htons(static_cast<uint16_t>(length)));
        tcp().check = fold(pseudo);
    }

  private:
    static uint64_t sum(const uint8_t *p, size_t n, uint64_t total) {
        for (size_t i = 0; i < n; i += 2) {
            total += p[i] | (i + 1 < n ? p[i + 1] << 8 : 0);
        }
        return total;
    }
    static uint16_t fold(uint64_t total) {
        while (total >> 16 != 0) {
            total = (total & 0xffff) + (total >> 16);
        }
        return static_cast<uint16_t>(~total);
    }
};

/// Joins 10.6.0.1 in `left` and 10.6.0.2 in `right`.
class Box {
  public:
    /// `change`: what becomes of a packet, `to_right` saying where it goes; false: it is lost.
    using Change = std::function<bool(TcpPacket &, bool to_right)>;
    Box(const Net &left, const Net &right, Change change) : change_(std::move(change)) {
        ends_[0] = open_end(left, "10.6.0.1 peer 10.6.0.2");
        ends_[1] = open_end(right, "10.6.0.2 peer 10.6.0.1");
        thread_ = std::thread([this] { work(); });
    }
    ~Box() {
        stop_ = true;
        thread_.join();
    }
    Box(const Box &) = delete;
    Box &operator=(const Box &) = delete;

  private:
    static UniqueFd open_end(const Net &net, const std::string &addresses) {
        UniqueFd fd = net.in([] {
            UniqueFd made(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
            ifreq name{};
            strcpy(name.ifr_name, "box");
            name.ifr_flags = IFF_TUN | IFF_NO_PI;
            if (!made || ioctl(made.get(), TUNSETIFF, &name) != 0) {
                fail_with("tun");
            }
            return made;
        });
        net.run("ip addr add " + addresses + " dev box && ip link set box up");
        return fd;
    }
    void work() {
        while (!stop_) {
            pollfd polled[2] = {{ends_[0].get(), POLLIN, 0}, {ends_[1].get(), POLLIN, 0}};
            poll(polled, 2, 20);
            for (unsigned i = 0; i < 2; ++i) {
                TcpPacket packet;
                packet.bytes.resize(65536);
                const ssize_t n = read(ends_[i].get(), packet.bytes.data(), packet.bytes.size());
                packet.bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
                if (n <= 0 || packet.ip().version != 4 || packet.ip().protocol != IPPROTO_TCP ||
                    !change_(packet, i == 0)) {
                    continue;
                }
                packet.sum_up();
                if (write(ends_[1 - i].get(), packet.bytes.data(), packet.bytes.size()) < 0) {
                    continue; // it is lost
                }
            }
        }
    }

    Change change_;
    UniqueFd ends_[2];
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

} // namespace sd::test
