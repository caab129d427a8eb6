/* Two BPF programs: one lets libsd mark its sockets, the other puts the option into the SYN and the SYN-ACK
 * of marked ones and keeps what the other end said.
 *
 * Other programs may be attached to the same hooks. So flags of a socket are only added to, and only what
 * was added is taken away; `reply` is nobody's here; space in a header is used only where it was reserved
 * here. */
#include "option_hash.h"
#include "option_layout.h"

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define TCP_FLAG_SYN 0x02
#define TCP_FLAG_ACK 0x10
#define TCP_CLOSE 7
#define TCP_LISTEN 10
#define TAKEN (-1) /* optlen: a program has done it, perhaps another one like this; the kernel is not asked */
#define LARGEST_VALUE 4096 /* of an option, that the kernel shows to a program */

char licence[] SEC("license") = "Apache-2.0";

/* The host's key and the one that peer hosts are told, new at each start of the monitor. Set before the
 * programs are loaded. */
const volatile __u64 keys[4];

struct {
    __uint(type, BPF_MAP_TYPE_SK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC); /* not for what a listener accepts: it costs 1 us for each */
    __type(key, int);
    __type(value, struct sd_end);
} ends SEC(".maps");

/* Listeners whose flag for writing options was set here: what they accept has it too. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 4096);
    __type(key, struct sd_listener);
    __type(value, __u8);
} listeners SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, struct sd_request_key);
    __type(value, struct sd_request);
} requests SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 4096);
    __type(key, struct sd_destination);
    __type(value, __u64);
} shy SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, 1024);
    __type(key, struct sd_network);
    __type(value, __u8);
} networks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, SD_STATES);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(__u32 state) {
    __u64 *n = bpf_map_lookup_elem(&counts, &state);
    if (n)
        ++*n;
}

static __always_inline void set_state(struct sd_end *end, __u8 state) {
    end->state = state;
    count(state);
}

/// All four are read (volatile), and values are chosen from: an address that a condition chooses takes
/// CAP_PERFMON, which the monitor has not.
static __noinline __u64 hash(__u64 first, __u64 second) {
    const int told = second == SD_USE_SYN_PROOF || second == SD_USE_ANSWER_PROOF;
    const __u64 own[] = {keys[0], keys[1]}, shared[] = {keys[2], keys[3]};
    return sd_hash(told ? shared[0] : own[0], told ? shared[1] : own[1], first, second);
}

static __always_inline __u64 syn_proof(__u64 nonce) { return hash(nonce, SD_USE_SYN_PROOF); }
static __always_inline __u64 answer_to(__u64 nonce) { return hash(nonce, SD_USE_ANSWER); }
static __always_inline __u64 answer_proof(__u64 nonce) { return hash(nonce, SD_USE_ANSWER_PROOF); }

/* In whole words, see put(): what lies at which byte is struct sd_option's. */
static __always_inline void fill(struct sd_option *option, __u64 nonce, __u64 proof) {
    _Static_assert(sizeof *option == 20 && __builtin_offsetof(struct sd_option, proof) == 5 &&
                       __builtin_offsetof(struct sd_option, nonce) == 12,
                   "these words");
    __u64 first = SD_OPTION_KIND | sizeof *option << 8 | (SD_OPTION_ID >> 8) << 16 |
                  (__u64)(SD_OPTION_ID & 0xff) << 24 | (__u64)SD_OPTION_VERSION << 32 | proof << 40;
    __u64 second = (proof >> 24 & 0xffffffff) | nonce << 32;
    __u32 third = nonce >> 32;
    barrier_var(first);
    barrier_var(second);
    barrier_var(third);
    __builtin_memcpy(option, &first, sizeof first);
    __builtin_memcpy((char *)option + 8, &second, sizeof second);
    __builtin_memcpy((char *)option + 16, &third, sizeof third);
}

static __always_inline int is_proof(const struct sd_option *option, __u64 proof) {
    __u64 sent = 0;
    __builtin_memcpy(&sent, option->proof, sizeof option->proof);
    return sent == (proof & 0xffffffffffffffull);
}

/* 0: the packet (with BPF_LOAD_HDR_OPT_TCP_SYN: the SYN that it answers) has no such option. */
static __always_inline int load(struct bpf_sock_ops *ops, struct sd_option *option, __u64 flags) {
    __builtin_memset(option, 0, sizeof *option);
    option->kind = SD_OPTION_KIND;
    option->length = 4;
    option->id[0] = SD_OPTION_ID >> 8;
    option->id[1] = SD_OPTION_ID & 0xff;
    return bpf_load_hdr_opt(ops, option, sizeof *option, flags) == sizeof *option &&
           option->version == SD_OPTION_VERSION;
}

/* Two words side by side at once. Written one after the other, the second one would change a register that
 * was spilled there, as Linux 6.1 has it: without CAP_PERFMON it refuses that. */
static __always_inline void put(__u32 to[2], __u32 first, __u32 second) {
    __u64 both = first | (__u64)second << 32;
    barrier_var(both);
    __builtin_memcpy(to, &both, sizeof both);
}

static __always_inline void mapped(__u32 to[4], __u32 v4) {
    put(to, 0, 0);
    put(to + 2, bpf_htonl(0xffff), v4);
}

/* A field of the context is read at its own place: without this the compiler chooses the place first, and the
 * verifier refuses. */
static __always_inline __u32 as_read(__u32 field) {
    barrier_var(field);
    return field;
}

static __always_inline void remote_of(struct bpf_sock_ops *ops, __u32 to[4]) {
    if (ops->family == AF_INET6) {
        put(to, as_read(ops->remote_ip6[0]), as_read(ops->remote_ip6[1]));
        put(to + 2, as_read(ops->remote_ip6[2]), as_read(ops->remote_ip6[3]));
    } else {
        mapped(to, as_read(ops->remote_ip4));
    }
}

static __always_inline void key_of(struct bpf_sock_ops *ops, struct sd_request_key *key) {
    __builtin_memset(key, 0, sizeof *key);
    key->netns = bpf_get_netns_cookie(ops);
    remote_of(ops, key->remote);
    if (ops->family == AF_INET6) {
        put(key->local, as_read(ops->local_ip6[0]), as_read(ops->local_ip6[1]));
        put(key->local + 2, as_read(ops->local_ip6[2]), as_read(ops->local_ip6[3]));
    } else {
        mapped(key->local, as_read(ops->local_ip4));
    }
    _Static_assert(__builtin_offsetof(struct sd_request_key, local_port) ==
                       __builtin_offsetof(struct sd_request_key, remote_port) + 4,
                   "side by side");
    put(&key->remote_port, as_read(ops->remote_port), as_read(ops->local_port));
}

static __always_inline struct sd_end *end_of(struct bpf_sock_ops *ops) {
    struct bpf_sock *sk = ops->sk;
    return sk ? bpf_sk_storage_get(&ends, sk, 0, 0) : 0;
}

static __always_inline void start_writing(struct bpf_sock_ops *ops, struct sd_end *end) {
    const __u32 flags = ops->bpf_sock_ops_cb_flags;
    end->writes = !(flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
    if (end->writes)
        bpf_sock_ops_cb_flags_set(ops, flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

static __always_inline void stop_writing(struct bpf_sock_ops *ops, struct sd_end *end) {
    if (end->writes)
        bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
    end->writes = 0;
}

static __always_inline void about_to_connect(struct bpf_sock_ops *ops) {
    struct sd_end *end = end_of(ops);
    if (!end)
        return;
    __u32 to[6] __attribute__((aligned(8))); /* a struct sd_network */
    struct sd_destination destination = {.netns = bpf_get_netns_cookie(ops)};
    remote_of(ops, destination.remote);
    const __u32 *remote = destination.remote;
    _Static_assert(__builtin_offsetof(struct sd_network, address) == 4, "behind its length");
    put(to, 128, as_read(remote[0]));
    put(to + 2, as_read(remote[1]), as_read(remote[2]));
    put(to + 4, as_read(remote[3]), 0);
    end->role = SD_ROLE_CONNECTED;
    end->answer = 0;
    end->own_isn = end->peer_isn = 0;
    if (!bpf_map_lookup_elem(&networks, to)) {
        set_state(end, SD_FAR);
        return;
    }
    if (bpf_map_lookup_elem(&shy, &destination)) {
        set_state(end, SD_SHY);
        return;
    }
    const __u64 random = (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
    end->nonce = hash(random ^ bpf_ktime_get_ns(), SD_USE_NONCE);
    set_state(end, SD_WANTED);
    start_writing(ops, end);
}

static __always_inline void reserve(struct bpf_sock_ops *ops) {
    const __u32 flags = ops->skb_tcp_flags & (TCP_FLAG_SYN | TCP_FLAG_ACK);
    if (flags == TCP_FLAG_SYN) {
        struct sd_end *end = end_of(ops);
        if (!end)
            return;
        if (end->state == SD_SENT)
            set_state(end, SD_SENT_AGAIN);
        if (end->state == SD_WANTED)
            set_state(end, bpf_reserve_hdr_opt(ops, sizeof(struct sd_option), 0) ? SD_NO_ROOM : SD_RESERVED);
        return;
    }
    /* The listener is not to be had here. An option is answered by a listener that nobody has marked only
     * where another program has set its flag; nobody offers what such a one accepts, and nothing comes of
     * it. */
    if (flags != (TCP_FLAG_SYN | TCP_FLAG_ACK) || ops->is_fullsock ||
        ops->args[0] == BPF_WRITE_HDR_TCP_SYNACK_COOKIE)
        return;
    struct sd_option syn;
    if (!load(ops, &syn, BPF_LOAD_HDR_OPT_TCP_SYN))
        return;
    struct sd_request_key key;
    key_of(ops, &key);
    const struct sd_request *former = bpf_map_lookup_elem(&requests, &key);
    if (former && former->nonce == syn.nonce && former->written)
        return;
    struct sd_request request = {.nonce = syn.nonce, .foreign = !is_proof(&syn, syn_proof(syn.nonce))};
    __builtin_memcpy(request.proof, syn.proof, sizeof syn.proof);
    if (!bpf_map_update_elem(&requests, &key, &request, BPF_ANY) &&
        bpf_reserve_hdr_opt(ops, sizeof(struct sd_option), 0))
        bpf_map_delete_elem(&requests, &key);
}

static __always_inline void write(struct bpf_sock_ops *ops) {
    const __u32 flags = ops->skb_tcp_flags & (TCP_FLAG_SYN | TCP_FLAG_ACK);
    struct sd_option option __attribute__((aligned(8)));
    if (flags == TCP_FLAG_SYN) {
        struct sd_end *end = end_of(ops);
        if (end && end->state == SD_RESERVED) {
            fill(&option, end->nonce, syn_proof(end->nonce));
            set_state(end, bpf_store_hdr_opt(ops, &option, sizeof option, 0) ? SD_NO_ROOM : SD_SENT);
        }
        return;
    }
    if (flags != (TCP_FLAG_SYN | TCP_FLAG_ACK) || ops->is_fullsock)
        return;
    struct sd_request_key key;
    key_of(ops, &key);
    struct sd_request *request = bpf_map_lookup_elem(&requests, &key);
    if (!request || request->written)
        return;
    request->written = 1;
    fill(&option, answer_to(request->nonce), answer_proof(request->nonce));
    bpf_store_hdr_opt(ops, &option, sizeof option, 0);
}

static __always_inline void connected(struct bpf_sock_ops *ops) {
    struct sd_end *end = end_of(ops);
    if (!end || end->role != SD_ROLE_CONNECTED)
        return;
    stop_writing(ops, end);
    if (end->state == SD_SENT_AGAIN) { /* it was lost with the option, and arrives without */
        struct sd_destination to = {.netns = bpf_get_netns_cookie(ops)};
        const __u64 now = bpf_ktime_get_ns();
        remote_of(ops, to.remote);
        bpf_map_update_elem(&shy, &to, &now, BPF_ANY);
    }
    if (end->state != SD_SENT)
        return;
    end->own_isn = ops->snd_nxt - 1;
    end->peer_isn = ops->rcv_nxt - 1;
    struct sd_option option __attribute__((aligned(8)));
    if (!load(ops, &option, 0)) {
        set_state(end, SD_PLAIN);
    } else if (option.nonce == end->nonce) {
        set_state(end, SD_ECHOED);
    } else if (option.nonce == answer_to(end->nonce) && is_proof(&option, answer_proof(end->nonce))) {
        end->answer = option.nonce;
        set_state(end, SD_PAIRED);
    } else {
        end->answer = option.nonce;
        __builtin_memcpy(end->proof, option.proof, sizeof option.proof);
        set_state(end, SD_OTHER_HOST);
    }
}

static __always_inline void name_listener(struct sd_listener *at, __u64 netns, __u32 port) {
    _Static_assert(sizeof *at == 16 && __builtin_offsetof(struct sd_listener, port) == 8, "a word behind it");
    at->netns = netns;
    put(&at->port, port, 0);
}

static __always_inline void note_listener(const struct sd_listener *at, __u8 writes) {
    if (writes)
        bpf_map_update_elem(&listeners, at, &writes, BPF_ANY);
    else
        bpf_map_delete_elem(&listeners, at);
}

static __always_inline void listens(struct bpf_sock_ops *ops) {
    struct sd_listener at;
    name_listener(&at, bpf_get_netns_cookie(ops), as_read(ops->local_port));
    struct sd_end *end = end_of(ops);
    if (end) {
        end->role = SD_ROLE_LISTENS;
        start_writing(ops, end);
    }
    note_listener(&at, end && end->writes);
}

static __always_inline void accepted(struct bpf_sock_ops *ops) {
    const __u32 flags = ops->bpf_sock_ops_cb_flags;
    if (!(flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG))
        return; /* its listener is nobody's here */
    struct sd_listener at;
    name_listener(&at, bpf_get_netns_cookie(ops), as_read(ops->local_port));
    if (bpf_map_lookup_elem(&listeners, &at))
        bpf_sock_ops_cb_flags_set(ops, flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
    struct sd_request_key key;
    key_of(ops, &key);
    const struct sd_request *request = bpf_map_lookup_elem(&requests, &key);
    if (!request) {
        count(SD_PLAIN);
        return;
    }
    struct bpf_sock *sk = ops->sk;
    struct sd_end *end = sk ? bpf_sk_storage_get(&ends, sk, 0, BPF_SK_STORAGE_GET_F_CREATE) : 0;
    if (!end)
        return;
    end->role = SD_ROLE_ACCEPTED;
    end->own_isn = ops->snd_nxt - 1;
    end->peer_isn = ops->rcv_nxt - 1;
    end->nonce = request->nonce;
    end->answer = answer_to(request->nonce);
    __builtin_memcpy(end->proof, request->proof, sizeof end->proof);
    set_state(end, request->foreign ? SD_OTHER_HOST : SD_PAIRED);
    bpf_map_delete_elem(&requests, &key);
}

SEC("sockops")
int sd_option(struct bpf_sock_ops *ops) {
    switch (ops->op) {
    case BPF_SOCK_OPS_TCP_CONNECT_CB:
        about_to_connect(ops);
        break;
    case BPF_SOCK_OPS_TCP_LISTEN_CB:
        listens(ops);
        break;
    case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
        reserve(ops);
        break;
    case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
        write(ops);
        break;
    case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
        connected(ops);
        break;
    case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
        accepted(ops);
        break;
    }
    return 1;
}

SEC("cgroup/setsockopt")
int sd_mark(struct bpf_sockopt *ctx) {
    if (ctx->level != SD_MARK_LEVEL) {
        if (ctx->optlen > LARGEST_VALUE)
            ctx->optlen = 0; /* the kernel takes the caller's own value */
        return 1;
    }
    struct bpf_sock *sk = ctx->sk;
    const int *value = ctx->optval;
    if (ctx->optname != SD_MARK_NAME || !sk || sk->protocol != IPPROTO_TCP ||
        (ctx->optlen != sizeof *value && ctx->optlen != TAKEN) || (const void *)(value + 1) > ctx->optval_end)
        return 0; /* EPERM */
    if (sk->state == TCP_LISTEN && *value == SD_MARK_AGAIN) {
        /* A former monitor's program has set its flag, which has stayed. */
        struct sd_end *end = bpf_sk_storage_get(&ends, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
        if (!end)
            return 0;
        if (end->role == SD_ROLE_NONE) {
            struct sd_listener at;
            name_listener(&at, bpf_get_netns_cookie(ctx), as_read(sk->src_port));
            end->role = SD_ROLE_LISTENS;
            end->writes = 1;
            note_listener(&at, 1);
        }
        ctx->optlen = TAKEN;
        return 1;
    }
    if (sk->state != TCP_CLOSE || *value == SD_MARK_AGAIN)
        return 0;
    if (*value == 0)
        bpf_sk_storage_delete(&ends, sk);
    else if (!bpf_sk_storage_get(&ends, sk, 0, BPF_SK_STORAGE_GET_F_CREATE))
        return 0;
    ctx->optlen = TAKEN;
    return 1;
}
