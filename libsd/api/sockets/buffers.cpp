// What libsocksdirect-buffers calls.
#include "libsd/api/signals/signal.hpp"
#include "libsd/api/wrap.hpp"
#include "libsd/layout/buffer_calls.hpp"
#include "libsd/vfs/pools/pools.hpp"

using namespace sd;

namespace {

constexpr BufferCalls calls = {
    .version = kBufferCallsVersion,
    .size = sizeof(BufferCalls),
    .make_pool = make_pool,
    .drop_pool = drop_pool,
    .is_usable = is_pool_usable,
    .hand = hand_over,
    .receive = receive_in_place,
    .release = release_taken,
};

} // namespace

SD_EXPORT const BufferCalls *socksdirect_buffer_calls() noexcept { return vfs::enabled() ? &calls : nullptr; }
