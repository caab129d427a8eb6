// A process that stands for a host: the plugin over the fake verbs, and one side of a link, with a socket to
// the other one. Tests make two of them by fork, since what a process has of a device is its own.
#pragma once
#include "libsd/queue/ring.hpp"
#include "libsd/rdma/transport.hpp"
#include "libsd/transport/slots.hpp"
#include "tests/fake_verbs/own_fabric.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sd::test {

class HostProcess {
  public:
    const rdma::Plugin *plugin = nullptr;
    rdma::Host *device = nullptr;
    rdma::Place place{}; ///< the first there is
    rdma::Peer *peer = nullptr;
    rdma::Remote *remote = nullptr;
    LinkMap *link = nullptr;
    uint64_t data_wakes = 0, room_wakes = 0;

    HostProcess(unsigned side, int other, rdma::Limits limits = rdma::kUsualLimits) : other_(other) {
        this_host = side;
        setenv("SD_FAKE_VERBS_HOST", side ? "1" : "0", 1);
        plugin = load_plugin();
        HOST_REQUIRE(plugin->places(nullptr, 0, &place, 1) == 1);
        HOST_REQUIRE(plugin->open(limits, place, &device) == 0);
        connect();
        link = make_link(side);
        attach(0);
    }

    static const rdma::Plugin *load_plugin() {
        void *library = dlopen(SD_RDMA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            fprintf(stderr, "%s\n", dlerror());
        HOST_REQUIRE(library);
        const auto find = reinterpret_cast<decltype(&sd_rdma_plugin)>(dlsym(library, "sd_rdma_plugin"));
        HOST_REQUIRE(find && !find(0));
        const rdma::Plugin *found = find(rdma::kPluginVersion);
        HOST_REQUIRE(found);
        return found;
    }
    /// A queue pair to the other process, which does the same.
    void connect() {
        rdma::Hello ours{};
        HOST_REQUIRE(plugin->peer(device, place, &ours, &peer) == 0);
        const rdma::Hello theirs = exchange(ours);
        HOST_REQUIRE(plugin->join(peer, theirs) == 0);
        meet(); // both can receive now
        plugin->start(peer);
    }
    void attach(uint32_t number) {
        const rdma::LinkCalls calls = {ring, wake};
        HOST_REQUIRE(plugin->attach(peer, number, link->view, link->side, calls, this, &remote) == 0);
        rdma::attach_for_test(*link, plugin, device, remote);
        meet();
    }

    template <class T> T exchange(const T &mine) const {
        T theirs{};
        HOST_REQUIRE(send(other_, &mine, sizeof mine, MSG_NOSIGNAL) == sizeof mine);
        HOST_REQUIRE(recv(other_, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
        return theirs;
    }
    void meet() const { exchange('m'); }
    /// Goes on taking what comes until the other side is here, too.
    void meet_and_serve() {
        char byte = 's';
        HOST_REQUIRE(send(other_, &byte, 1, MSG_NOSIGNAL) == 1);
        while (recv(other_, &byte, 1, MSG_DONTWAIT) != 1) {
            plugin->progress(device);
            sched_yield();
        }
    }

    ring::Place sending(uint32_t slot) const { return {link->view.slot(slot).ring[link->side]}; }
    ring::Place receiving(uint32_t slot) const { return {link->view.slot(slot).ring[1 - link->side]}; }
    SlotSide &mine(uint32_t slot) const { return link->view.slot(slot).side[link->side]; }
    SlotSide &theirs(uint32_t slot) const { return link->view.slot(slot).side[1 - link->side]; }
    /// After a change that the other side has to know.
    void tell(uint32_t slot) const { notify(*link, slot, theirs(slot).control.rx_arm); }

  private:
    static LinkMap *make_link(unsigned side) {
        const int memfd = memfd_create("link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        HOST_REQUIRE(memfd >= 0 && ftruncate(memfd, static_cast<off_t>(kLinkBytes)) == 0);
        LinkHeader h{};
        h.magic = kLinkMagic;
        h.version = kLayoutVersion;
        h.slots = kLinkSlots;
        h.link_id = 1;
        for (auto &s : h.side)
            s.arena_open = kFirstArena;
        HOST_REQUIRE(pwrite(memfd, &h, sizeof h, 0) == sizeof h);
        HOST_REQUIRE(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
        long error = 0;
        LinkMap *l = map_link(memfd, 1, side, 0, LinkPeer::own, &error);
        HOST_REQUIRE(l != nullptr);
        for (uint32_t slot = 0; slot < kLinkSlots; ++slot)
            rdma::always_arm(*l, slot);
        return l;
    }
    static uint8_t *ring(void *user, uint32_t slot, unsigned sender, unsigned cls) {
        return larger_ring(static_cast<HostProcess *>(user)->link->view.slot(slot).ring[sender], cls, nullptr);
    }
    static void wake(void *user, uint32_t, bool data, bool room) {
        auto *h = static_cast<HostProcess *>(user);
        h->data_wakes += data;
        h->room_wakes += room;
    }
    int other_;
};

} // namespace sd::test
