// Steps that make listeners and connections, ask for names, and use calls wrongly.
#include "tests/differential/generator.hpp"

#include "tests/differential/option_list.hpp"

#include <cstring>

namespace sd::differential {

namespace {

int option_index(int level, int name) {
    for (int i = 0; i < kOptionCount; ++i) {
        if (kOptions[i].level == level && kOptions[i].name == name) {
            return i;
        }
    }
    return 0;
}

} // namespace

// How a socket of `domain` can name that listener.
int Generator::target_form(const Object &listener, int domain) {
    const bool six = domain == AF_INET6;
    switch (listener.form) {
    case v6_loopback:
        return v6_loopback; // an IPv4 socket gets an error
    case v6_any:
        return six ? random_.pick({v6_loopback, v6_loopback, mapped, v6_any})
                   : random_.pick({v4_loopback, v4_any});
    case v4_any:
        return six ? int(mapped) : random_.pick({v4_loopback, v4_loopback, v4_other, v4_any});
    case v4_other:
        return v4_other;
    default:
        return six ? mapped : v4_loopback;
    }
}

int Generator::form_at(int form, int place) const {
    if (!features_.apart) {
        return form;
    }
    switch (form) {
    case v4_loopback:
    case v4_other:
    case v4_any:
        return v4_near + place;
    case v6_loopback:
    case v6_any:
        return v6_near + place;
    case mapped:
        return mapped_near + place;
    default:
        return form;
    }
}

int Generator::make_socket(int actor, int domain) {
    const int flags = (random_.chance(15) ? SOCK_NONBLOCK : 0) | (random_.chance(15) ? SOCK_CLOEXEC : 0);
    const int id = emit(actor, Op::socket, {domain, SOCK_STREAM | flags, random_.chance(20) ? IPPROTO_TCP : 0});
    const int object = model_.add(Kind::fresh, domain);
    model_.at(object).nonblocking = (flags & SOCK_NONBLOCK) != 0;
    open(actor, id, object, (flags & SOCK_CLOEXEC) != 0);
    // Without it Nagle's algorithm waits for the receiver's delayed acknowledgement: a matter of 40 ms
    // timers, not of the calls made.
    if (!one_way_) {
        emit(actor, Op::setsockopt, {id, option_index(IPPROTO_TCP, TCP_NODELAY), 1});
    }
    return object;
}

int Generator::make_listener(int actor) {
    const int form = random_.pick(
        {v4_loopback, v4_loopback, v4_loopback, v4_any, v6_loopback, v6_any, v6_any, mapped, v4_other});
    const int domain = form == v6_loopback || form == v6_any || form == mapped ? AF_INET6 : AF_INET;
    const int object = make_socket(actor, domain);
    const int id = model_.process_of(actor).open.back().reference;
    const int place = model_.process_of(actor).place;
    const bool any = form == v4_any || form == v6_any;
    const int bound = emit(actor, Op::bind, {id, any ? form : form_at(form, place), kAnyPort});
    const int listening = emit(actor, Op::listen, {id, random_.pick({8, 16, 128, 4096})});
    Object &listener = model_.at(object);
    listener.kind = Kind::listener;
    listener.form = form;
    listener.place = place;
    listener.port = random_.chance(50) ? bound : listening;
    return object;
}

void Generator::connect_to(int actor, int listener, bool nonblocking) {
    // Clients with and without libsd wait in two queues: LIMITS.md, "the order of accept".
    const int process = model_.actors[static_cast<size_t>(actor)].process;
    const bool plain = process < sequence_.roots && (sequence_.plain >> process & 1) != 0;
    const bool by_kernel = plain || model_.process_of(actor).place != model_.at(listener).place;
    if (!model_.at(listener).pending.empty() && (by_kernel || model_.at(listener).plain_pending)) {
        return;
    }
    model_.at(listener).plain_pending = by_kernel;
    const int reached = model_.at(listener).form;
    const int domain =
        reached == v6_loopback || (reached == v6_any && random_.chance(60)) || random_.chance(20) ? AF_INET6
                                                                                                  : AF_INET;
    const int object = make_socket(actor, domain);
    const int id = model_.process_of(actor).open.back().reference;
    if (nonblocking) {
        emit(actor, Op::setfl, {id, 04000});
        model_.at(object).nonblocking = true;
    }
    if (random_.chance(6)) {
        const int form = domain == AF_INET ? random_.pick({v4_any, v4_loopback}) : int(v6_any);
        const bool any = form != v4_loopback;
        emit(actor, Op::bind, {id, any ? form : form_at(form, model_.process_of(actor).place), kAnyPort});
        model_.at(object).bound = true;
    }
    // It is a kernel socket then
    if (features_.signals && random_.chance(3) && model_.at(listener).pending.empty()) {
        model_.at(listener).plain_pending = true;
        emit(actor, Op::owner, {id, random_.below(4), 1});
        emit(actor, Op::setfl, {id, nonblocking ? 024000 : 020000});
    }
    const Object &there = model_.at(listener);
    emit(actor, Op::connect, {id, form_at(target_form(there, domain), there.place), there.port});
    model_.at(object).kind = Kind::stream;
    model_.at(object).connecting = model_.at(object).nonblocking;
    model_.at(listener).pending.push_back(object);
    model_.event(listener);
}

void Generator::accept_from(int actor, const Descriptor &descriptor) {
    const Descriptor copy = descriptor;
    const int flags = random_.chance(75)
                          ? 0
                          : random_.pick({SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC, 0x40});
    // Names that do not fit keep the connection from being accepted: rare.
    const bool empty = model_.at(copy.object).pending.empty();
    const int variant = random_.chance(90) ? random_.pick({0, 0, 6, 7}) : random_.below(empty ? 3 : 6);
    // A blocked accept keeps its number from other threads: LIMITS.md, "accept that waits".
    const int process = model_.actors[static_cast<size_t>(actor)].process;
    const bool alone = std::count_if(model_.actors.begin(), model_.actors.end(), [&](const ModelActor &it) {
                           return it.alive && it.process == process;
                       }) == 1;
    if (!alone && !model_.at(copy.object).nonblocking) {
        emit(actor, Op::setfl, {copy.reference, 04000});
        model_.at(copy.object).nonblocking = true;
    }
    if (model_.at(copy.object).waited || (empty && !model_.at(copy.object).nonblocking && random_.chance(80))) {
        return;
    }
    const int id = emit(actor, Op::accept, {copy.reference, variant, flags}, model_.at(copy.object).timed);
    if (flags == 0x40) { // refused before a connection is taken
        return;
    }
    if (variant > 2 && variant < 6) { // taken, and closed at once
        if (!empty) {
            model_.end_of(model_.at(copy.object).pending.front());
            model_.at(copy.object).pending.erase(model_.at(copy.object).pending.begin());
        }
        return;
    }
    const int object = model_.add(Kind::stream, model_.at(copy.object).domain);
    model_.at(object).nonblocking = (flags & SOCK_NONBLOCK) != 0;
    open(actor, id, object, (flags & SOCK_CLOEXEC) != 0);
    Object &listener = model_.at(copy.object);
    if (empty) {
        if (!listener.nonblocking && !listener.timed) {
            model_.block(actor, {copy.object});
        }
        return;
    }
    const int client = listener.pending.front();
    listener.pending.erase(listener.pending.begin());
    model_.at(object).peer = client;
    model_.at(object).ended = model_.at(client).references <= 0;
    // Its address stays for ever
    model_.at(object).bound = listener.form != v4_any && listener.form != v6_any;
    model_.at(object).small_window = listener.small_window;
    model_.at(object).incoming = model_.at(client).early;
    model_.at(client).peer = object;
}

bool Generator::new_connection(int actor) {
    const int other = ready_actor();
    if (other < 0) {
        return false;
    }
    const int listener = make_listener(actor);
    const Descriptor descriptor = model_.process_of(actor).open.back();
    connect_to(other, listener, random_.chance(10));
    accept_from(actor, descriptor);
    return true;
}

bool Generator::setup_step(int actor) {
    const Descriptor *listener = find(actor, Kind::listener);
    switch (random_.below(6)) {
    case 0:
        return new_connection(actor);
    case 1:
    case 2: {
        std::vector<int> listeners;
        for (size_t i = 0; i < model_.objects.size(); ++i) {
            // A full backlog means retransmission timers.
            if (model_.objects[i].kind == Kind::listener && model_.objects[i].pending.size() < 4 &&
                model_.objects[i].references > 0) {
                listeners.push_back(static_cast<int>(i));
            }
        }
        if (listeners.empty()) {
            return false;
        }
        connect_to(actor, random_.pick(listeners), random_.chance(25));
        return true;
    }
    case 3:
        make_socket(actor, random_.chance(70) ? AF_INET : AF_INET6);
        return true;
    default:
        if (listener == nullptr) {
            return false;
        }
        accept_from(actor, *listener);
        return true;
    }
}

bool Generator::name_step(int actor) {
    const int variant = random_.chance(75) ? 0 : random_.below(6);
    const Kind kind = random_.one_of({Kind::stream, Kind::stream, Kind::stream, Kind::listener, Kind::fresh});
    emit(actor, random_.chance(50) ? Op::getsockname : Op::getpeername, {reference(actor, kind), variant});
    return true;
}

// Calls in the wrong state, with wrong arguments, on the wrong kind of file.
bool Generator::error_step(int actor) {
    const Kind kind =
        random_.one_of({Kind::fresh, Kind::stream, Kind::stream, Kind::listener, Kind::other, Kind::epoll});
    const int fd = reference(actor, kind);
    for (const Descriptor &descriptor : model_.process_of(actor).open) {
        const Object &object = model_.at(descriptor.object);
        // What a full connection answers is left to the steps that fill it; what a shared one answers depends
        // on who was first.
        if (descriptor.reference == fd &&
            (object.filled_by >= 0 || (object.peer >= 0 && model_.at(object.peer).filled_by >= 0) ||
             model_.shared(descriptor.object))) {
            return false;
        }
    }
    const int bad = random_.pick({v4_foreign, bad_family, short_length, bad_pointer, null_address});
    switch (random_.below(13)) {
    case 0:
        emit(actor, Op::socket,
             {random_.pick({2, 10, 77}), random_.pick({1, 1, 5, 77}), random_.pick({0, 6, 17, 9999})});
        return true;
    case 1:
        emit(actor, Op::bind, {fd, bad, kAnyPort});
        return true;
    case 2: // never v4_foreign: it would leave this host
        if (bad != v4_foreign) {
            emit(actor, Op::connect, {fd, bad, kDeadPort});
        }
        return true;
    case 3:
        emit(actor, Op::connect, {fd, random_.pick({v4_loopback, v6_loopback, mapped}), kDeadPort});
        return true;
    case 4: { // once more
        const Descriptor *listener = find(actor, Kind::listener);
        if (listener != nullptr && kind != Kind::fresh) {
            emit(actor, Op::connect, {fd, v4_loopback, model_.at(listener->object).port});
        }
        return true;
    }
    case 5:
        if (kind != Kind::listener && kind != Kind::fresh) {
            emit(actor, Op::listen, {fd, 5});
        }
        return true;
    case 6:
        if (kind != Kind::listener) {
            emit(actor, Op::accept, {fd, random_.pick({0, 6}), 0});
        }
        return true;
    case 7:
        emit(actor, Op::shutdown, {fd, random_.pick({-1, 3, 77})});
        return true;
    case 8:
        // With 2 bytes the unreadable part is all there is: LIMITS.md, "writev".
        for (const Descriptor &descriptor : model_.process_of(actor).open) {
            if (descriptor.reference == fd) { // some of them do send
                Object &object = model_.at(descriptor.object);
                if (object.waited || (object.peer >= 0 && model_.at(object.peer).waited) || one_way_) {
                    return false;
                }
                (object.peer >= 0 ? model_.at(object.peer).incoming : object.early) += 6;
            }
        }
        emit(actor, Op::send,
             {fd, random_.pick({5, 6}), random_.pick({0x40, 0x4040, 0x40}),
              random_.pick(
                  {1, 1, 5, 12, 14, known(actor, fd) != nullptr ? 15 : 1, 16, 17, 18, 19, 21, 22, 23, 26})});
        if (random_.chance(20)) {
            emit(actor, Op::send, {fd, 2, 0x40, 13});
        }
        return true;
    case 9:
        emit(actor, Op::recv,
             {fd, 5, 0x40,
              random_.pick({1, 2, 4, 5, 8, known(actor, fd) != nullptr ? 11 : 1, 12, 13, 14, 19, 21})});
        return true;
    case 10:
        emit(actor, Op::open, {random_.below(6)});
        open(actor, static_cast<int>(sequence_.steps.size()) - 1, model_.add(Kind::other));
        return true;
    case 11:
        // What libsd does not see may still find a number that was just closed: LIMITS.md, "a
        // closed number".
        emit(actor, Op::metadata, {fd, known(actor, fd) != nullptr ? random_.below(24) : 0});
        return true;
    default:
        emit(actor, Op::ready, {fd});
        return true;
    }
}

} // namespace sd::differential
