#include "tests/fuzz/option/kernel.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sys/mman.h>
#include <unistd.h>

extern "C" {
// The programs and what they declare (program.c). A map is known by where it lies.
extern char ends, listeners, requests, shy, networks, counts;
extern uint64_t keys[4]; // constants to the programs: a compiler that knew would leave out writing them
int sd_option(bpf_sock_ops *ops);
int sd_mark(bpf_sockopt *context);
}

namespace sdfuzz::kernel {

namespace {

Host *running = nullptr; // whose program runs
uint64_t clock_now = 0;

Map &map_of(const void *map) {
    if (map == &listeners) {
        return running->listeners;
    }
    if (map == &requests) {
        return running->requests;
    }
    if (map == &shy) {
        return running->shy;
    }
    if (map == &networks) {
        return running->networks;
    }
    if (map == &counts) {
        return running->counts;
    }
    abort();
}

/// libbpf sets them before the programs are loaded, and they are constants to these.
void set_keys(const Host &host) {
    static const bool may_write = [] {
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        const auto first = reinterpret_cast<uintptr_t>(keys) & ~(page - 1);
        const auto end = reinterpret_cast<uintptr_t>(std::end(keys));
        return mprotect(reinterpret_cast<void *>(first), end - first, PROT_READ | PROT_WRITE) == 0;
    }();
    if (!may_write) {
        abort();
    }
    memcpy(keys, host.keys.data(), sizeof keys);
}

Call &call_of(bpf_sock_ops *ops) { return *reinterpret_cast<Call *>(ops); }

bool has_bit(const uint8_t *bytes, unsigned bit) { return (bytes[bit / 8] >> (7 - bit % 8) & 1) != 0; }

} // namespace

void *Map::find(const void *key) {
    const auto it = values_.find(name(key));
    return it != values_.end() ? it->second.get() : nullptr;
}

void *Map::find_network(const void *key) {
    sd_network wanted, best{};
    memcpy(&wanted, key, sizeof wanted);
    void *found = nullptr;
    for (const auto &[text, value] : values_) {
        sd_network each;
        memcpy(&each, text.data(), sizeof each);
        bool matches = each.bits <= wanted.bits;
        for (unsigned bit = 0; bit < each.bits && matches; ++bit) {
            matches = has_bit(each.address, bit) == has_bit(wanted.address, bit);
        }
        if (matches && (found == nullptr || each.bits > best.bits)) {
            best = each;
            found = value.get();
        }
    }
    return found;
}

long Map::put(const void *key, const void *value) {
    auto &kept = values_[name(key)];
    if (!kept) {
        kept.reset(new uint8_t[value_]);
    }
    memcpy(kept.get(), value, value_);
    if (values_.size() > most_) {
        const auto first = values_.begin();
        values_.erase(first->first == name(key) ? std::next(first) : first);
    }
    return 0;
}

long Map::erase(const void *key) { return values_.erase(name(key)) != 0 ? 0 : -ENOENT; }

void Map::forget_one(unsigned which) {
    if (!values_.empty()) {
        values_.erase(std::next(values_.begin(), static_cast<long>(which % values_.size())));
    }
}

void restart_clock() { clock_now = 0; }

void run_option_program(Call &call) {
    running = call.host;
    set_keys(*call.host);
    call.ops.is_fullsock = call.socket != nullptr;
    call.ops.sk = call.socket != nullptr ? &call.socket->seen : nullptr;
    call.ops.bpf_sock_ops_cb_flags = call.socket != nullptr ? call.socket->flags : 0;
    if (sd_option(&call.ops) != 1) {
        abort();
    }
}

bool run_mark_program(Host &host, Socket &socket, bpf_sockopt &context) {
    running = &host;
    set_keys(host);
    context.sk = &socket.seen;
    const int result = sd_mark(&context);
    if (result != 0 && result != 1) {
        abort();
    }
    return result == 1;
}

} // namespace sdfuzz::kernel

using namespace sdfuzz::kernel;

extern "C" {

void *bpf_map_lookup_elem(void *map, const void *key) {
    if (map == &networks) {
        return running->networks.find_network(key);
    }
    if (map == &counts) { // an array has all of its elements
        const uint64_t zero = 0;
        uint32_t index;
        memcpy(&index, key, sizeof index);
        if (index >= SD_STATES) {
            return nullptr;
        }
        void *value = running->counts.find(key);
        return value != nullptr || running->counts.put(key, &zero) != 0 ? value : running->counts.find(key);
    }
    return map_of(map).find(key);
}

long bpf_map_update_elem(void *map, const void *key, const void *value, uint64_t) {
    return map_of(map).put(key, value);
}

long bpf_map_delete_elem(void *map, const void *key) { return map_of(map).erase(key); }

void *bpf_sk_storage_get(void *map, void *socket, void *, uint64_t flags) {
    if (map != &ends) {
        abort();
    }
    std::unique_ptr<sd_end> &end = static_cast<Socket *>(socket)->end;
    if (!end && (flags & BPF_SK_STORAGE_GET_F_CREATE) != 0) {
        end = std::make_unique<sd_end>();
    }
    return end.get();
}

long bpf_sk_storage_delete(void *map, void *socket) {
    if (map != &ends) {
        abort();
    }
    std::unique_ptr<sd_end> &end = static_cast<Socket *>(socket)->end;
    return end ? (end.reset(), 0) : -ENOENT;
}

uint64_t bpf_get_netns_cookie(void *) { return 1; }
uint32_t bpf_get_prandom_u32(void) {
    return static_cast<uint32_t>((++clock_now * 0x9e3779b97f4a7c15ull) >> 32); // another one each time
}
uint64_t bpf_ktime_get_ns(void) { return ++clock_now; }

int bpf_sock_ops_cb_flags_set(bpf_sock_ops *ops, int flags) {
    Socket *socket = call_of(ops).socket;
    if (socket == nullptr) {
        return -EINVAL;
    }
    socket->flags = static_cast<uint32_t>(flags) & BPF_SOCK_OPS_ALL_CB_FLAGS;
    ops->bpf_sock_ops_cb_flags = socket->flags;
    return flags & ~BPF_SOCK_OPS_ALL_CB_FLAGS;
}

long bpf_reserve_hdr_opt(bpf_sock_ops *ops, uint32_t bytes, uint64_t) {
    Call &call = call_of(ops);
    if (ops->op != BPF_SOCK_OPS_HDR_OPT_LEN_CB || bytes < 2) {
        abort(); // EPERM, EINVAL: never right
    }
    if (bytes > call.room) {
        return -ENOSPC;
    }
    call.room -= bytes;
    call.reserved += bytes;
    return 0;
}

long bpf_store_hdr_opt(bpf_sock_ops *ops, const void *option, uint32_t bytes, uint64_t) {
    Call &call = call_of(ops);
    const auto *from = static_cast<const uint8_t *>(option);
    if (ops->op != BPF_SOCK_OPS_WRITE_HDR_OPT_CB || bytes < 2 || from[1] > bytes) {
        abort();
    }
    if (from[1] > call.room) {
        return -ENOSPC;
    }
    call.room -= from[1];
    call.written.insert(call.written.end(), from, from + from[1]);
    return 0;
}

long bpf_load_hdr_opt(bpf_sock_ops *ops, void *option, uint32_t bytes, uint64_t flags) {
    const Call &call = call_of(ops);
    auto *to = static_cast<uint8_t *>(option);
    const Bytes *from = flags == BPF_LOAD_HDR_OPT_TCP_SYN ? call.syn : call.packet;
    if (from == nullptr) {
        return -ENOENT;
    }
    if (bytes < 4 || to[1] != 4) {
        abort(); // an experimental kind has an id
    }
    const uint8_t *found = find_option(*from, to[0], to + 2, 2);
    if (found == nullptr) {
        return -ENOMSG;
    }
    const size_t length = found[1];
    memcpy(to, found, length < bytes ? length : bytes);
    return length <= bytes ? static_cast<long>(length) : -ENOSPC;
}

} // extern "C"
