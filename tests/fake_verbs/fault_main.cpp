// Has a fault happen on the fabric of $SD_FAKE_VERBS, while programs use it:
//
//   fake-verbs-fault count   says how many queue pairs there are
//   fake-verbs-fault pairs   all queue pairs end
//   fake-verbs-fault remove  the device of host 0
#include "tests/fake_verbs/control.hpp"
#include "tests/fake_verbs/engine.hpp"
#include <cstdio>
#include <cstring>

extern "C" const sd::fake_verbs::Control sd_fake_verbs_control;

int main(int argc, char **argv) {
    using namespace sd::fake_verbs;
    Fabric *f = argc == 2 ? fabric() : nullptr;
    if (!f) {
        fprintf(stderr, "usage: SD_FAKE_VERBS=DIR fake-verbs-fault count|pairs|remove\n");
        return 2;
    }
    const auto is = [&](const char *name) { return strcmp(argv[1], name) == 0; };
    if (is("pairs") || is("count")) {
        unsigned found = 0;
        for (uint32_t i = 0; i < kQueuePairs; ++i)
            if (f->queue_pair[i].used.load()) {
                if (is("pairs"))
                    fail(*f, i);
                ++found;
            }
        printf("%u\n", found);
    } else if (is("remove")) {
        sd_fake_verbs_control.device(0, 0, 0);
    } else {
        return 2;
    }
    return 0;
}
