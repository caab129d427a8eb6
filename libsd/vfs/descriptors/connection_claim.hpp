// The connection of a File that other threads may close meanwhile, and whose tokens are claimed.
#pragma once
#include "libsd/queue/token.hpp"
#include "libsd/transport/link.hpp"
#include "libsd/vfs/descriptors/file.hpp"

namespace sd {

/// The connection of a File, read in one piece while other threads may close it and make it another's. A
/// token that was claimed by it is the right one; whether the File still stands for the connection is_of()
/// says then, and it does until the token is given back, because who closes it takes it.
struct ConnectionSnapshot {
    explicit ConnectionSnapshot(const File &f) noexcept {
        do {
            ofd = __atomic_load_n(&f.ofd, __ATOMIC_ACQUIRE);
            seg = __atomic_load_n(&f.seg, __ATOMIC_RELAXED);
            index = __atomic_load_n(&f.ofd_index, __ATOMIC_RELAXED);
            std::atomic_thread_fence(std::memory_order_acquire);
        } while (ofd != __atomic_load_n(&f.ofd, __ATOMIC_RELAXED));
    }
    /// Both are read here and now, whatever was read of the File before; clang loads no enumeration
    /// atomically, hence its byte.
    bool is_of(const File &f) const noexcept {
        return __atomic_load_n(reinterpret_cast<const uint8_t *>(&f.kind), __ATOMIC_RELAXED) ==
                   static_cast<uint8_t>(FileKind::stream) &&
               __atomic_load_n(&f.ofd, __ATOMIC_RELAXED) == ofd;
    }
    uint64_t tx_token_id() const noexcept { return uint64_t{index} * 2 + 2; }
    uint64_t rx_token_id() const noexcept { return uint64_t{index} * 2 + 3; }
    Ofd *ofd;
    unsigned seg;
    uint32_t index;
};

enum class Way : uint8_t { send, receive };

/// A token of the connection, and the File stands for it as long as this has it; the ring that is in use
/// can be reached. False otherwise; error() is what the call returns then: -EBADF, -EINTR, -ENOMEM where
/// there is no address space for the ring, or -ECONNRESET where the peer has spoilt the entry that says
/// where it is.
template <Way way> class ConnectionClaim {
  public:
    [[gnu::always_inline]] ConnectionClaim(const ConnectionSnapshot &b, const File &f,
                                           Claim::Patience patience = Claim::interruptible) noexcept
        : claim_(b.seg, way == Way::send ? b.ofd->tx.token : b.ofd->rx.token,
                 way == Way::send ? b.tx_token_id() : b.rx_token_id(), patience) {
        if (claim_ && !b.is_of(f)) [[unlikely]] {
            claim_.release();
            error_ = -EBADF;
        } else if (claim_) {
            const long error =
                way == Way::send ? f.tx_place.settle(b.ofd->tx.s.cls) : f.rx_place.settle(b.ofd->rx.s.cls);
            // What a receiver cannot find is rubbish in its ring, and answered like that.
            if (error < 0 && (way == Way::send || error == -ENOMEM)) [[unlikely]] {
                claim_.release();
                error_ = error == -ENOMEM ? error : -ECONNRESET;
            }
        }
    }
    explicit operator bool() const noexcept { return static_cast<bool>(claim_); }
    [[nodiscard]] long error() const noexcept { return error_ ? error_ : Claim::error(); }
    void release() noexcept { claim_.release(); }

  private:
    Claim claim_;
    long error_ = 0;
};
using SendClaim = ConnectionClaim<Way::send>;
using ReceiveClaim = ConnectionClaim<Way::receive>;

/// Whom to tell of what was done with a token: taken with the token, because the File may become another's as
/// soon as it is given back.
struct Recipient {
    void tell() const noexcept { notify(*link, slot, *arm); }
    LinkMap *link;
    std::atomic<uint64_t> *arm;
    uint32_t slot;
};
inline Recipient peers_reader(const File &f) noexcept { return {f.link, &f.peer->control.rx_arm, f.slot}; }
inline Recipient peers_writer(const File &f) noexcept { return {f.link, &f.peer->control.tx_arm, f.slot}; }

} // namespace sd
