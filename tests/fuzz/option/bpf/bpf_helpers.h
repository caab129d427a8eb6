/* Stands before libbpf's header of this name, so that the BPF programs of discovery can be run as a part of a
 * fuzzer: what they ask of the kernel, kernel.cpp answers. */
#ifndef SD_FUZZ_BPF_HELPERS_H
#define SD_FUZZ_BPF_HELPERS_H

#include <linux/bpf.h>

#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#undef __always_inline /* of <linux/stddef.h> */
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define barrier_var(variable) __asm__ volatile("" : "+r"(variable))

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, __u64 flags);
long bpf_map_delete_elem(void *map, const void *key);
void *bpf_sk_storage_get(void *map, void *socket, void *value, __u64 flags);
long bpf_sk_storage_delete(void *map, void *socket);
__u64 bpf_get_netns_cookie(void *context);
__u32 bpf_get_prandom_u32(void);
__u64 bpf_ktime_get_ns(void);
int bpf_sock_ops_cb_flags_set(struct bpf_sock_ops *ops, int flags);
long bpf_reserve_hdr_opt(struct bpf_sock_ops *ops, __u32 bytes, __u64 flags);
long bpf_store_hdr_opt(struct bpf_sock_ops *ops, const void *option, __u32 bytes, __u64 flags);
long bpf_load_hdr_opt(struct bpf_sock_ops *ops, void *option, __u32 bytes, __u64 flags);

#endif
