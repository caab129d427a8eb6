"""ZeroMQ over tcp://: request and reply, publish and subscribe, a pipeline, with libzmq's own I/O threads."""

TITLE = "ZeroMQ"
PACKAGES = ("libzmq3-dev", "g++")
VERSION = "libzmq3-dev"
WORKLOAD = "REQ/REP, PUB/SUB with 3 subscribers, PUSH/PULL of 200,000 messages, a peer that starts late"
QUICK = False

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <zmq.h>

static void *context;
static void *open(int type, const std::string &address, bool bind) {
    void *s = zmq_socket(context, type);
    // A subscriber whose publisher has ended first connects again, and would keep its subscription for the next one
    // through all of its linger time.
    int linger = type == ZMQ_SUB ? 0 : 5000, time = 20000, none = 0, one = 1;
    zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(s, ZMQ_RCVTIMEO, &time, sizeof time);
    zmq_setsockopt(s, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(s, ZMQ_RCVHWM, &none, sizeof none);
    if (type == ZMQ_XPUB) zmq_setsockopt(s, ZMQ_XPUB_VERBOSE, &one, sizeof one);
    if (type == ZMQ_SUB) zmq_setsockopt(s, ZMQ_SUBSCRIBE, "", 0);
    if ((bind ? zmq_bind : zmq_connect)(s, address.c_str()) != 0) { perror(address.c_str()); exit(1); }
    return s;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    const std::string role = argv[1], first = std::string("tcp://127.0.0.1:") + argv[2];
    const std::string second = std::string("tcp://127.0.0.1:") + argv[3];
    context = zmq_ctx_new();
    static char buffer[1 << 21];
    long sum = 0;
    if (role == "reply") { // answers until an empty request, then publishes
        void *s = open(ZMQ_REP, first, true), *p = open(ZMQ_XPUB, second, true);
        for (int n; (n = zmq_recv(s, buffer, sizeof buffer, 0)) > 0;) zmq_send(s, buffer, n, 0);
        zmq_send(s, "", 0, 0);
        for (int subscribers = 0; subscribers < 3;) subscribers += zmq_recv(p, buffer, sizeof buffer, 0) > 0;
        for (int i = 0; i < 10000; ++i) zmq_send(p, &i, sizeof i, 0);
        zmq_close(s);
        zmq_close(p);
    } else if (role == "request") {
        void *s = open(ZMQ_REQ, first, false);
        static char body[1 << 20];
        for (int i = 0; i < 2000; ++i) {
            const int size = i % 100 == 99 ? sizeof body : i + 1;
            memset(body, i, size);
            zmq_send(s, body, size, 0);
            if (zmq_recv(s, buffer, sizeof buffer, 0) != size || memcmp(body, buffer, size) != 0) return 1;
            ++sum;
        }
        zmq_send(s, "", 0, 0);
        zmq_recv(s, buffer, sizeof buffer, 0);
        zmq_close(s);
    } else if (role == "subscribe") {
        void *s = open(ZMQ_SUB, second, false);
        for (int i = 0, got; i < 10000; ++i, ++sum)
            if (zmq_recv(s, &got, sizeof got, 0) != sizeof got || got != i) return 1;
        zmq_close(s);
    } else if (role == "push") {
        void *s = open(ZMQ_PUSH, first, false);
        for (int i = 0; i < 200000; ++i) zmq_send(s, &i, sizeof i, 0);
        zmq_close(s);
    } else {
        void *s = open(ZMQ_PULL, first, true);
        for (int i = 0, got; i < 200000; ++i) {
            if (zmq_recv(s, &got, sizeof got, 0) != sizeof got || got != i) return 1;
            sum += got;
        }
        zmq_close(s);
    }
    zmq_ctx_term(context);
    printf("%ld\n", sum);
}
"""


def run(r):
    r.write("messages.cpp", PROGRAM)
    program = r.path("messages")
    r.plain(["g++", "-O1", "-o", program, r.path("messages.cpp"), "-lzmq"])

    r.begin()
    def wait(name, process, wanted):
        r.wait(process, 60)
        with open(process.log, encoding="utf-8") as f:
            r.equal(name, (process.poll(), f.read()), (0, wanted))

    a, b = r.port(), r.port()
    reply = r.server([program, "reply", str(a), str(b)], b)
    subscribers = [r.start([program, "subscribe", str(a), str(b)]) for _ in range(3)]
    r.equal("2,000 requests up to 1 MiB", r.attempt("request", lambda: r.run([program, "request", str(a), str(b)])), "2000\n")
    for i, subscriber in enumerate(subscribers):
        wait(f"subscriber {i + 1} gets all in order", subscriber, "10000\n")
    wait("the publisher ends", reply, "0\n")
    a = r.port()
    push = r.start([program, "push", str(a), str(a)])  # its peer does not listen yet
    pull = r.start([program, "pull", str(a), str(a)])
    wait("a pipeline whose receiver starts late", pull, f"{sum(range(200000))}\n")
    wait("the sender ends", push, "0\n")
