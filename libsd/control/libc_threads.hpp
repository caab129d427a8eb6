// The C library's functions for threads. Before glibc 2.34 most are in libpthread, which a program may lack,
// or load at any time; before 2.32 nothing says whether there are threads at all.
#pragma once
#include <pthread.h>

namespace sd {

/// Null where there is no libpthread: there are no threads then, and nobody can be cancelled.
struct ThreadFunctions {
    int (*key_create)(pthread_key_t *, void (*)(void *)) noexcept;
    int (*setspecific)(pthread_key_t, const void *) noexcept;
    void (*testcancel)();
    void (*register_cancel)(__pthread_unwind_buf_t *);
    void (*unregister_cancel)(__pthread_unwind_buf_t *);
    void (*unwind_next)(__pthread_unwind_buf_t *);
};
extern constinit ThreadFunctions libc_threads;

/// From the constructor, and when the first thread may be about to be made. True: they are known now and were
/// not before.
[[nodiscard]] bool find_libc_threads() noexcept;

/// The C library's flag, or one of ours that is only set where there is no libpthread.
extern const char *one_thread_flag;
/// Only this thread runs in the program; false where that is not known.
inline bool one_thread() noexcept { return *one_thread_flag; }

/// Runs `body`; if the thread is cancelled in it, `undo(arg)` runs before the program's own cleanup handlers.
/// What pthread_cleanup_push and its counterpart are.
template <class F> long with_cleanup(void (*undo)(void *), void *arg, F body) noexcept {
    if (!libc_threads.register_cancel)
        return body();
    __pthread_unwind_buf_t buffer;
    auto *jump = reinterpret_cast<__cancel_jmp_buf_tag *>(static_cast<void *>(buffer.__cancel_jmp_buf));
    if (__sigsetjmp_cancel(jump, 0)) {
        undo(arg);
        libc_threads.unwind_next(&buffer);
    }
    libc_threads.register_cancel(&buffer);
    const long r = body();
    libc_threads.unregister_cancel(&buffer);
    return r;
}

} // namespace sd
