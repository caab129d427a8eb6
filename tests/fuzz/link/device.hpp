// A device that carries nothing: with it the program's link is one to another host
// (libsd/rdma/transport.hpp), whose process writes into this side's memory whatever the inputs say.
#pragma once
#include "libsd/rdma/transport.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/process.hpp"

#include <cerrno>

namespace sdfuzz {

using namespace sd;

class Device {
  public:
    /// From now on, until this ends. `slot`: the connection of which the device has last words to bring.
    void begin(LinkMap &link, uint32_t slot) {
        link_ = &link;
        theirs = &link.view.slot(slot).side[1 - link.side];
        has_room = true;
        // Nobody looks into them.
        rdma::attach_for_test(link, &kPlugin, reinterpret_cast<rdma::Host *>(this),
                              reinterpret_cast<rdma::Remote *>(this));
        rdma::remote_links = 1;
        rdma::always_arm(link, slot);
    }
    ~Device() {
        if (link_ != nullptr) {
            rdma::attach_for_test(*link_, &kPlugin, nullptr, nullptr);
            link_->transport = &shm_transport;
            rdma::remote_links = rdma::refusals = 0;
        }
    }
    Device() = default;
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    bool is_used() const { return link_ != nullptr; }
    static void act(Input &in) {
        switch (in.below(4)) {
        case 0:
            has_room = !has_room;
            break;
        case 1: // of a queue pair that is none of ours
            ++endings;
            break;
        case 2: // it has refused one
            rdma::refusals.fetch_add(1);
            break;
        default:
            rdma::progress();
        }
    }

  private:
    static inline SlotSide *theirs = nullptr;
    static inline bool has_room = true;
    static inline std::atomic<uint32_t> endings{0};
    /// The last that comes is that the other side has ended: who waits for its last words has them.
    static void bring_end() {
        if (theirs != nullptr) {
            theirs->control.flags.fetch_or(kFlagClosed | kFlagWriteShut);
        }
    }
    static constexpr rdma::Plugin kPlugin = {
        .version = rdma::kPluginVersion,
        .places = [](rdma::Host *const *, unsigned, rdma::Place *, unsigned) { return -ENODEV; },
        .open = [](const rdma::Limits &, const rdma::Place &, rdma::Host **) { return -ENODEV; },
        .close = [](rdma::Host *) {},
        .descriptors = [](rdma::Host *, int **, unsigned) { return 0U; },
        .abandon = [](rdma::Host *) {},
        .event_fd = [](rdma::Host *) { return -1; },
        .arm = [](rdma::Host *) {},
        .take_events = [](rdma::Host *) {},
        .progress = [](rdma::Host *) { return 0U; },
        .take_all = [](rdma::Host *) { bring_end(); },
        .peer = [](rdma::Host *, const rdma::Place &, rdma::Hello *, rdma::Peer **) { return -ENODEV; },
        .join = [](rdma::Peer *, const rdma::Hello &) { return -ENODEV; },
        .start = [](rdma::Peer *) {},
        .state = [](const rdma::Peer *) { return rdma::PeerState::open; },
        .endings = [](const rdma::Host *) -> const std::atomic<uint32_t> * { return &endings; },
        .end = [](rdma::Peer *) {},
        .drop = [](rdma::Peer *) {},
        .counts = [](const rdma::Peer *, rdma::Counts *) {},
        .attach = [](rdma::Peer *, uint32_t, LinkView, unsigned, const rdma::LinkCalls &, void *,
                     rdma::Remote **) { return -ENODEV; },
        .detach = [](rdma::Remote *) {},
        .recycle = [](rdma::Remote *, uint32_t, uint32_t) {},
        .publish = [](rdma::Remote *, uint32_t, bool) { return has_room; },
        .may_send = [](rdma::Remote *, uint32_t) { return has_room; },
        .arrived = [](const rdma::Remote *, uint32_t) { return rdma::Arrived{}; },
    };
    LinkMap *link_ = nullptr;
};

} // namespace sdfuzz
