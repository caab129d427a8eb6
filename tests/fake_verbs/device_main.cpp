// The device process of a fabric that has faults: `fake-verbs-device PID` carries work out until PID has
// gone.
#include "tests/fake_verbs/engine.hpp"
#include <cstdio>
#include <cstdlib>

int main(int argc, char **argv) {
    sd::fake_verbs::Fabric *f = argc == 2 ? sd::fake_verbs::fabric() : nullptr;
    if (!f) {
        fprintf(stderr, "usage: SD_FAKE_VERBS=DIR fake-verbs-device PID\n");
        return 2;
    }
    sd::fake_verbs::run_device(*f, static_cast<uint32_t>(atol(argv[1])));
    return 0;
}
