// A socket whose lock somebody has for as long as he likes.
#pragma once
#include "tests/unit/monitor_client.hpp"

#include <catch2/catch.hpp>
#include <linux/filter.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <thread>

namespace sd::test {

/// Has a socket's lock until it goes: a call on the socket waits for memory that does not come. (Here by
/// userfaultfd; others do it with a file of a file system of their own.)
class HeldSocket {
  public:
    explicit HeldSocket(int socket) : faults_(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC))) {
        uffdio_api api{UFFD_API, 0, 0};
        page_ = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uffdio_register range{{reinterpret_cast<uintptr_t>(page_), 4096}, UFFDIO_REGISTER_MODE_MISSING, 0};
        if (!faults_ || ioctl(faults_.get(), UFFDIO_API, &api) != 0 ||
            ioctl(faults_.get(), UFFDIO_REGISTER, &range) != 0) {
            return;
        }
        held_ = true;
        holder_ = std::thread([this, socket] {
            const sock_fprog filter{1, static_cast<sock_filter *>(page_)};
            setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
        });
        uffd_msg fault;
        REQUIRE(read(faults_.get(), &fault, sizeof fault) == sizeof fault);
    }
    ~HeldSocket() {
        if (held_) {
            uffdio_zeropage zero{{reinterpret_cast<uintptr_t>(page_), 4096}, 0, 0};
            ioctl(faults_.get(), UFFDIO_ZEROPAGE, &zero);
            holder_.join();
        }
    }
    HeldSocket(const HeldSocket &) = delete;
    HeldSocket &operator=(const HeldSocket &) = delete;
    bool held() const { return held_; }

  private:
    UniqueFd faults_;
    void *page_;
    std::thread holder_;
    bool held_ = false;
};

} // namespace sd::test
