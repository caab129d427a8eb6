#include "libsd/control/libc_threads.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/control/objects.hpp"
#include <cstddef>
#include <sys/single_threaded.h>

namespace sd {

namespace {

SD_START_STATE constinit char no_libpthread = 0;

constexpr const char *kNames[] = {"pthread_key_create",          "pthread_setspecific",
                                  "pthread_testcancel",          "__pthread_register_cancel",
                                  "__pthread_unregister_cancel", "__pthread_unwind_next"};
constexpr size_t kCount = sizeof kNames / sizeof kNames[0];

template <class F> F as(const Sought &s) noexcept { return reinterpret_cast<F>(s.found); }

} // namespace

SD_START_STATE constinit ThreadFunctions libc_threads{};
const char *one_thread_flag = &no_libpthread;

SD_START_CODE bool find_libc_threads() noexcept {
    if (libc_threads.register_cancel)
        return false;
    Sought s[kCount];
    for (size_t i = 0; i < kCount; ++i)
        s[i] = {kNames[i], gnu_hash(kNames[i]), nullptr};
    find_behind(s, kCount);
    bool all = true;
    for (const Sought &one : s)
        all = all && one.found;
    if (all)
        libc_threads = {as<decltype(ThreadFunctions::key_create)>(s[0]),
                        as<decltype(ThreadFunctions::setspecific)>(s[1]),
                        as<decltype(ThreadFunctions::testcancel)>(s[2]),
                        as<decltype(ThreadFunctions::register_cancel)>(s[3]),
                        as<decltype(ThreadFunctions::unregister_cancel)>(s[4]),
                        as<decltype(ThreadFunctions::unwind_next)>(s[5])};
    no_libpthread = !all;
    if (&__libc_single_threaded)
        one_thread_flag = &__libc_single_threaded;
    return all;
}

} // namespace sd
