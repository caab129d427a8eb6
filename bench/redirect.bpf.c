/* What is compared with between containers: kernel TCP whose bytes a sockmap takes past the rest of the
 * stack. Each connection over IPv4 of the control group is entered by its addresses; what one end sends
 * goes straight into the receive queue of the other, as far as that is entered. */
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2

char licence[] SEC("license") = "GPL"; /* the redirecting helpers ask for it */

struct ends {
    __u32 here, there;
    __u32 own_port, peer_port; /* both as numbers */
};

struct {
    __uint(type, BPF_MAP_TYPE_SOCKHASH);
    __uint(max_entries, 4096);
    __type(key, struct ends);
    __type(value, int);
} sockets SEC(".maps");

SEC("sockops")
int enter(struct bpf_sock_ops *ops) {
    if ((ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) &&
        ops->family == AF_INET) {
        struct ends key = {ops->local_ip4, ops->remote_ip4, ops->local_port, bpf_ntohl(ops->remote_port)};
        bpf_sock_hash_update(ops, &sockets, &key, BPF_ANY);
    }
    return 1;
}

SEC("sk_msg")
int redirect(struct sk_msg_md *message) {
    struct ends peer = {message->remote_ip4, message->local_ip4, bpf_ntohl(message->remote_port),
                        message->local_port};
    return bpf_msg_redirect_hash(message, &sockets, &peer, BPF_F_INGRESS);
}
