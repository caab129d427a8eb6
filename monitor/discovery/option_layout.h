/* The TCP option by which two ends find out about each other, and what the kernel keeps of it for a socket.
 * Seen by the BPF programs, the monitor and its tests. */
#ifndef SD_OPTION_LAYOUT_H
#define SD_OPTION_LAYOUT_H

#include <linux/types.h>

#define SD_OPTION_KIND 253  /* experimental, RFC 4727 */
#define SD_OPTION_ID 0x5344 /* of ours, RFC 6994 */
#define SD_OPTION_VERSION 1
#define SD_OPTION_PROOF 7 /* bytes of the hash */

/* As it travels: the twenty bytes that Linux's own options leave in a SYN. */
struct sd_option {
    __u8 kind, length;
    __u8 id[2];
    __u8 version;
    __u8 proof[SD_OPTION_PROOF];
    __u64 nonce; /* not a number: its bytes travel as they lie */
} __attribute__((packed));

enum sd_role { SD_ROLE_NONE, SD_ROLE_LISTENS, SD_ROLE_CONNECTED, SD_ROLE_ACCEPTED };

/* How far an end has come. What comes from SD_PLAIN on is why it is a plain connection. */
enum sd_state {
    SD_MARKED,     /* libsd has asked for it */
    SD_WANTED,     /* the next SYN is to have the option */
    SD_RESERVED,   /* there is room for it */
    SD_SENT,       /* it has gone out */
    SD_PAIRED,     /* the peer is a marked socket of this host */
    SD_OTHER_HOST, /* the peer has libsd, and another host's key */
    SD_PLAIN,      /* the peer has said nothing */
    SD_ECHOED,     /* what was sent came back as it was */
    SD_SENT_AGAIN, /* the SYN was lost, and had no option the second time */
    SD_NO_ROOM,    /* other options fill the SYN */
    SD_FAR,        /* the address is in no network that is asked */
    SD_SHY,        /* SYNs with the option have been lost on the way there */
    SD_STATES
};

/* What the kernel keeps for a marked socket (socket storage), for as long as the socket lives. */
struct sd_end {
    __u64 nonce;  /* of the SYN */
    __u64 answer; /* of the SYN-ACK */
    __u32 own_isn, peer_isn;
    __u8 role, state;
    __u8 writes; /* the program has set the socket's flag for writing options, and takes it away again */
    __u8 proof[SD_OPTION_PROOF]; /* as the peer sent it, where it is another host's */
    __u8 pad[6];
};

/* A SYN with the option that is being answered: a socket that is not there yet has no storage. */
struct sd_request_key {
    __u64 netns;
    __u32 remote[4], local[4];
    __u32 remote_port, local_port;
};
struct sd_request {
    __u64 nonce;
    __u32 written; /* the SYN-ACK has had the option */
    __u32 foreign; /* the key is another host's */
    __u8 proof[8];
};

/* Where sockets listen. */
struct sd_listener {
    __u64 netns;
    __u32 port; /* a number */
    __u32 pad;
};

/* A network that is asked, IPv4 addresses as IPv6 has them. */
struct sd_network {
    __u32 bits;
    __u8 address[16];
};

/* A destination to which SYNs with the option were lost. */
struct sd_destination {
    __u64 netns;
    __u32 remote[4];
};

/* The setsockopt by which libsd marks a socket before connect() or listen(). An int: 1, or 0 to take it back.
 * The kernel itself knows no such level: ENOPROTOOPT where no program takes it. SD_MARK_AGAIN: a socket that
 * has been listening since before this monitor, and was marked under a former one. */
#define SD_MARK_LEVEL 0x5344
#define SD_MARK_NAME 1
#define SD_MARK_AGAIN 2

#endif
