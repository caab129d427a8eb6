// What the calls that a thread is blocked in have taken hold of: noted for the thread and not in the call's
// frame, so that a cancelled call can give it back, and so can the next call after a signal handler has
// jumped out of this one.
#pragma once
#include "libsd/control/sys.hpp"
#include <cstddef>

namespace sd {

class CleanupStack {
  public:
    using GiveBack = void (*)(void *what, size_t extra) noexcept;

    /// `frame`: an address in the call's stack frame. False: too much is noted already; then nobody but the
    /// caller gives it back.
    static bool push(GiveBack give_back, void *what, size_t extra, const void *frame) noexcept {
        if (notes.count == kMost)
            return false;
        notes.entry[notes.count] = {give_back, what, extra, frame};
        ++notes.count;
        return true;
    }
    static unsigned mark() noexcept { return notes.count; }
    /// Gives back what was noted since the mark was taken.
    static void give_back_to(unsigned mark) noexcept {
        while (notes.count > mark)
            give_back_last();
    }
    /// Forgets it: the caller has given it back.
    static void forget_to(unsigned mark) noexcept {
        if (notes.count > mark)
            notes.count = mark;
    }
    static void give_back_all() noexcept { give_back_to(0); }
    /// What calls noted that a handler has jumped out of. `frame`: the caller's, who has noted nothing yet in
    /// its call; or null.
    static void drop_abandoned(const void *frame = nullptr) noexcept {
        if (notes.count) [[unlikely]]
            look_for_abandoned(frame);
    }
    /// The same; and an object that is about to be noted cannot be noted already.
    static void drop_abandoned_like(const void *frame) noexcept {
        while (notes.count && notes.entry[notes.count - 1].frame == frame)
            give_back_last();
    }

    /// Has this thread noted it?
    static bool is_noted(GiveBack give_back, const void *what) noexcept {
        for (unsigned i = 0; i < notes.count; ++i)
            if (notes.entry[i].give_back == give_back && notes.entry[i].what == what)
                return true;
        return false;
    }
    /// act(what) for everything noted by this thread that `give_back` gives back.
    static void for_each_own(GiveBack give_back, void (*act)(void *what) noexcept) noexcept {
        for (unsigned i = 0; i < notes.count; ++i)
            if (notes.entry[i].give_back == give_back)
                act(notes.entry[i].what);
    }

  private:
    static constexpr unsigned kMost = 64;
    struct Notes {
        struct {
            GiveBack give_back;
            void *what;
            size_t extra;
            const void *frame;
        } entry[kMost];
        unsigned count;
    };
    static inline constinit thread_local Notes notes{};
    static void give_back_last() noexcept {
        const auto last = notes.entry[--notes.count];
        last.give_back(last.what, last.extra);
    }
    static void look_for_abandoned(const void *frame) noexcept;
};

inline void unmap_cleanup(void *memory, size_t bytes) noexcept { sys::munmap(memory, bytes); }

} // namespace sd
