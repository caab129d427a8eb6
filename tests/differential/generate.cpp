// The course of a sequence: who acts, which family of steps comes next, and a last look at everything.
#include "tests/differential/generator.hpp"

namespace sd::differential {

Sequence generate(uint64_t seed, const Features &features) { return Generator(seed, features).make(); }

Generator::Generator(uint64_t seed, const Features &features) : random_(seed), features_(features) {
    sequence_.seed = seed;
    sequence_.roots = 1 + (random_.chance(70) ? 1 : 0) + (random_.chance(20) ? 1 : 0);
    if (features.apart) {
        sequence_.roots = std::max(sequence_.roots, 2);
    }
    if (sequence_.roots > 1 && random_.chance(20)) {
        sequence_.plain = 1u << random_.below(sequence_.roots);
    }
    for (int i = 0; i < sequence_.roots; ++i) {
        model_.actors[static_cast<size_t>(i)].alive = true;
        model_.actors[static_cast<size_t>(i)].process = i;
        model_.processes.emplace_back();
        model_.processes.back().user = features.users == Users::two ? i % 2 : 0;
        model_.processes.back().place = features.apart ? i % 2 : 0;
    }
    one_way_ = random_.chance(15);
    weights_ = {6, 20, 12, 8, 8, 6, 4, 2, 1, 4, 4, 2, 2};
    for (int i = 0; i < 2; ++i) { // what this sequence is about
        weights_[static_cast<size_t>(random_.below(kFamilies))] *= 6;
    }
    // Passed to an actor that is never under libsd, a connection is carried by a bridge:
    // LIMITS.md, "bridged connections".
    if (!features.passing || sequence_.plain != 0) {
        weights_[passing] = 0;
    }
    // What a child shares that has become somebody else is carried by a bridge, too.
    if (features.users == Users::given_up) {
        weights_[urgency] = weights_[filling] = 0;
    }
}

Sequence Generator::make() {
    const int length = 6 + random_.below(30);
    if (random_.chance(92)) {
        new_connection(0);
        if (random_.chance(30)) {
            new_connection(random_.below(sequence_.roots));
        }
    }
    for (int tries = 0; static_cast<int>(sequence_.steps.size()) < length + 8 && tries < 300; ++tries) {
        step();
    }
    closing_looks();
    return std::move(sequence_);
}

int Generator::emit(int actor, Op op, std::initializer_list<int> arguments, bool finite) {
    Step step;
    step.id = static_cast<int>(sequence_.steps.size());
    step.actor = actor;
    step.op = op;
    step.finite = finite || op == Op::signals;
    std::copy(arguments.begin(), arguments.end(), step.arguments.begin());
    sequence_.steps.push_back(step);
    return step.id;
}

int Generator::free_actor() {
    for (int i = 0; i < kMaxActors; ++i) {
        // A number is used once: a dead actor's channel may still hold its last words.
        if (model_.actors[static_cast<size_t>(i)].process < 0) {
            return i;
        }
    }
    return -1;
}

int Generator::ready_actor() {
    std::vector<int> ready;
    for (int i = 0; i < kMaxActors; ++i) {
        const ModelActor &actor = model_.actors[static_cast<size_t>(i)];
        if (actor.alive && !actor.blocked()) {
            ready.push_back(i);
        }
    }
    return ready.empty() ? -1 : random_.pick(ready);
}

bool Generator::step() {
    const int actor = ready_actor();
    if (actor < 0) {
        // Everybody is believed to be blocked: interrupt one, or find that it was not so.
        const int target = random_.below(sequence_.roots);
        emit(0, Op::signal, {target, 0});
        for (const int waited : model_.actors[static_cast<size_t>(target)].waits_for) {
            model_.at(waited).waited = false;
        }
        model_.actors[static_cast<size_t>(target)].waits_for.clear();
        return true;
    }
    int total = 0;
    for (const int weight : weights_) {
        total += weight;
    }
    int choice = random_.below(total), family = 0;
    while (choice >= weights_[static_cast<size_t>(family)]) {
        choice -= weights_[static_cast<size_t>(family++)];
    }
    switch (family) {
    case setup:
        return setup_step(actor);
    case transfer:
        return transfer_step(actor);
    case waiting:
        return waiting_step(actor);
    case options:
        return option_step(actor);
    case descriptors:
        return descriptor_step(actor);
    case endings:
        return ending_step(actor);
    case errors:
        return error_step(actor);
    case filling:
        return filling_step(actor);
    case urgency:
        return urgency_step(actor);
    case names:
        return name_step(actor);
    case processes:
        return process_step(actor);
    case signalling:
        return signal_step(actor);
    default:
        return passing_step(actor);
    }
}

const Descriptor *Generator::find(int actor, Kind kind) {
    std::vector<const Descriptor *> fitting;
    for (const Descriptor &descriptor : model_.process_of(actor).open) {
        if (model_.at(descriptor.object).kind == kind) {
            fitting.push_back(&descriptor);
        }
    }
    return fitting.empty() ? nullptr : random_.pick(fitting);
}

const Descriptor *Generator::any(int actor) {
    const Process &process = model_.process_of(actor);
    return process.open.empty() ? nullptr : &random_.pick(process.open);
}

Descriptor *Generator::known(int actor, int reference) {
    for (Descriptor &descriptor : model_.process_of(actor).open) {
        if (descriptor.reference == reference) {
            return &descriptor;
        }
    }
    return nullptr;
}

int Generator::reference(int actor, Kind kind) {
    const int roll = random_.below(100);
    const Process &process = model_.process_of(actor);
    if (roll < 2) {
        return kBadFd;
    }
    if (roll < 4) {
        return kUnusedFd;
    }
    if (roll < 7 && !process.closed.empty()) {
        return random_.pick(process.closed);
    }
    const Descriptor *found = roll < 12 ? any(actor) : find(actor, kind);
    return found == nullptr ? kBadFd : found->reference;
}

void Generator::open(int actor, int reference, int object, bool cloexec) {
    model_.process_of(actor).open.push_back({reference, object, cloexec});
}

// Every process looks at every stream it has; what is left is read.
void Generator::closing_looks() {
    std::vector<int> seen_processes;
    for (int i = 0; i < kMaxActors; ++i) {
        const ModelActor &actor = model_.actors[static_cast<size_t>(i)];
        if (!actor.alive || actor.blocked() ||
            std::find(seen_processes.begin(), seen_processes.end(), actor.process) != seen_processes.end()) {
            continue;
        }
        seen_processes.push_back(actor.process);
        std::vector<int> seen;
        const std::vector<Descriptor> list = model_.process_of(i).open;
        for (const Descriptor &descriptor : list) {
            Object &object = model_.at(descriptor.object);
            if (object.kind != Kind::stream || object.waited ||
                std::find(seen.begin(), seen.end(), descriptor.object) != seen.end()) {
                continue;
            }
            seen.push_back(descriptor.object);
            if (object.filled_by >= 0) {
                emit(i, Op::drain, {descriptor.reference, object.filled_by}, true);
                object.filled_by = -1;
            }
            emit(i, Op::ready, {descriptor.reference});
            emit(i, Op::recv, {descriptor.reference, 100000, 0x40 /* MSG_DONTWAIT */, 1});
            emit(i, Op::recv, {descriptor.reference, 100, 0x40, 1});
        }
        emit(i, Op::signals, {});
    }
}

} // namespace sd::differential
