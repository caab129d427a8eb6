// A library that is wrong on purpose: preloaded in front of libsd, it spoils one byte of what recv() reads.
// It shows that the runner finds an error where there is one.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/types.h>

extern "C" ssize_t recv(int fd, void *buffer, size_t size, int flags) {
    using Receive = ssize_t (*)(int, void *, size_t, int);
    static const auto next = reinterpret_cast<Receive>(dlsym(RTLD_NEXT, "recv"));
    const ssize_t got = next(fd, buffer, size, flags);
    if (got > 4) {
        static_cast<char *>(buffer)[4] = '!';
    }
    return got;
}
