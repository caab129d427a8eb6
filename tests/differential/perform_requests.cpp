// Data moved by the C library on a step's behalf: POSIX requests, and streams that are read.
#include "tests/differential/actor.hpp"

#include <aio.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace sd::differential {

namespace {

// POSIX requests, and what they came to.
void settle(aiocb *requests, int count, Observation &o) {
    for (int i = 0; i < count; ++i) {
        const aiocb *one = requests + i;
        while (aio_error(one) == EINPROGRESS) {
            aio_suspend(&one, 1, nullptr);
        }
        const int error = aio_error(one);
        o.say("%s ", error == 0 ? "done" : strerrorname_np(error));
        errno = error;
        o.result(aio_return(requests + i));
    }
}

// Without signals: where one ends the wait, glibc's later waits for what is left do not end (2.36).
int wait_for_list(aiocb **list) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int r = lio_listio(LIO_WAIT, list, 2, nullptr);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return r;
}

void request(int fd, char *bytes, size_t size, bool writing, bool both, Observation &o) {
    aiocb requests[2] = {};
    aiocb *list[] = {requests, requests + 1};
    const int count = both ? 2 : 1;
    for (int i = 0; i < count; ++i) {
        requests[i].aio_fildes = fd;
        requests[i].aio_lio_opcode = writing ? LIO_WRITE : LIO_READ;
        requests[i].aio_buf = bytes + static_cast<size_t>(i) * (size / 2);
        requests[i].aio_nbytes = !both ? size : i == 0 ? size / 2 : size - size / 2;
        requests[i].aio_sigevent.sigev_notify = SIGEV_NONE;
    }
    const int r = both ? wait_for_list(list) : writing ? aio_write(requests) : aio_read(requests);
    o.result(r);
    if (r == 0 || both) {
        settle(requests, count, o);
    }
}

// More than `size` bytes, or the end of the stream behind fewer.
bool has_more_than(size_t size, int fd, Observation &o) {
    pollfd entry{fd, POLLIN | POLLRDHUP, 0};
    if (poll(&entry, 1, 0) == 1) {
        int waiting = 0;
        const bool over = (entry.revents & ~POLLIN) != 0;
        if (size == 0 || over || (ioctl(fd, FIONREAD, &waiting) == 0 && static_cast<size_t>(waiting) > size)) {
            return true;
        }
    }
    o.say("nothing there");
    return false;
}

} // namespace

void give_request(int fd, char *bytes, size_t size, bool both, Observation &o) {
    request(fd, bytes, size, true, both, o);
}

void get_request(int fd, char *bytes, size_t size, bool both, Observation &o) {
    // Who waits for a request is not seen to wait: the C library has a thread of its own do it.
    // The second of two must not wait either.
    if (has_more_than(both ? size / 2 : 0, fd, o)) {
        request(fd, bytes, size, false, both, o);
        o.data(bytes, size);
    }
}

void get_stdio(int fd, size_t size, Observation &o) {
    const int copy = has_more_than(0, fd, o) ? dup(fd) : -1;
    FILE *stream = copy < 0 ? nullptr : fdopen(copy, "r");
    if (stream == nullptr) {
        if (copy >= 0) {
            o.result(-1);
            close(copy);
        }
        return;
    }
    setvbuf(stream, nullptr, _IONBF, 0);
    char letter[2] = "";
    errno = 0; // the end of a stream leaves it alone, and libc's own calls may have set it
    if (size % 2 == 0) {
        o.result(static_cast<long>(fread(letter, 1, 1, stream)));
    } else {
        o.result(getc(stream));
    }
    o.say(" %s end %d error %d", letter, feof(stream) != 0, ferror(stream) != 0);
    o.result(fclose(stream));
}

} // namespace sd::differential
