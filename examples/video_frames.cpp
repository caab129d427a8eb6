// Video frames from a file: video_frames FILE
//
// The sender reads each frame of 3.1 MB from the file into another buffer, and hands it over. The receiver
// looks at it where it lies. Both take a hash of all that they saw.
#include "both_ends.hpp"

#include <fcntl.h>
#include <sys/stat.h>

namespace {

constexpr size_t kFrame = 1920 * 1080 * 3 / 2; // 4:2:0

void send_frames(const char *path, example::Listener &listener) {
    const int file = example::must(path, open(path, O_RDONLY | O_CLOEXEC));
    const int fd = listener.accept();
    socksdirect::Buffers buffers(fd);
    uint64_t hash = 0, frames = 0;
    for (;; ++frames) {
        const socksdirect::Buffer buffer = buffers.get(kFrame);
        size_t have = 0;
        while (have < kFrame) {
            const ssize_t n = read(file, buffer.data() + have, kFrame - have);
            if (n < 0)
                example::fail(path);
            if (n == 0)
                break;
            have += static_cast<size_t>(n);
        }
        if (have < kFrame)
            break;
        hash = example::hash_of(buffer.data(), kFrame, hash);
        const sd_piece piece[] = {buffer.piece()};
        if (buffers.send(piece) != kFrame)
            example::fail("send");
    }
    std::printf("sent %llu frames, hash %016llx\n", static_cast<unsigned long long>(frames),
                static_cast<unsigned long long>(hash));
}

void receive_frames(example::Listener &listener) {
    const int fd = listener.connect();
    socksdirect::Buffers buffers(fd);
    uint64_t hash = 0, frames = 0;
    for (;; ++frames) {
        const socksdirect::View view = buffers.receive(kFrame, MSG_WAITALL);
        if (view.size() != kFrame)
            break;
        hash = example::hash_of(view.data(), kFrame, hash);
    }
    std::printf("received %llu frames, hash %016llx\n", static_cast<unsigned long long>(frames),
                static_cast<unsigned long long>(hash));
    example::show_counts(buffers);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    return example::run([&](example::Listener &l) { send_frames(argv[1], l); }, receive_frames);
}
