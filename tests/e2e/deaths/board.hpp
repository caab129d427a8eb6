// What all processes of shared_deaths see: who has sent and received what. A memfd, so that a program image
// that knows only its name under /proc finds it again.
#pragma once

#include "tests/programs/process.hpp"

namespace deaths {

// Of senders, in the whole run: each image, thread and process has its own
constexpr unsigned kNames = 1u << 21;
constexpr uint64_t kMessages = 1u << 24; // in a round

struct Record {
    uint32_t magic, length; // of the whole record
    uint32_t who;
    uint32_t sequence;
};
constexpr uint32_t kMagic = 0x5ec07d;

struct Board {
    std::atomic<uint32_t> names;
    std::atomic<uint32_t> acknowledged[kNames]; // records whose send returned, by name
    std::atomic<uint32_t> arrived[kNames];
    std::atomic<uint8_t> got[kMessages];
    std::atomic<uint64_t> records, messages, sent_messages, wrong;
    std::atomic<uint64_t> may_lose; // messages that a receiver had in hand when it, or its image, ended
    std::atomic<uint64_t> images;   // that went on after an exec of their own
    std::atomic<uint64_t> arrived_at_sharer; // connections that came by SCM_RIGHTS
    std::atomic<bool> stop, last_messages, asleep;
    std::atomic<int> ending; // what the other end saw last: 0 end of file, else errno; -1 not yet
};
inline Board *board;

// Makes the board, or opens the one that `path` names. The descriptor stays open, so that the path stays
// good.
inline std::string make_board() {
    const int fd = MUST(memfd_create("board", MFD_CLOEXEC));
    MUST(ftruncate(fd, sizeof(Board)));
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
}

inline void open_board(const char *path) {
    const int fd = MUST(open(path, O_RDWR | O_CLOEXEC));
    void *memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        sdtest::give_up("mmap");
    close(fd);
    board = static_cast<Board *>(memory);
}

[[gnu::format(printf, 1, 2)]] inline void complain(const char *format, ...) {
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sdtest::say("WRONG: %s", text);
    ++board->wrong;
}

inline uint64_t random_next(uint64_t &state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

inline unsigned char filling(uint32_t who, uint32_t sequence) {
    return static_cast<unsigned char>(who * 31 + sequence * 7);
}

} // namespace deaths
