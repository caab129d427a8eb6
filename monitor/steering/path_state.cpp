// Where a direction of a connection goes. What is read here is written meanwhile: each word is read once.
#include "monitor/steering/path_state.hpp"

namespace sd::monitor {

namespace {

constexpr uint32_t kStep = 0x7f; ///< of a word; the bit above says that the step is not finished

uint32_t word_of(const std::atomic<uint64_t> &word) {
    return static_cast<uint32_t>(word.load(std::memory_order_acquire));
}

} // namespace

PathState path_state(const Link &link, uint32_t slot, unsigned side, const Segment::OpenOfd *sender) {
    PathState result;
    const SlotSide &own = link.view(side).slot(slot).side[side];
    const SlotSide &other = link.view(1 - side).slot(slot).side[1 - side];
    const uint32_t offered = word_of(own.credit.path.offer), taken = word_of(other.credit.path.taken);
    if (sender == nullptr ? offered == 0 && !link.joins : !sender->has_paths) {
        if (sender != nullptr && sender->is_adopting) {
            result.blocker = Blocker::sender;
        }
        return result; // born in shared memory
    }
    result.moves = offered >> 8;
    result.offset = own.credit.path.from.load(std::memory_order_relaxed);
    const uint32_t step = offered & kStep;
    const bool is_answered = taken == offered;
    const bool is_called = (other.control.flags.load(std::memory_order_acquire) & kFlagHome) != 0;
    const bool is_told = sender != nullptr && sender->wanted == kWantKernel;
    if (step == kPathRing) {
        result.is_over = is_answered;
        result.blocker = !is_called && !is_told ? (is_answered ? Blocker::none : Blocker::receiver)
                         : is_answered          ? Blocker::sender
                                                : Blocker::receiver;
        return result;
    }
    result.path = Path::kernel;
    // A step to the ring that was asked for and taken back: it has been in the socket all the time.
    const bool is_taken_back = taken == (offered >> 8 << 8 | kPathAsked) || (taken & kStep) == kPathKernel;
    if (step == kPathKernel && !is_answered && !is_taken_back &&
        other.credit.consumed.load(std::memory_order_acquire) != result.offset) {
        result.is_over = false;
        result.blocker = Blocker::unread;
    } else if (sender != nullptr && (sender->stays & kStaysPinned) != 0) {
        result.blocker = Blocker::pinned;
    } else if (is_told) {
        result.blocker = Blocker::put;
    } else if (is_called) {
        result.blocker = Blocker::called;
    } else {
        result.blocker =
            (step == kPathAsked || step == kPathKernel) && !is_answered ? Blocker::receiver : Blocker::sender;
    }
    return result;
}

} // namespace sd::monitor
