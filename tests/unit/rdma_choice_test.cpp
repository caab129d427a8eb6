// Of several devices the one on the connection's route comes first, and the one that can reach the other
// side's spare.
#include "libsd/rdma/choice.hpp"

#include <arpa/inet.h>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

using namespace sd::rdma;

namespace {

using Address = std::array<uint8_t, 16>;

Address address(const char *text) {
    Address a{};
    if (inet_pton(AF_INET, text, &a[12]) == 1) {
        a[10] = a[11] = 0xff;
        return a;
    }
    REQUIRE(inet_pton(AF_INET6, text, a.data()) == 1);
    return a;
}

/// The names of devices with these addresses, in the order in which they are tried.
std::string order(const std::vector<std::pair<const char *, const char *>> &all, const char *local,
                  const char *peer, const char *theirs = nullptr) {
    std::vector<Place> places;
    for (const auto &[name, text] : all) {
        Place p{};
        strcpy(p.device, name);
        const Address a = address(text);
        memcpy(p.address, a.data(), sizeof p.address);
        places.push_back(p);
    }
    const Address l = address(local), far = address(peer), pair = address(theirs ? theirs : "::");
    order_by_route(places.data(), static_cast<unsigned>(places.size()),
                   {l.data(), far.data(), theirs ? pair.data() : nullptr});
    std::string names;
    for (const Place &p : places)
        names += p.device;
    return names;
}

} // namespace

TEST_CASE("the device with the connection's own address comes first") {
    CHECK(order({{"a", "192.0.2.1"}, {"b", "198.51.100.1"}, {"c", "2001:db8::1"}}, "198.51.100.1",
                "198.51.100.2") == "bac");
    CHECK(order({{"a", "192.0.2.1"}, {"b", "198.51.100.1"}, {"c", "2001:db8::1"}}, "2001:db8::1",
                "2001:db8::2") == "cab");
}

TEST_CASE("where no device has it the order stays") {
    CHECK(order({{"a", "192.0.2.1"}, {"b", "198.51.100.1"}, {"c", "203.0.113.1"}}, "10.0.0.1", "10.0.0.2") ==
          "abc");
    CHECK(order({}, "10.0.0.1", "10.0.0.2").empty());
}

TEST_CASE("a queue pair at the connection's own address on the other side changes nothing") {
    CHECK(order({{"a", "192.0.2.1"}, {"b", "198.51.100.1"}}, "198.51.100.1", "198.51.100.2", "198.51.100.2") ==
          "ba");
    // Behind a router: the spare is nearer to it by its bits, but the route does not lead over it.
    CHECK(order({{"a", "10.0.0.1"}, {"b", "172.16.0.1"}}, "172.16.0.1", "10.0.0.2", "10.0.0.2") == "ba");
}

TEST_CASE("where the other side is on its spare the device that is nearest to that comes first") {
    CHECK(order({{"a", "192.0.2.1"}, {"b", "198.51.100.1"}}, "198.51.100.1", "198.51.100.2", "192.0.2.2") == "ab");
    CHECK(order({{"a", "192.0.3.1"}, {"b", "192.0.2.1"}, {"c", "198.51.100.1"}}, "198.51.100.1",
                "198.51.100.2", "192.0.2.2") == "bac");
    // As near: the route decides.
    CHECK(order({{"a", "192.0.2.1"}, {"b", "192.0.2.129"}}, "192.0.2.129", "192.0.2.130", "203.0.113.1") == "ba");
}
