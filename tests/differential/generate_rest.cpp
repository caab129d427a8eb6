// Steps that wait for readiness, set options, duplicate and pass descriptors, make and end processes, and send signals.
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
        const int id = emit(actor, Op::epoll_create, {random_.chance(20) ? EPOLL_CLOEXEC : 0});
        open(actor, id, model_.add(Kind::epoll));
        set = find(actor, Kind::epoll);
    }
    const Descriptor epoll = *set;
    Object &object = model_.at(epoll.object);
    if (random_.chance(object.members == 0 ? 90 : 40)) {
        const Descriptor *member = random_.chance(80) ? find(actor, Kind::stream) : any(actor);
        const int fd =
            member == nullptr || random_.chance(3) ? reference(actor, Kind::stream) : member->reference;
        int operation = random_.pick(
            {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_DEL});
        if (object.members == 0) {
            operation = EPOLL_CTL_ADD;
        }
        int events =
            random_.pick({EPOLLIN, EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP,
                          EPOLLIN | EPOLLPRI, 0, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, EPOLLRDHUP});
        if (random_.chance(45)) {
            events |= random_.pick({kEdge, kEdge, kEdge, kOnce, kEdge | kOnce, kExclusive, kExclusive | kEdge});
        }
        emit(actor, Op::epoll_ctl, {epoll.reference, random_.chance(2) ? 9 : operation, fd, events});
        object.members += operation == EPOLL_CTL_ADD;
        if (member != nullptr) {
            model_.at(member->object).in_epoll = true;
        }
        return true;
    }
    if (object.waited) {
        return false;
    }
    int timeout = random_.chance(85) ? 0 : random_.chance(50) ? 15 : -1;
    // A bad pointer only where there is nothing to tell: docs/compatibility.md, "epoll_wait with a bad pointer".
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
        if ((found != nullptr && model_.at(found->object).filled_by >= 0) || (which == 6 && !features_.signals)) {
            return false;
        }
        emit(actor, Op::ioctl, {fd, which, random_.below(2)});
        if (which == 1 && found != nullptr) {
            found = nullptr; // whether it blocks now is learnt again from the next steps
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
    const int id = emit(actor, Op::setsockopt, {fd, index, value});
    if (option.kind == OptionKind::time && value > 0) {
        timed_ = true;
        if (found != nullptr) {
            model_.at(found->object).timed = true;
        }
    }
    if (option.level == SOL_SOCKET && option.name == SO_RCVBUF && found != nullptr) {
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
    const auto copied = [&](int id) {
        if (object >= 0) {
            ++model_.at(object).references;
            open(actor, id, object);
        }
        return true;
    };
    switch (random_.below(9)) {
    case 0:
    case 1:
        return copied(emit(actor, Op::dup, {fd}));
    case 2:
    case 3: {
        const Descriptor *other = any(actor);
        const int target = other == nullptr || random_.chance(40) ? kNumber + 40 + random_.below(20)
                           : random_.chance(8)                    ? random_.pick({kBadFd, fd})
                                                                  : other->reference;
        if (other != nullptr && target == other->reference && must_stay(other->object)) {
            return false;
        }
        const bool three = random_.chance(40);
        const int id = three ? emit(actor, Op::dup3, {fd, target, random_.below(2)}, true)
                             : emit(actor, Op::dup2, {fd, target}, true);
        for (size_t i = 0; i < process.open.size() && target != fd && fd != kBadFd; ++i) {
            if (process.open[i].reference == target) {
                model_.forget(process, i);
                break;
            }
        }
        return target == fd || target == kBadFd ? true : copied(id);
    }
    case 4:
        return copied(emit(actor, Op::fcntl_dup, {fd, random_.pick({0, 0, 20, 100}), random_.below(2)}));
    case 5:
        emit(actor, Op::setfd, {fd, random_.below(2)});
        emit(actor, Op::getfd, {fd});
        return true;
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
    default: {
        if (process.open.size() < 3 || !random_.chance(20) || must_stay(process.open.back().object) ||
            must_stay(process.open[process.open.size() - 2].object)) {
            emit(actor, Op::metadata, {fd, known(actor, fd) != nullptr ? random_.below(6) : 0});
            return true;
        }
        const int last = process.open.back().reference; // what lies between two numbers is not known here
        emit(actor, Op::close_range, {last, last}, true);
        model_.forget(process, process.open.size() - 1);
        return true;
    }
    }
}

bool Generator::process_step(int actor) {
    const int fresh = free_actor();
    const int choice = random_.below(10);
    const int process = model_.actors[static_cast<size_t>(actor)].process;
    if (choice < 6 && fresh >= 0) {
        ModelActor &it = model_.actors[static_cast<size_t>(fresh)];
        if (choice < 3) {
            emit(actor, Op::thread, {fresh});
            it.process = process;
        } else {
            emit(actor, Op::fork, {fresh, random_.chance(15) ? 1 : 0});
            it.process = static_cast<int>(model_.processes.size());
            model_.processes.push_back(model_.processes[static_cast<size_t>(process)]);
            // A set used by both: docs/compatibility.md, "an epoll instance made before fork".
            std::erase_if(model_.processes.back().open, [&](const Descriptor &descriptor) {
                return model_.at(descriptor.object).kind == Kind::epoll;
            });
            // What one of them connects, the other does not notice: docs/compatibility.md, "a socket that is not connected yet".
            std::erase_if(model_.processes.back().open, [&](const Descriptor &descriptor) {
                return model_.at(descriptor.object).kind == Kind::fresh;
            });
            for (const Descriptor &descriptor : model_.processes.back().open) {
                ++model_.at(descriptor.object).references;
            }
        }
        it.alive = true;
        return true;
    }
    const Process &own = model_.processes[static_cast<size_t>(process)];
    if (std::any_of(own.open.begin(), own.open.end(), [&](const Descriptor &descriptor) {
            const int peer = model_.at(descriptor.object).peer;
            return peer >= 0 && model_.at(peer).filled_by >= 0;
        })) {
        return false; // as in ending_step
    }
    int alive = 0;
    for (const ModelActor &it : model_.actors) {
        alive += it.alive;
    }
    if (choice < 8 && alive > 1 && random_.chance(50)) {
        const bool other_threads =
            std::any_of(model_.actors.begin(), model_.actors.end(), [&](const ModelActor &it) {
                return it.alive && it.process == process && &it != &model_.actors[static_cast<size_t>(actor)];
            });
        if (actor >= sequence_.roots && other_threads && random_.chance(60)) {
            emit(actor, Op::exit, {2});
            model_.actors[static_cast<size_t>(actor)].alive = false;
        } else {
            emit(actor, Op::exit, {random_.below(2)});
            model_.process_ends(process);
        }
        return true;
    }
    if (choice == 8 && alive > 1 && random_.chance(40)) {
        emit(actor, Op::kill, {actor});
        model_.process_ends(process);
        return true;
    }
    if (features_.exec && random_.chance(50)) {
        emit(actor, Op::exec, {random_.below(2), 0});
        return true;
    }
    return false;
}

bool Generator::signal_step(int actor) {
    if (random_.chance(40)) {
        const int target = random_.below(kMaxActors);
        ModelActor &it = model_.actors[static_cast<size_t>(target)];
        if (!it.alive) {
            return false;
        }
        const int which = random_.below(2);
        emit(actor, Op::signal, {target, which});
        if (which == 0) {
            for (const int waited : it.waits_for) {
                model_.at(waited).waited = false;
            }
            it.waits_for.clear();
        }
        return true;
    }
    if (features_.signals && random_.chance(60)) {
        const Descriptor *found = find(actor, Kind::stream);
        if (found != nullptr) {
            emit(actor, Op::owner, {found->reference, random_.below(4), random_.pick({0, 1, 1})});
            emit(actor, Op::setfl, {found->reference, random_.pick({020000, 020000, 024000, 0})});
            return true;
        }
    }
    if (random_.chance(40)) {
        emit(actor, Op::sigaction, {random_.below(2), random_.pick({1, 2, 2, 3})});
    } else {
        emit(actor, Op::signals, {});
    }
    return true;
}

bool Generator::passing_step(int actor) {
    std::vector<int> &mail = in_the_mail_[actor];
    if (!mail.empty()) {
        open(actor, emit(actor, Op::take_passed, {}), mail.front());
        mail.erase(mail.begin());
        return true;
    }
    const Descriptor *found = random_.chance(80) ? find(actor, Kind::stream) : any(actor);
    const int target = ready_actor();
    if (found == nullptr || target < 0) {
        return false;
    }
    emit(actor, Op::pass, {found->reference, target});
    ++model_.at(found->object).references;
    in_the_mail_[target].push_back(found->object);
    return true;
}

} // namespace sd::differential
