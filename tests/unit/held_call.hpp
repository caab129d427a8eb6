// A system call that waits for memory that does not come, with all locks that it has. Here by userfaultfd;
// others do it with a file of a file system of their own.
#pragma once
#include "monitor/kernel/unique_fd.hpp"

#include <fcntl.h>
#include <functional>
#include <linux/userfaultfd.h>
#include <stdexcept>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace sd::test {

class HeldCall {
  public:
    /// `call`: reads from the page that it is given. It waits there until this object goes.
    explicit HeldCall(std::function<void(void *page)> call)
        : faults_(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC))) {
        uffdio_api api{UFFD_API, 0, 0};
        page_ = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uffdio_register range{{reinterpret_cast<uintptr_t>(page_), 4096}, UFFDIO_REGISTER_MODE_MISSING, 0};
        if (!faults_ || ioctl(faults_.get(), UFFDIO_API, &api) != 0 ||
            ioctl(faults_.get(), UFFDIO_REGISTER, &range) != 0) {
            return;
        }
        holder_ = std::thread([this, call = std::move(call)] { call(page_); });
        uffd_msg fault;
        if (read(faults_.get(), &fault, sizeof fault) != sizeof fault) {
            throw std::runtime_error("no page fault");
        }
    }
    ~HeldCall() {
        if (held()) {
            uffdio_zeropage zero{{reinterpret_cast<uintptr_t>(page_), 4096}, 0, 0};
            ioctl(faults_.get(), UFFDIO_ZEROPAGE, &zero);
            holder_.join();
        }
    }
    HeldCall(const HeldCall &) = delete;
    HeldCall &operator=(const HeldCall &) = delete;
    /// False: this process has not the right to handle page faults of the kernel.
    bool held() const { return holder_.joinable(); }

  private:
    monitor::UniqueFd faults_;
    void *page_;
    std::thread holder_;
};

} // namespace sd::test
