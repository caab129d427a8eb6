"""gRPC C++ (Debian's): unary calls, streams both ways, deadlines, cancellation, threads, large messages."""

import os

TITLE = "gRPC C++"
PACKAGES = ("libgrpc++-dev", "protobuf-compiler-grpc", "protobuf-compiler", "libprotobuf-dev", "g++", "pkg-config")
VERSION = "libgrpc++-dev"
WORKLOAD = "unary calls from 4 threads, a stream of 2,000 messages both ways, 3 MiB messages, deadline, unavailable server"
QUICK = False

SCHEMA = """syntax = "proto3";
message Text { bytes data = 1; }
service Echo {
  rpc Once(Text) returns (Text);
  rpc Slow(Text) returns (Text);
  rpc Stream(stream Text) returns (stream Text);
}
"""

PROGRAM = r"""
#include "echo.grpc.pb.h"
#include <grpcpp/grpcpp.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
using namespace grpc;

struct Echoing final : Echo::Service {
    Status Once(ServerContext *, const Text *q, Text *a) override { *a = *q; return Status::OK; }
    Status Slow(ServerContext *c, const Text *q, Text *a) override {
        for (int i = 0; i < 500 && !c->IsCancelled(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        *a = *q;
        return Status::OK;
    }
    Status Stream(ServerContext *, ServerReaderWriter<Text, Text> *s) override {
        for (Text t; s->Read(&t);) s->Write(t);
        return Status::OK;
    }
};

static void say(const char *name, bool good) { printf("%s %s\n", good ? "good" : "bad", name); }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const std::string address = std::string("127.0.0.1:") + argv[2];
    if (strcmp(argv[1], "serve") == 0) {
        Echoing service;
        ServerBuilder builder;
        builder.AddListeningPort(address, InsecureServerCredentials());
        builder.RegisterService(&service);
        builder.BuildAndStart()->Wait();
    }
    auto stub = Echo::NewStub(CreateChannel(address, InsecureChannelCredentials()));
    std::atomic<int> right{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 300; ++i) {
                ClientContext c;
                Text q, a;
                q.set_data(std::string(i * 10, 'q'));
                right += stub->Once(&c, q, &a).ok() && a.data() == q.data();
            }
        });
    for (auto &t : threads) t.join();
    say("1,200 calls of 4 threads", right == 1200);
    Text large, answer;
    large.set_data(std::string(3 << 20, 'l'));
    right = 0;
    for (int i = 0; i < 5; ++i) {
        ClientContext c;
        right += stub->Once(&c, large, &answer).ok() && answer.data() == large.data();
    }
    say("messages of 3 MiB", right == 5);
    {
        ClientContext c;
        auto s = stub->Stream(&c);
        std::thread writer([&] {
            for (int i = 0; i < 2000; ++i) {
                Text t;
                t.set_data(std::to_string(i) + std::string(500, 's'));
                s->Write(t);
            }
            s->WritesDone();
        });
        int n = 0;
        for (Text t; s->Read(&t);) n += t.data() == std::to_string(n) + std::string(500, 's');
        writer.join();
        say("a stream of 2,000 both ways", s->Finish().ok() && n == 2000);
    }
    {
        ClientContext c;
        c.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
        say("a deadline", stub->Slow(&c, large, &answer).error_code() == StatusCode::DEADLINE_EXCEEDED);
    }
    {
        ClientContext c;
        std::thread canceller([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            c.TryCancel();
        });
        say("cancelled", stub->Slow(&c, Text(), &answer).error_code() == StatusCode::CANCELLED);
        canceller.join();
    }
    {
        auto nobody = Echo::NewStub(CreateChannel("127.0.0.1:1", InsecureChannelCredentials()));
        ClientContext c;
        say("nobody listens", nobody->Once(&c, Text(), &answer).error_code() == StatusCode::UNAVAILABLE);
    }
    right = 0;
    for (int i = 0; i < 20; ++i) { // each its own connection
        ChannelArguments own;
        own.SetInt("id", i);
        ClientContext c;
        right += Echo::NewStub(CreateCustomChannel(address, InsecureChannelCredentials(), own))->Once(&c, Text(), &answer).ok();
    }
    say("20 channels", right == 20);
}
"""


def run(r):
    shared = os.path.join(os.path.dirname(r.directory), "grpc-build")
    program = os.path.join(shared, "echo")
    if not os.path.exists(program):  # once for both modes
        os.makedirs(shared, exist_ok=True)
        for name, text in (("echo.proto", SCHEMA), ("echo.cpp", PROGRAM)):
            with open(os.path.join(shared, name), "w", encoding="ascii") as f:
                f.write(text)
        r.plain(["sh", "-c", f"cd {shared} && protoc --cpp_out=. --grpc_out=. --plugin=protoc-gen-grpc=$(which grpc_cpp_plugin) "
                 "echo.proto && g++ -O0 -o echo echo.cpp echo.pb.cc echo.grpc.pb.cc $(pkg-config --cflags --libs grpc++ protobuf)"],
                400)
    r.begin()
    port = r.port()
    server = r.server([program, "serve", str(port)], port)
    for turn in range(1 if r.quick else 3):
        text = r.attempt(f"client {turn + 1}", lambda: r.run([program, "call", str(port)], 90))
        for line in (text or "").splitlines():
            word, _, name = line.partition(" ")
            r.check(f"{name}, {turn + 1}", word == "good", line)
    r.stop(server)
