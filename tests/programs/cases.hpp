// The list of behaviours of one program: `program NAME` runs one, `program --list` names them all.
#pragma once

#include "tests/programs/common.hpp"

namespace sdtest {

struct Behaviour {
    const char *name;
    void (*run)();
};

inline std::vector<Behaviour> &behaviours() {
    static std::vector<Behaviour> all;
    return all;
}

struct Registration {
    Registration(const char *name, void (*run)()) { behaviours().push_back({name, run}); }
};

#define BEHAVIOUR(name)                                                                                      \
    static void behaviour_##name();                                                                          \
    static const ::sdtest::Registration registered_##name{#name, behaviour_##name};                          \
    static void behaviour_##name()

inline int run_behaviour(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s --list | BEHAVIOUR\n", argv[0]);
        return 2;
    }
    for (const Behaviour &behaviour : behaviours()) {
        if (strcmp(argv[1], "--list") == 0) {
            say("%s", behaviour.name);
        } else if (strcmp(argv[1], behaviour.name) == 0) {
            behaviour.run();
            say("done");
            return 0;
        }
    }
    return strcmp(argv[1], "--list") == 0 ? 0 : 2;
}

} // namespace sdtest
