// What the generator believes about the world its steps make: enough to aim well and to leave out what the
// kernel itself does not decide.
//
// The belief may be wrong (a step may have failed); then later steps meet an unexpected state, on both sides
// alike.
#pragma once

#include "tests/differential/step.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sd::differential {

/// The same numbers everywhere: the standard's distributions are not specified to the bit.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 0x1234567) {}
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }
    int below(int n) { return n <= 1 ? 0 : static_cast<int>(next() % static_cast<uint64_t>(n)); }
    bool chance(int percent) { return below(100) < percent; }
    int pick(std::initializer_list<int> list) { return list.begin()[below(static_cast<int>(list.size()))]; }
    template <class T> T one_of(std::initializer_list<T> list) {
        return list.begin()[below(static_cast<int>(list.size()))];
    }
    template <class T> const T &pick(const std::vector<T> &list) {
        return list[static_cast<size_t>(below(static_cast<int>(list.size())))];
    }

  private:
    uint64_t state_;
};

enum class Kind { fresh, bound, listener, stream, epoll, other };

/// An open file description.
struct Object {
    Kind kind = Kind::fresh;
    int domain = 2;
    int references = 1;
    bool nonblocking = false;
    // listeners
    int port = kDeadPort;       ///< step that knows it
    int form = v4_loopback;     ///< how to reach it
    int place = 0;              ///< its network namespace
    std::vector<int> pending;   ///< clients
    bool plain_pending = false; ///< one of them without libsd
    // streams
    int peer = -1;
    int incoming = 0; ///< bytes not read
    int early = 0;    ///< bytes sent before the other end was accepted
    bool bound = false;
    bool connecting = false; ///< without waiting, and nobody has asked what became of it
    int filled_by = -1;      ///< a fill or huge step whose bytes are still there
    bool ended = false;      ///< nothing more will come
    bool shut = false;       ///< cannot send
    bool urgent = false;
    bool small_window = false;
    bool timed = false;     ///< waits end by themselves
    bool in_epoll = false;  ///< registered in some set
    int mailed = 0;         ///< passed, and not taken yet
    bool inherited = false; ///< also by a process that does nothing with it
    bool waited = false;    ///< somebody is blocked in it: a second waiter would race with the first
    // epoll
    int members = 0;
};

struct Descriptor {
    int reference; ///< a descriptor argument
    int object;
    bool cloexec = false;
};

struct Process {
    std::vector<Descriptor> open;
    std::vector<int> closed;  ///< references, for uses after close
    bool requests = false;    ///< aio_read and the like were called
    bool no_requests = false; ///< ... before it was forked: the C library's thread for them is not there
    int handler_sends = -1;   ///< object that its handler of SIGUSR1 sends on
    int user = 0;
    int place = 0; ///< its network namespace
};

struct ModelActor {
    bool alive = false;
    int process = -1;
    bool thread = false; ///< not the first one of its process
    /// objects; it is believed to be blocked until something happens to one of them
    std::vector<int> waits_for;
    bool blocked() const { return !waits_for.empty(); }
};

struct Model {
    std::vector<Object> objects;
    std::vector<Process> processes;
    std::array<ModelActor, kMaxActors> actors;

    int add(Kind kind, int domain = 2) {
        Object object;
        object.kind = kind;
        object.domain = domain;
        objects.push_back(object);
        return static_cast<int>(objects.size()) - 1;
    }
    Object &at(int index) { return objects[static_cast<size_t>(index)]; }
    Process &process_of(int actor) {
        return processes[static_cast<size_t>(actors[static_cast<size_t>(actor)].process)];
    }

    /// Something happened to it: whoever waits for it goes on.
    void event(int object) {
        for (ModelActor &actor : actors) {
            if (std::find(actor.waits_for.begin(), actor.waits_for.end(), object) != actor.waits_for.end()) {
                no_longer_waits(actor);
            }
        }
    }
    void block(int actor, std::vector<int> waits_for) {
        for (const int object : waits_for) {
            at(object).waited = true;
        }
        actors[static_cast<size_t>(actor)].waits_for = std::move(waits_for);
    }
    void forget(Process &process, size_t index) {
        const Descriptor gone = process.open[index];
        process.open.erase(process.open.begin() + static_cast<long>(index));
        process.closed.push_back(gone.reference);
        release(gone.object);
    }
    /// Held by more than one process.
    bool shared(int object) const {
        int holders = objects[static_cast<size_t>(object)].mailed;
        for (const Process &process : processes) {
            holders += std::any_of(process.open.begin(), process.open.end(),
                                   [&](const Descriptor &descriptor) { return descriptor.object == object; });
        }
        return holders > 1 || objects[static_cast<size_t>(object)].inherited;
    }
    void release(int index) {
        Object &object = at(index);
        if (--object.references > 0) {
            return;
        }
        if (object.kind == Kind::stream && object.peer >= 0) {
            end_of(object.peer);
        }
        for (const int client : object.pending) {
            end_of(client);
        }
    }
    void end_of(int stream) {
        at(stream).ended = true;
        event(stream);
    }
    void process_ends(int process) {
        Process &it = processes[static_cast<size_t>(process)];
        while (!it.open.empty()) {
            forget(it, it.open.size() - 1);
        }
        for (ModelActor &actor : actors) {
            if (actor.process == process) {
                actor_ends(actor);
            }
        }
    }
    void actor_ends(ModelActor &actor) {
        actor.alive = false;
        no_longer_waits(actor);
    }
    void no_longer_waits(ModelActor &actor) {
        for (const int waited : actor.waits_for) {
            at(waited).waited = false;
        }
        actor.waits_for.clear();
    }
};

} // namespace sd::differential
