// The sockmap and its four-line program, by plain bpf() calls: no compiler for BPF is needed to measure.
#include "bench/common/sockmap.hpp"

#include "bench/common/process.hpp"

#include <linux/bpf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <iterator>

namespace sd::bench {

struct Sockmap::Shared {
    std::atomic<unsigned> inserted{0};
};

namespace {

long bpf(bpf_cmd command, bpf_attr &attributes) {
    return syscall(SYS_bpf, command, &attributes, sizeof attributes);
}

constexpr bpf_insn insn(int code, int to, int from, int offset, int value) {
    return {static_cast<__u8>(code), static_cast<__u8>(to), static_cast<__u8>(from),
            static_cast<__s16>(offset), value};
}

} // namespace

void Sockmap::load(std::uint16_t server_port) {
    bpf_attr attributes{};
    attributes.map_type = BPF_MAP_TYPE_SOCKMAP;
    attributes.key_size = attributes.value_size = sizeof(int);
    attributes.max_entries = 2;
    map_ = static_cast<int>(bpf(BPF_MAP_CREATE, attributes));
    if (map_ < 0) {
        die("BPF_MAP_CREATE (sockmap)");
    }
    // return bpf_msg_redirect_map(msg, map, msg->local_port == server_port ? 0 : 1, BPF_F_INGRESS)
    const bpf_insn program[] = {
        insn(BPF_LDX | BPF_MEM | BPF_W, BPF_REG_0, BPF_REG_1, offsetof(sk_msg_md, local_port), 0),
        insn(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, 0),
        insn(BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_0, 0, 1, server_port),
        insn(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, 1),
        insn(BPF_LD | BPF_IMM | BPF_DW, BPF_REG_2, BPF_PSEUDO_MAP_FD, 0, map_),
        insn(0, 0, 0, 0, 0),
        insn(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_4, 0, 0, BPF_F_INGRESS),
        insn(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_msg_redirect_map),
        insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    char log[4096] = "";
    attributes = {};
    attributes.prog_type = BPF_PROG_TYPE_SK_MSG;
    attributes.insns = reinterpret_cast<__u64>(program);
    attributes.insn_cnt = std::size(program);
    attributes.license = reinterpret_cast<__u64>("GPL");
    attributes.log_buf = reinterpret_cast<__u64>(log);
    attributes.log_size = sizeof log;
    attributes.log_level = 1;
    const long loaded = bpf(BPF_PROG_LOAD, attributes);
    if (loaded < 0) {
        std::fprintf(stderr, "%s\n", log);
        die("BPF_PROG_LOAD (sk_msg)");
    }
    attributes = {};
    attributes.target_fd = static_cast<__u32>(map_);
    attributes.attach_bpf_fd = static_cast<__u32>(loaded);
    attributes.attach_type = BPF_SK_MSG_VERDICT;
    if (bpf(BPF_PROG_ATTACH, attributes) != 0) {
        die("BPF_PROG_ATTACH (sk_msg)");
    }
    close(static_cast<int>(loaded));
    shared_ = shared_value<Shared>();
}

void Sockmap::insert(End end, int fd) const {
    auto key = static_cast<std::uint32_t>(end);
    bpf_attr attributes{};
    attributes.map_fd = static_cast<__u32>(map_);
    attributes.key = reinterpret_cast<__u64>(&key);
    attributes.value = reinterpret_cast<__u64>(&fd);
    attributes.flags = BPF_ANY;
    if (bpf(BPF_MAP_UPDATE_ELEM, attributes) != 0) {
        die("BPF_MAP_UPDATE_ELEM (sockmap)");
    }
    shared_->inserted.fetch_add(1);
}

bool Sockmap::complete() const { return shared_->inserted.load() >= 2; }

} // namespace sd::bench
