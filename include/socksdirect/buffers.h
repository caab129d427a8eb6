/* Sending and receiving large pieces of data without copying them, over a connected TCP socket.
 *
 * Where both ends of a connection are accelerated by SocksDirect on one host, and the other end receives with
 * these calls, the bytes of a buffer stay where they are and the receiver reads them there. Everywhere else
 * (kernel TCP, another host, a receiver that calls recv(), another user, libsd not loaded) the same calls
 * copy, and the program need not know. The bytes of the stream are the same in all cases, and send(), recv(),
 * poll() and all the rest may be mixed with these calls in any order.
 *
 * Functions return -1, or NULL, and set errno where they fail. Calls on one sd_buffers, and on what came from
 * it, may be made by several threads at a time, each buffer and view being one thread's at a time. After
 * fork() the child may release what it has inherited, and opens an sd_buffers of its own to send or receive
 * with; it does not write to inherited buffers.
 */
#ifndef SOCKSDIRECT_BUFFERS_H
#define SOCKSDIRECT_BUFFERS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SD_BUFFERS_API __attribute__((visibility("default")))

typedef struct sd_buffers sd_buffers;
typedef struct sd_buffer sd_buffer;

/* What one end of a connection needs for these calls. `quota`: how many bytes of buffers the connection may
 * have in a pool that the other end can read, at most; 0: 64 MiB. Memory is used as buffers are filled. The
 * descriptor stays the caller's: it is closed after sd_buffers_close(), or at least not used for another
 * connection before that. */
SD_BUFFERS_API sd_buffers *sd_buffers_open(int fd, size_t quota);
/* Buffers and views that are still held stay valid, and are given back as ever. */
SD_BUFFERS_API void sd_buffers_close(sd_buffers *connection);

/* A buffer of at least `size` bytes, at a multiple of the page size. Its contents are what a former user has
 * left there, or zeros. When the pool has no room, because the receiver holds on to too much, it waits up to
 * `timeout_ms` (-1: as long as the connection lives) for something to be released; after that the buffer is
 * ordinary memory, whose bytes are copied when they are sent. NULL: no memory. */
SD_BUFFERS_API sd_buffer *sd_buffers_get(sd_buffers *connection, size_t size, int timeout_ms);
SD_BUFFERS_API void *sd_buffer_data(const sd_buffer *buffer);
SD_BUFFERS_API size_t sd_buffer_size(const sd_buffer *buffer);
/* Whether it lies in the pool, so that its bytes can be received in place. */
SD_BUFFERS_API int sd_buffer_is_pooled(const sd_buffer *buffer);
/* Whether the receiver may still read what was sent from it. Then nobody writes to it. */
SD_BUFFERS_API int sd_buffer_is_read(const sd_buffer *buffer);
/* The caller needs it no more. What was sent from it can still be read; after that it is used again. */
SD_BUFFERS_API void sd_buffer_put(sd_buffer *buffer);

/* A piece of what is sent: bytes of a buffer, or, with `buffer` null, of any other memory. */
typedef struct sd_piece {
    const void *data;
    size_t size;
    const sd_buffer *buffer;
} sd_piece;

/* As sendmsg() of the pieces, one behind the other, with its flags; how many bytes were sent. From the
 * call on, the bytes in buffers are not changed before sd_buffer_is_read() says 0. The buffers stay the
 * caller's: one may be sent again, also in part. Small pieces are copied. */
SD_BUFFERS_API ssize_t sd_buffers_send(sd_buffers *connection, const sd_piece *pieces, size_t count, int flags);

/* Bytes that were received. */
typedef struct sd_view {
    const void *data;
    size_t size;
    int is_in_place; /* they lie in the other end's pool, and were not copied */
    uint32_t reserved1;
    void *reserved2;
    uint64_t reserved3;
} sd_view;

/* As recv() of up to `most` bytes: waits for the first ones, unless it is told otherwise; with MSG_WAITALL
 * for all of them. 0 at the end of the stream. Flags: MSG_DONTWAIT, MSG_WAITALL, MSG_NOSIGNAL.
 *
 * The bytes lie back to back at view->data, and do not change, until sd_view_release(), also if the
 * connection is closed before. Bytes that have to be copied go to `spare`, if it is not null and has room
 * for `most` bytes, and otherwise to memory of the view's own. */
SD_BUFFERS_API ssize_t sd_buffers_recv(sd_buffers *connection, size_t most, int flags, void *spare, size_t spare_size,
                        sd_view *view);
/* Soon, please: what is held on to is missing in the sender's pool. Also for a view of size 0. */
SD_BUFFERS_API void sd_view_release(sd_view *view);

/* What has been sent and received so far. */
typedef struct sd_buffers_counts {
    uint64_t sent_in_place, sent_copied;
    uint64_t received_in_place, received_copied;
    /* Of sent_copied, by reason: */
    uint64_t copied_small;     /* the piece was small */
    uint64_t copied_foreign;   /* it did not lie in a buffer of the connection's pool */
    uint64_t copied_not_taken; /* the other end does not receive in place, or not yet; or not just now */
} sd_buffers_counts;
SD_BUFFERS_API void sd_buffers_count(const sd_buffers *connection, sd_buffers_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
