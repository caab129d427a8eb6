// Large frames from one process to another, copied by send() and recv() and handed over by
// include/socksdirect/buffers.h; and a 4 KiB answer either way.
//
//   untouched  random pages of each frame are stamped by the sender and checked by the receiver, and nobody
//              looks at the rest: what moving the bytes costs
//   touched    each byte is written by the sender and read by the receiver. `direct` is the same without any
//              message: two processes, the same memory and a word for each frame, the reader close behind
//              the writer or some frames behind, whichever is faster. Less time than that cannot be had by
//              taking the copies away
//   values     a request of 16 bytes, and 4 KiB in answer to it
#include "bench/common/measure.hpp"
#include "bench/common/net.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "include/socksdirect/buffers.hpp"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

using namespace sd::bench;
using socksdirect::Buffer;
using socksdirect::Buffers;
using socksdirect::View;

namespace {

constexpr std::size_t kPage = 4096;
constexpr unsigned kStamps = 8;
constexpr std::size_t kValue = 4096, kRequest = 16;

enum class Touch { pages, bytes };

/// What both ends know of frame number `n`.
class Frame {
  public:
    Frame(std::uint64_t n, std::size_t size) : random_(n), n_(n), size_(size) {}
    void stamp(std::byte *data) {
        for (unsigned i = 0; i < kStamps; ++i) {
            const std::uint64_t word = n_ * kStamps + i;
            std::memcpy(data + place(), &word, sizeof word);
        }
    }
    bool check(const std::byte *data) {
        // In the order in which they were written, so one may be on top of another: the last one counts.
        std::vector<std::pair<std::size_t, std::uint64_t>> stamps;
        for (unsigned i = 0; i < kStamps; ++i) {
            const std::size_t at = place();
            std::erase_if(stamps, [at](const auto &stamp) { return stamp.first == at; });
            stamps.emplace_back(at, n_ * kStamps + i);
        }
        return std::all_of(stamps.begin(), stamps.end(), [data](const auto &stamp) {
            return std::memcmp(data + stamp.first, &stamp.second, sizeof stamp.second) == 0;
        });
    }
    /// Each byte.
    void write(std::byte *data) const {
        auto *words = reinterpret_cast<std::uint64_t *>(data);
        for (std::size_t i = 0; i < size_ / 8; ++i) {
            words[i] = n_ + i;
        }
    }
    bool read(const std::byte *data) const {
        const auto *words = reinterpret_cast<const std::uint64_t *>(data);
        const std::uint64_t count = size_ / 8;
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < count; ++i) {
            sum += words[i];
        }
        return sum == count * n_ + count * (count - 1) / 2;
    }

  private:
    std::size_t place() { return random_() % (size_ / kPage) * kPage; }
    std::minstd_rand random_;
    std::uint64_t n_;
    std::size_t size_;
};

void produce(Touch touch, std::uint64_t n, std::byte *data, std::size_t size) {
    if (touch == Touch::pages) {
        Frame(n, size).stamp(data);
    } else {
        Frame(n, size).write(data);
    }
}

void consume(Touch touch, std::uint64_t n, const std::byte *data, std::size_t size) {
    Frame frame(n, size);
    if (!(touch == Touch::pages ? frame.check(data) : frame.read(data))) {
        errno = 0;
        die("a frame is not what was sent");
    }
}

/// Frames in memory of a process's own, each another one.
struct Ring {
    Ring(std::size_t frames, std::size_t size) : size(size), frames(frames), memory(frames * size + kPage) {
        const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
        first = memory.data() + (kPage - at % kPage) % kPage;
    }
    std::byte *frame(std::uint64_t n) { return first + n % frames * size; }
    std::size_t size, frames;
    std::vector<std::byte> memory;
    std::byte *first;
};

struct Job {
    std::size_t size, frames; ///< of one frame; frames in memory at a time
    std::uint64_t count;      ///< to be sent
    Touch touch;
};

using End = std::function<void(Duplex, const Job &)>;

/// How long it takes until the last frame has been looked at, in ns for each, without the first ones.
double run(const Job &job, const Options &options, const End &sender, const End &receiver) {
    Channel channel("tcp");
    const pid_t child = start_child(options.cpu(1), [&] { receiver(channel.client(), job); });
    pin_to_cpu(options.cpu(0));
    const Duplex duplex = channel.server();
    Job warm = job;
    warm.count = job.frames + 1;
    sender(duplex, warm);
    const std::uint64_t start = now_ns();
    sender(duplex, job);
    const double took = static_cast<double>(now_ns() - start);
    close(duplex.in);
    join_child(child);
    return took / static_cast<double>(job.count);
}

/// The other end has looked at all of them.
void await_last(const Duplex &duplex) {
    char done;
    if (read(duplex.in, &done, 1) != 1) {
        die("the receiver went away");
    }
}

void send_whole(const Duplex &duplex, const void *data, std::size_t size) {
    if (send(duplex.out, data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
        die("send");
    }
}

void send_copies(Duplex duplex, const Job &job) {
    static Ring ring(job.frames, job.size);
    for (std::uint64_t n = 0; n < job.count; ++n) {
        produce(job.touch, n, ring.frame(n), job.size);
        send_whole(duplex, ring.frame(n), job.size);
    }
    await_last(duplex);
}

void receive_copies(Duplex duplex, const Job &job) {
    Ring ring(job.frames, job.size);
    for (const std::uint64_t count : {std::uint64_t{job.frames + 1}, job.count}) {
        for (std::uint64_t n = 0; n < count; ++n) {
            if (recv(duplex.in, ring.frame(n), job.size, MSG_WAITALL) != static_cast<ssize_t>(job.size)) {
                die("receive");
            }
            consume(job.touch, n, ring.frame(n), job.size);
        }
        send_whole(duplex, "d", 1);
    }
}

std::size_t rounded(std::size_t size) { return (size + kPage - 1) / kPage * kPage; }

void send_buffers(Duplex duplex, const Job &job) {
    static std::unique_ptr<Buffers> buffers;
    if (!buffers) {
        buffers = std::make_unique<Buffers>(duplex.out, job.frames * rounded(job.size));
    }
    for (std::uint64_t n = 0; n < job.count; ++n) {
        const Buffer buffer = buffers->get(job.size);
        produce(job.touch, n, buffer.data(), job.size);
        const sd_piece piece[] = {buffer.piece()};
        if (buffers->send(piece) != job.size) {
            die("send");
        }
    }
    await_last(duplex);
}

void receive_views(Duplex duplex, const Job &job) {
    Buffers buffers(duplex.in);
    for (const std::uint64_t count : {std::uint64_t{job.frames + 1}, job.count}) {
        std::uint64_t in_place = 0;
        for (std::uint64_t n = 0; n < count; ++n) {
            const View view = buffers.receive(job.size, MSG_WAITALL);
            if (view.size() != job.size) {
                die("receive");
            }
            consume(job.touch, n, view.data(), job.size);
            in_place += view.is_in_place();
        }
        if (count == job.count && in_place != count) {
            fprintf(stderr, "%lu of %lu frames were copied\n", static_cast<unsigned long>(count - in_place),
                    static_cast<unsigned long>(count));
        }
        send_whole(duplex, "d", 1);
    }
}

/// Two processes, one memory, and two words.
struct Direct {
    std::atomic<std::uint64_t> written{0};
    char apart[120];
    std::atomic<std::uint64_t> read{0};
};

/// By looking at first, as the library does; others get the core after that.
void await(const std::atomic<std::uint64_t> &word, std::uint64_t least) {
    for (unsigned looks = 0; word.load(std::memory_order_acquire) < least; ++looks) {
        if (looks < 1000) {
            __builtin_ia32_pause();
        } else {
            sched_yield();
        }
    }
}

/// `behind`: how many frames the reader stays behind, so that it does not read what is still in the writer's
/// cache.
double run_direct(const Job &job, const Options &options, std::uint64_t behind) {
    auto *words = shared_value<Direct>();
    void *memory = mmap(nullptr, job.frames * rounded(job.size), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        die("mmap");
    }
    const auto frame = [&](std::uint64_t n) {
        return static_cast<std::byte *>(memory) + n % job.frames * rounded(job.size);
    };
    const std::uint64_t warm = job.frames + 1, all = warm + job.count;
    const pid_t child = start_child(options.cpu(1), [&] {
        for (std::uint64_t n = 0; n < all; ++n) {
            await(words->written, std::min(n + 1 + behind, n < warm ? warm : all));
            consume(job.touch, n, frame(n), job.size);
            words->read.store(n + 1, std::memory_order_release);
        }
    });
    pin_to_cpu(options.cpu(0));
    std::uint64_t start = 0;
    for (std::uint64_t n = 0; n < all; ++n) {
        if (n == warm) {
            await(words->read, warm);
            start = now_ns();
        }
        await(words->read, n < job.frames ? 0 : n - job.frames + 1);
        produce(job.touch, n, frame(n), job.size);
        words->written.store(n + 1, std::memory_order_release);
    }
    await(words->read, all);
    const double took = static_cast<double>(now_ns() - start) / static_cast<double>(job.count);
    join_child(child);
    munmap(memory, job.frames * rounded(job.size));
    return took;
}

// --- values

using Answer = std::function<void(Buffers &, const Buffer &, int fd)>;
using Ask = std::function<bool(Buffers &, int fd, char *spare)>;

double run_values(const Options &options, const Answer &answer, const Ask &take) {
    Channel channel("tcp");
    const pid_t child = start_child(options.cpu(1), [&] {
        const Duplex duplex = channel.client();
        Buffers buffers(duplex.in);
        const Buffer value = buffers.get(kValue);
        std::memset(value.data(), 'v', kValue);
        char request[kRequest];
        while (recv(duplex.in, request, sizeof request, MSG_WAITALL) == ssize_t{kRequest}) {
            answer(buffers, value, duplex.in);
        }
    });
    pin_to_cpu(options.cpu(0));
    const Duplex duplex = channel.server();
    Buffers buffers(duplex.in);
    std::vector<char> spare(kValue);
    const char request[kRequest] = {};
    const auto one = [&] {
        if (send(duplex.out, request, sizeof request, 0) != ssize_t{kRequest} ||
            !take(buffers, duplex.in, spare.data())) {
            die("a value");
        }
    };
    repeat_for(0.1, one);
    Histogram histogram;
    const double median = latency_over(
        options.number("seconds"), histogram, [] { return false; }, one);
    close(duplex.in);
    join_child(child);
    return median;
}

double value_by_send(const Options &options) {
    return run_values(
        options,
        [](Buffers &, const Buffer &value, int fd) { (void)!send(fd, value.data(), kValue, MSG_NOSIGNAL); },
        [](Buffers &, int fd, char *spare) { return recv(fd, spare, kValue, MSG_WAITALL) == ssize_t{kValue}; });
}

double value_by_buffer(const Options &options) {
    return run_values(
        options,
        [](Buffers &buffers, const Buffer &value, int) {
            const sd_piece piece[] = {value.piece()};
            buffers.send(piece, MSG_NOSIGNAL);
        },
        [](Buffers &buffers, int, char *spare) {
            return buffers.receive(kValue, MSG_WAITALL, spare, kValue).size() == kValue;
        });
}

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "large frames, copied and handed over",
                          {{"size", "3110400", "bytes of a frame (1080 lines of 1920 pixels, 4:2:0)"},
                           {"frames", "16", "that are in memory at a time"},
                           {"count", "400", "frames sent in one run"},
                           {"rounds", "5", "runs of each kind, in turn; the fastest counts"},
                           {"seconds", "0.3", "for values"},
                           {"cpu", "0,1", "processors of the two ends"}});
    const auto size = static_cast<std::size_t>(options.integer("size"));
    Job job{size, static_cast<std::size_t>(options.integer("frames")),
            static_cast<std::uint64_t>(options.integer("count")), Touch::pages};
    constexpr double kNever = 1e18;
    double copied = kNever, handed = kNever, touched_copied = kNever, touched_handed = kNever, direct = kNever;
    double by_send = kNever, by_buffer = kNever;
    // Each in a process of its own, so that what one leaves behind is not the next one's.
    const auto fastest = [](double &best, const std::function<double()> &measure) {
        auto *result = shared_value<double>();
        join_child(start_child(-1, [&] { *result = measure(); }));
        best = std::min(best, *result);
    };
    for (long round = 0; round < options.integer("rounds"); ++round) {
        job.touch = Touch::pages;
        fastest(copied, [&] { return run(job, options, send_copies, receive_copies); });
        fastest(handed, [&] { return run(job, options, send_buffers, receive_views); });
        job.touch = Touch::bytes;
        fastest(touched_copied, [&] { return run(job, options, send_copies, receive_copies); });
        fastest(touched_handed, [&] { return run(job, options, send_buffers, receive_views); });
        fastest(direct, [&] { return run_direct(job, options, 0); });
        fastest(direct, [&] { return run_direct(job, options, job.frames / 2); });
        fastest(by_send, [&] { return value_by_send(options); });
        fastest(by_buffer, [&] { return value_by_buffer(options); });
    }
    Report report("frames");
    report.add("size", static_cast<long>(size));
    report.add("untouched_copied_us", copied / 1000);
    report.add("untouched_handed_us", handed / 1000);
    report.add("untouched_times", copied / handed);
    report.add("touched_copied_us", touched_copied / 1000);
    report.add("touched_handed_us", touched_handed / 1000);
    report.add("touched_direct_us", direct / 1000);
    // Of the time that taking the copies out can save, and of the rate that is then had.
    report.add("touched_share_of_direct", direct / touched_handed);
    report.add("value_by_send_ns", by_send);
    report.add("value_by_buffer_ns", by_buffer);
    report.print();
    return 0;
}
