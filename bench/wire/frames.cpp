// Frames without a protocol, between the devices of a cable: what a TCP of its own over AF_XDP would begin
// with.
#include "bench/common/process.hpp"
#include "bench/wire/ends.hpp"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <xdp/xsk.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace sd::bench {
namespace {

constexpr std::uint32_t kFrames = 256; // each way
constexpr std::uint32_t kFrameSize = XSK_UMEM__DEFAULT_FRAME_SIZE;
constexpr std::size_t kMost = 1500;
constexpr std::size_t kHeader = 14; // Ethernet: two addresses and a type that nobody listens to

class Frames : public End {
  public:
    Frames(const std::string &device, const std::string &object) {
        const std::size_t size = std::size_t{2} * kFrames * kFrameSize;
        void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            die("mmap");
        }
        memory_ = static_cast<char *>(memory);
        if (xsk_umem__create(&umem_, memory_, size, &fill_, &done_, nullptr) != 0) {
            die("memory for AF_XDP");
        }
        xsk_socket_config config{};
        config.rx_size = kFrames;
        config.tx_size = kFrames;
        config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
        config.bind_flags = XDP_COPY; // veth knows no other
        if (xsk_socket__create(&socket_, device.c_str(), 0, umem_, &in_, &out_, &config) != 0) {
            die("an AF_XDP socket");
        }
        attach(static_cast<int>(if_nametoindex(device.c_str())), object);
        std::uint32_t first = 0;
        xsk_ring_prod__reserve(&fill_, kFrames, &first);
        for (std::uint32_t i = 0; i < kFrames; ++i) {
            *xsk_ring_prod__fill_addr(&fill_, first + i) = std::uint64_t{i} * kFrameSize;
        }
        xsk_ring_prod__submit(&fill_, kFrames);
    }

    void send(const char *bytes, std::size_t size) override {
        if (size > kMost) {
            errno = 0;
            die("a frame has at most 1500 bytes");
        }
        const std::uint64_t address = std::uint64_t{kFrames + (next_++ % kFrames)} * kFrameSize;
        char *frame = memory_ + address;
        std::memset(frame, 0xff, 12);
        frame[12] = '\x88';
        frame[13] = '\xb5'; // for experiments
        std::memcpy(frame + kHeader, bytes, size);
        std::uint32_t place = 0;
        while (xsk_ring_prod__reserve(&out_, 1, &place) != 1) {
            take_done();
        }
        *xsk_ring_prod__tx_desc(&out_, place) = {
            address, static_cast<std::uint32_t>(std::max<std::size_t>(kHeader + size, 60)), 0};
        xsk_ring_prod__submit(&out_, 1);
        sendto(xsk_socket__fd(socket_), nullptr, 0, MSG_DONTWAIT, nullptr, 0);
        take_done();
    }

    [[nodiscard]] bool receive(char *bytes, std::size_t size) override {
        std::uint32_t place = 0;
        for (;;) {
            while (xsk_ring_cons__peek(&in_, 1, &place) != 1) {
            }
            const xdp_desc frame = *xsk_ring_cons__rx_desc(&in_, place);
            const char *data = memory_ + frame.addr;
            const bool ours = data[12] == '\x88' && data[13] == '\xb5';
            if (ours) {
                std::memcpy(bytes, data + kHeader, std::min(size, std::size_t{frame.len} - kHeader));
            }
            xsk_ring_cons__release(&in_, 1);
            std::uint32_t back = 0;
            xsk_ring_prod__reserve(&fill_, 1, &back);
            *xsk_ring_prod__fill_addr(&fill_, back) = frame.addr & ~std::uint64_t{kFrameSize - 1};
            xsk_ring_prod__submit(&fill_, 1);
            if (ours) {
                return true;
            }
        }
    }

  private:
    void attach(int device, const std::string &object) {
        bpf_object *loaded = bpf_object__open_file(object.c_str(), nullptr);
        if (loaded == nullptr || bpf_object__load(loaded) != 0) {
            die(object.c_str());
        }
        const int program = bpf_program__fd(bpf_object__find_program_by_name(loaded, "take"));
        if (bpf_xdp_attach(device, program, XDP_FLAGS_DRV_MODE, nullptr) != 0 ||
            xsk_socket__update_xskmap(socket_, bpf_object__find_map_fd_by_name(loaded, "sockets")) != 0) {
            die("the program that hands over frames");
        }
    }
    void take_done() {
        std::uint32_t place = 0;
        const std::uint32_t n = xsk_ring_cons__peek(&done_, kFrames, &place);
        xsk_ring_cons__release(&done_, n);
    }

    char *memory_ = nullptr;
    xsk_umem *umem_ = nullptr;
    xsk_socket *socket_ = nullptr;
    xsk_ring_prod fill_{};
    xsk_ring_cons done_{};
    xsk_ring_cons in_{};
    xsk_ring_prod out_{};
    std::uint32_t next_ = 0;
};

} // namespace

std::unique_ptr<End> make_frames(const std::string &device, const std::string &object) {
    return std::make_unique<Frames>(device, object);
}

} // namespace sd::bench
