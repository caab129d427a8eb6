// Round trip of a remote procedure call with Cap'n Proto, both ends as its documentation shows them.
#include "bench/common/measure.hpp"
#include "bench/common/options.hpp"
#include "bench/common/process.hpp"
#include "bench/rpc.capnp.h"

#include <capnp/ez-rpc.h>
#include <unistd.h>

#include <atomic>
#include <vector>

using namespace sd::bench;

namespace {

class EchoServer final : public Echo::Server {
    kj::Promise<void> call(CallContext context) override {
        context.getResults().setAnswer(context.getParams().getRequest());
        return kj::READY_NOW;
    }
};

} // namespace

int main(int argc, char **argv) {
    const Options options(argc, argv, "round trip of a remote procedure call (Cap'n Proto)",
                          {{"size", "1024", "bytes of the request and of its answer"},
                           {"seconds", "1", "time measured"},
                           {"warmup", "0.2", "seconds before that"},
                           {"cpu", "0,1", "processors of server and client"}});
    const auto size = static_cast<std::size_t>(options.integer("size"));
    auto *port = shared_value<std::atomic<unsigned>>();
    const pid_t server = start_child(options.cpu(0), [&] {
        capnp::EzRpcServer rpc(kj::heap<EchoServer>(), "127.0.0.1");
        auto &wait_scope = rpc.getWaitScope();
        port->store(rpc.getPort().wait(wait_scope));
        kj::NEVER_DONE.wait(wait_scope);
    });
    pin_to_cpu(options.cpu(1));
    while (port->load() == 0) {
        usleep(1000);
    }
    capnp::EzRpcClient rpc("127.0.0.1", port->load());
    auto &wait_scope = rpc.getWaitScope();
    Echo::Client echo = rpc.getMain<Echo>();
    const std::vector<unsigned char> payload(size, 'x');
    const auto round_trip = [&] {
        auto request = echo.callRequest();
        request.setRequest(kj::arrayPtr(payload.data(), payload.size()));
        const auto answer = request.send().wait(wait_scope);
        if (answer.getAnswer().size() != size) {
            errno = 0;
            die("a wrong answer");
        }
    };
    const auto warm_until = now_ns() + static_cast<std::uint64_t>(options.number("warmup") * 1e9);
    do {
        round_trip();
    } while (now_ns() < warm_until);
    Histogram latency;
    const auto budget = static_cast<std::uint64_t>(options.number("seconds") * 1e9 * ticks_per_ns());
    const std::uint64_t start = ticks();
    std::uint64_t before = start;
    do {
        round_trip();
        const std::uint64_t after = ticks();
        latency.add(after - before);
        before = after;
    } while (before - start < budget);
    end_child(server);

    Report report("rpc");
    report.add("size", static_cast<long>(size));
    report.add_latency(latency);
    report.print();
    return 0;
}
