#include "bench/wire/ends.hpp"

#include "bench/common/net.hpp"
#include "bench/common/process.hpp"
#include "bench/wire/cable.hpp"

#include <liburing.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

namespace sd::bench {
namespace {

constexpr std::uint16_t kPort = 4791;
// Of the kernel since 6.2; liburing 2.3 does not know them.
constexpr unsigned kReportUsage = 1U << 3U;  // IORING_SEND_ZC_REPORT_USAGE
constexpr unsigned kUsageCopied = 1U << 31U; // IORING_NOTIF_USAGE_ZC_COPIED

int connected(bool server) {
    int fd = -1;
    if (server) {
        std::uint16_t port = kPort;
        fd = accept_tcp(listen_tcp(kServerAddress, port));
    } else {
        fd = connect_tcp(kServerAddress, kPort);
    }
    set_nodelay(fd);
    return fd;
}

class Tcp : public End {
  public:
    Tcp(int fd, Waiting waiting) : fd_(fd), mover_({fd, fd}, waiting) {}
    void send(const char *bytes, std::size_t size) override {
        if (!mover_.send(bytes, size)) {
            die("send");
        }
    }
    [[nodiscard]] bool receive(char *bytes, std::size_t size) override { return mover_.receive(bytes, size); }
    void finish() override { shutdown(fd_, SHUT_WR); }

  protected:
    [[nodiscard]] int fd() const { return fd_; }

  private:
    int fd_;
    Mover mover_;
};

class ZeroCopy : public Tcp {
  public:
    explicit ZeroCopy(int fd) : Tcp(fd, Waiting::blocking) {
        const int on = 1;
        if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0) {
            die("SO_ZEROCOPY");
        }
    }
    void send(const char *bytes, std::size_t size) override {
        while (size > 0) {
            const ssize_t n = ::send(fd(), bytes, size, MSG_ZEROCOPY);
            if (n < 0 && errno == ENOBUFS) { // too many notices that nobody has read
                read_notices(true);
                continue;
            }
            if (n <= 0) {
                die("send with MSG_ZEROCOPY");
            }
            bytes += n;
            size -= static_cast<std::size_t>(n);
            ++calls_;
        }
        while (calls_ - done_ >= kBuffers) {
            read_notices(true);
        }
    }
    void finish() override {
        while (done_ < calls_) {
            read_notices(true);
        }
        Tcp::finish();
    }
    [[nodiscard]] long copied() const override { return copied_; }

  private:
    void read_notices(bool wait) {
        if (wait) {
            pollfd p{fd(), 0, 0};
            poll(&p, 1, -1);
        }
        char control[128];
        msghdr message{};
        for (;;) {
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            if (recvmsg(fd(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
                return;
            }
            for (cmsghdr *c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
                const auto *notice = reinterpret_cast<const sock_extended_err *>(CMSG_DATA(c));
                if (notice->ee_origin != SO_EE_ORIGIN_ZEROCOPY) {
                    continue;
                }
                const long count = static_cast<long>(notice->ee_data - notice->ee_info) + 1;
                done_ += count;
                copied_ += (notice->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0 ? count : 0;
            }
        }
    }

    long calls_ = 0;
    long done_ = 0;
    long copied_ = 0;
};

class Uring : public End {
  public:
    Uring(int fd, bool zero_copy) : fd_(fd), zero_copy_(zero_copy) {
        if (io_uring_queue_init(64, &ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN) != 0) {
            die("io_uring");
        }
    }
    ~Uring() override { io_uring_queue_exit(&ring_); }
    void send(const char *bytes, std::size_t size) override {
        while (size > 0) {
            io_uring_sqe *sqe = io_uring_get_sqe(&ring_);
            if (zero_copy_) {
                io_uring_prep_send_zc(sqe, fd_, bytes, size, MSG_WAITALL, kReportUsage);
            } else {
                io_uring_prep_send(sqe, fd_, bytes, size, MSG_WAITALL);
            }
            const int n = result();
            if (n <= 0) {
                errno = -n;
                die("send of io_uring");
            }
            bytes += n;
            size -= static_cast<std::size_t>(n);
        }
        while (under_way_ >= kBuffers) {
            take_notice();
        }
    }
    [[nodiscard]] bool receive(char *bytes, std::size_t size) override {
        while (size > 0) {
            io_uring_prep_recv(io_uring_get_sqe(&ring_), fd_, bytes, size, 0);
            const int n = result();
            if (n <= 0) {
                return false;
            }
            bytes += n;
            size -= static_cast<std::size_t>(n);
        }
        return true;
    }
    void finish() override {
        while (under_way_ > 0) {
            take_notice();
        }
        shutdown(fd_, SHUT_WR);
    }
    [[nodiscard]] long copied() const override { return copied_; }

  private:
    // Submits the one request, and waits for its result; notices of former sends may come before it.
    int result() {
        io_uring_submit_and_wait(&ring_, 1);
        for (;;) {
            const io_uring_cqe cqe = take();
            if ((cqe.flags & IORING_CQE_F_NOTIF) == 0) {
                under_way_ += (cqe.flags & IORING_CQE_F_MORE) != 0 ? 1 : 0;
                return cqe.res;
            }
            count_notice(cqe);
        }
    }
    io_uring_cqe take() {
        io_uring_cqe *cqe = nullptr;
        if (io_uring_wait_cqe(&ring_, &cqe) != 0) {
            die("io_uring");
        }
        const io_uring_cqe copy = {cqe->user_data, cqe->res, cqe->flags};
        io_uring_cqe_seen(&ring_, cqe);
        return copy;
    }
    void take_notice() { count_notice(take()); }
    void count_notice(const io_uring_cqe &notice) {
        --under_way_;
        copied_ += (static_cast<unsigned>(notice.res) & kUsageCopied) != 0 ? 1 : 0;
    }

    int fd_;
    bool zero_copy_;
    io_uring ring_{};
    int under_way_ = 0; // sends whose buffer the kernel still reads
    long copied_ = 0;
};

} // namespace

std::unique_ptr<End> make_end(const std::string &way, bool server, const std::string &object) {
    if (way == "frames") {
        return make_frames(server ? kServerDevice : kClientDevice, object);
    }
    if (way == "tcp" || way == "tcp-spin") {
        return std::make_unique<Tcp>(connected(server), way == "tcp" ? Waiting::blocking : Waiting::spin);
    }
    if (way == "zerocopy") {
        return std::make_unique<ZeroCopy>(connected(server));
    }
    if (way == "uring" || way == "uring-zc") {
        return std::make_unique<Uring>(connected(server), way == "uring-zc");
    }
    errno = 0;
    die((way + " is none of the ways").c_str());
}

} // namespace sd::bench
