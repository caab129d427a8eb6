#include "bench/wire/cable.hpp"

#include "bench/common/process.hpp"

#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace sd::bench {
namespace {

void run(const std::string &command) {
    if (std::system(command.c_str()) != 0) { // NOLINT(cert-env33-c): fixed words and a number
        errno = 0;
        die(command.c_str());
    }
}

void own_namespace() {
    if (unshare(CLONE_NEWNET) != 0) {
        die("a network namespace needs root: unshare");
    }
}

// One byte each way: both processes go on together.
void meet(int in, int out) {
    char byte = 0;
    if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) {
        die("the other end of the cable");
    }
}

} // namespace

pid_t lay_cable(int server_cpu, const std::function<void()> &serve) {
    int down[2];
    int up[2];
    if (pipe(down) != 0 || pipe(up) != 0) {
        die("pipe");
    }
    own_namespace();
    const pid_t child = start_child(server_cpu, [&] {
        own_namespace();
        meet(down[0], up[1]); // the parent makes the cable now
        meet(down[0], up[1]);
        run(std::string("ip address add ") + kServerAddress + "/24 dev server && ip link set server up");
        meet(down[0], up[1]);
        serve();
    });
    meet(up[0], down[1]);
    run("ip link add client type veth peer name server netns " + std::to_string(child));
    meet(up[0], down[1]);
    run("ip address add 10.9.0.2/24 dev client && ip link set client up");
    meet(up[0], down[1]);
    return child;
}

} // namespace sd::bench
