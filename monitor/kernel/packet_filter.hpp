// The rules for packets in one network namespace, kept up to date as the kernel tells of changes.
#pragma once
#include "monitor/kernel/ruleset.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <memory>
#include <string>
#include <sys/types.h>

struct nft_ctx;

namespace sd::monitor {

class PacketFilter {
  public:
    /// Of the namespace with this cookie: the monitor's own, or that of process `pid`, which it enters for a
    /// moment (this process has one thread).
    PacketFilter(uint64_t netns, pid_t pid);
    ~PacketFilter();
    PacketFilter(const PacketFilter &) = delete;
    PacketFilter &operator=(const PacketFilter &) = delete;

    /// False: the rules cannot be read (no CAP_NET_ADMIN there), `why` says how that came.
    bool is_seen() const { return seen_; }
    const std::string &why() const { return why_; }
    /// For epoll: readable when rules have changed; -1: there are no rules to be told of.
    int fd() const { return events_.get(); }
    /// Takes in what the kernel tells. True: something has changed since the rules were read.
    bool drain();
    /// Reads the rules anew.
    void refresh();
    /// Of the former kind (iptables-legacy), whose changes nobody tells: true if there were none when this
    /// was last asked and there are some now, or the reverse.
    bool look_for_legacy();
    /// Whether something could object to such a connection. Only while is_seen().
    bool may_object(const LocalConnection &to) const { return legacy_ || any_ || rules_.may_object(to); }

  private:
    void read();
    UniqueFd events_;
    std::unique_ptr<nft_ctx, void (*)(nft_ctx *)> nft_;
    UniqueFd legacy_names_[2];
    /// Of a namespace whose rules anybody may make, as long and as odd as he likes: they are not read, and
    /// any that there are, or were, could object.
    UniqueFd generations_;
    bool any_ = false;
    Ruleset rules_;
    std::string why_;
    bool seen_ = false, legacy_ = false, changed_ = false;
};

} // namespace sd::monitor
