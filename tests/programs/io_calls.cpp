// Every call that moves data over a connected stream, with its results and its odd corners.
#include "tests/programs/cases.hpp"

#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

using namespace sdtest;

namespace {

iovec slice(std::string &data) { return iovec{data.data(), data.size()}; }

int temporary_file(const std::string &content) {
    const int fd = MUST(memfd_create("behaviour", MFD_CLOEXEC));
    MUST(write(fd, content.data(), content.size()));
    MUST(lseek(fd, 0, SEEK_SET));
    return fd;
}

} // namespace

BEHAVIOUR("read and write", read_write, accelerated) {
    const Pair pair = make_pair();
    char buffer[64] = {};
    SHOW(write(pair.client, "hello world", 11));
    SHOW(read(pair.server, buffer, 5));
    say("%s", buffer);
    SHOW(read(pair.server, buffer, sizeof buffer));
    say("%.6s", buffer);
    SHOW(write(pair.server, "", 0));
    SHOW(read(pair.client, buffer, 0));
    SHOW(write(pair.server, "back", 4));
    SHOW(read(pair.client, buffer, 64));
}

BEHAVIOUR("a stream has no message borders", stream_joins_writes, accelerated) {
    const Pair pair = make_pair();
    for (int i = 0; i < 10; ++i)
        SHOW(write(pair.client, "0123456789", static_cast<size_t>(i)));
    show_data("joined", receive(pair.server, 45));
}

BEHAVIOUR("readv and writev", readv_writev, accelerated) {
    const Pair pair = make_pair();
    std::string one = "first ", two, three = "second ", four = "third";
    const iovec out[] = {slice(one), slice(two), slice(three), slice(four)};
    SHOW(writev(pair.client, out, 4));
    std::string a(3, '.'), b(7, '.'), c, d(20, '.');
    const iovec in[] = {slice(a), slice(b), slice(c), slice(d)};
    SHOW(readv(pair.server, in, 4));
    say("[%s] [%s] [%s] [%s]", a.c_str(), b.c_str(), c.c_str(), d.c_str());
    SHOW(writev(pair.client, out, 0));
    SHOW(writev(pair.client, out, opaque(-1)));
    SHOW(writev(pair.client, out, opaque(1025)));
    SHOW(readv(pair.client, in, 0));
    SHOW(readv(pair.client, in, opaque(-1)));
    SHOW(readv(pair.client, in, opaque(1025)));
    const iovec huge{one.data(), static_cast<size_t>(-1)};
    SHOW(writev(pair.client, &huge, 1));
    std::vector<iovec> many(1024, iovec{one.data(), 1});
    SHOW(writev(pair.client, many.data(), 1024));
    show_data("many", receive(pair.server, 1024));
}

BEHAVIOUR("send and recv, with lengths of 0", send_recv, accelerated) {
    const Pair pair = make_pair();
    char buffer[32] = {};
    SHOW(send(pair.server, "abcdef", 6, 0));
    SHOW(recv(pair.client, buffer, 4, 0));
    SHOW(recv(pair.client, buffer, 4, 0));
    SHOW(send(pair.server, "", 0, 0));
    SHOW(recv(pair.client, buffer, 0, MSG_DONTWAIT));
    SHOW(send(pair.server, "z", 1, 0));
    wait_for(pair.client, POLLIN);
    SHOW(recv(pair.client, buffer, 0, 0));
    SHOW(recv(pair.client, buffer, 4, 0));
}

BEHAVIOUR("sendto and recvfrom ignore addresses", sendto_recvfrom, accelerated) {
    const Pair pair = make_pair();
    char buffer[32] = {};
    const Address elsewhere = make_address("127.0.0.1", 9);
    // The address of a connected stream is not looked at.
    SHOW(sendto(pair.client, "abc", 3, 0, elsewhere.raw(), elsewhere.length));
    SHOW(sendto(pair.client, "def", 3, 0, nullptr, 0));
    receive(pair.server, 3);
    Address from;
    memset(&from.storage, 0x5a, sizeof from.storage);
    SHOW(recvfrom(pair.server, buffer, sizeof buffer, 0, from.raw(), &from.length));
    say("length %u, family untouched %s", from.length, yes_no(from.storage.ss_family == 0x5a5a));
    SHOW(send(pair.client, "g", 1, 0));
    SHOW(recvfrom(pair.server, buffer, sizeof buffer, 0, nullptr, nullptr));
    const int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(sendto(fresh, "abc", 3, MSG_NOSIGNAL, elsewhere.raw(), elsewhere.length));
    SHOW(recvfrom(fresh, buffer, 3, 0, nullptr, nullptr));
}

BEHAVIOUR("sendmsg and recvmsg", sendmsg_recvmsg, accelerated) {
    const Pair pair = make_pair();
    std::string one = "alpha", two = "beta";
    iovec out[] = {slice(one), slice(two)};
    msghdr message{};
    message.msg_iov = out;
    message.msg_iovlen = 2;
    SHOW(sendmsg(pair.client, &message, 0));
    std::string a(4, '.'), b(10, '.');
    iovec in[] = {slice(a), slice(b)};
    char control[64];
    Address from;
    msghdr got{};
    got.msg_name = from.raw();
    got.msg_namelen = from.length;
    got.msg_iov = in;
    got.msg_iovlen = 2;
    got.msg_control = control;
    got.msg_controllen = sizeof control;
    got.msg_flags = -1;
    SHOW(recvmsg(pair.server, &got, 0));
    say("[%s] [%s] namelen %u controllen %zu flags %x", a.c_str(), b.c_str(), got.msg_namelen,
        got.msg_controllen, static_cast<unsigned>(got.msg_flags));
    message.msg_iovlen = 1025;
    SHOW(sendmsg(pair.client, &message, 0));
    SHOW(recvmsg(pair.client, &message, 0));
    message.msg_iovlen = 0;
    SHOW(sendmsg(pair.client, &message, 0));
    SHOW(recvmsg(pair.client, &message, MSG_DONTWAIT));
}

BEHAVIOUR("control messages that make no sense", sendmsg_refuses_unknown_control, accelerated) {
    const Pair pair = make_pair();
    std::string text = "text";
    iovec out = slice(text);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &out;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = 12345;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    SHOW(sendmsg(pair.client, &message, 0));
    header->cmsg_level = 4242; // levels that are not ours are skipped
    SHOW(sendmsg(pair.client, &message, 0));
    header->cmsg_len = 3;
    SHOW(sendmsg(pair.client, &message, 0));
}

BEHAVIOUR("sendmmsg and recvmmsg", sendmmsg_recvmmsg, accelerated) {
    const Pair pair = make_pair();
    std::string parts[] = {"one", "twotwo", "three"};
    iovec out[3];
    mmsghdr messages[3] = {};
    for (int i = 0; i < 3; ++i) {
        out[i] = slice(parts[i]);
        messages[i].msg_hdr.msg_iov = &out[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    SHOW(sendmmsg(pair.client, messages, 3, 0));
    say("%u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len);
    std::string rooms[] = {"....", "....", "....", "...."};
    iovec in[4];
    mmsghdr got[4] = {};
    for (int i = 0; i < 4; ++i) {
        in[i] = slice(rooms[i]);
        got[i].msg_hdr.msg_iov = &in[i];
        got[i].msg_hdr.msg_iovlen = 1;
    }
    wait_for(pair.server, POLLIN);
    SHOW(recvmmsg(pair.server, got, 3, 0, nullptr));
    say("%u %u %u: %s%s%s", got[0].msg_len, got[1].msg_len, got[2].msg_len, rooms[0].c_str(),
        rooms[1].c_str(), rooms[2].c_str());
    SHOW(recvmmsg(pair.server, got, 4, MSG_DONTWAIT, nullptr));
    SHOW(send(pair.client, "xyz", 3, 0));
    wait_for(pair.server, POLLIN);
    SHOW(recvmmsg(pair.server, got, 4, MSG_WAITFORONE, nullptr));
    timespec bad{0, 2000000000};
    SHOW(recvmmsg(pair.server, got, 4, MSG_DONTWAIT, &bad));
    SHOW(sendmmsg(pair.client, messages, 0, 0));
    SHOW(recvmmsg(pair.server, got, 0, MSG_DONTWAIT, nullptr));
}

BEHAVIOUR("sendfile", sendfile_to_socket, accelerated) {
    const Pair pair = make_pair();
    const std::string content = pattern(100000, 7);
    const int file = temporary_file(content);
    SHOW(sendfile(pair.client, file, nullptr, 60000));
    say("file position %ld", static_cast<long>(lseek(file, 0, SEEK_CUR)));
    show_data("first", receive(pair.server, 60000));
    off_t offset = 10;
    SHOW(sendfile(pair.client, file, &offset, 1000));
    say("offset %ld, file position %ld", static_cast<long>(offset), static_cast<long>(lseek(file, 0, SEEK_CUR)));
    SHOW_BOOL(receive(pair.server, 1000) == content.substr(10, 1000));
    SHOW(sendfile(pair.client, file, nullptr, 1000000));
    SHOW_BOOL(receive(pair.server, 40000) == content.substr(60000));
    SHOW(sendfile(pair.client, file, nullptr, 10));
    SHOW(sendfile(pair.client, file, nullptr, 0));
    offset = -1;
    SHOW(sendfile(pair.client, file, &offset, 10));
    SHOW(sendfile(pair.client, -1, nullptr, 10));
    SHOW(sendfile(pair.client, file, bad_pointer<off_t>(), 10));
    MUST(lseek(file, 0, SEEK_SET));
    const int target = temporary_file("");
    SHOW(sendfile(target, pair.client, nullptr, 10));
}

BEHAVIOUR("splice, tee, vmsplice", splice_through_pipes, accelerated) {
    const Pair pair = make_pair();
    int ends[2];
    MUST(pipe(ends));
    MUST(write(ends[1], "from the pipe", 13));
    SHOW(splice(ends[0], nullptr, pair.client, nullptr, 100, 0));
    say("%s", receive(pair.server, 13).c_str());
    SHOW(send(pair.server, "to the pipe", 11, 0));
    wait_for(pair.client, POLLIN);
    SHOW(splice(pair.client, nullptr, ends[1], nullptr, 6, 0));
    SHOW(splice(pair.client, nullptr, ends[1], nullptr, 100, 0));
    set_nonblocking(pair.client);
    SHOW(splice(pair.client, nullptr, ends[1], nullptr, 100, SPLICE_F_NONBLOCK));
    char buffer[32] = {};
    SHOW(read(ends[0], buffer, sizeof buffer));
    say("%s", buffer);
    loff_t offset = 0;
    MUST(write(ends[1], "x", 1));
    SHOW(splice(ends[0], nullptr, pair.client, &offset, 1, 0));
    SHOW(splice(pair.client, nullptr, pair.server, nullptr, 1, 0));
    SHOW(tee(ends[0], pair.client, 1, 0));
    iovec some{buffer, 4};
    SHOW(vmsplice(pair.client, &some, 1, 0));
    close(pair.server);
    SHOW(splice(pair.client, nullptr, ends[1], nullptr, 100, 0));
}

BEHAVIOUR("preadv2 and pwritev2 at position -1", preadv2_pwritev2, accelerated) {
    const Pair pair = make_pair();
    std::string text = "versions", room(16, '.');
    const iovec out = slice(text), in = slice(room);
    SHOW(pwritev2(pair.client, &out, 1, -1, 0));
    wait_for(pair.server, POLLIN);
    SHOW(preadv2(pair.server, &in, 1, -1, 0));
    say("%s", room.c_str());
    SHOW(preadv2(pair.server, &in, 1, -1, RWF_NOWAIT));
    SHOW(pwritev2(pair.client, &out, 1, 0, 0));
    SHOW(preadv2(pair.server, &in, 1, 0, 0));
}

BEHAVIOUR("pread and others give ESPIPE", no_positions, accelerated) {
    const Pair pair = make_pair();
    char buffer[16] = {};
    const iovec vector{buffer, sizeof buffer};
    SHOW(pread(pair.client, buffer, 4, 0));
    SHOW(pwrite(pair.client, buffer, 4, 0));
    SHOW(preadv(pair.client, &vector, 1, 0));
    SHOW(pwritev(pair.client, &vector, 1, 0));
    SHOW(pread(pair.client, buffer, 4, -1));
    SHOW(lseek(pair.client, 0, SEEK_SET));
    SHOW(lseek(pair.client, 0, SEEK_CUR));
    SHOW(ftruncate(pair.client, 0));
    SHOW(fsync(pair.client));
    SHOW(fdatasync(pair.client));
    SHOW(isatty(pair.client));
    SHOW(posix_fallocate(pair.client, 0, 10));
    SHOW_BOOL(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, pair.client, 0) == MAP_FAILED && errno == ENODEV);
    const int file = temporary_file("content");
    SHOW(copy_file_range(file, nullptr, pair.client, nullptr, 4, 0));
    SHOW(copy_file_range(pair.client, nullptr, file, nullptr, 4, 0));
}

// Written and read by the same thread, one after the other: the connection must hold it all meanwhile.
BEHAVIOUR("200 KiB written before they are read", write_200k_then_read, accelerated) {
    const Pair pair = make_pair();
    const std::string data = pattern(200 * 1024, 3);
    SHOW(write(pair.client, data.data(), data.size()));
    show_data("got", receive(pair.server, data.size()));
    SHOW(write(pair.server, data.data(), data.size()));
    SHOW_BOOL(receive(pair.client, data.size()) == data);
}

// How much fits without a reader is the kernel's affair, but it has a lower and an upper bound.
BEHAVIOUR("a full connection, bounded", full_buffer, accelerated) {
    const Pair pair = make_pair();
    set_nonblocking(pair.client);
    const std::string data = pattern(65536, 4);
    std::string sent;
    for (;;) {
        const ssize_t result = write(pair.client, data.data(), data.size());
        if (result < 0) {
            say("stopped by %s", strerrorname_np(errno));
            break;
        }
        sent.append(data, 0, static_cast<size_t>(result));
    }
    SHOW_BOOL(sent.size() >= 200 * 1024);
    SHOW_BOOL(sent.size() <= 64 * 1024 * 1024);
    say("poll %s", event_names(static_cast<uint32_t>(poll_now(pair.client))).c_str());
    SHOW_BOOL(receive(pair.server, sent.size()) == sent);
    wait_for(pair.client, POLLOUT);
    SHOW(write(pair.client, "more", 4));
    say("%s", receive(pair.server, 4).c_str());
}

// Small buffers asked for are small buffers got, within reason.
BEHAVIOUR("small buffers asked for", small_buffers, accelerated) {
    const int listener = make_listener();
    set_option(listener, SOL_SOCKET, SO_RCVBUF, 8192);
    const int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set_option(client, SOL_SOCKET, SO_SNDBUF, 8192);
    const Address to = local_address(listener);
    MUST(connect(client, to.raw(), to.length));
    const int server = MUST(accept(listener, nullptr, nullptr));
    set_nonblocking(client);
    const std::string data = pattern(4096, 5);
    std::string sent;
    ssize_t result;
    while ((result = write(client, data.data(), data.size())) > 0)
        sent.append(data, 0, static_cast<size_t>(result));
    SHOW_BOOL(errno == EAGAIN);
    SHOW_BOOL(sent.size() >= 4096);
    SHOW_BOOL(sent.size() <= 256 * 1024);
    SHOW_BOOL(receive(server, sent.size()) == sent);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
