// The monitor's operations at random: arguments that make sense and such that do not, any descriptors,
// floods, silence, half-closed channels.
#include "tests/e2e/hostile/hostile.hpp"

#include "libsd/layout/directory_layout.hpp"
#include "libsd/layout/exec_table.hpp"
#include "libsd/layout/pool_layout.hpp"
#include "libsd/layout/protocol.hpp"
#include "libsd/layout/segment_layout.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace sd::hostile {

namespace {

constexpr unsigned kChannels = 12, kDescriptors = 48, kNumbers = 64;

// Their numbers have gaps, where helpers of several kinds have theirs (protocol.hpp).
wire::Op any_operation(Random &random) {
    using wire::Op;
    static constexpr Op kNewer[] = {Op::snapshot,  Op::renew, Op::offer,     Op::other_end,
                                    Op::take_back, Op::greet, Op::pool,      Op::peer_pool,
                                    Op::end_pool,  Op::steer, Op::steer_mine};
    constexpr auto kFirst = static_cast<uint64_t>(Op::sandbox); // 1 to this have no gap
    const uint64_t n = below(random, kFirst + std::size(kNewer));
    return n < kFirst ? static_cast<Op>(n + 1) : kNewer[n - kFirst];
}

class Attacker {
  public:
    Attacker(const Target &target, Random random) : target_(target), random_(random) {}
    void run();

  private:
    struct Channel {
        int fd = -1;
        std::vector<uint64_t> links{}, listeners{}; ///< what it has been given
        bool silent = false;                        ///< takes no answers
        bool careful = false;                       ///< says nothing that would end it
    };

    void open_channel();
    void drop_channel(size_t index);
    void add_channel(const Channel &channel);
    void be_a_child();
    void one_request(Channel &channel);
    void introduce(Channel &channel);
    void send_packet(const Channel &channel, const wire::Packet &packet, size_t length,
                     const std::vector<int> &fds);
    size_t usual_length(wire::Op op);
    std::vector<int> usual_descriptors(wire::Op op);
    void fill(unsigned char *body, size_t length);
    bool read_answers(Channel &channel, int most);
    void learn(Channel &channel, const wire::Packet &answer);
    void name_something(const Channel &channel, wire::Op op, unsigned char *body);
    void note_number(uint64_t number);
    void learn_listeners(int fd);
    void keep_descriptor(int fd);
    int make_descriptor();
    int any_descriptor();
    int make_segment();
    int make_listener();
    void scribble_on_what_was_given();

    const Target &target_;
    Random random_;
    std::vector<Channel> channels_;
    std::vector<int> descriptors_;
    std::vector<int> children_;              ///< channels made for them, which have said nothing yet
    std::vector<uint64_t> numbers_{0, 1, 2}; ///< ids that the monitor has named
    std::vector<uint64_t> listeners_ = std::vector<uint64_t>(8, 1); ///< in the directory
    int segment_ = -1;
};

int tcp_socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

int memory(size_t size) {
    const int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(size)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int sealed_memory(size_t size, int seals) {
    const int fd = memory(size);
    if (fd >= 0)
        fcntl(fd, F_ADD_SEALS, seals);
    return fd;
}

// As libsd makes it, now and then with other words in it.
int Attacker::make_segment() {
    const int fd = memory(kSegmentBytes);
    if (fd < 0)
        return fd;
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    void *base = mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return fd;
    SegmentView view;
    view.base = static_cast<uint8_t *>(base);
    view.header().version = kLayoutVersion;
    view.header().bytes = kSegmentBytes;
    view.header().magic = kSegmentMagic;
    view.proc(0).state = 1;
    view.proc(0).pid = static_cast<uint32_t>(getpid());
    if (chance(random_, 40)) { // connections that there never were
        for (int i = 0; i < 20; ++i) {
            const auto index = static_cast<unsigned>(below(random_, chance(random_, 80) ? 64 : kOfds));
            Ofd &ofd = view.ofd(index);
            ofd.state = static_cast<uint32_t>(below(random_, 4));
            ofd.link_id = numbers_[below(random_, numbers_.size())];
            ofd.slot = static_cast<uint32_t>(chance(random_, 80) ? below(random_, kLinkSlots) : random_());
            ofd.side = static_cast<uint8_t>(below(random_, 4));
            const auto proc = static_cast<unsigned>(below(random_, 4));
            view.proc(proc).held[index / 64].fetch_or(uint64_t{1} << index % 64);
        }
        view.header().ofd_high = static_cast<uint32_t>(chance(random_, 50) ? 64 : random_());
        view.header().proc_high = static_cast<uint32_t>(chance(random_, 50) ? 4 : random_());
    }
    munmap(base, kSegmentBytes);
    return fd;
}

int Attacker::make_listener() {
    const int fd = tcp_socket();
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(chance(random_, 70) ? INADDR_LOOPBACK : INADDR_ANY);
    const int on = 1;
    if (chance(random_, 50))
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(fd, reinterpret_cast<sockaddr *>(&name), sizeof name) == 0)
        listen(fd, 4);
    return fd;
}

int Attacker::make_descriptor() {
    int ends[2] = {-1, -1};
    switch (below(random_, 12)) {
    case 0:
        return make_segment();
    case 1:
        return tcp_socket();
    case 2:
        return make_listener();
    case 3:
        return eventfd(0, EFD_CLOEXEC | (chance(random_, 70) ? EFD_NONBLOCK : 0));
    case 4:
        return memory(below(random_, 2) ? sizeof(ListenerSegment) : below(random_, 1 << 20));
    case 5: {
        const int type = below(random_, 2) ? SOCK_SEQPACKET : SOCK_STREAM;
        if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0)
            return -1;
        break;
    }
    case 6:
        if (pipe2(ends, O_CLOEXEC) != 0)
            return -1;
        break;
    case 7:
        return epoll_create1(EPOLL_CLOEXEC);
    case 8:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 9:
        return open("/", O_PATH | O_CLOEXEC);
    case 10:
        return socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    default: { // both ends of a kernel connection, as pass and moved want it
        const int listener = make_listener();
        sockaddr_in name{};
        socklen_t length = sizeof name;
        getsockname(listener, reinterpret_cast<sockaddr *>(&name), &length);
        const int client = tcp_socket();
        if (connect(client, reinterpret_cast<sockaddr *>(&name), length) == 0)
            keep_descriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
        close(listener);
        return client;
    }
    }
    keep_descriptor(ends[1]);
    return ends[0];
}

void Attacker::keep_descriptor(int fd) {
    if (fd < 0)
        return;
    if (descriptors_.size() < kDescriptors) {
        descriptors_.push_back(fd);
        return;
    }
    int &old = descriptors_[below(random_, descriptors_.size())];
    close(old);
    old = fd;
}

int Attacker::any_descriptor() {
    if (descriptors_.empty() || chance(random_, 10))
        keep_descriptor(make_descriptor());
    return descriptors_.empty() ? 0 : descriptors_[below(random_, descriptors_.size())];
}

size_t Attacker::usual_length(wire::Op op) {
    using wire::Op;
    switch (op) {
    case Op::hello:
        return sizeof(wire::Hello);
    case Op::fork:
        return sizeof(wire::Fork);
    case Op::child:
        return sizeof(wire::Child);
    case Op::segment:
        return sizeof(wire::Segment);
    case Op::listen:
        return sizeof(wire::Listen);
    case Op::links:
        return sizeof(wire::Links);
    case Op::connect:
        return sizeof(wire::Connect);
    case Op::unlisten:
    case Op::accept_bell:
    case Op::unlist:
    case Op::check:
        return sizeof(wire::ListenerRef);
    case Op::drop_link:
    case Op::no_room:
    case Op::withdraw:
    case Op::renew:
        return sizeof(wire::LinkRef);
    case Op::bell:
        return sizeof(wire::Bell);
    case Op::unbell:
    case Op::peer_bell:
    case Op::ring:
    case Op::foreign_bell:
        return sizeof(wire::BellRef);
    case Op::adopt_link:
        return sizeof(wire::Adopt);
    case Op::log:
        return sizeof(wire::Log);
    case Op::image:
        return sizeof(wire::Image);
    case Op::leave:
        return sizeof(wire::Leave);
    case Op::pass:
        return sizeof(wire::Pass);
    case Op::claimed:
        return sizeof(wire::ParcelRef);
    case Op::moved:
    case Op::let_go:
        return sizeof(wire::Moved);
    case Op::part:
        return sizeof(wire::SegmentRef);
    case Op::memory:
        return sizeof(wire::Memory);
    case Op::offer:
        return sizeof(wire::Offer);
    case Op::take_back:
        return sizeof(wire::Offered);
    case Op::greet:
        return sizeof(wire::Greeting);
    case Op::pool:
        return sizeof(wire::Pool);
    case Op::peer_pool:
    case Op::end_pool:
        return sizeof(wire::PoolRef);
    case Op::steer:
    case Op::steer_mine:
        return sizeof(wire::Steer);
    default:
        return 0;
    }
}

std::vector<int> Attacker::usual_descriptors(wire::Op op) {
    using wire::Op;
    const auto made = [this](int fd) {
        keep_descriptor(fd);
        return fd;
    };
    switch (op) {
    case Op::hello:
    case Op::image:
        return {chance(random_, 70) ? segment_ : made(make_segment()), made(tcp_socket())};
    case Op::segment:
        return {made(make_segment())};
    case Op::listen:
        return {made(make_listener())};
    case Op::bell:
    case Op::accept_bell:
    case Op::mute_bell:
        return {made(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
    case Op::adopt_link:
    case Op::claim:
    case Op::enter:
    case Op::foreign_bell:
    case Op::offer:
    case Op::other_end:
        return {any_descriptor()};
    case Op::steer_mine:
        return {segment_};
    case Op::pool:
        return {made(sealed_memory(kLeastPool * (1 + below(random_, 4)), kPoolSeals)),
                made(sealed_memory(sizeof(PoolLedger), kLedgerSeals))};
    case Op::pass:
        return {any_descriptor(), any_descriptor()};
    default:
        return {};
    }
}

// Words that mean something beside words that do not.
void Attacker::fill(unsigned char *body, size_t length) {
    const auto number = [this]() -> uint64_t {
        switch (below(random_, 8)) {
        case 0:
            return random_();
        case 1:
            return UINT64_MAX;
        case 2:
        case 3:
            return below(random_, 8);
        default:
            return numbers_[below(random_, numbers_.size())];
        }
    };
    for (size_t at = 0; at < length; at += 8) {
        uint64_t word = number();
        if (chance(random_, 50))
            word = (word & UINT32_MAX) | number() << 32;
        memcpy(body + at, &word, std::min<size_t>(8, length - at));
    }
}

void Attacker::send_packet(const Channel &channel, const wire::Packet &packet, size_t length,
                           const std::vector<int> &fds) {
    iovec part{const_cast<wire::Packet *>(&packet), length};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 32)]{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<int> sound;
    for (const int fd : fds)
        if (fd >= 0 && sound.size() < 32)
            sound.push_back(fd);
    if (!sound.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * sound.size());
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * sound.size());
        memcpy(CMSG_DATA(header), sound.data(), sizeof(int) * sound.size());
    }
    if (sendmsg(channel.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
    const uint16_t op = packet.header.op;
    board().requests.fetch_add(1, std::memory_order_relaxed);
    if (op < kOperations)
        board().operation[op].fetch_add(1, std::memory_order_relaxed);
}

void Attacker::one_request(Channel &channel) {
    wire::Packet packet{};
    auto op = any_operation(random_);
    // A channel is no use after these, so there are fewer of them than of others.
    using wire::Op;
    for (const Op ends_it : {Op::sandbox, Op::leave, Op::image, Op::enter, Op::presence, Op::stay, Op::child})
        if (op == ends_it && !chance(random_, channel.careful ? 2 : 20))
            op = Op::connect;
    size_t length = usual_length(op);
    std::vector<int> fds = usual_descriptors(op);
    if (!channel.careful && chance(random_, 4))
        length = below(random_, wire::kMaxBody + 1);
    if (!channel.careful && chance(random_, 8))
        fds.assign(below(random_, 12), any_descriptor());
    fill(packet.body, length);
    packet.header.magic = wire::kMagic;
    packet.header.version = wire::kVersion;
    packet.header.op =
        static_cast<uint16_t>(!channel.careful && chance(random_, 2) ? random_() : static_cast<uint64_t>(op));
    packet.header.sequence = static_cast<uint32_t>(chance(random_, 90) ? 1 + below(random_, 1000) : 0);
    packet.header.length = static_cast<uint16_t>(length);
    packet.header.fds = static_cast<uint32_t>(fds.size());
    if (chance(random_, 80))
        name_something(channel, op, packet.body);
    if (!channel.careful && chance(random_, 1)) // not even a header
        fill(reinterpret_cast<unsigned char *>(&packet), sizeof packet);
    size_t sent = sizeof packet.header + length;
    if (!channel.careful && chance(random_, 1))
        sent = below(random_, sent);
    send_packet(channel, packet, sent, fds);
}

// So that there is something behind the request.
void Attacker::name_something(const Channel &channel, wire::Op op, unsigned char *body) {
    using wire::Op;
    const auto any = [this](const std::vector<uint64_t> &list) { return list[below(random_, list.size())]; };
    switch (op) {
    case Op::connect: {
        const wire::Connect known{static_cast<uint32_t>(any(listeners_)), wire::kLoopbackAddresses};
        memcpy(body, &known, sizeof known);
        break;
    }
    case Op::links:
    case Op::unlisten:
    case Op::accept_bell:
    case Op::unlist:
    case Op::check:
        if (!channel.listeners.empty()) {
            const auto known = static_cast<uint32_t>(any(channel.listeners));
            memcpy(body, &known, sizeof known);
        }
        break;
    case Op::bell:
    case Op::unbell:
    case Op::peer_bell:
    case Op::ring:
    case Op::foreign_bell:
    case Op::drop_link:
    case Op::no_room:
    case Op::withdraw:
    case Op::renew:
    case Op::adopt_link:
    case Op::greet:
    case Op::pool:
    case Op::peer_pool:
    case Op::end_pool:
        if (!channel.links.empty()) {
            const wire::BellRef known{any(channel.links), static_cast<uint32_t>(below(random_, 2)),
                                      static_cast<uint32_t>(below(random_, 4))};
            const size_t length = usual_length(op);
            memcpy(body, &known, std::min(length, sizeof known));
            const bool anew = op == Op::pool && chance(random_, 80); // a name of its own is for a restart
            if (anew)
                memset(body + offsetof(wire::Pool, pool), 0, sizeof(wire::Pool::pool));
        }
        break;
    case Op::offer: {
        const auto side = static_cast<uint32_t>(below(random_, 2));
        memcpy(body, &side, sizeof side);
        break;
    }
    case Op::steer:
    case Op::steer_mine: {
        const auto to = static_cast<uint32_t>(below(random_, 4));
        memcpy(body, &to, sizeof to);
        if (chance(random_, 50)) {
            const auto own = static_cast<uint32_t>(getpid());
            memcpy(body + offsetof(wire::Steer, pid), &own, sizeof own);
        }
        break;
    }
    default:
        break;
    }
}

void Attacker::introduce(Channel &channel) {
    wire::Packet packet{};
    packet.header = {wire::kMagic,
                     wire::kVersion,
                     static_cast<uint16_t>(wire::Op::hello),
                     1,
                     0,
                     0,
                     sizeof(wire::Hello),
                     2};
    auto *body = reinterpret_cast<wire::Hello *>(packet.body);
    body->layout_version = kLayoutVersion;
    body->pid = static_cast<uint32_t>(getpid());
    if (segment_ < 0 || chance(random_, 30)) {
        segment_ = make_segment();
        keep_descriptor(segment_ < 0 ? -1 : dup(segment_));
    }
    const int proof = tcp_socket();
    send_packet(channel, packet, sizeof packet.header + sizeof *body, {segment_, proof});
    close(proof);
}

void Attacker::open_channel() {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    strncpy(name.sun_path, target_.monitor.c_str(), sizeof name.sun_path - 1);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (connect(fd, reinterpret_cast<sockaddr *>(&name), sizeof name) != 0) {
        close(fd);
        return;
    }
    board().channels.fetch_add(1, std::memory_order_relaxed);
    Channel channel;
    channel.fd = fd;
    channel.silent = chance(random_, 10);
    channel.careful = chance(random_, 60);
    if (channel.careful || chance(random_, 80))
        introduce(channel);
    add_channel(channel);
}

void Attacker::add_channel(const Channel &channel) {
    if (channels_.size() < kChannels) {
        channels_.push_back(channel);
        return;
    }
    Channel &old = channels_[below(random_, channels_.size())];
    close(old.fd);
    old = channel;
}

void Attacker::be_a_child() {
    Channel channel;
    channel.fd = children_.back();
    channel.careful = true;
    children_.pop_back();
    fcntl(channel.fd, F_SETFL, O_NONBLOCK);
    wire::Packet packet{};
    packet.header = {wire::kMagic,
                     wire::kVersion,
                     static_cast<uint16_t>(wire::Op::child),
                     1,
                     0,
                     0,
                     sizeof(wire::Child),
                     0};
    reinterpret_cast<wire::Child *>(packet.body)->pid = static_cast<uint32_t>(getpid());
    send_packet(channel, packet, sizeof packet.header + sizeof(wire::Child), {});
    add_channel(channel);
}

void Attacker::drop_channel(size_t index) {
    close(channels_[index].fd);
    channels_.erase(channels_.begin() + static_cast<long>(index));
}

void Attacker::learn(Channel &channel, const wire::Packet &answer) {
    board().answers.fetch_add(1, std::memory_order_relaxed);
    if (answer.header.status != 0)
        return;
    if (answer.header.op < kOperations)
        board().granted[answer.header.op].fetch_add(1, std::memory_order_relaxed);
    const auto op = static_cast<wire::Op>(answer.header.op);
    const auto note = [&](std::vector<uint64_t> &list, uint64_t number) {
        if (list.size() < kNumbers)
            list.push_back(number);
    };
    if (op == wire::Op::connect)
        note(channel.links, reinterpret_cast<const wire::ConnectReply *>(answer.body)->link_id);
    if (op == wire::Op::listen)
        note(channel.listeners, reinterpret_cast<const wire::ListenReply *>(answer.body)->listener_id);
    for (size_t at = 0; at + 8 <= answer.header.length && at + 8 <= sizeof answer.body && at < 64; at += 8) {
        uint64_t word;
        memcpy(&word, answer.body + at, sizeof word);
        note_number(word);
        note_number(word & UINT32_MAX);
    }
}

void Attacker::note_number(uint64_t number) {
    if (numbers_.size() < kNumbers)
        numbers_.push_back(number);
    else
        numbers_[below(random_, kNumbers)] = number;
}

// From the directory, which everybody may read.
void Attacker::learn_listeners(int fd) {
    void *base = mmap(nullptr, sizeof(Directory), PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return;
    const auto *directory = static_cast<const Directory *>(base);
    if (directory->magic == kDirectoryMagic)
        for (const DirectoryEntry &entry : directory->entry)
            if (const uint32_t id = entry.id.load(std::memory_order_relaxed); id != 0)
                note_number(id), listeners_[below(random_, listeners_.size())] = id;
    munmap(base, sizeof(Directory));
}

/// False: the monitor has closed it.
bool Attacker::read_answers(Channel &channel, int most) {
    for (int i = 0; i < most; ++i) {
        wire::Packet answer{};
        iovec part{&answer, sizeof answer};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)];
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        const ssize_t got = recvmsg(channel.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got < 0)
            return errno == EAGAIN;
        if (got == 0)
            return false;
        learn(channel, answer);
        for (cmsghdr *c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c))
            for (size_t n = 0; c->cmsg_type == SCM_RIGHTS && n < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++n) {
                int fd;
                memcpy(&fd, CMSG_DATA(c) + n * sizeof fd, sizeof fd);
                if (answer.header.op == static_cast<uint16_t>(wire::Op::hello))
                    learn_listeners(fd);
                if (answer.header.op == static_cast<uint16_t>(wire::Op::fork) && chance(random_, 80))
                    children_.push_back(fd);
                else
                    keep_descriptor(fd);
            }
    }
    return true;
}

// Links, segments, doorbells: whatever can be mapped or written.
void Attacker::scribble_on_what_was_given() {
    const int fd = any_descriptor();
    constexpr size_t kSpan = 1 << 20;
    void *base = mmap(nullptr, kSpan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    off_t size = lseek(fd, 0, SEEK_END);
    if (base == MAP_FAILED) {
        const uint64_t most = UINT64_MAX - 1;
        const int flags = fcntl(fd, F_GETFL);
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
        send(fd, &most, sizeof most, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
            errno == ENOTSOCK &&write(fd, &most, sizeof most);
        return;
    }
    size = std::min<off_t>(size, kSpan);
    for (int i = 0; i < 200 && size >= 8; ++i) {
        const uint64_t at =
            below(random_, static_cast<uint64_t>(chance(random_, 50) ? std::min<off_t>(size, 4096) : size) / 8);
        static_cast<volatile uint64_t *>(base)[at] = chance(random_, 50) ? random_() : below(random_, 64);
    }
    board().scribbles.fetch_add(200, std::memory_order_relaxed);
    munmap(base, kSpan);
}

void Attacker::run() {
    for (int round = 0; round < 4000; ++round) {
        if (channels_.empty() || chance(random_, 2))
            open_channel();
        if (!children_.empty())
            be_a_child();
        if (channels_.empty()) {
            usleep(20'000);
            continue;
        }
        const size_t index = below(random_, channels_.size());
        Channel &channel = channels_[index];
        const uint64_t mood = below(random_, 1000);
        if (mood < 4) { // a flood
            for (int i = 0; i < 300; ++i)
                one_request(channel);
        } else if (mood < 8) {
            shutdown(channel.fd, static_cast<int>(below(random_, 3)));
        } else if (mood < 14) {
            drop_channel(index);
            continue;
        } else if (mood < 20) {
            usleep(static_cast<useconds_t>(below(random_, 200'000)));
        } else if (mood < 40) {
            scribble_on_what_was_given();
        } else {
            one_request(channel);
        }
        if (!channel.silent && !read_answers(channel, 16))
            drop_channel(index);
        if (chance(random_, 50))
            usleep(static_cast<useconds_t>(below(random_, 400)));
    }
}

} // namespace

void ask_anything(const Target &target, Random random) { Attacker(target, random).run(); }

} // namespace sd::hostile
