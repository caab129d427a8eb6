// What two monitors say to each other about connections, as bytes, and what is kept of it.
#include "libsd/layout/link_layout.hpp"
#include "libsd/layout/protocol.hpp"
#include "monitor/peers/link_message.hpp"

#include <catch2/catch.hpp>
#include <vector>

using namespace sd::monitor;
using namespace sd::monitor::between_hosts;

namespace {

std::vector<LinkMessage> one_of_each() {
    Greeting greeting{7, sd::wire::kGreets, 0, {}};
    for (size_t i = 0; i < greeting.hello.size(); ++i) {
        greeting.hello[i] = static_cast<uint8_t>(i * 5);
    }
    return {Epoch{0x0102030405060708},
            Offer{1, 2, {3, 4, 5, 6}},
            Withdrawn{9},
            Joined{1, 2, 3, sd::kLinkSlots - 1, 4},
            Taken{1, 2, 3},
            Refused{1, 5, 0},
            greeting,
            Gone{11},
            Links{12, 0},
            Lost{13, 1, 0},
            Changed{14, 15, 0},
            Pull{16, 17, 18, sd::kRingClasses - 1, 0, 19 * 8, 20 * 8},
            Words{21, 22, 23, 24, {25, 26, 27, 28, 29}, 30, 31, 32, 33, 34, 35},
            Records{36, 37, 16, {1, 2, 3}},
            Pulled{38, 39, 1}};
}

} // namespace

TEST_CASE("each message about links comes out as it went in, and with its own length only") {
    MessageKind kind = MessageKind::epoch;
    for (const LinkMessage &message : one_of_each()) {
        const std::string body = encode(message);
        CAPTURE(static_cast<int>(kind));
        REQUIRE(kind_of(message) == kind);
        REQUIRE(body.size() <= kMostLinkBody);
        CHECK(decode(kind, body) == message);
        for (size_t size = 0; size < body.size(); ++size) {
            CHECK_FALSE(decode(kind, std::string_view(body).substr(0, size)));
        }
        CHECK_FALSE(decode(kind, body + '\0'));
        kind = static_cast<MessageKind>(static_cast<int>(kind) + 1);
    }
    CHECK_FALSE(is_about_links(kind)); // that were all
    CHECK_FALSE(decode(kind, ""));
    CHECK_FALSE(decode(MessageKind::ping, ""));
}

TEST_CASE("a message about links that names nothing, or what cannot be, is none") {
    const std::vector<LinkMessage> wrong = {
        Epoch{0},
        Offer{0, 2, {}},
        Offer{1, 0, {}},
        Withdrawn{0},
        Joined{0, 2, 3, 4, 5},
        Joined{1, 0, 3, 4, 5},
        Joined{1, 2, 0, 4, 5},
        Joined{1, 2, 3, sd::kLinkSlots, 5},
        Joined{1, 2, 3, 4, 0},
        Taken{0, 2, 3},
        Taken{1, 0, 3},
        Taken{1, 2, 0},
        Refused{0, 1, 0},
        Refused{1, 256, 0},
        Refused{1, 1, 1},
        Greeting{0, sd::wire::kGreets, 0, {}},
        Greeting{1, sd::wire::kNotGreeted, 0, {}},
        Greeting{1, sd::wire::kAsks, 0, {}},
        Greeting{1, sd::wire::kGreets, 1, {}},
        Gone{0},
        Links{0, 1},
        Lost{0, 0, 0},
        Lost{1, 2, 0},
        Changed{0, 1, 0},
        Changed{1, sd::kLinkSlots, 0},
        Pull{0, 1, 1, 0, 0, 0, 0},
        Pull{1, sd::kLinkSlots, 1, 0, 0, 0, 0},
        Pull{1, 1, 0, 0, 0, 0, 0},
        Pull{1, 1, 1, sd::kRingClasses, 0, 0, 0},
        Pull{1, 1, 1, 0, 0, 4, 0},
        Pull{1, 1, 1, 0, 0, 8, 1},
        Words{0, 1},
        Words{1, sd::kLinkSlots},
        Records{0, 1, 8, {}},
        Records{1, sd::kLinkSlots, 8, {}},
        Records{1, 1, 0, {}},
        Records{1, 1, 4, {}},
        Records{1, 1, 104, {}},
        Pulled{0, 1, 0},
        Pulled{1, 1, 2},
    };
    for (const LinkMessage &message : wrong) {
        CAPTURE(message.index());
        CHECK_FALSE(decode(kind_of(message), encode(message)));
    }
    CHECK(decode(MessageKind::links, encode(Links{})) == LinkMessage(Links{}));
}
