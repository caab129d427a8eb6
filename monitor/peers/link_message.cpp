// Messages about connections between hosts: to bytes, and from bytes that anybody may have made up.
#include "monitor/peers/link_message.hpp"
#include "libsd/layout/causes.hpp"
#include "libsd/layout/link_layout.hpp"
#include "libsd/layout/protocol.hpp"

#include <algorithm>
#include <tuple>
#include <type_traits>

namespace sd::monitor::between_hosts {

namespace {

// The fields of each kind, in the order in which they travel.
auto fields(auto &m) {
    using M = std::remove_cvref_t<decltype(m)>;
    if constexpr (std::is_same_v<M, Epoch>) {
        return std::tie(m.epoch);
    } else if constexpr (std::is_same_v<M, Offer>) {
        return std::tie(m.number, m.process, m.pair.nonce, m.pair.answer, m.pair.connector_isn,
                        m.pair.acceptor_isn);
    } else if constexpr (std::is_same_v<M, Withdrawn>) {
        return std::tie(m.number);
    } else if constexpr (std::is_same_v<M, Joined>) {
        return std::tie(m.theirs, m.ours, m.link, m.slot, m.use);
    } else if constexpr (std::is_same_v<M, Taken>) {
        return std::tie(m.theirs, m.link, m.their_link);
    } else if constexpr (std::is_same_v<M, Links>) {
        return std::tie(m.link, m.their_link);
    } else if constexpr (std::is_same_v<M, Refused>) {
        return std::tie(m.theirs, m.cause, m.reserved);
    } else if constexpr (std::is_same_v<M, Greeting>) {
        return std::tie(m.link, m.step, m.reserved, m.hello);
    } else if constexpr (std::is_same_v<M, Lost>) {
        return std::tie(m.link, m.ended, m.reserved);
    } else if constexpr (std::is_same_v<M, Changed>) {
        return std::tie(m.link, m.slot, m.reserved);
    } else if constexpr (std::is_same_v<M, Pull>) {
        return std::tie(m.link, m.slot, m.use, m.cls, m.reserved, m.position, m.base);
    } else if constexpr (std::is_same_v<M, Words>) {
        return std::tie(m.link, m.slot, m.flags, m.ended_at, m.piece, m.oob, m.offer, m.from, m.taken,
                        m.consumed, m.shown);
    } else if constexpr (std::is_same_v<M, Records>) {
        return std::tie(m.link, m.slot, m.size, m.bytes);
    } else if constexpr (std::is_same_v<M, Pulled>) {
        return std::tie(m.link, m.slot, m.more);
    } else {
        return std::tie(m.link);
    }
}

bool is_sound(const Epoch &m) { return m.epoch != 0; }
bool is_sound(const Offer &m) { return m.number != 0 && m.process != 0; }
bool is_sound(const Withdrawn &m) { return m.number != 0; }
bool is_sound(const Joined &m) {
    return m.theirs != 0 && m.ours != 0 && m.link != 0 && m.slot < kLinkSlots && m.use != 0;
}
bool is_sound(const Taken &m) { return m.theirs != 0 && m.link != 0 && m.their_link != 0; }
bool is_sound(const Refused &m) { return m.theirs != 0 && m.cause < 256 && m.reserved == 0; }
bool is_sound(const Greeting &m) {
    return m.link != 0 && (m.step == wire::kGreets || m.step == wire::kCanReceive) && m.reserved == 0;
}
bool is_sound(const Gone &m) { return m.link != 0; }
bool is_sound(const Links &m) { return m.link != 0 || m.their_link == 0; }
bool is_sound(const Lost &m) { return m.link != 0 && m.ended <= 1 && m.reserved == 0; }
bool is_sound(const Changed &m) { return m.link != 0 && m.slot < kLinkSlots && m.reserved == 0; }
bool is_sound(const Pull &m) {
    return m.link != 0 && m.slot < kLinkSlots && m.use != 0 && m.cls < kRingClasses && m.reserved == 0 &&
           m.position % 8 == 0 && m.base % 8 == 0;
}
bool is_sound(const Words &m) { return m.link != 0 && m.slot < kLinkSlots; }
bool is_sound(const Records &m) {
    return m.link != 0 && m.slot < kLinkSlots && m.size != 0 && m.size % 8 == 0 && m.size <= sizeof m.bytes;
}
bool is_sound(const Pulled &m) { return m.link != 0 && m.slot < kLinkSlots && m.more <= 1; }

void put(std::string &out, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
        out.push_back(static_cast<char>(value >> (8 * i)));
    }
}

template <typename T, size_t N> void put_field(std::string &out, const std::array<T, N> &many) {
    for (const T one : many) {
        put(out, one, sizeof one);
    }
}
template <typename T> void put_field(std::string &out, T value) { put(out, value, sizeof value); }

template <typename T> void get_field(std::string_view &in, T &value) {
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof value; ++i) {
        sum |= static_cast<uint64_t>(static_cast<uint8_t>(in[i])) << (8 * i);
    }
    value = static_cast<T>(sum);
    in.remove_prefix(sizeof value);
}
template <typename T, size_t N> void get_field(std::string_view &in, std::array<T, N> &many) {
    for (T &one : many) {
        get_field(in, one);
    }
}

template <typename M> size_t length_of() {
    M m;
    return std::apply([](auto &...field) { return (sizeof field + ...); }, fields(m));
}

template <typename M> std::optional<LinkMessage> read(std::string_view body) {
    if (body.size() != length_of<M>()) {
        return std::nullopt;
    }
    M m;
    std::apply([&](auto &...field) { (get_field(body, field), ...); }, fields(m));
    return is_sound(m) ? std::optional<LinkMessage>(m) : std::nullopt;
}

} // namespace

MessageKind kind_of(const LinkMessage &message) {
    return static_cast<MessageKind>(static_cast<size_t>(MessageKind::epoch) + message.index());
}

std::string encode(const LinkMessage &message) {
    std::string out;
    std::visit(
        [&](const auto &m) {
            std::apply([&](const auto &...field) { (put_field(out, field), ...); }, fields(m));
        },
        message);
    return out;
}

std::optional<LinkMessage> decode(MessageKind kind, std::string_view body) {
    switch (kind) {
    case MessageKind::epoch:
        return read<Epoch>(body);
    case MessageKind::offer:
        return read<Offer>(body);
    case MessageKind::withdrawn:
        return read<Withdrawn>(body);
    case MessageKind::joined:
        return read<Joined>(body);
    case MessageKind::taken:
        return read<Taken>(body);
    case MessageKind::refused:
        return read<Refused>(body);
    case MessageKind::greeting:
        return read<Greeting>(body);
    case MessageKind::gone:
        return read<Gone>(body);
    case MessageKind::links:
        return read<Links>(body);
    case MessageKind::lost:
        return read<Lost>(body);
    case MessageKind::changed:
        return read<Changed>(body);
    case MessageKind::pull:
        return read<Pull>(body);
    case MessageKind::words:
        return read<Words>(body);
    case MessageKind::records:
        return read<Records>(body);
    case MessageKind::pulled:
        return read<Pulled>(body);
    default:
        return std::nullopt;
    }
}

} // namespace sd::monitor::between_hosts
