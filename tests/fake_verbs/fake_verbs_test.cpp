// What the fake verbs do on demand, and what no script of verbs can say: those run over soft-RoCE as well.
#include "tests/fake_verbs/own_fabric.hpp"
#include "tests/verbs/device.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <vector>

using sd::fake_verbs::control;
using sd::fake_verbs::Fault;
using sd::test::TwoHosts;

namespace {

/// A process with two queue pairs that lead to each other, and memory to write in.
struct Loop {
    sd::verbs::Device device;
    ibv_comp_channel *channel;
    ibv_cq *queue[2]; ///< of the one that sends, and of the one that receives
    ibv_qp *pair[2];
    std::vector<uint8_t> bytes = std::vector<uint8_t>(1 << 16);
    ibv_mr *memory;

    explicit Loop(int depth = 256) {
        HOST_REQUIRE(device.open());
        channel = ibv_create_comp_channel(device.context);
        for (auto &q : queue)
            HOST_REQUIRE((q = ibv_create_cq(device.context, depth, nullptr, channel, 0)));
        memory = ibv_reg_mr(device.domain, bytes.data(), bytes.size(),
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        HOST_REQUIRE(memory);
        connect();
    }
    void connect() {
        for (int i = 0; i < 2; ++i) {
            ibv_qp_init_attr a{};
            a.send_cq = queue[0];
            a.recv_cq = queue[1];
            a.qp_type = IBV_QPT_RC;
            a.cap = {32, 32, 1, 1, 64};
            HOST_REQUIRE((pair[i] = ibv_create_qp(device.domain, &a)));
        }
        for (int i = 0; i < 2; ++i) {
            ibv_qp_attr m{};
            m.qp_state = IBV_QPS_INIT;
            m.port_num = 1;
            m.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
            HOST_REQUIRE(ibv_modify_qp(pair[i], &m,
                                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
            m = {};
            m.qp_state = IBV_QPS_RTR;
            m.dest_qp_num = pair[1 - i]->qp_num;
            m.ah_attr.grh.dgid = device.address;
            HOST_REQUIRE(ibv_modify_qp(pair[i], &m,
                                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
            m = {};
            m.qp_state = IBV_QPS_RTS;
            m.rnr_retry = 7;
            HOST_REQUIRE(ibv_modify_qp(pair[i], &m,
                                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
        }
    }
    void reconnect() {
        for (ibv_qp *q : pair)
            HOST_REQUIRE(ibv_destroy_qp(q) == 0);
        connect();
    }
    int write(uint64_t id, uint32_t from, uint32_t to, uint32_t n, bool signaled = true, bool immediate = false) {
        ibv_sge s = {reinterpret_cast<uint64_t>(bytes.data() + from), n, memory->lkey};
        ibv_send_wr w{}, *bad;
        w.wr_id = id;
        w.sg_list = &s;
        w.num_sge = 1;
        w.opcode = immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
        w.send_flags = signaled * unsigned{IBV_SEND_SIGNALED};
        w.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(bytes.data() + to);
        w.wr.rdma.rkey = memory->rkey;
        return ibv_post_send(pair[0], &w, &bad);
    }
    int receive(uint64_t id) {
        ibv_recv_wr r{}, *bad;
        r.wr_id = id;
        return ibv_post_recv(pair[1], &r, &bad);
    }
    /// Waits for the next completion of that queue.
    ibv_wc next(int which) {
        ibv_wc wc{};
        while (ibv_poll_cq(queue[which], 1, &wc) == 0)
            sched_yield();
        return wc;
    }
    bool none(int which) {
        ibv_wc wc;
        return ibv_poll_cq(queue[which], 1, &wc) == 0;
    }
    ibv_event_type event(ibv_qp **of = nullptr) {
        ibv_async_event e{};
        HOST_REQUIRE(ibv_get_async_event(device.context, &e) == 0);
        if (of)
            *of = e.element.qp;
        ibv_ack_async_event(&e);
        return e.event_type;
    }
};

} // namespace

TEST_CASE("a device that is removed flushes what was under way, says so, and carries nothing out any more") {
    TwoHosts fabric;
    CHECK(fabric.run_one([] {
        Loop l;
        HOST_REQUIRE(l.receive(1) == 0 && l.receive(2) == 0);
        HOST_REQUIRE(l.write(3, 0, 100, 8) == 0 && l.next(0).status == IBV_WC_SUCCESS);
        control()->device(0, 0, 0);
        HOST_REQUIRE(l.event() == IBV_EVENT_DEVICE_FATAL);
        for (uint64_t id : {1, 2}) {
            const ibv_wc wc = l.next(1);
            HOST_REQUIRE(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == id);
        }
        HOST_REQUIRE(l.write(4, 0, 100, 8) == 0 && l.next(0).status == IBV_WC_WR_FLUSH_ERR);
        HOST_REQUIRE(!ibv_alloc_pd(l.device.context) && errno == EIO);
        ibv_port_attr port;
        HOST_REQUIRE(ibv_query_port(l.device.context, 1, &port) == EIO);
        int n = -1;
        ibv_free_device_list(ibv_get_device_list(&n));
        HOST_REQUIRE(n == 0);
        control()->device(0, 0, 1);
        ibv_free_device_list(ibv_get_device_list(&n));
        HOST_REQUIRE(n == 1);
    }));
}

TEST_CASE("over a port that is down nobody answers") {
    TwoHosts fabric;
    CHECK(fabric.run_one([] {
        Loop l;
        control()->port(0, 0, 0);
        HOST_REQUIRE(l.event() == IBV_EVENT_PORT_ERR);
        ibv_port_attr port{};
        HOST_REQUIRE(ibv_query_port(l.device.context, 1, &port) == 0 && port.state == IBV_PORT_DOWN);
        HOST_REQUIRE(l.write(1, 0, 100, 8) == 0 && l.next(0).status == IBV_WC_RETRY_EXC_ERR);
        control()->port(0, 0, 1);
        HOST_REQUIRE(l.event() == IBV_EVENT_PORT_ACTIVE);
        l.reconnect();
        HOST_REQUIRE(l.write(2, 0, 100, 8) == 0 && l.next(0).status == IBV_WC_SUCCESS);
    }));
}

TEST_CASE("a queue pair that fails is named in an event, and has to be acknowledged before it goes") {
    TwoHosts fabric;
    CHECK(fabric.run_one([] {
        Loop l;
        HOST_REQUIRE(l.receive(1) == 0);
        control()->fail(l.pair[1]->qp_num);
        ibv_qp *which = nullptr;
        HOST_REQUIRE(l.event(&which) == IBV_EVENT_QP_FATAL && which == l.pair[1]);
        HOST_REQUIRE(l.next(1).status == IBV_WC_WR_FLUSH_ERR);
        HOST_REQUIRE(l.write(2, 0, 100, 8) == 0 && l.next(0).status == IBV_WC_RETRY_EXC_ERR);
        l.reconnect();
    }));
}

TEST_CASE("a completion queue that overflows is reported, and ends who completes there") {
    TwoHosts fabric;
    CHECK(fabric.run_one([] {
        Loop l(2);
        for (uint64_t i = 0; i < 3; ++i)
            HOST_REQUIRE(l.receive(i) == 0);
        for (uint64_t i = 0; i < 3; ++i)
            HOST_REQUIRE(l.write(i, 0, 100, 8, false, true) == 0);
        HOST_REQUIRE(l.event() == IBV_EVENT_CQ_ERR);
        HOST_REQUIRE(l.next(0).status == IBV_WC_REM_OP_ERR);
    }));
}

TEST_CASE("places of the send queue come back with a completion that is polled, not before") {
    TwoHosts fabric;
    CHECK(fabric.run_one([] {
        Loop l;
        for (uint64_t i = 0; i < 31; ++i)
            HOST_REQUIRE(l.write(i, 0, 100, 8, false) == 0);
        HOST_REQUIRE(l.write(31, 0, 100, 8, true) == 0);
        HOST_REQUIRE(l.write(32, 0, 100, 8, true) == ENOMEM);
        HOST_REQUIRE(l.next(0).wr_id == 31);
        HOST_REQUIRE(l.write(32, 0, 100, 8, true) == 0);
    }));
}

TEST_CASE("a queue pair that is cut may or may not have delivered") {
    TwoHosts fabric;
    CHECK(fabric.run_one([] {
        Loop l;
        control()->set_fault(Fault::cut, 1'000'000);
        bool arrived = false, lost = false;
        for (int i = 0; i < 1000 && !(arrived && lost); ++i) {
            l.bytes[0] = 1;
            l.bytes[100] = 0;
            HOST_REQUIRE(l.write(1, 0, 100, 1) == 0 && l.next(0).status == IBV_WC_RETRY_EXC_ERR);
            (l.bytes[100] ? arrived : lost) = true;
            l.reconnect();
        }
        HOST_REQUIRE(arrived && lost);
    }));
}

TEST_CASE("bytes may show early and in part, and completions late, but in order") {
    TwoHosts fabric("late=2000,early=500");
    CHECK(fabric.run_one([] {
        Loop l;
        volatile uint8_t *const there = l.bytes.data() + 1000;
        bool part = false, before = false;
        for (uint64_t i = 1; i < 2000 && !(part && before); ++i) {
            const auto value = static_cast<uint8_t>(i % 255 + 1);
            for (uint32_t k = 0; k < 100; ++k)
                l.bytes[k] = value;
            HOST_REQUIRE(l.receive(i) == 0 && l.write(i, 0, 1000, 100, true, true) == 0);
            ibv_wc wc{};
            while (ibv_poll_cq(l.queue[1], 1, &wc) == 0) {
                const bool first = there[0] == value, last = there[99] == value;
                part = part || (first && !last);
                before = before || (first && last);
            }
            HOST_REQUIRE(wc.wr_id == i && there[0] == value && there[99] == value);
            HOST_REQUIRE(l.next(0).wr_id == i);
        }
        HOST_REQUIRE(part && before);
    }));
}

TEST_CASE("work of different queue pairs is carried out in any order") {
    TwoHosts fabric("late=500,reorder=500");
    CHECK(fabric.run_one([] {
        Loop first;
        const ibv_qp *a = first.pair[0];
        ibv_qp *const kept = first.pair[0];
        first.connect(); // two more, on the same queues
        bool overtaken = false;
        for (uint64_t i = 0; i < 500 && !overtaken; ++i) {
            ibv_qp *const b = first.pair[0];
            first.pair[0] = kept;
            HOST_REQUIRE(first.write(1, 0, 100, 8) == 0);
            first.pair[0] = b;
            HOST_REQUIRE(first.write(2, 0, 200, 8) == 0);
            overtaken = first.next(0).wr_id == 2;
            first.next(0);
        }
        HOST_REQUIRE(overtaken && a != first.pair[0]);
    }));
}

TEST_CASE("a killed process has nothing any more, and its peers get no answer") {
    TwoHosts fabric;
    CHECK(fabric.run_one([] {
        int told[2];
        HOST_REQUIRE(pipe(told) == 0);
        const pid_t child = fork();
        if (child == 0) {
            Loop l;
            const uint32_t number = l.pair[1]->qp_num;
            HOST_REQUIRE(write(told[1], &number, sizeof number) == sizeof number);
            pause();
        }
        uint32_t number = 0;
        HOST_REQUIRE(read(told[0], &number, sizeof number) == sizeof number);
        HOST_REQUIRE(control()->count('p') == 2 && control()->count('m') == 1 && control()->count('q') == 2);
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        for (const char kind : {'c', 'd', 'm', 'q', 'p'})
            HOST_REQUIRE(control()->count(kind) == 0);
    }));
}

TEST_CASE("a device that is full makes no queue pair, and counts who asks, until it has room again") {
    TwoHosts fabric;
    CHECK(fabric.run_one([] {
        Loop l;
        control()->full(0, 0, 1);
        ibv_qp_init_attr a{};
        a.send_cq = a.recv_cq = l.pair[0]->send_cq;
        a.qp_type = IBV_QPT_RC;
        a.cap.max_send_wr = a.cap.max_recv_wr = a.cap.max_send_sge = a.cap.max_recv_sge = 1;
        HOST_REQUIRE(!ibv_create_qp(l.pair[0]->pd, &a) && errno == ENOMEM);
        l.bytes[0] = 7;
        HOST_REQUIRE(l.write(1, 0, 100, 1) == 0 && l.next(0).status == IBV_WC_SUCCESS && l.bytes[100] == 7);
        control()->full(0, 0, 0);
        ibv_qp *made = ibv_create_qp(l.pair[0]->pd, &a);
        HOST_REQUIRE(made && ibv_destroy_qp(made) == 0);
    }));
}

TEST_CASE("two devices have their own names and addresses") {
    TwoHosts fabric;
    setenv("SD_FAKE_VERBS_DEVICES", "2", 1);
    CHECK(fabric.run_one([] {
        int n = 0;
        ibv_device **list = ibv_get_device_list(&n);
        HOST_REQUIRE(n == 2);
        ibv_gid address[2];
        for (int i = 0; i < 2; ++i) {
            ibv_context *c = ibv_open_device(list[i]);
            HOST_REQUIRE(c && ibv_query_gid(c, 1, 2, &address[i]) == 0);
            HOST_REQUIRE(ibv_get_device_name(list[i]) == "fake" + std::to_string(i));
            HOST_REQUIRE(ibv_query_gid(c, 1, 3, &address[i]) != 0);
        }
        HOST_REQUIRE(memcmp(&address[0], &address[1], sizeof address[0]) != 0);
        ibv_free_device_list(list);
    }));
    unsetenv("SD_FAKE_VERBS_DEVICES");
}
