// One end of a connection over the cable, by each of the ways that a host without an RDMA device has.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace sd::bench {

// One thread. What goes wrong ends the program.
class End {
  public:
    virtual ~End() = default;
    End() = default;
    End(const End &) = delete;
    End &operator=(const End &) = delete;

    // The whole of `size` bytes, of one of buffers() in turn: a buffer is filled again only after the others.
    virtual void send(const char *bytes, std::size_t size) = 0;
    // False at the end of the connection.
    [[nodiscard]] virtual bool receive(char *bytes, std::size_t size) = 0;
    // Nothing more is sent: waits for what is under way.
    virtual void finish() {}
    // Sends of which the kernel said that it has copied them after all.
    [[nodiscard]] virtual long copied() const { return 0; }
};

constexpr int kBuffers = 16;
constexpr const char *kWays = "tcp, tcp-spin (ask again and again), zerocopy (MSG_ZEROCOPY), uring, uring-zc "
                              "(IORING_OP_SEND_ZC) or frames (AF_XDP, no TCP)";

// The server's end waits for the client's. `object`: wire.bpf.o.
[[nodiscard]] std::unique_ptr<End> make_end(const std::string &way, bool server, const std::string &object);

// For make_end(): an AF_XDP socket on `device`; frames of at most 2 KiB.
[[nodiscard]] std::unique_ptr<End> make_frames(const std::string &device, const std::string &object);

} // namespace sd::bench
