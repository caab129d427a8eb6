// What two monitors say to each other about connections between their hosts, and the links that carry them.
//
// Each message has a fixed length; another one is none. Numbers of offers, links and processes are the
// sender's own where nothing else is said. docs/design/rdma.md has the order in which they are sent.
#pragma once
#include "monitor/discovery/pair_key.hpp"
#include "monitor/peers/message.hpp"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace sd::monitor::between_hosts {

/// The first one: new with each start of the monitor. What is known of a former one is over.
struct Epoch {
    uint64_t epoch = 0;
    bool operator==(const Epoch &) const = default;
};
/// The accepted end of a connection that the receiver's host has made.
struct Offer {
    uint64_t number = 0, process = 0;
    PairKey pair;
    bool operator==(const Offer &) const = default;
};
/// An offer that is none any more.
struct Withdrawn {
    uint64_t number = 0;
    bool operator==(const Withdrawn &) const = default;
};
/// The two ends have each other: the slot of the link is theirs. Answered by taken or refused.
struct Joined {
    uint64_t theirs = 0; ///< the receiver's offer
    uint64_t ours = 0;   ///< the sender's, which the answer names
    uint64_t link = 0;
    uint32_t slot = 0;
    uint32_t use = 0; ///< of the slot: higher than any before
    bool operator==(const Joined &) const = default;
};
struct Taken {
    uint64_t theirs = 0; ///< the receiver's offer
    uint64_t link = 0;
    uint64_t their_link = 0; ///< the receiver's number for it
    bool operator==(const Taken &) const = default;
};
struct Refused {
    uint64_t theirs = 0; ///< the receiver's offer
    uint32_t cause = 0;  ///< Cause
    uint32_t reserved = 0;
    bool operator==(const Refused &) const = default;
};
/// What one end of a link has to know of the other before it carries anything (wire::Greeting).
struct Greeting {
    uint64_t link = 0;
    uint32_t step = 0;
    uint32_t reserved = 0;
    std::array<uint8_t, 48> hello{};
    bool operator==(const Greeting &) const = default;
};
/// The process at the sender's end of the link has ended.
struct Gone {
    uint64_t link = 0;
    bool operator==(const Gone &) const = default;
};
/// After epoch, once for each link that there is with the receiver's host, and last with 0.
struct Links {
    uint64_t link = 0;
    uint64_t their_link = 0; ///< the receiver's number for it; 0: not known
    bool operator==(const Links &) const = default;
};

using LinkMessage = std::variant<Epoch, Offer, Withdrawn, Joined, Taken, Refused, Greeting, Gone, Links>;

constexpr size_t kMostLinkBody = 64;

MessageKind kind_of(const LinkMessage &message);
/// The body alone.
std::string encode(const LinkMessage &message);
/// Nothing: another length than such a message has, a number that is none, a slot that no link has, a cause
/// or a step that is unknown to this version.
std::optional<LinkMessage> decode(MessageKind kind, std::string_view body);

} // namespace sd::monitor::between_hosts
