// redirect OBJECT CGROUP: has a sockmap carry the connections over IPv4 that begin in a control group, until
// it is ended. It prints "ready" when it is so. Needs CAP_BPF and CAP_NET_ADMIN.
#include "bench/common/process.hpp"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

using sd::bench::die;

namespace {

int program_of(bpf_object *object, const char *name) {
    bpf_program *program = bpf_object__find_program_by_name(object, name);
    if (program == nullptr) {
        die(name);
    }
    return bpf_program__fd(program);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fputs("redirect OBJECT CGROUP\n", stderr);
        return 2;
    }
    bpf_object *object = bpf_object__open_file(argv[1], nullptr);
    if (object == nullptr || bpf_object__load(object) != 0) {
        die(argv[1]);
    }
    const int sockets = bpf_object__find_map_fd_by_name(object, "sockets");
    const int group = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (sockets < 0 || group < 0) {
        die(argv[2]);
    }
    // Both are undone by the kernel when this process ends.
    if (bpf_prog_attach(program_of(object, "redirect"), sockets, BPF_SK_MSG_VERDICT, 0) != 0) {
        die("attaching to the sockmap");
    }
    if (bpf_link_create(program_of(object, "enter"), group, BPF_CGROUP_SOCK_OPS, nullptr) < 0) {
        die("attaching to the control group");
    }
    std::puts("ready");
    std::fflush(stdout);
    for (;;) {
        pause();
    }
}
