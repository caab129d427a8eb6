// sendfile and splice over an accelerated connection: the data, the positions, and that nothing is lost half
// way.
#include "tests/unit/stream_pair.hpp"

#include <csignal>
#include <string>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>

using namespace sd;
using namespace sd::test;

namespace {

std::string pattern(size_t n) {
    std::string s(n, '\0');
    for (size_t i = 0; i < n; ++i)
        s[i] = static_cast<char>((i * 2654435761u) >> 11);
    return s;
}

int file_with(const std::string &content) {
    const int fd = memfd_create("content", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    REQUIRE(::lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

std::string take(int fd, size_t n) {
    std::string s(n, '\0');
    size_t got = 0;
    while (got < n) {
        const long r = vfs::recv(fd, file_of(fd), s.data() + got, n - got, 0);
        if (r <= 0)
            break;
        got += static_cast<size_t>(r);
    }
    s.resize(got);
    return s;
}

struct Pipe {
    int end[2];
    Pipe() { REQUIRE(::pipe(end) == 0); }
    ~Pipe() {
        sys::close(end[0]);
        sys::close(end[1]);
    }
};

} // namespace

TEST_CASE("a reserved record reads like a written one, across the end of the ring too") {
    alignas(64) uint8_t memory[kInlineRing] = {};
    TxState tx{};
    RxState rx{};
    std::atomic<uint64_t> consumed{0};
    const ring::Place place{memory};
    bool wrapped = false;
    for (unsigned i = 1; i < 2000; ++i) {
        const uint32_t room = 1 + i % 200, used = 1 + i * 7 % room;
        REQUIRE(ring::refresh_credit(tx, consumed));
        REQUIRE(ring::room(tx) >= 8 + ring::pad8(room));
        const ring::Space s = ring::reserve(tx, place, room);
        wrapped |= s.count == 2;
        uint32_t k = 0;
        for (int piece = 0; piece < s.count; ++piece)
            for (size_t j = 0; j < s.piece[piece].iov_len && k < used; ++j, ++k)
                static_cast<char *>(s.piece[piece].iov_base)[j] = static_cast<char>(i + k);
        ring::commit(tx, place, used);
        char out[256];
        ring::Record rec;
        REQUIRE(ring::next_record(rx, place, consumed, &rec) == 1);
        REQUIRE(rec.length == used);
        REQUIRE(ring::take(rx, place, rec, out, sizeof out) == used);
        for (k = 0; k < used; ++k)
            REQUIRE(out[k] == static_cast<char>(i + k));
        consumed.store(rx.head);
        REQUIRE(ring::next_record(rx, place, consumed, &rec) == 0);
    }
    CHECK(wrapped);
}

TEST_CASE("sendfile moves bytes and the right position") {
    StreamPair p;
    const std::string content = pattern(100000);
    const int file = file_with(content);
    CHECK(vfs::sendfile(p.fd[0], file, nullptr, 60000) == 60000);
    CHECK(::lseek(file, 0, SEEK_CUR) == 60000);
    CHECK(take(p.fd[1], 60000) == content.substr(0, 60000));
    off64_t offset = 10;
    CHECK(vfs::sendfile(p.fd[0], file, &offset, 1000) == 1000);
    CHECK(offset == 1010);
    CHECK(::lseek(file, 0, SEEK_CUR) == 60000);
    CHECK(take(p.fd[1], 1000) == content.substr(10, 1000));
    CHECK(vfs::sendfile(p.fd[0], file, nullptr, 1000000) == 40000);
    CHECK(take(p.fd[1], 40000) == content.substr(60000));
    CHECK(vfs::sendfile(p.fd[0], file, nullptr, 10) == 0);
    offset = -1;
    CHECK(vfs::sendfile(p.fd[0], file, &offset, 10) == -EINVAL);
    Pipe pipe;
    CHECK(vfs::sendfile(p.fd[0], pipe.end[0], nullptr, 10) == -EINVAL);
    offset = 0;
    CHECK(vfs::sendfile(p.fd[0], pipe.end[0], &offset, 10) == -ESPIPE);
    CHECK(vfs::sendfile(p.fd[0], p.fd[1], nullptr, 10) == -EINVAL);
    CHECK(vfs::sendfile(p.fd[0], -1, nullptr, 10) == -EBADF);
    sys::close(file);
}

TEST_CASE("a blocking sendfile sends all, a non-blocking one what fits") {
    StreamPair p;
    const std::string content = pattern(24 << 20);
    const int file = file_with(content);
    std::string got;
    std::thread reader([&] { got = take(p.fd[1], content.size()); });
    CHECK(vfs::sendfile(p.fd[0], file, nullptr, content.size() + 5) == static_cast<long>(content.size()));
    reader.join();
    CHECK((got == content));
    CHECK(vfs::fcntl(p.fd[0], F_SETFL, O_NONBLOCK) == 0);
    off64_t offset = 0;
    long r, sum = 0;
    while ((r = vfs::sendfile(p.fd[0], file, &offset, 1 << 20)) > 0)
        sum += r;
    CHECK(r == -EAGAIN);
    CHECK(offset == sum);
    CHECK(sum > 0);
    CHECK((take(p.fd[1], static_cast<size_t>(sum)) == content.substr(0, static_cast<size_t>(sum))));
    sys::close(file);
}

TEST_CASE("sendfile to a closed peer ends like a write") {
    ::signal(SIGPIPE, SIG_IGN);
    StreamPair p;
    const int file = file_with(pattern(5000));
    vfs::close(p.fd[1]);
    off64_t offset = 0;
    long r = vfs::sendfile(p.fd[0], file, &offset, 5000);
    if (r > 0) // a kernel that has not heard of the close yet takes the first one
        r = vfs::sendfile(p.fd[0], file, &offset, 100);
    offset = 0;
    r = vfs::sendfile(p.fd[0], file, &offset, 100);
    CHECK(r == -EPIPE);
    sys::close(file);
}

TEST_CASE("splice from a pipe takes no more than the connection has room for") {
    StreamPair p;
    Pipe pipe;
    const std::string content = pattern(60000);
    CHECK(vfs::splice(pipe.end[0], nullptr, p.fd[0], nullptr, 10, SPLICE_F_NONBLOCK) == -EAGAIN);
    REQUIRE(::write(pipe.end[1], content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    CHECK(vfs::splice(pipe.end[0], nullptr, p.fd[0], nullptr, 100, 0) == 100);
    CHECK(vfs::splice(pipe.end[0], nullptr, p.fd[0], nullptr, 1 << 20, 0) == 59900);
    CHECK((take(p.fd[1], content.size()) == content));
    // Fill the connection; what the pipe holds then must still be there.
    CHECK(vfs::fcntl(p.fd[0], F_SETFL, O_NONBLOCK) == 0);
    size_t sent = 0;
    long r;
    std::string chunk = pattern(32768);
    while ((r = vfs::send(p.fd[0], p.file(0), chunk.data(), chunk.size(), 0)) > 0)
        sent += static_cast<size_t>(r);
    REQUIRE(r == -EAGAIN);
    REQUIRE(::write(pipe.end[1], "kept", 4) == 4);
    r = vfs::splice(pipe.end[0], nullptr, p.fd[0], nullptr, 4, 0);
    int queued = 0;
    REQUIRE(::ioctl(pipe.end[0], 0x541b, &queued) == 0);
    CHECK(queued == (r > 0 ? 0 : 4));
    take(p.fd[1], sent);
    if (r < 0)
        CHECK(vfs::splice(pipe.end[0], nullptr, p.fd[0], nullptr, 4, 0) == 4);
    CHECK(take(p.fd[1], 4) == "kept");
    off64_t offset = 0;
    CHECK(vfs::splice(pipe.end[0], nullptr, p.fd[0], &offset, 1, 0) == -EINVAL);
    CHECK(vfs::splice(pipe.end[0], &offset, p.fd[0], nullptr, 1, 0) == -ESPIPE);
    CHECK(vfs::splice(p.fd[0], nullptr, p.fd[1], nullptr, 1, 0) == -EINVAL);
    CHECK(vfs::splice(pipe.end[0], nullptr, p.fd[0], nullptr, 1, 0x4000) == -EINVAL);
    CHECK(vfs::splice(pipe.end[0], nullptr, p.fd[0], nullptr, 0, 0) == 0);
    sys::close(pipe.end[1]);
    CHECK(vfs::splice(pipe.end[0], nullptr, p.fd[0], nullptr, 10, 0) == 0);
}

TEST_CASE("splice to a pipe leaves in the connection what the pipe does not take") {
    StreamPair p;
    Pipe pipe;
    const std::string content = pattern(300000);
    long sent = 0; // checked after the thread has ended: Catch2's assertions are for one thread
    std::thread writer([&] { sent = vfs::send(p.fd[0], p.file(0), content.data(), content.size(), 0); });
    std::string got;
    char buffer[8192];
    while (got.size() < content.size()) {
        const long r = vfs::splice(p.fd[1], nullptr, pipe.end[1], nullptr, content.size() - got.size(), 0);
        REQUIRE(r > 0);
        for (long left = r; left > 0;) {
            const ssize_t n =
                ::read(pipe.end[0], buffer, left < 8192 ? static_cast<size_t>(left) : sizeof buffer);
            REQUIRE(n > 0);
            got.append(buffer, static_cast<size_t>(n));
            left -= n;
        }
    }
    writer.join();
    CHECK(sent == 300000);
    CHECK((got == content));
    CHECK(vfs::fcntl(p.fd[1], F_SETFL, O_NONBLOCK) == 0);
    CHECK(vfs::splice(p.fd[1], nullptr, pipe.end[1], nullptr, 10, 0) == -EAGAIN);
    // A full pipe.
    CHECK(vfs::send(p.fd[0], p.file(0), "data", 4, 0) == 4);
    ::fcntl(pipe.end[1], F_SETFL, O_NONBLOCK);
    while (::write(pipe.end[1], buffer, sizeof buffer) > 0) {
    }
    CHECK(vfs::splice(p.fd[1], nullptr, pipe.end[1], nullptr, 10, SPLICE_F_NONBLOCK) == -EAGAIN);
    CHECK(take(p.fd[1], 4) == "data");
    vfs::shutdown(p.fd[0], SHUT_WR);
    ::fcntl(pipe.end[0], F_SETFL, O_NONBLOCK);
    while (::read(pipe.end[0], buffer, sizeof buffer) == sizeof buffer) {
    }
    CHECK(vfs::splice(p.fd[1], nullptr, pipe.end[1], nullptr, 10, 0) == 0);
}
