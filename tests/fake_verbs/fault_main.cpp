// Has a fault happen on the fabric of $SD_FAKE_VERBS, while programs use it:
//
//   fake-verbs-fault WHAT [HOST DEVICE]
//
//   count   says how many queue pairs there are that have not ended (of all devices, if none is named)
//   pairs   they end
//   remove  the device goes away                 insert  and is there again
//   down    its port goes down                   up      and comes up
//   full    no further queue pair can be made    room    it can
//   refused says how often one was asked for in vain
//
// The device is the first one of host 0, unless said otherwise.
#include "tests/fake_verbs/control.hpp"
#include "tests/fake_verbs/engine.hpp"
#include "tests/fake_verbs/process.hpp"
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" const sd::fake_verbs::Control sd_fake_verbs_control;

int main(int argc, char **argv) {
    using namespace sd::fake_verbs;
    Fabric *f = argc == 2 || argc == 4 ? fabric() : nullptr;
    const bool is_named = argc == 4;
    const auto host = is_named ? static_cast<uint32_t>(atol(argv[2])) : 0;
    const auto device = is_named ? static_cast<uint32_t>(atol(argv[3])) : 0;
    if (!f || host >= kHosts || device >= kDevices) {
        fprintf(stderr, "usage: SD_FAKE_VERBS=DIR fake-verbs-fault WHAT [HOST DEVICE]\n");
        return 2;
    }
    const Control &control = sd_fake_verbs_control;
    const auto is = [&](const char *name) { return strcmp(argv[1], name) == 0; };
    if (is("pairs") || is("count")) {
        unsigned found = 0;
        for (uint32_t i = 0; i < kQueuePairs; ++i) {
            const QueuePair &q = f->queue_pair[i];
            const Context &c = f->context[q.context % kContexts];
            if (!q.used.load() || q.state.load() == IBV_QPS_ERR || !alive(q.context % kContexts) ||
                (is_named && (c.host != host || c.device != device)))
                continue;
            if (is("pairs"))
                fail(*f, i);
            ++found;
        }
        printf("%u\n", found);
    } else if (is("remove") || is("insert")) {
        control.device(host, device, is("insert"));
    } else if (is("down") || is("up")) {
        control.port(host, device, is("up"));
    } else if (is("full") || is("room")) {
        control.full(host, device, is("full"));
    } else if (is("refused")) {
        printf("%u\n", f->device[host][device].refused.load());
    } else {
        return 2;
    }
    return 0;
}
