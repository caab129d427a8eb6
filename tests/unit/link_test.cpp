// Links that are made while other threads look through all that there are.
#include "libsd/vfs/connections/connect.hpp"
#include "tests/unit/stream_pair.hpp"

#include <thread>

using namespace sd;

namespace {

/// Retires all links for as long as it lives, as each connect() does with those whose listener has gone.
class Retiring {
  public:
    Retiring()
        : thread_([this] {
              while (!over_)
                  retire_client_links();
          }) {}
    ~Retiring() {
        over_ = true;
        thread_.join();
    }
    Retiring(const Retiring &) = delete;
    Retiring &operator=(const Retiring &) = delete;

  private:
    std::atomic<bool> over_{false};
    std::thread thread_;
};

/// How many links of so many were gone when whoever had made them came to use them.
unsigned gone_too_soon(uint8_t reach) {
    constexpr unsigned kLinks = 3000;
    const int memory = test::make_link_memory();
    unsigned gone = 0;
    for (unsigned n = 0; n < kLinks; ++n) {
        long error = 0;
        const long fd = hide_fd(static_cast<int>(sys::fcntl(memory, F_DUPFD_CLOEXEC, 0)));
        LinkMap *l = map_link(static_cast<int>(fd), 1, 0, reach, LinkPeer::own, &error);
        REQUIRE(l != nullptr);
        if (l->users == 0 || link_by_index(l->index) != l) {
            ++gone;
            continue; // not to be given back once more
        }
        if (!l->retired.exchange(true))
            link_unuse(*l);
        link_unuse(*l);
    }
    sys::close(memory);
    return gone;
}

} // namespace

TEST_CASE("a link stays for who has mapped it, though another thread retires all links") {
    test::test_link(0); // starts the library
    const Retiring retiring;
    SECTION("a link of new connections") { CHECK(gone_too_soon(wire::kLoopbackAddresses) == 0); }
    SECTION("a link that came with a connection of another process") { CHECK(gone_too_soon(0) == 0); }
}
