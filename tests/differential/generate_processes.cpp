// Steps that make and end processes and threads, execute programs, pass descriptors, and send signals.
#include "tests/differential/generator.hpp"

namespace sd::differential {

bool Generator::process_step(int actor) {
    const int fresh = free_actor();
    const int process = model_.actors[static_cast<size_t>(actor)].process;
    const int choice = random_.below(18);
    if (choice == 16) {
        return crowd_step(actor);
    }
    if (choice == 17) {
        return connect_shared(actor);
    }
    if (choice < 3 && fresh >= 0) {
        emit(actor, Op::thread, {fresh});
        ModelActor &it = model_.actors[static_cast<size_t>(fresh)];
        it.process = process;
        it.alive = it.thread = true;
        return true;
    }
    if (choice < 6 && fresh >= 0) {
        return new_process(actor, process, fresh);
    }
    if (choice < 8 && fresh >= 0) {
        return features_.exec && new_program(actor, process, fresh);
    }
    if (choice < 11) {
        return features_.exec && execute_step(actor, process);
    }
    if (choice < 13) {
        return features_.exec && shell_step(actor);
    }
    return end_step(actor, process);
}

// Several processes in accept at once, on a listener that nobody else waits for or has clients for.
bool Generator::crowd_step(int actor) {
    const Descriptor *found = find(actor, Kind::listener);
    if (found == nullptr) {
        return false;
    }
    const Object &listener = model_.at(found->object);
    if (listener.nonblocking || listener.waited || listener.timed || listener.mailed > 0 ||
        !listener.pending.empty()) {
        return false;
    }
    emit(actor, Op::crowd, {found->reference, random_.pick({1, 4, 12})}, true);
    return true;
}

// A socket that another process has, too. The kernel connects it, so it waits in the queue of ordinary
// clients: LIMITS.md, "the order of accept".
bool Generator::connect_shared(int actor) {
    const Descriptor *found = find(actor, Kind::fresh), *to = find(actor, Kind::listener);
    if (found == nullptr || to == nullptr || !model_.shared(found->object) ||
        model_.at(found->object).nonblocking || !model_.at(to->object).pending.empty()) {
        return false;
    }
    Object &client = model_.at(found->object), &listener = model_.at(to->object);
    listener.plain_pending = true;
    emit(actor, Op::connect,
         {found->reference, form_at(target_form(listener, client.domain), listener.place), listener.port});
    client.kind = Kind::stream;
    listener.pending.push_back(found->object);
    model_.event(to->object);
    return true;
}

bool Generator::new_process(int actor, int process, int fresh) {
    ModelActor &it = model_.actors[static_cast<size_t>(fresh)];
    emit(actor, Op::fork, {fresh, random_.pick({0, 0, 0, 1, 2})});
    it.process = static_cast<int>(model_.processes.size());
    it.alive = true;
    model_.processes.push_back(model_.processes[static_cast<size_t>(process)]);
    if (features_.users == Users::given_up) {
        model_.processes.back().user = 1;
    }
    model_.processes.back().no_requests |= model_.processes.back().requests;
    std::vector<Descriptor> &open = model_.processes.back().open;
    // A set used by both: docs/compatibility.md, "an epoll instance made before fork". Who has asked what
    // became of a connect: there, "a connection shared by fork".
    std::erase_if(open, [&](const Descriptor &descriptor) {
        Object &object = model_.at(descriptor.object);
        object.inherited |= object.connecting;
        return object.kind == Kind::epoll || object.connecting;
    });
    for (const Descriptor &descriptor : open) {
        ++model_.at(descriptor.object).references;
    }
    return true;
}

// Descriptors that end with this process, or with its program, have to be such whose end is compared.
bool Generator::may_end(int process) {
    const std::vector<Descriptor> &open = model_.processes[static_cast<size_t>(process)].open;
    return std::none_of(open.begin(), open.end(), [&](const Descriptor &descriptor) { // as in ending_step
        const Object &object = model_.at(descriptor.object);
        return object.peer >= 0 && model_.at(object.peer).filled_by >= 0;
    });
}

// A process with another program: posix_spawn, vfork, clone or fork, and what happens to descriptors on the
// way.
bool Generator::new_program(int actor, int process, int fresh) {
    if (!may_end(process)) {
        return false;
    }
    const Descriptor *found = random_.chance(80) ? find(actor, Kind::stream) : any(actor);
    if (found == nullptr) {
        return false;
    }
    const Descriptor moved = *found;
    const int action = random_.pick({0, 0, 1, 1, 1, 2, 3, 4, 5, 6});
    const int target = kNumber + random_.pick({0, 1, 2, 45, 46});
    emit(actor, Op::spawn, {fresh, random_.below(5), action, moved.reference, target}, true);
    ModelActor &it = model_.actors[static_cast<size_t>(fresh)];
    it.process = static_cast<int>(model_.processes.size());
    it.alive = action != 6;
    model_.processes.push_back(model_.processes[static_cast<size_t>(process)]);
    Process &made = model_.processes.back();
    made.handler_sends = -1;
    made.requests = made.no_requests = false;
    if (action == 6) {
        made.open.clear();
        return true;
    }
    std::erase_if(made.open, [&](const Descriptor &descriptor) { // as in new_process
        Object &object = model_.at(descriptor.object);
        object.inherited |= object.connecting && !descriptor.cloexec;
        const bool itself = descriptor.reference == moved.reference;
        return object.kind == Kind::epoll || object.kind == Kind::fresh || object.connecting ||
               descriptor.reference == target || (itself && (action == 2 || action == 4)) ||
               (descriptor.cloexec && !(itself && action == 5));
    });
    for (Descriptor &descriptor : made.open) {
        descriptor.cloexec = false;
        ++model_.at(descriptor.object).references;
    }
    const Object &object = model_.at(moved.object);
    if ((action == 1 || action == 4) && object.kind != Kind::epoll && object.kind != Kind::fresh &&
        !object.connecting) {
        ++model_.at(moved.object).references;
        made.open.push_back({target, moved.object});
    }
    return true;
}

bool Generator::execute_step(int actor, int process) {
    Process &own = model_.processes[static_cast<size_t>(process)];
    const bool ending_matters = std::any_of(own.open.begin(), own.open.end(), [&](const Descriptor &descriptor) {
        return descriptor.cloexec && model_.at(descriptor.object).in_epoll && model_.shared(descriptor.object);
    });
    if (ending_matters || !may_end(process)) {
        return false;
    }
    const int variant = random_.below(9);
    emit(actor, Op::exec, {variant});
    if (variant >= 7) {
        return true; // there is no such program
    }
    for (size_t i = own.open.size(); i-- > 0;) {
        if (own.open[i].cloexec) {
            model_.forget(own, i);
        }
    }
    // An epoll set stays open: docs/compatibility.md, "an epoll instance that stays open across exec".
    std::erase_if(own.open, [&](const Descriptor &descriptor) {
        return model_.at(descriptor.object).kind == Kind::epoll;
    });
    own.handler_sends = -1;
    own.requests = own.no_requests = false;
    for (int i = 0; i < kMaxActors; ++i) {
        ModelActor &it = model_.actors[static_cast<size_t>(i)];
        if (it.process == process && i != actor) {
            model_.actor_ends(it);
        }
    }
    return true;
}

bool Generator::shell_step(int actor) {
    const Descriptor *found = find(actor, Kind::stream);
    if (found == nullptr || one_way_) {
        return false;
    }
    Object &object = model_.at(found->object);
    if (object.peer < 0 || object.waited || object.filled_by >= 0 || model_.at(object.peer).filled_by >= 0 ||
        model_.at(object.peer).waited) {
        return false;
    }
    const int variant = random_.below(4);
    emit(actor, Op::shell, {found->reference, variant}, true);
    if (variant == 0 || variant == 2) {
        model_.at(object.peer).incoming += 5;
    } else if (variant == 1) {
        object.incoming = std::max(0, object.incoming - 4);
    }
    return true;
}

bool Generator::end_step(int actor, int process) {
    const int choice = random_.below(4);
    if (!may_end(process)) {
        return false;
    }
    int alive = 0;
    for (const ModelActor &it : model_.actors) {
        alive += it.alive;
    }
    if (choice < 2 && alive > 1 && random_.chance(50)) {
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
    if (choice == 2 && alive > 1 && random_.chance(40)) {
        emit(actor, Op::kill, {actor});
        model_.process_ends(process);
        return true;
    }
    if (choice == 3) {
        for (int i = 0; i < kMaxActors; ++i) {
            ModelActor &it = model_.actors[static_cast<size_t>(i)];
            if (it.alive && it.thread && it.process == process && i != actor && random_.chance(50)) {
                emit(actor, Op::cancel, {i});
                if (it.blocked()) {
                    model_.actor_ends(it);
                } // else it ends in its next step, if that can end a thread
                return true;
            }
        }
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
        const int sends = model_.process_of(target).handler_sends;
        if (which == 0 && sends >= 0) {
            const int peer = model_.at(sends).peer;
            if (peer < 0 || model_.at(peer).filled_by >= 0 || model_.at(sends).waited) {
                return false;
            }
            model_.at(peer).incoming += 1;
        }
        emit(actor, Op::signal, {target, which});
        if (which == 0) {
            model_.no_longer_waits(it);
            if (sends >= 0) {
                model_.event(model_.at(sends).peer);
            }
        }
        return true;
    }
    if (random_.chance(20)) { // the next handler sends
        const Descriptor *found = find(actor, Kind::stream);
        if (found != nullptr && model_.at(found->object).peer >= 0 && !one_way_) {
            emit(actor, Op::handler_sends, {found->reference});
            model_.process_of(actor).handler_sends = found->object;
            return true;
        }
    }
    if (random_.chance(25)) {
        return jump_step(actor);
    }
    if (features_.signals && random_.chance(40)) {
        // Before it is connected; one that is asked later goes through a bridge: LIMITS.md,
        // "bridged connections".
        const Descriptor *found = find(actor, random_.chance(70) ? Kind::fresh : Kind::listener);
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

// A call that waits, and a handler that leaves it with siglongjmp.
bool Generator::jump_step(int actor) {
    const Descriptor *found = find(actor, random_.chance(80) ? Kind::stream : Kind::listener);
    const int other = ready_actor();
    if (found == nullptr || other == actor || other < 0 || model_.at(found->object).waited ||
        model_.process_of(actor).handler_sends >= 0) {
        return false;
    }
    Object &object = model_.at(found->object);
    emit(actor, Op::sigaction, {1, 2});
    emit(actor, Op::jump, {});
    const bool waits = !object.nonblocking && !object.timed && !object.ended && object.filled_by < 0 &&
                       object.incoming == 0 && object.pending.empty();
    if (!waits) {
        return true; // of the step that some signal finds it in
    }
    if (object.kind == Kind::listener) {
        emit(actor, Op::poll, {found->reference, 1, kNoFd, 0, kNoFd, 0, -1});
    } else {
        emit(actor, Op::recv, {found->reference, 100, 0, random_.pick({0, 1, 3, 4, 15})});
    }
    emit(other, Op::signal, {actor, 0});
    return true;
}

bool Generator::passing_step(int actor) {
    std::vector<int> &mail = in_the_mail_[actor];
    if (!mail.empty()) {
        const bool cloexec = random_.chance(30);
        --model_.at(mail.front()).mailed;
        open(actor, emit(actor, Op::take_passed, {cloexec ? 1 : 0}), mail.front(), cloexec);
        mail.erase(mail.begin());
        return true;
    }
    const Descriptor *found = random_.chance(80) ? find(actor, Kind::stream) : any(actor);
    const int target = ready_actor();
    // An epoll set arrives without its members: docs/compatibility.md, "an epoll instance that stays open
    // across exec".
    // For another user it is a bridge's: there, "bridged connections".
    if (found == nullptr || target < 0 || model_.at(found->object).kind == Kind::epoll ||
        model_.process_of(target).user != model_.process_of(actor).user) {
        return false;
    }
    emit(actor, Op::pass, {found->reference, target});
    ++model_.at(found->object).references;
    ++model_.at(found->object).mailed;
    in_the_mail_[target].push_back(found->object);
    return true;
}

} // namespace sd::differential
