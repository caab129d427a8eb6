"""Cap'n Proto RPC over TCP: calls, pipelined calls, a capability passed to the other side, many clients."""

import os

TITLE = "Cap'n Proto RPC"
PACKAGES = ("libcapnp-dev", "capnproto", "g++", "pkg-config")
VERSION = "libcapnp-dev"
WORKLOAD = "two-party RPC: 5,000 calls, 500 at once, data of 1 MiB, callbacks, 8 clients"
QUICK = False

SCHEMA = """@0xb5c1d28b5d4f3c01;
interface Echo {
  echo @0 (data :Data) -> (data :Data);
  back @1 (to :Echo, count :UInt32) -> (sum :UInt64);
}
"""

PROGRAM = r"""
#include "echo.capnp.h"
#include <capnp/ez-rpc.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct Server final : Echo::Server {
    kj::Promise<void> echo(EchoContext c) override {
        c.getResults().setData(c.getParams().getData());
        return kj::READY_NOW;
    }
    kj::Promise<void> back(BackContext c) override {
        auto to = c.getParams().getTo();
        std::vector<char> body(1000, 'b');
        auto all = kj::heapArrayBuilder<kj::Promise<uint64_t>>(c.getParams().getCount());
        for (uint32_t i = 0; i < c.getParams().getCount(); ++i) {
            auto q = to.echoRequest();
            q.setData(capnp::Data::Reader(reinterpret_cast<const kj::byte *>(body.data()), body.size()));
            all.add(q.send().then([](auto &&a) { return uint64_t(a.getData().size()); }));
        }
        return kj::joinPromises(all.finish()).then([c](kj::Array<uint64_t> &&sizes) mutable {
            uint64_t sum = 0;
            for (uint64_t s : sizes) sum += s;
            c.getResults().setSum(sum);
        });
    }
};

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const std::string address = std::string("127.0.0.1:") + argv[2];
    if (strcmp(argv[1], "serve") == 0) {
        capnp::EzRpcServer server(kj::heap<Server>(), address);
        server.getPort().wait(server.getWaitScope());
        kj::NEVER_DONE.wait(server.getWaitScope());
    }
    capnp::EzRpcClient client(address);
    auto &scope = client.getWaitScope();
    Echo::Client echo = client.getMain<Echo>();
    std::vector<kj::byte> body(1 << 20);
    for (size_t i = 0; i < body.size(); ++i) body[i] = kj::byte(i * 7 >> 3);
    auto call = [&](size_t size) {
        auto q = echo.echoRequest();
        q.setData(capnp::Data::Reader(body.data(), size));
        return q.send();
    };
    long good = 0;
    for (int i = 0; i < 5000; ++i) good += call(i).wait(scope).getData().size() == size_t(i);
    for (int i = 0; i < 8; ++i) {
        auto a = call(body.size()).wait(scope);
        good += a.getData().size() == body.size() && memcmp(a.getData().begin(), body.data(), body.size()) == 0;
    }
    std::vector<capnp::RemotePromise<Echo::EchoResults>> flying;
    for (int i = 0; i < 500; ++i) flying.push_back(call(1000));
    for (auto &f : flying) good += f.wait(scope).getData().size() == 1000;
    auto q = echo.backRequest();
    q.setTo(kj::heap<Server>());
    q.setCount(300);
    good += q.send().wait(scope).getSum() == 300000;
    printf("%ld\n", good);
}
"""


def run(r):
    shared = os.path.join(os.path.dirname(r.directory), "capnproto-build")
    program = os.path.join(shared, "echo")
    if not os.path.exists(program):  # once for both modes
        os.makedirs(shared, exist_ok=True)
        for name, text in (("echo.capnp", SCHEMA), ("echo.cpp", PROGRAM)):
            with open(os.path.join(shared, name), "w", encoding="ascii") as f:
                f.write(text)
        r.plain(["sh", "-c", f"cd {shared} && capnp compile -oc++ echo.capnp && "
                 "g++ -O1 -o echo echo.cpp echo.capnp.c++ $(pkg-config --cflags --libs capnp-rpc)"], 300)
    r.begin()
    port = r.port()
    server = r.server([program, "serve", str(port)], port)
    r.equal("calls, large data, 500 at once, callbacks", r.attempt("a client", lambda: r.run([program, "call", str(port)])), "5509\n")
    clients = [r.start([program, "call", str(port)]) for _ in range(2 if r.quick else 8)]
    for i, client in enumerate(clients):
        r.wait(client, 120)
        with open(client.log, encoding="utf-8") as f:
            r.equal(f"client {i + 1} of {len(clients)}", (client.poll(), f.read()), (0, "5509\n"))
    r.stop(server)
