// stdio. Its reads, writes and closes happen inside libc, where nothing can be interposed: a stream on a
// socket of ours is made with functions of our own for these, and what libc closes inside is noticed
// afterwards.
#include "libsd/api/sockets/stdio.hpp"
#include "libsd/api/processes/shell.hpp"
#include "libsd/api/wrap.hpp"
#include <cstdarg>
#include <stdio_ext.h>

using namespace sd;

extern "C" {
int __vasprintf_chk(char **text, int flag, const char *format, va_list list);
}

namespace {

void *as_cookie(int fd) noexcept { return reinterpret_cast<void *>(static_cast<intptr_t>(fd)); }
int as_fd(void *cookie) noexcept { return static_cast<int>(reinterpret_cast<intptr_t>(cookie)); }

ssize_t cookie_read(void *cookie, char *buffer, size_t size) { return ::read(as_fd(cookie), buffer, size); }

/// As libc's own: all of it, or an error.
ssize_t cookie_write(void *cookie, const char *buffer, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t r = ::write(as_fd(cookie), buffer + done, size - done);
        if (r < 0)
            break;
        done += static_cast<size_t>(r);
    }
    return static_cast<ssize_t>(done);
}

int cookie_seek(void *, off64_t *, int) {
    errno = ESPIPE;
    return -1;
}

int cookie_close(void *cookie) { return ::close(as_fd(cookie)); }

/// libc may have closed this number inside, or given it to something else; `before` is what it stood for.
void settle(int fd, File *before) noexcept {
    if (!before || file_of(fd) != before)
        return;
    if (sys::fcntl(fd, F_GETFD) == -EBADF)
        forget_fd(fd);
}

FILE *noted(FILE *f) noexcept {
    if (f)
        sd::noted(real.fileno(f));
    return f;
}

template <class Format> int print(int fd, Format format) noexcept {
    char *text = nullptr;
    int n = format(&text);
    if (n < 0)
        return -1;
    ssize_t written = cookie_write(as_cookie(fd), text, static_cast<size_t>(n));
    int saved = errno;
    free(text);
    errno = saved;
    return written == n ? n : -1;
}

} // namespace

SD_EXPORT FILE *fdopen(int fd, const char *mode) noexcept {
    if (!file_of(fd)) [[likely]]
        return real.fdopen(fd, mode);
    if (*mode != 'r' && *mode != 'w' && *mode != 'a') {
        errno = EINVAL;
        return nullptr;
    }
    bool both = false;
    for (const char *m = mode + 1; *m && *m != ','; ++m)
        both |= *m == '+';
    const char plain[] = {*mode, both ? '+' : '\0', '\0'};
    FILE *f = fopencookie(as_cookie(fd), plain, {cookie_read, cookie_write, cookie_seek, cookie_close});
    if (f)
        f->_fileno = fd; // for fileno(); nothing else looks at it in a stream of this kind
    return f;
}

namespace {

/// The variable that stands for descriptor `fd` in libc and in programs.
FILE *&standard_variable(int fd) noexcept { return fd == 0 ? stdin : fd == 1 ? stdout : stderr; }

/// libc's own stream and ours, which takes its place; made when first needed and then kept.
struct Exchange {
    FILE *libc = nullptr, *ours = nullptr;
};
constinit Exchange exchanges[3];

/// What was printed and not written yet goes where the number leads now, as the kernel has it.
void move_output(FILE *from, FILE *to) noexcept {
    if (!__fwriting(from))
        return;
    size_t n = __fpending(from);
    if (n != 0) {
        fwrite(from->_IO_write_base, 1, n, to);
        __fpurge(from);
    }
}

} // namespace

namespace sd {

void exchange_standard(int fd) noexcept {
    FILE *&current = standard_variable(fd);
    Exchange &e = exchanges[fd];
    const File *f = file_of(fd);
    bool want = f && (f->kind == FileKind::stream || f->kind == FileKind::fresh);
    if (want && current && current != e.ours && current->_fileno == fd) {
        int saved = errno;
        if (!e.ours)
            e.ours = ::fdopen(fd, fd == 0 ? "r" : "w");
        if (e.ours) {
            if (fd == 2)
                setvbuf(e.ours, nullptr, _IONBF, 0);
            else if (fd == 1 && __flbf(current))
                setvbuf(e.ours, nullptr, _IOLBF, 0);
            e.libc = current;
            move_output(e.libc, e.ours);
            clearerr(e.ours);
            current = e.ours;
        }
        errno = saved;
    } else if (!want && e.ours && current == e.ours) {
        move_output(e.ours, e.libc);
        current = e.libc;
    }
}

} // namespace sd

SD_EXPORT int fclose(FILE *f) {
    int status;
    if (close_popened(f, &status)) [[unlikely]]
        return status;
    int fd = f->_fileno;
    if (static_cast<unsigned>(fd) < 3 && f == exchanges[fd].ours) {
        exchanges[fd].ours = nullptr;
        standard_variable(fd) = exchanges[fd].libc;
    }
    File *before = fd >= 0 ? file_of(fd) : nullptr;
    int r = real.fclose(f);
    settle(fd, before);
    return freed(fd, r);
}

namespace {

/// libc makes a file's stream of any stream here, and sets a table in its wide part. A stream with functions
/// of its own has none: that pointer is -1. This is such a part, empty as in a new stream; it is not freed.
bool complete_for_reopening(FILE *f) noexcept {
    constexpr size_t kWidePart = 1024; // struct _IO_wide_data has some 300 bytes
    if (reinterpret_cast<intptr_t>(f->_wide_data) != -1)
        return true;
    void *part = calloc(1, kWidePart);
    if (part)
        f->_wide_data = static_cast<_IO_wide_data *>(part);
    return part != nullptr;
}

template <class Reopen> FILE *reopen(Reopen call, const char *path, const char *mode, FILE *f) noexcept {
    int fd = f->_fileno;
    if (!complete_for_reopening(f))
        return nullptr;
    if (static_cast<unsigned>(fd) < 3 && f == exchanges[fd].ours)
        exchanges[fd].ours = nullptr; // from now on a stream as libc's own
    File *before = fd >= 0 ? file_of(fd) : nullptr;
    make_room_below();
    FILE *result = freed(fd, call(path, mode, f));
    if (before && file_of(fd) == before)
        forget_fd(fd); // closed, or replaced by the new file under the same number
    return noted(result);
}

} // namespace

SD_EXPORT FILE *freopen(const char *path, const char *mode, FILE *f) {
    return reopen(real.freopen, path, mode, f);
}

SD_EXPORT FILE *freopen64(const char *path, const char *mode, FILE *f) {
    return reopen(real.freopen64, path, mode, f);
}

SD_EXPORT FILE *fopen(const char *path, const char *mode) {
    return noted(numbered([&] { return real.fopen(path, mode); }));
}

SD_EXPORT FILE *fopen64(const char *path, const char *mode) {
    return noted(numbered([&] { return real.fopen64(path, mode); }));
}

SD_EXPORT FILE *tmpfile() {
    return noted(numbered([&] { return real.tmpfile(); }));
}

SD_EXPORT FILE *tmpfile64() {
    return noted(numbered([&] { return real.tmpfile64(); }));
}

SD_EXPORT int vdprintf(int fd, const char *format, va_list list) {
    if (!file_of(fd)) [[likely]]
        return real.vdprintf(fd, format, list);
    return print(fd, [&](char **text) { return vasprintf(text, format, list); });
}

SD_EXPORT int dprintf(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int r = vdprintf(fd, format, list);
    va_end(list);
    return r;
}

SD_EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list list) {
    if (!file_of(fd)) [[likely]]
        return real.__vdprintf_chk(fd, flag, format, list);
    return print(fd, [&](char **text) { return __vasprintf_chk(text, flag, format, list); });
}

SD_EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int r = __vdprintf_chk(fd, flag, format, list);
    va_end(list);
    return r;
}
