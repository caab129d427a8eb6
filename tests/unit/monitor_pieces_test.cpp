// Ends that are no process's are made in pieces, too: the links of a listener, and parcels that their sender
// has left behind.
#include "monitor/records/link.hpp"
#include "tests/unit/monitor_pair.hpp"

#include <sys/resource.h>

using namespace sd;
using namespace sd::monitor;
using namespace sd::test;
using wire::Op;

namespace {

/// Whether somebody is answered after a part of them has ended, and before the rest: `left` says how many
/// there are. The monitor stands still while they are counted.
template <typename Fn> bool ends_in_pieces(const MonitorProcess &monitor, unsigned all, Fn left) {
    TestProcess other(monitor);
    bool partly = false;
    for (unsigned now = all; now != 0;) {
        REQUIRE(other.channel.ask(Op::log, wire::Log{}).header.status == 0);
        kill(monitor.pid, SIGSTOP);
        now = left();
        kill(monitor.pid, SIGCONT);
        partly = partly || (now != 0 && now != all);
    }
    return partly;
}

uint64_t count(int eventfd) {
    uint64_t n = 0;
    return read(eventfd, &n, sizeof n) == sizeof n ? n : 0;
}

} // namespace

TEST_CASE(
    "requests to a listener that closes are refused in pieces, and each doorbell is rung once in a turn") {
    constexpr unsigned kLinks = 20;
    Pair pair;
    const UniqueFd doorbell = bell();
    std::vector<std::unique_ptr<TestLink>> links;
    for (unsigned i = 0; i < kLinks; ++i) {
        links.push_back(std::make_unique<TestLink>(pair.connect()));
        const LinkView view = links.back()->view;
        for (unsigned id = kFirstDoorbell; id <= kLastDoorbell; ++id) {
            REQUIRE(pair.client.channel.ask(Op::bell, wire::Bell{pair.link, 0, 0}, {doorbell.get()}).header.status ==
                    0);
        }
        view.header().side[0].sleep_mask = ~uint64_t{0};
        for (uint32_t slot = 0; slot < kLinkSlots; ++slot) {
            view.slot(slot).identity.state = static_cast<uint32_t>(SlotState::syn);
        }
    }
    const auto waiting = [&] {
        return static_cast<unsigned>(std::count_if(links.begin(), links.end(), [](const auto &link) {
            return link->view.slot(kLinkSlots - 1).identity.state == static_cast<uint32_t>(SlotState::syn);
        }));
    };
    pair.socket.fd.reset();
    REQUIRE(ends_in_pieces(pair.monitor, kLinks, waiting));
    for (const auto &link : links) {
        CHECK((link->view.header().side[1].flags & kLinkListenerClosed) != 0);
        for (uint32_t slot = 0; slot < kLinkSlots; slot += 97) {
            CHECK(link->view.slot(slot).identity.state == static_cast<uint32_t>(SlotState::refused));
            CHECK((link->view.slot(slot).side[1].control.flags & kFlagReset) != 0);
        }
    }
    REQUIRE(rang(doorbell.get()));
    CHECK(count(doorbell.get()) <= 2 * kLinks); // not for each request, nor for each of its numbers
}

TEST_CASE("while one link of a listener is refused, no other one takes requests") {
    Pair pair;
    const TestLink first(pair.connect()), second(pair.connect());
    syn(first.view, 1);
    syn(second.view, 1);
    pair.socket.fd.reset();
    // Whoever registers a listener makes way for it.
    const TestListener next;
    REQUIRE(pair.server.channel.ask(Op::listen, wire::Listen{16, 0}, {next.fd.get()}).header.status == 0);
    for (const TestLink *link : {&first, &second}) {
        CHECK((link->view.header().side[1].flags & kLinkListenerClosed) != 0);
        CHECK(eventually(
            [&] { return link->view.slot(1).identity.state == static_cast<uint32_t>(SlotState::refused); }));
    }
}

TEST_CASE("parcels that their sender has left behind end in pieces") {
    constexpr unsigned kParcels = 6000;
    rlimit files{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
    const rlimit before = files;
    files.rlim_cur = files.rlim_max;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
    {
        Pair pair;
        pair.restart_monitor({"--bridge-socket", pair.monitor.directory + "/nobody"}); // who has it ends
        pair.connect();
        std::vector<UniqueFd> passed;
        for (unsigned i = 1; i <= kParcels; ++i) {
            int ends[2];
            REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
            passed.emplace_back(ends[0]);
            const UniqueFd far(ends[1]);
            pair.client.segment.open(i, pair.link, i % kLinkSlots, 0, kParcelProc);
            wire::Pass pass{};
            pass.handoff.link_id = pair.link;
            pass.handoff.ofd_index = i;
            pass.handoff.slot = i % kLinkSlots;
            pass.start = static_cast<uint32_t>(wire::BridgeStart::left);
            REQUIRE(pair.client.channel.ask(Op::pass, pass, {passed.back().get(), far.get()}).header.status == 0);
        }
        const auto held = [&] {
            unsigned n = 0;
            for (unsigned i = 1; i <= kParcels; ++i) {
                n += pair.client.segment.view.ofd(i).state == static_cast<uint32_t>(OfdState::open) ? 1 : 0;
            }
            return n;
        };
        REQUIRE(held() == kParcels);
        pair.client.channel.close();
        CHECK(ends_in_pieces(pair.monitor, kParcels, held));
    }
    setrlimit(RLIMIT_NOFILE, &before);
}
