// A peer that speaks verbs itself and writes what no honest side would into the mailbox that it was given:
// its queue pair ends, and the link is as it was.
#include "libsd/rdma/message.hpp"
#include "tests/rdma/host_process.hpp"
#include "tests/verbs/device.hpp"
#include <catch2/catch.hpp>
#include <vector>

using namespace sd;
using sd::test::HostProcess;
using sd::test::TwoHosts;

namespace {

constexpr uint32_t kSlot = 3;

struct Forged {
    uint32_t immediate = 0;
    rdma::Message m{};
    rdma::Words w{};
    std::vector<uint64_t> records;
    int cut_off = 0; ///< bytes at the end that are not written
    Forged() { m.slot = kSlot; }
    void record(uint64_t header, size_t words) {
        records.push_back(header);
        records.resize(records.size() + words, 0x4141414141414141);
        m.records = static_cast<uint32_t>(records.size() * 8);
    }
};

/// The other host: a queue pair to the plugin's, and one message.
void forge(int socket, const Forged &f) {
    setenv("SD_FAKE_VERBS_HOST", "1", 1);
    sd::verbs::Device d;
    HOST_REQUIRE(d.open());
    ibv_cq *queue = ibv_create_cq(d.context, 16, nullptr, nullptr, 0);
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = queue;
    a.qp_type = IBV_QPT_RC;
    a.cap = {16, 16, 1, 1, 0};
    ibv_qp *q = queue ? ibv_create_qp(d.domain, &a) : nullptr;
    HOST_REQUIRE(q);
    rdma::Hello ours{}, theirs{};
    ours.version = rdma::kHelloVersion;
    ours.queue_pair = q->qp_num;
    memcpy(ours.address, d.address.raw, sizeof ours.address);
    ours.mtu = d.mtu;
    ours.mailbox_bytes = rdma::kUsualLimits.mailbox_bytes;
    ours.receives = 8;
    HOST_REQUIRE(send(socket, &ours, sizeof ours, 0) == sizeof ours);
    HOST_REQUIRE(recv(socket, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
    ibv_qp_attr m{};
    m.qp_state = IBV_QPS_INIT;
    m.port_num = 1;
    HOST_REQUIRE(ibv_modify_qp(q, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    m = {};
    m.qp_state = IBV_QPS_RTR;
    m.dest_qp_num = theirs.queue_pair;
    memcpy(m.ah_attr.grh.dgid.raw, theirs.address, sizeof theirs.address);
    HOST_REQUIRE(ibv_modify_qp(q, &m,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    m = {};
    m.qp_state = IBV_QPS_RTS;
    m.rnr_retry = 7;
    HOST_REQUIRE(ibv_modify_qp(q, &m,
                               IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    char byte = 'm';
    for (int meetings = 0; meetings < 2; ++meetings) // HostProcess::connect(), attach()
        HOST_REQUIRE(send(socket, &byte, 1, 0) == 1 && recv(socket, &byte, 1, 0) == 1);

    std::vector<uint8_t> bytes(sizeof f.m + sizeof f.w + f.records.size() * 8);
    size_t n = sizeof f.m;
    memcpy(bytes.data(), &f.m, sizeof f.m);
    if (!f.records.empty())
        memcpy(bytes.data() + n, f.records.data(), f.records.size() * 8);
    n += f.records.size() * 8;
    if (f.m.flags & rdma::kHasWords) {
        memcpy(bytes.data() + n, &f.w, sizeof f.w);
        n += sizeof f.w;
    }
    n -= static_cast<size_t>(f.cut_off);
    ibv_mr *memory = ibv_reg_mr(d.domain, bytes.data(), bytes.size(), 0);
    HOST_REQUIRE(memory);
    ibv_sge s = {reinterpret_cast<uint64_t>(bytes.data()), static_cast<uint32_t>(n), memory->lkey};
    ibv_send_wr w{}, *bad;
    w.sg_list = &s;
    w.num_sge = 1;
    w.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    w.send_flags = IBV_SEND_SIGNALED;
    w.imm_data = f.immediate;
    w.wr.rdma.remote_addr = theirs.mailbox_address;
    w.wr.rdma.rkey = theirs.mailbox_key;
    HOST_REQUIRE(ibv_post_send(q, &w, &bad) == 0);
    ibv_wc wc{};
    while (ibv_poll_cq(queue, 1, &wc) == 0) {
    }
    HOST_REQUIRE(wc.status == IBV_WC_SUCCESS); // so the plugin has it
    HOST_REQUIRE(recv(socket, &byte, 1, 0) == 1);
}

/// Does the plugin end it? `honest`: it must not.
bool refused(const Forged &f, bool honest = false) {
    TwoHosts hosts;
    return hosts.run([&](unsigned side, int other) {
        if (side == 1)
            return forge(other, f);
        HostProcess h(side, other);
        for (int looks = 0; looks < 200 && h.plugin->state(h.peer) == rdma::PeerState::open; ++looks) {
            h.plugin->progress(h.device);
            usleep(1000);
        }
        const bool ended = h.plugin->state(h.peer) == rdma::PeerState::ended;
        HOST_REQUIRE(ended != honest);
        const Slot &slot = h.link->view.slot(kSlot);
        uint64_t first, second;
        memcpy(&first, slot.ring[1], 8);
        memcpy(&second, slot.ring[1] + kInlineRing - 8, 8);
        if (!honest)
            HOST_REQUIRE(first == 0 && second == 0);
        HOST_REQUIRE(h.link->view.slot(kSlot + 1).side[1].control.flags.load() == 0);
        char byte = 'e';
        HOST_REQUIRE(send(other, &byte, 1, 0) == 1);
        h.plugin->end(h.peer);
    });
}

uint64_t header(uint32_t length, uint64_t position = 0, ring::RecordKind kind = ring::RecordKind::data) {
    return ring::make_header(kind, length, position);
}

} // namespace

TEST_CASE("an honest message is taken: the forger's own doing is right") {
    Forged f;
    f.record(header(8), 1);
    CHECK(refused(f, true));
}

TEST_CASE("a message that is no message ends the queue pair") {
    Forged beyond, elsewhere, no_slot, short_words, more, short_header;
    beyond.immediate = rdma::kUsualLimits.mailbox_bytes / rdma::kUnit;
    elsewhere.immediate = 5;
    no_slot.m.slot = kLinkSlots;
    short_words.m.flags = rdma::kHasWords;
    short_words.cut_off = 8;
    more.record(header(8), 1);
    more.m.records = 1 << 20;
    short_header.cut_off = 16;
    for (const Forged &f : {beyond, elsewhere, no_slot, short_words, more, short_header})
        CHECK(refused(f));
}

TEST_CASE("records that no honest side sends end the queue pair") {
    Forged no_check, longer, too_many, elsewhere, no_ring, bad_class, ragged;
    no_check.record(header(8) ^ uint64_t{1} << 40, 1);
    longer.record(header(400), 2);
    too_many.record(header(1000), 125); // than the ring holds
    elsewhere.m.position = 64;
    elsewhere.record(header(8, 64), 1);
    no_ring.record(header(1, 0, ring::RecordKind::change), 0); // nobody has said where it lies
    bad_class.record(header(77, 0, ring::RecordKind::change), 0);
    ragged.record(header(8), 1);
    ragged.m.records -= 4;
    ragged.cut_off = 4;
    for (const Forged &f : {no_check, longer, too_many, elsewhere, no_ring, bad_class, ragged})
        CHECK(refused(f));
}

TEST_CASE("a ring is not filled beyond what the program has taken") {
    Forged f;
    for (uint64_t position = 0; position < 2 * kInlineRing; position += 128)
        f.record(header(120, position), 15);
    TwoHosts hosts;
    CHECK(hosts.run([&](unsigned side, int other) {
        if (side == 1)
            return forge(other, f);
        HostProcess h(side, other);
        while (h.plugin->state(h.peer) == rdma::PeerState::open)
            h.plugin->progress(h.device);
        uint64_t first; // the one that has not been read is still there
        memcpy(&first, h.link->view.slot(kSlot).ring[1], 8);
        HOST_REQUIRE(first == header(120));
        char byte = 'e';
        HOST_REQUIRE(send(other, &byte, 1, 0) == 1);
        h.plugin->end(h.peer);
    }));
}
