/* The keyed hash of discovery, and what each is for. Seen by the BPF programs and the monitor. */
#ifndef SD_OPTION_HASH_H
#define SD_OPTION_HASH_H

#include <linux/types.h>

/* Nonces and answers are hashes with the host's key, which never leaves kernel and monitor. Proofs are hashes
 * with a second one, which monitors of peer hosts are told: by it they recognise this host's ends. */
enum sd_hash_use { SD_USE_NONCE = 1, SD_USE_SYN_PROOF, SD_USE_ANSWER, SD_USE_ANSWER_PROOF };

#define SD_ROTATED(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define SD_ROUND(a, b, c, d)                                                                                 \
    do {                                                                                                     \
        (a) += (b), (b) = SD_ROTATED(b, 13) ^ (a), (a) = SD_ROTATED(a, 32);                                  \
        (c) += (d), (d) = SD_ROTATED(d, 16) ^ (c);                                                           \
        (a) += (d), (d) = SD_ROTATED(d, 21) ^ (a);                                                           \
        (c) += (b), (b) = SD_ROTATED(b, 17) ^ (c), (c) = SD_ROTATED(c, 32);                                  \
    } while (0)

/* SipHash-2-4 of two words. */
static inline __attribute__((always_inline)) __u64 sd_hash(const __u64 key0, const __u64 key1, __u64 first,
                                                           __u64 second) {
    const __u64 end = 16ull << 56;
    __u64 a = key0 ^ 0x736f6d6570736575ull, b = key1 ^ 0x646f72616e646f6dull;
    __u64 c = key0 ^ 0x6c7967656e657261ull, d = key1 ^ 0x7465646279746573ull;
    d ^= first;
    SD_ROUND(a, b, c, d);
    SD_ROUND(a, b, c, d);
    a ^= first;
    d ^= second;
    SD_ROUND(a, b, c, d);
    SD_ROUND(a, b, c, d);
    a ^= second;
    d ^= end;
    SD_ROUND(a, b, c, d);
    SD_ROUND(a, b, c, d);
    a ^= end;
    c ^= 0xff;
    SD_ROUND(a, b, c, d);
    SD_ROUND(a, b, c, d);
    SD_ROUND(a, b, c, d);
    SD_ROUND(a, b, c, d);
    return a ^ b ^ c ^ d;
}

#endif
