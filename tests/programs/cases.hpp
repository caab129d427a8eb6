// The behaviours of one program. `program NAME` runs one; `program --list` prints a line for each: its name,
// what is expected of it, and its title.
#pragma once

#include "tests/programs/common.hpp"
#include "tests/programs/expect.hpp"

namespace sdtest {

struct Behaviour {
    const char *title, *name;
    Expect expect;
    void (*run)();
};

inline std::vector<Behaviour> &behaviours() {
    static std::vector<Behaviour> all;
    return all;
}

struct Registration {
    explicit Registration(const Behaviour &behaviour) { behaviours().push_back(behaviour); }
};

/// BEHAVIOUR("title", name, expectation) { what it does }. The runner finds it by the list and runs it on
/// kernel sockets and under sdrun; what it says must be the same, and the expectation (expect.hpp) must hold.
#define BEHAVIOUR(title, name, expectation)                                                                  \
    static void behaviour_##name();                                                                          \
    static const ::sdtest::Registration registered_##name{                                                   \
        {title, #name, ::sdtest::Expect::expectation, behaviour_##name}};                                    \
    static void behaviour_##name()

inline int run_behaviour(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s --list | BEHAVIOUR\n", argv[0]);
        return 2;
    }
    const bool list = strcmp(argv[1], "--list") == 0;
    for (const Behaviour &behaviour : behaviours()) {
        if (list) {
            say("%s %s %s", behaviour.name, kExpectWords[static_cast<int>(behaviour.expect)], behaviour.title);
        } else if (strcmp(argv[1], behaviour.name) == 0) {
            behaviour.run();
            say("done");
            return 0;
        }
    }
    return list ? 0 : 2;
}

} // namespace sdtest
