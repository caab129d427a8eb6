// Steps that wait for readiness, set options, and duplicate descriptors.
#include "tests/differential/generator.hpp"

#include "tests/differential/option_list.hpp"

#include <sys/epoll.h>

namespace sd::differential {

namespace {

constexpr int kEdge = static_cast<int>(EPOLLET), kOnce = EPOLLONESHOT, kExclusive = EPOLLEXCLUSIVE;

} // namespace

bool Generator::waiting_step(int actor) {
    if (random_.chance(55)) {
        return epoll_step(actor);
    }
    if (random_.chance(30)) {
        emit(actor, Op::ready, {reference(actor, random_.chance(70) ? Kind::stream : Kind::listener)});
        return true;
    }
    int fds[3] = {kNoFd, kNoFd, kNoFd}, events[3] = {};
    std::vector<int> objects;
    const bool selecting = random_.chance(40);
    for (int i = 0, count = 1 + random_.below(3); i < count; ++i) {
        const Descriptor *found = random_.chance(75) ? find(actor, Kind::stream) : any(actor);
        if (found == nullptr || (i == 2 && random_.chance(5))) {
            fds[i] = random_.pick({kBadFd, kUnusedFd});
        } else {
            fds[i] = found->reference;
            objects.push_back(found->object);
        }
        events[i] = selecting ? random_.below(16) : random_.pick({1, 1, 4, 5, 3, 0x2001, 0x2005, 0, 7, 0x2000});
    }
    // Nobody else acts while this one waits, unless it waits without end.
    int timeout = random_.chance(88) ? 0 : random_.chance(50) ? 15 : -1;
    const bool conflict =
        std::any_of(objects.begin(), objects.end(), [&](int object) { return model_.at(object).waited; });
    if (timeout < 0 && (objects.empty() || conflict)) {
        timeout = 0;
    }
    emit(actor, selecting ? Op::select : Op::poll,
         {fds[0], events[0], fds[1], events[1], fds[2], events[2], timeout}, timeout > 0);
    if (timeout < 0) {
        model_.block(actor, objects);
    }
    return true;
}

bool Generator::epoll_step(int actor) {
    const Descriptor *set = find(actor, Kind::epoll);
    if (set == nullptr) {
        const bool cloexec = random_.chance(20);
        const int id = emit(actor, Op::epoll_create, {cloexec ? EPOLL_CLOEXEC : 0});
        open(actor, id, model_.add(Kind::epoll), cloexec);
        set = find(actor, Kind::epoll);
    }
    const Descriptor epoll = *set;
    Object &object = model_.at(epoll.object);
    // What another thread sleeps on is changed beneath it.
    if (random_.chance(object.waited ? 100 : object.members == 0 ? 90 : 40)) {
        const Descriptor *member = random_.chance(80) ? find(actor, Kind::stream) : any(actor);
        const int fd =
            member == nullptr || random_.chance(3) ? reference(actor, Kind::stream) : member->reference;
        int operation = random_.pick(
            {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_DEL});
        if (object.members == 0) {
            operation = EPOLL_CTL_ADD;
        } else if (object.waited && random_.chance(60)) {
            operation = EPOLL_CTL_MOD;
        }
        int events =
            random_.pick({EPOLLIN, EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP,
                          EPOLLIN | EPOLLPRI, 0, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, EPOLLRDHUP});
        if (random_.chance(45)) {
            events |= random_.pick({kEdge, kEdge, kEdge, kOnce, kEdge | kOnce, kExclusive, kExclusive | kEdge});
        }
        emit(actor, Op::epoll_ctl, {epoll.reference, random_.chance(2) ? 9 : operation, fd, events});
        object.members += operation == EPOLL_CTL_ADD;
        if (const Descriptor *added = known(actor, fd)) { // not always `member`
            model_.at(added->object).in_epoll = true;
        }
        return true;
    }
    const bool alone = std::none_of(model_.actors.begin(), model_.actors.end(), [&](const ModelActor &other) {
        return &other != &model_.actors[static_cast<size_t>(actor)] && other.alive &&
               other.process == model_.actors[static_cast<size_t>(actor)].process;
    });
    int timeout = random_.chance(alone ? 85 : 60) ? 0 : random_.chance(alone ? 50 : 20) ? 15 : -1;
    // A bad pointer only where there is nothing to tell: LIMITS.md, "epoll_wait with a bad
    // pointer".
    const int variant = random_.chance(93) ? random_.below(3) : object.members != 0 ? 4 : 3;
    std::vector<int> objects{epoll.object};
    for (const Descriptor &descriptor : model_.process_of(actor).open) {
        if (model_.at(descriptor.object).kind == Kind::stream) {
            objects.push_back(descriptor.object);
        }
    }
    // Who reads what comes may be faster than who is told of it.
    if (timeout < 0 && std::any_of(objects.begin(), objects.end(), [&](int it) { return model_.at(it).waited; })) {
        timeout = 0;
    }
    // The acknowledgement of a FIN wakes the set, and comes by timer.
    if (timeout > 0 && std::any_of(objects.begin(), objects.end(), [&](int it) { return model_.at(it).shut; })) {
        timeout = 0;
    }
    emit(actor, Op::epoll_wait, {epoll.reference, 16, timeout, variant}, timeout > 0);
    if (timeout < 0 && variant != 4) {
        model_.block(actor, objects);
    }
    return true;
}

bool Generator::option_step(int actor) {
    const Kind kind =
        random_.one_of({Kind::stream, Kind::stream, Kind::stream, Kind::listener, Kind::fresh, Kind::other});
    const Descriptor *found = find(actor, kind);
    const int fd = found == nullptr || random_.chance(5) ? reference(actor, kind) : found->reference;
    found = known(actor, fd);
    if (random_.chance(15)) {
        const int which = random_.below(9);
        if ((found != nullptr && model_.at(found->object).filled_by >= 0) ||
            (which == 6 && (!features_.signals || kind == Kind::stream ||
                            (found != nullptr && model_.at(found->object).kind == Kind::stream)))) {
            return false;
        }
        emit(actor, Op::ioctl, {fd, which, random_.below(2)});
        if (found != nullptr && (which == 4 || which == 5)) {
            known(actor, fd)->cloexec = which == 4;
        }
        return true;
    }
    if (random_.chance(15)) {
        const int flags = random_.pick({0, 04000, 04000, 02000});
        emit(actor, Op::setfl, {fd, flags});
        emit(actor, Op::getfl, {fd});
        if (found != nullptr) {
            model_.at(found->object).nonblocking = (flags & 04000) != 0;
        }
        return true;
    }
    const int index = random_.below(kOptionCount);
    const Option &option = kOptions[index];
    // Where the level itself is wrong, which of two mistakes is told first is not compared.
    const bool own_level = option.level != IPPROTO_IPV6 && option.level != 77;
    if (random_.chance(50)) {
        emit(actor, Op::getsockopt, {fd, index, random_.chance(85) ? 0 : random_.below(own_level ? 5 : 3)});
        return true;
    }
    if (option.name == IPV6_V6ONLY && option.level == IPPROTO_IPV6 && kind == Kind::stream) {
        return false; // whether a connection that ended may be told depends on how it ended
    }
    const int value = random_.chance(90) || !own_level ? random_.below(4) : random_.below(7);
    if (option.level == IPPROTO_TCP && (option.name == TCP_CORK || option.name == TCP_NODELAY)) {
        if (option.name == TCP_CORK) { // held back only between two steps: the kernel lets go after 200 ms
            emit(actor, Op::setsockopt, {fd, index, 1});
            emit(actor, Op::getsockopt, {fd, index, 0});
            emit(actor, Op::setsockopt, {fd, index, 0});
        } else if (!one_way_) {
            emit(actor, Op::setsockopt, {fd, index, value == 0 ? 1 : value});
        }
        return true;
    }
    // What was sent before would come in windows below a segment: LIMITS.md, "timers of the kernel".
    const bool narrows = option.level == SOL_SOCKET && option.name == SO_RCVBUF && found != nullptr;
    if (narrows && model_.at(found->object).filled_by >= 0) {
        return false;
    }
    // A linger time only right before a close: LIMITS.md, "SO_LINGER and exec".
    const bool lingers = option.kind == OptionKind::linger && (value & 3) == 3;
    const int id = emit(actor, Op::setsockopt, {fd, index, lingers ? 1 : value});
    if (option.kind == OptionKind::time && value > 0) {
        timed_ = true;
        if (found != nullptr) {
            model_.at(found->object).timed = true;
        }
    }
    if (narrows) {
        model_.at(found->object).small_window = true;
    }
    if (random_.chance(60)) {
        emit(actor, Op::getsockopt, {fd, index, 0});
    }
    return id >= 0;
}

bool Generator::descriptor_step(int actor) {
    const Kind kind = random_.chance(75)
                          ? Kind::stream
                          : random_.one_of({Kind::listener, Kind::fresh, Kind::epoll, Kind::other});
    const Descriptor *found = find(actor, kind);
    const int fd = found == nullptr || random_.chance(5) ? reference(actor, kind) : found->reference;
    found = known(actor, fd);
    const int object = found == nullptr ? -1 : found->object;
    Process &process = model_.process_of(actor);
    const auto must_stay = [&](int object) { // as in ending_step
        const int peer = model_.at(object).peer;
        return (model_.at(object).in_epoll && model_.shared(object)) ||
               (peer >= 0 && model_.at(peer).filled_by >= 0);
    };
    const auto copied = [&](int id, bool cloexec = false) {
        if (object >= 0) {
            ++model_.at(object).references;
            open(actor, id, object, cloexec);
        }
        return true;
    };
    switch (random_.below(12)) {
    case 0:
    case 1:
        return copied(emit(actor, Op::dup, {fd}));
    case 2:
    case 3: {
        const Descriptor *other = any(actor);
        const int target = other == nullptr || random_.chance(40)
                               ? kNumber + (random_.chance(25) ? random_.below(3) : 40 + random_.below(20))
                           : random_.chance(8) ? random_.pick({kBadFd, fd})
                                               : other->reference;
        if (other != nullptr && target == other->reference && must_stay(other->object)) {
            return false;
        }
        const bool three = random_.chance(40), cloexec = three && random_.chance(50);
        const int id = three ? emit(actor, Op::dup3, {fd, target, cloexec ? 1 : 0}, true)
                             : emit(actor, Op::dup2, {fd, target}, true);
        for (size_t i = 0; i < process.open.size() && target != fd && fd != kBadFd; ++i) {
            if (process.open[i].reference == target) {
                model_.forget(process, i);
                break;
            }
        }
        return target == fd || target == kBadFd ? true : copied(id, cloexec);
    }
    case 4: {
        const bool cloexec = random_.chance(50);
        return copied(emit(actor, Op::fcntl_dup, {fd, random_.pick({0, 0, 20, 100}), cloexec ? 1 : 0}), cloexec);
    }
    case 5: {
        const bool cloexec = random_.chance(50);
        emit(actor, Op::setfd, {fd, cloexec ? 1 : 0});
        emit(actor, Op::getfd, {fd});
        if (found != nullptr) {
            known(actor, fd)->cloexec = cloexec;
        }
        return true;
    }
    case 6:
        emit(actor, random_.chance(50) ? Op::getfl : Op::getfd, {fd});
        return true;
    case 7:
        if (object >= 0 && must_stay(object)) {
            return false;
        }
        emit(actor, Op::close, {fd}, true);
        for (size_t i = 0; i < process.open.size(); ++i) {
            if (process.open[i].reference == fd) {
                model_.forget(process, i);
                break;
            }
        }
        return true;
    case 8:
        return closing_range_step(actor);
    case 9:
        emit(actor, Op::make, {random_.below(24)});
        return true;
    case 10: {
        if (kind != Kind::stream || object < 0 || must_stay(object) || model_.at(object).filled_by >= 0) {
            return false;
        }
        const int what = random_.below(9);
        const int id = emit(actor, Op::raw, {fd, what}, true);
        if (what == 0) {
            for (size_t i = 0; i < process.open.size(); ++i) {
                if (process.open[i].reference == fd) {
                    model_.forget(process, i);
                    break;
                }
            }
        }
        return what == 1 || what == 8 ? copied(id, what == 8) : true;
    }
    default:
        // What libsd does not see may still find a number that was just closed: LIMITS.md, "a
        // closed number".
        emit(actor, Op::metadata, {fd, known(actor, fd) != nullptr ? random_.below(24) : 0});
        return true;
    }
}

bool Generator::closing_range_step(int actor) {
    Process &process = model_.process_of(actor);
    const auto must_stay = [&](const Descriptor &descriptor) {
        const Object &object = model_.at(descriptor.object);
        return (object.in_epoll && model_.shared(descriptor.object)) ||
               (object.peer >= 0 && model_.at(object.peer).filled_by >= 0);
    };
    if (process.open.empty()) {
        return false;
    }
    constexpr int kOnExec = 4 /* CLOSE_RANGE_CLOEXEC */;
    switch (random_.below(4)) {
    case 0: { // in a child that looks and ends
        const bool shared = std::any_of(process.open.begin(), process.open.end(), must_stay);
        if (shared) {
            return false;
        }
        emit(actor, Op::close_all,
             {random_.chance(50) ? kNumber + random_.below(9) : any(actor)->reference, random_.below(4)}, true);
        return true;
    }
    case 1: { // everything is marked
        emit(actor, Op::close_range, {kNumber + 3, kNumber + 380, kOnExec}, true);
        for (Descriptor &descriptor : process.open) {
            descriptor.cloexec = true;
        }
        return true;
    }
    case 2: { // one of them; what lies between two numbers is not known here
        const int index = random_.below(static_cast<int>(process.open.size()));
        const Descriptor one = process.open[static_cast<size_t>(index)];
        if (must_stay(one)) {
            return false;
        }
        const int flags = random_.pick({0, 0, kOnExec, 99});
        emit(actor, Op::close_range, {one.reference, one.reference, flags}, true);
        if (flags == 0) {
            model_.forget(process, static_cast<size_t>(index));
        } else if (flags == kOnExec) {
            process.open[static_cast<size_t>(index)].cloexec = true;
        }
        return true;
    }
    default:
        if (!random_.chance(25) || std::any_of(process.open.begin(), process.open.end(), must_stay)) {
            return false;
        }
        emit(actor, Op::close_range, {kNumber + 3, kNumber + 380, 0}, true);
        while (!process.open.empty()) { // those on numbers 0 to 2 live on, unknown
            model_.forget(process, process.open.size() - 1);
        }
        return true;
    }
}

} // namespace sd::differential
