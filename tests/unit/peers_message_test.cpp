// What two monitors say to each other, as bytes.
#include "monitor/peers/message.hpp"
#include "monitor/peers/peer_settings.hpp"

#include <catch2/catch.hpp>

using namespace sd::monitor;
using State = MessageReader::State;

namespace {

PeerHello some_hello() {
    PeerHello hello;
    hello.oldest = 1;
    hello.newest = 3;
    hello.start.fill(7);
    hello.name = "beta.example";
    return hello;
}

} // namespace

TEST_CASE("a message that comes byte by byte is there with its last byte") {
    const std::string bytes = encode(some_hello()) + encode(MessageKind::ping, "abc");
    MessageReader reader;
    Message message;
    std::vector<Message> got;
    for (const char c : bytes) {
        REQUIRE(reader.room() > 0);
        reader.add({&c, 1});
        while (reader.next(message) == State::message) {
            got.push_back(message);
        }
    }
    REQUIRE(got.size() == 2);
    CHECK(got[0].kind == MessageKind::hello);
    CHECK(hello_of(got[0].body) == some_hello());
    CHECK(got[1].kind == MessageKind::ping);
    CHECK(got[1].body == "abc");
}

TEST_CASE("what is no message is seen by its header, before a body is waited for") {
    const auto state_of = [](std::string bytes) {
        MessageReader reader;
        Message message;
        reader.add(bytes);
        return reader.next(message);
    };
    const std::string ping = encode(MessageKind::ping, "");
    CHECK(state_of(ping) == State::message);
    for (const auto &[at, byte] :
         {std::pair(4, 0), std::pair(4, 6), std::pair(5, 1), std::pair(6, 1), std::pair(2, 1),
          std::pair(3, 255), std::pair(1, 17), std::pair(4, 15), std::pair(4, 31)}) {
        std::string wrong = ping;
        wrong[static_cast<size_t>(at)] = static_cast<char>(byte);
        CAPTURE(at, byte);
        CHECK(state_of(wrong) == State::malformed);
    }
    CHECK(state_of("GET / HTTP/1.1\r\n") == State::malformed);
}

TEST_CASE("the largest message fits, and never more than one is held") {
    const std::string bytes = encode(MessageKind::pong, std::string(kMostMessageBody, 'x'));
    MessageReader reader;
    Message message;
    CHECK(reader.room() == bytes.size());
    reader.add(std::string_view(bytes).substr(0, bytes.size() - 1));
    CHECK(reader.next(message) == State::more);
    CHECK(reader.room() == 1);
    reader.add(std::string_view(bytes).substr(bytes.size() - 1));
    CHECK(reader.next(message) == State::message);
    CHECK(message.body.size() == kMostMessageBody);
    CHECK(reader.next(message) == State::more);
    CHECK(reader.room() == bytes.size());
}

TEST_CASE("a hello that is cut short, or names nobody, is none; a longer one is read as far as it is known") {
    const std::string body = encode(some_hello()).substr(kMessageHeader);
    for (size_t size = 0; size < body.size(); ++size) {
        CAPTURE(size);
        CHECK_FALSE(hello_of(std::string_view(body).substr(0, size)));
    }
    CHECK(hello_of(body + "of a later version") == some_hello());
    PeerHello wrong = some_hello();
    wrong.name.clear();
    CHECK_FALSE(hello_of(encode(wrong).substr(kMessageHeader)));
    wrong.name.assign(kMostPeerName + 1, 'a');
    CHECK_FALSE(hello_of(encode(wrong).substr(kMessageHeader)));
    wrong = some_hello();
    wrong.oldest = 4;
    CHECK_FALSE(hello_of(encode(wrong).substr(kMessageHeader)));
    wrong.oldest = 0;
    CHECK_FALSE(hello_of(encode(wrong).substr(kMessageHeader)));
}

TEST_CASE("a key is 16 bytes, and what a later version adds is left") {
    TellableKey key;
    key.fill(9);
    const std::string body = encode(key).substr(kMessageHeader);
    CHECK(key_of(body) == key);
    CHECK(key_of(body + "more") == key);
    CHECK_FALSE(key_of(std::string_view(body).substr(1)));
}

TEST_CASE("two monitors speak the newest version that both know") {
    PeerHello a = some_hello(), b = some_hello();
    const auto common = [&](uint16_t a_oldest, uint16_t a_newest, uint16_t b_oldest, uint16_t b_newest) {
        a.oldest = a_oldest, a.newest = a_newest, b.oldest = b_oldest, b.newest = b_newest;
        CHECK(common_version(a, b) == common_version(b, a));
        return common_version(a, b);
    };
    CHECK(common(1, 1, 1, 1) == 1);
    CHECK(common(1, 2, 2, 3) == 2);
    CHECK(common(1, 5, 1, 3) == 3);
    CHECK(common(1, 1, 2, 3) == 0);
}

TEST_CASE("settings reach sd-peers as they are, keys of any bytes as well") {
    PeersSettings settings;
    settings.name = "alpha";
    settings.certificate = "-----BEGIN CERTIFICATE-----\n";
    settings.private_key = "-----BEGIN PRIVATE KEY-----\n";
    settings.deadline = 3;
    std::string key;
    for (int i = 0; i < 64; ++i) {
        key.push_back(static_cast<char>(i * 37));
    }
    settings.peers.push_back({"beta", "192.0.2.2", 7471, key, "", {"192.0.2.2", "10.0.0.0/8"}});
    settings.peers.push_back({"gamma", "::1", 7000, "", "-----BEGIN CERTIFICATE-----\n", {"::1"}});
    CHECK(settings_of(text_of(settings)) == settings);
    CHECK_THROWS(settings_of("{}"));
}
