/* Hands each frame of the first queue to the AF_XDP socket that is entered for it. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 1);
    __type(key, int);
    __type(value, int);
} sockets SEC(".maps");

SEC("xdp")
int take(struct xdp_md *frame) { return bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_PASS); }
