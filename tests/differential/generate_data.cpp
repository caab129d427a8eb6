// Steps that move data, fill connections, and end them.
#include "tests/differential/generator.hpp"

#include "tests/differential/option_list.hpp"

#include <algorithm>

namespace sd::differential {

namespace {

// Unread bytes of one direction: less than what any side holds without asking
constexpr int kMostWaiting = 40000;
constexpr int kMostInSmallWindow = 200; // a window this small opens by timer

int option_index(int level, int name) {
    for (int i = 0; i < kOptionCount; ++i) {
        if (kOptions[i].level == level && kOptions[i].name == name) {
            return i;
        }
    }
    return 0;
}

} // namespace

namespace {

/// These ways to receive have no MSG_ flags.
bool without_flags(int variant) {
    return variant == 0 || variant == 3 || variant == 6 || variant == 7 || variant == 15 || variant == 23;
}

} // namespace

bool Generator::transfer_step(int actor) {
    const Descriptor *stream = find(actor, Kind::stream);
    if (stream == nullptr) {
        return false;
    }
    const Descriptor copy = *stream;
    if (random_.chance(4)) {
        return standard_step(actor, copy);
    }
    return random_.chance(50) ? send_step(actor, copy) : recv_step(actor, copy);
}

bool Generator::may_request(int actor) {
    Process &process = model_.process_of(actor);
    process.requests = true;
    return !process.no_requests;
}

bool Generator::send_step(int actor, const Descriptor &stream) {
    const int peer = model_.at(stream.object).peer;
    const bool known = peer >= 0;
    if (one_way_ && (!known || stream.object > peer || ++sends_ > 2)) {
        return false; // clients are made before the stream that accept returns
    }
    if (model_.at(stream.object).waited) {
        return false;
    }
    int size = random_.pick({0, 1, 2, 5, 10, 10, 100, 100, 512, 1000, 1000, 4096, 16000, 30000});
    if (!known) {
        size = std::min(size, 1000);
    }
    if (one_way_) { // the receiver acknowledges few such segments at once: LIMITS.md, "timers of the kernel"
        size = std::min(size, 4096);
    }
    const bool narrow = known && model_.at(peer).small_window;
    if (known && (model_.at(peer).filled_by >= 0 ||
                  model_.at(peer).incoming + size > (narrow ? kMostInSmallWindow : kMostWaiting))) {
        return false;
    }
    int flags = random_.chance(60) ? 0x4000 /* MSG_NOSIGNAL */ : 0;
    if (random_.chance(25)) {
        flags |= random_.pick({0x40, one_way_ ? 0x40 : 0x80, 0x4, 0x40, 0x2, 0x100, 0x20});
    }
    const bool more = random_.chance(3) && known && !model_.at(peer).waited && !model_.at(stream.object).ended;
    int variant =
        random_.pick({0, 0, 1, 1, 1, 1, 2, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 11, 18, 19, 20, 22, 24, 25, 26});
    if (variant == 24 || variant == 25) {
        variant = may_request(actor) ? variant : 1;
    }
    if (variant == 10 || variant == 11) { // in how many pieces they write: LIMITS.md, "stdio"
        size = std::min(size, 500);
    }
    if (known && model_.at(peer).waited) { // a reader that is woken in the middle may come back with a part
        size = std::min(size, 100);
        variant = variant == 6 || variant == 25 ? 5 : variant;
    }
    emit(actor, Op::send, {stream.reference, size, more && variant != 8 ? flags | 0x8000 : flags, variant},
         timed_ || variant == 24 || variant == 25);
    (known ? model_.at(peer).incoming : model_.at(stream.object).early) += size;
    if (more) { // what is held back is released at once: the kernel's timer would do it 200 ms later
        emit(actor, Op::send, {stream.reference, 1, 0x4000, 1}, timed_);
        (known ? model_.at(peer).incoming : model_.at(stream.object).early) += 1;
    }
    if (known && size > 0) {
        model_.event(peer);
    }
    return true;
}

// printf and getchar on a socket that is standard output or input for the moment.
bool Generator::standard_step(int actor, const Descriptor &stream) {
    Object &object = model_.at(stream.object);
    const int kind = random_.below(6);
    if (object.waited || object.filled_by >= 0 || one_way_) {
        return false;
    }
    if (kind < 4) {
        if (object.peer < 0 || model_.at(object.peer).filled_by >= 0) {
            return false;
        }
        model_.at(object.peer).incoming += 9;
        model_.event(object.peer);
    } else {
        object.incoming = std::max(0, object.incoming - 1);
    }
    emit(actor, Op::standard, {stream.reference, kind}, timed_);
    return true;
}

bool Generator::recv_step(int actor, const Descriptor &stream) {
    Object &object = model_.at(stream.object);
    if (object.waited || object.filled_by >= 0) {
        return false;
    }
    const int size = random_.pick({1, 2, 3, 7, 10, 50, 100, 1000, 5000, 60000});
    int flags = 0;
    if (random_.chance(35)) {
        flags = random_.pick({0x2, 0x2, 0x100, 0x100, 0x20, 0x22, 0x102, 0x2000, 0x40000000, 0x10000});
    }
    int variant =
        random_.pick({0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 4, 4, 4, 5, 6, 7, 15, 16, 17, 18, 20, 22, 23, 24});
    if (variant == 17 || variant == 18) {
        variant = may_request(actor) ? variant : 1;
    }
    const int wanted = variant == 5 ? std::max(size, 4) : size; // each of its two messages asks for something
    const bool needs_more = (flags & 0x100) != 0 && object.incoming < size;
    // An interrupted recvmmsg keeps the error for later: LIMITS.md, "recvmmsg".
    if (variant == 5) {
        flags |= 0x40;
    }
    const bool may_block = !object.nonblocking && !object.ended && (object.incoming == 0 || needs_more);
    if (may_block && random_.chance(80)) {
        flags |= 0x40;
        if (without_flags(variant)) {
            variant = 1;
        }
    }
    const bool blocks =
        may_block && (flags & 0x40) == 0 && variant != 17 && variant != 18 && variant != 20 && variant != 22;
    emit(actor, Op::recv, {stream.reference, wanted, flags, variant}, timed_ || variant == 17 || variant == 18);
    if ((flags & 0x2002) == 0 || without_flags(variant)) {
        object.incoming = std::max(0, object.incoming - size);
    }
    if (blocks && !object.timed) {
        model_.block(actor, {stream.object});
    }
    return true;
}

bool Generator::filling_step(int actor) {
    const Descriptor *found = find(actor, Kind::stream);
    if (found == nullptr || model_.at(found->object).peer < 0 || model_.at(found->object).waited) {
        return false;
    }
    const Descriptor stream = *found;
    const int peer = model_.at(stream.object).peer;
    Object &object = model_.at(stream.object), &there = model_.at(peer);
    if (object.filled_by >= 0) { // make room again
        emit(actor, Op::drain, {stream.reference, object.filled_by}, true);
        object.filled_by = -1;
        model_.event(peer);
        return true;
    }
    if (one_way_ || there.incoming > 0 || there.filled_by >= 0 || there.small_window || there.waited ||
        there.ended || object.ended || object.shut || there.urgent) {
        return false;
    }
    const bool blocking = !object.nonblocking && !object.timed && random_.chance(25);
    there.filled_by = emit(actor, blocking ? Op::huge : Op::fill, {stream.reference});
    if (blocking) {
        model_.block(actor, {peer});
        model_.at(peer).waited = false; // its reader must be able to read
        model_.at(stream.object).waited = true;
        model_.actors[static_cast<size_t>(actor)].waits_for = {stream.object};
    } else {
        emit(actor, Op::ready, {stream.reference});
    }
    model_.event(peer);
    return true;
}

bool Generator::urgency_step(int actor) {
    const Descriptor *found = find(actor, Kind::stream);
    if (found == nullptr || model_.at(found->object).waited) {
        return false;
    }
    const Descriptor stream = *found;
    Object &object = model_.at(stream.object);
    if (object.filled_by >= 0) {
        return false;
    }
    switch (random_.below(5)) {
    case 0:
    case 1:
        // A second urgent byte while the first was not read: LIMITS.md, "urgent data".
        if (object.peer < 0 || one_way_ || model_.at(object.peer).filled_by >= 0 ||
            model_.at(object.peer).urgent || object.ended) {
            return false;
        }
        emit(actor, Op::send,
             {stream.reference, random_.pick({1, 1, 2, 5, 100}), 0x4001, random_.pick({1, 1, 5})});
        model_.at(object.peer).urgent = true;
        model_.at(object.peer).incoming += 1;
        model_.event(object.peer);
        return true;
    case 2:
        emit(actor, Op::recv,
             {stream.reference, random_.pick({1, 1, 5}), 0x41 | (random_.chance(20) ? 2 : 0),
              random_.pick({1, 1, 2, 4})});
        return true;
    case 3:
        emit(actor, Op::ioctl, {stream.reference, 2, 0});
        return true;
    default:
        emit(actor, Op::setsockopt, {stream.reference, option_index(SOL_SOCKET, SO_OOBINLINE), random_.below(2)});
        return true;
    }
}

bool Generator::ending_step(int actor) {
    const Kind kind = random_.chance(90) ? Kind::stream : random_.one_of({Kind::listener, Kind::fresh});
    const Descriptor *found = find(actor, kind);
    if (found == nullptr) {
        return false;
    }
    const Descriptor descriptor = *found;
    Object &object = model_.at(descriptor.object);
    const int peer = object.peer;
    int choice = random_.below(10);
    const bool shared = model_.shared(descriptor.object);
    // LIMITS.md, "a listener shared"
    if (kind == Kind::listener && shared && (choice < 5 || choice == 9)) {
        return false;
    }
    if (object.filled_by >= 0) { // the sender would find out by a timer
        return false;
    }
    // Behind data that waits for room, the kernel's FIN waits too; and how much of it a reset takes away
    // differs.
    if (peer >= 0 && model_.at(peer).filled_by >= 0) {
        return false;
    }
    if (choice == 9 && (shared || object.bound)) { // LIMITS.md, "connect(AF_UNSPEC)"
        choice = 0;
    }
    // LIMITS.md, "a member of an epoll set"
    if (choice >= 5 && choice < 9 && shared && object.in_epoll) {
        return false;
    }
    if (choice < 5) {
        const int how = random_.pick({0, 1, 1, 1, 2});
        emit(actor, Op::shutdown, {descriptor.reference, how});
        if (how != 0) {
            object.shut = true;
            if (peer >= 0) {
                model_.end_of(peer);
            }
        }
        if (how != 1) {
            model_.end_of(descriptor.object);
        }
        return true;
    }
    if (choice < 7) { // to be closed with a reset, or after waiting for the peer
        const int how = random_.pick({0, 1, 1, 3});
        // Not with a time where the connection stays open: LIMITS.md, "SO_LINGER and exec".
        const auto &open = model_.process_of(actor).open;
        const bool stays = shared || std::count_if(open.begin(), open.end(), [&](const Descriptor &other) {
                                         return other.object == descriptor.object;
                                     }) > 1;
        emit(actor, Op::setsockopt,
             {descriptor.reference, option_index(SOL_SOCKET, SO_LINGER), stays && how == 3 ? 1 : how});
    }
    if (choice < 9) {
        Process &process = model_.process_of(actor);
        for (size_t i = 0; i < process.open.size(); ++i) {
            if (process.open[i].reference == descriptor.reference) {
                emit(actor, Op::close, {descriptor.reference}, true);
                model_.forget(process, i);
                return true;
            }
        }
    }
    emit(actor, Op::connect, {descriptor.reference, unspecified, kAnyPort});
    if (kind == Kind::stream) {
        // What follows on a kernel socket of its own, the next one cannot know: LIMITS.md,
        // "connect(AF_UNSPEC)".
        emit(actor, Op::ready, {descriptor.reference});
        if (random_.chance(50)) {
            emit(actor, Op::recv, {descriptor.reference, 10, 0x40, 1});
        }
        std::erase_if(model_.process_of(actor).open,
                      [&](const Descriptor &other) { return other.object == descriptor.object; });
        model_.end_of(descriptor.object);
        if (peer >= 0) {
            model_.end_of(peer);
        }
    }
    return true;
}

} // namespace sd::differential
