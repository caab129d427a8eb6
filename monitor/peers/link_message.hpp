// What two monitors say to each other about connections between their hosts, and the links that carry them.
//
// Each message has a fixed length; another one is none. Numbers of offers, links and processes are the
// sender's own where nothing else is said. docs/design/rdma-hosts.md has the order in which they are sent.
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

// Of a link whose queue pair has ended, from kCarryVersion on.

/// The queue pair has ended for the sender's process, or the process has.
struct Lost {
    uint64_t link = 0;
    uint32_t ended = 0; ///< 1: nobody is there any more who could go on
    uint32_t reserved = 0;
    bool operator==(const Lost &) const = default;
};
/// The sender's process has written something about the slot.
struct Changed {
    uint64_t link = 0;
    uint32_t slot = 0;
    uint32_t reserved = 0;
    bool operator==(const Changed &) const = default;
};
/// What the receiver's process has written of the slot is to be told, its records from that position on:
/// nothing more comes by the queue pair. Answered by words, records and pulled; one question at a time.
struct Pull {
    uint64_t link = 0;
    uint32_t slot = 0;
    uint32_t use = 0;
    uint32_t cls = 0; ///< of the ring in which the next record begins
    uint32_t reserved = 0;
    uint64_t position = 0;
    uint64_t base = 0;
    bool operator==(const Pull &) const = default;
};
/// The words, as they were before the records that follow.
struct Words {
    uint64_t link = 0;
    uint32_t slot = 0;
    uint32_t flags = 0;
    uint32_t ended_at = 0;
    std::array<uint32_t, 5> piece{}; ///< of classes 1 to 5
    uint64_t oob = 0;
    uint64_t offer = 0, from = 0, taken = 0;
    uint64_t consumed = 0, shown = 0;
    bool operator==(const Words &) const = default;
};
/// A piece of the records, as they stand in the ring.
struct Records {
    uint64_t link = 0;
    uint32_t slot = 0;
    uint32_t size = 0; ///< of what is used of `bytes`
    std::array<uint8_t, 96> bytes{};
    bool operator==(const Records &) const = default;
};
/// The last word of an answer.
struct Pulled {
    uint64_t link = 0;
    uint32_t slot = 0;
    uint32_t more = 0; ///< 1: there are more records; the words count when all have come
    bool operator==(const Pulled &) const = default;
};

using LinkMessage = std::variant<Epoch, Offer, Withdrawn, Joined, Taken, Refused, Greeting, Gone, Links, Lost,
                                 Changed, Pull, Words, Records, Pulled>;

constexpr size_t kMostLinkBody = 112;

MessageKind kind_of(const LinkMessage &message);
/// The body alone.
std::string encode(const LinkMessage &message);
/// Nothing: another length than such a message has, a number that is none, a slot that no link has, a cause
/// or a step that is unknown to this version.
std::optional<LinkMessage> decode(MessageKind kind, std::string_view body);

} // namespace sd::monitor::between_hosts
