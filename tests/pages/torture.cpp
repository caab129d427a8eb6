// Programs that use large memory in every way, to be run with libsd-pages.so: pages_torture [CASE...]
// "passed NAME" or "failed NAME" for each, as the tests of the module say it. With PAGES_DEVICE=no all runs
// without a device, or without the library, and must hold as well. PAGES_SEEDS: how many sequences of random
// changes (20).
#include "tests/pages/torture.hpp"

#include <dlfcn.h>
#include <sys/wait.h>

namespace torture {

bool device_there = true;

namespace {

Case *cases = nullptr;

bool in_maps(const void *at) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    bool found = false;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from = 0, end = 0;
        if (sscanf(line, "%lx-%lx", &from, &end) == 2 && reinterpret_cast<uintptr_t>(at) >= from &&
            reinterpret_cast<uintptr_t>(at) < end)
            found = strstr(line, "socksdirect-zerocopy") != nullptr;
    }
    if (maps)
        fclose(maps);
    return found;
}

} // namespace

Case::Case(const char *n, void (*r)()) : name(n), run(r), following(cases) { cases = this; }

bool of_device(const void *at) {
    const auto fake = reinterpret_cast<bool (*)(const void *)>(dlsym(RTLD_DEFAULT, "fake_device_owns"));
    return fake ? fake(at) : in_maps(at);
}

} // namespace torture

int main(int argc, char **argv) {
    using namespace torture;
    const char *said = getenv("PAGES_DEVICE");
    device_there = !said || strcmp(said, "no") != 0;
    int failed = 0, ran = 0;
    for (const Case *c = cases; c; c = c->following) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; ++i)
            wanted = wanted || strcmp(argv[i], c->name) == 0;
        if (!wanted)
            continue;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            alarm(200);
            c->run();
            fflush(stdout);
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        printf("%s pages: %s%s", status == 0 ? "passed" : "failed", c->name, status == 0 ? "\n" : ": ");
        if (status != 0)
            printf("status %#x\n", static_cast<unsigned>(status));
        failed += status != 0;
        ++ran;
    }
    fflush(stdout);
    return failed != 0 || ran == 0;
}
