#include "tests/verbs/steps.hpp"
#include <cstdarg>
#include <ctime>
#include <poll.h>
#include <utility>

namespace sd::verbs {

namespace {

uint64_t number_of(const std::string &text) { return strtoull(text.c_str(), nullptr, 0); }

/// The value of NAME=VALUE among the words, or `otherwise`.
uint64_t option(const Words &words, const std::string &name, uint64_t otherwise) {
    for (const std::string &w : words)
        if (w.rfind(name + "=", 0) == 0)
            return number_of(w.substr(name.size() + 1));
    return otherwise;
}
bool has(const Words &words, const char *word) {
    for (const std::string &w : words)
        if (w == word)
            return true;
    return false;
}

uint64_t now_ms() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000 + static_cast<uint64_t>(t.tv_nsec) / 1'000'000;
}

/// The name that a status has in transcripts.
const char *status_name(ibv_wc_status s) {
    switch (s) {
    case IBV_WC_SUCCESS:
        return "success";
    case IBV_WC_LOC_LEN_ERR:
        return "local-length";
    // soft-RoCE says the first where the specification has the second.
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
        return "local-memory";
    case IBV_WC_WR_FLUSH_ERR:
        return "flushed";
    case IBV_WC_REM_INV_REQ_ERR:
        return "remote-request";
    case IBV_WC_REM_ACCESS_ERR:
        return "remote-access";
    case IBV_WC_REM_OP_ERR:
        return "remote-operation";
    case IBV_WC_RETRY_EXC_ERR:
        return "no-answer";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "no-receive";
    default:
        return "other";
    }
}

const char *event_name(ibv_event_type e) {
    switch (e) {
    case IBV_EVENT_CQ_ERR:
        return "queue-error";
    case IBV_EVENT_QP_FATAL:
        return "pair-fatal";
    case IBV_EVENT_QP_REQ_ERR:
        return "pair-request";
    case IBV_EVENT_QP_ACCESS_ERR:
        return "pair-access";
    case IBV_EVENT_COMM_EST:
        return "pair-established";
    case IBV_EVENT_DEVICE_FATAL:
        return "device-fatal";
    case IBV_EVENT_PORT_ACTIVE:
        return "port-active";
    case IBV_EVENT_PORT_ERR:
        return "port-error";
    default:
        return "other";
    }
}

const char *state_name(ibv_qp_state s) {
    static const char *const name[] = {"reset",    "init",       "receiving", "sending",
                                       "draining", "send-error", "error"};
    return s < std::size(name) ? name[s] : "other";
}

} // namespace

Side::Side(unsigned side, Rendezvous &other) : side_(side), other_(other) {
    if (!device_.open()) {
        fprintf(stderr, "no verbs device\n");
        exit(2);
    }
    channel_ = ibv_create_comp_channel(device_.context);
    queue_ = channel_ ? ibv_create_cq(device_.context, 4096, nullptr, channel_, 0) : nullptr;
    if (!queue_)
        wrong("no completion queue");
}

void Side::say(const char *format, ...) {
    printf("%u %u: ", side_, number_);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

void Side::wrong(const char *what) {
    fprintf(stderr, "line %u: %s\n", number_, what);
    exit(2);
}

Side::Place Side::place(const std::string &text) {
    const size_t first = text.find(':'), second = text.find(':', first + 1);
    const auto found = memories_.find(text.substr(0, first));
    if (first == std::string::npos || found == memories_.end())
        wrong("no such place");
    Place p{&found->second, number_of(text.substr(first + 1)), 0};
    if (second != std::string::npos)
        p.length = number_of(text.substr(second + 1));
    return p;
}

ibv_qp *Side::pair(const std::string &name) {
    const auto found = pairs_.find(name);
    if (found == pairs_.end())
        wrong("no such queue pair");
    return found->second;
}

void Side::make_pair(const Words &words) {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = queue_;
    a.qp_type = IBV_QPT_RC;
    a.cap.max_send_wr = static_cast<uint32_t>(option(words, "send", 16));
    a.cap.max_recv_wr = static_cast<uint32_t>(option(words, "receive", 16));
    a.cap.max_send_sge = 4;
    a.cap.max_recv_sge = 1;
    a.cap.max_inline_data = static_cast<uint32_t>(option(words, "inline", 64));
    ibv_qp *q = ibv_create_qp(device_.domain, &a);
    if (!q)
        wrong("no queue pair");
    struct Numbers {
        uint32_t number, mtu;
        ibv_gid address;
    };
    const Numbers theirs = other_.exchange(Numbers{q->qp_num, device_.mtu, device_.address});
    ibv_qp_attr m{};
    m.qp_state = IBV_QPS_INIT;
    m.port_num = device_.port;
    m.qp_access_flags = has(words, "closed") ? 0 : IBV_ACCESS_REMOTE_WRITE;
    bool made = ibv_modify_qp(q, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0;
    m = {};
    m.qp_state = IBV_QPS_RTR;
    m.path_mtu = theirs.mtu < device_.mtu ? static_cast<ibv_mtu>(theirs.mtu) : device_.mtu;
    m.dest_qp_num = theirs.number;
    m.min_rnr_timer = 1;
    m.max_dest_rd_atomic = 1;
    m.ah_attr.is_global = 1;
    m.ah_attr.port_num = device_.port;
    m.ah_attr.grh.dgid = theirs.address;
    m.ah_attr.grh.sgid_index = device_.address_index;
    m.ah_attr.grh.hop_limit = 64;
    made = made && ibv_modify_qp(q, &m,
                                 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0;
    m = {};
    m.qp_state = IBV_QPS_RTS;
    m.timeout = 14;
    m.retry_cnt = 6; // 7 is for ever with soft-RoCE
    m.rnr_retry = static_cast<uint8_t>(option(words, "rnr", 7));
    m.max_rd_atomic = 1;
    made = made && ibv_modify_qp(q, &m,
                                 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0;
    if (!made)
        wrong("the queue pair cannot be connected");
    pairs_[words[1]] = q;
    names_[q->qp_num] = words[1];
    other_.meet(number_); // both can be written to
}

Side::~Side() {
    for (auto &[name, memory] : memories_) {
        if (memory.registered)
            ibv_dereg_mr(memory.registered);
        delete memory.bytes;
    }
}

void Side::make_memory(const Words &words) {
    Memory m{};
    m.bytes = new std::vector<uint8_t>(number_of(words[2])); // until the end: the other side may write there
    const int access = has(words, "private") ? 0 : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    m.registered = ibv_reg_mr(device_.domain, m.bytes->data(), m.bytes->size(), access);
    if (!m.registered)
        wrong("no memory");
    struct Key {
        uint64_t address;
        uint32_t key, zero;
    };
    const Key theirs = other_.exchange(Key{reinterpret_cast<uint64_t>(m.bytes->data()), m.registered->rkey, 0});
    m.peer_address = theirs.address;
    m.peer_key = theirs.key;
    memories_[words[1]] = m;
}

void Side::fill(const Words &words) {
    const Place p = place(words[1]);
    auto seed = static_cast<uint32_t>(number_of(words[2]));
    for (uint64_t i = 0; i < p.length; ++i) {
        seed = seed * 1664525 + 1013904223;
        p.memory->bytes->at(p.offset + i) = static_cast<uint8_t>(seed >> 24);
    }
}

void Side::show(const Words &words) {
    const Place p = place(words[1]);
    uint64_t hash = 14695981039346656037u;
    for (uint64_t i = 0; i < p.length; ++i)
        hash = (hash ^ p.memory->bytes->at(p.offset + i)) * 1099511628211u;
    say("%s %016llx", words[1].c_str(), static_cast<unsigned long long>(hash));
}

void Side::receive(const Words &words) {
    const uint64_t first = number_of(words[2]), n = words.size() > 3 ? number_of(words[3]) : 1;
    for (uint64_t i = 0; i < n; ++i) {
        ibv_recv_wr r{}, *bad;
        r.wr_id = first + i;
        receives_.insert(r.wr_id);
        if (ibv_post_recv(pair(words[1]), &r, &bad) != 0)
            return say("refused");
    }
}

void Side::write(const Words &words) {
    Waiting w;
    w.request.wr_id = number_of(words[2]);
    for (size_t at = 0; at < words[3].size();) {
        const size_t end = words[3].find(',', at);
        const Place p = place(words[3].substr(at, end == std::string::npos ? end : end - at));
        w.pieces.push_back({reinterpret_cast<uint64_t>(p.memory->bytes->data() + p.offset),
                            static_cast<uint32_t>(p.length),
                            p.memory->registered->lkey + has(words, "lkey=wrong")});
        at = end == std::string::npos ? words[3].size() : end + 1;
    }
    const Place to = place(words[4]);
    w.request.opcode = IBV_WR_RDMA_WRITE;
    if (const uint64_t none = ~0ull, immediate = option(words, "immediate", none); immediate != none) {
        w.request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        w.request.imm_data = htonl(static_cast<uint32_t>(immediate));
    }
    unsigned flags = 0;
    if (has(words, "signaled"))
        flags |= IBV_SEND_SIGNALED;
    if (has(words, "inline"))
        flags |= IBV_SEND_INLINE;
    if (has(words, "solicited"))
        flags |= IBV_SEND_SOLICITED;
    w.request.send_flags = flags;
    w.request.wr.rdma.remote_addr = to.memory->peer_address + to.offset;
    w.request.wr.rdma.rkey = to.memory->peer_key + has(words, "key=wrong");
    waiting_.push_back(w);
    if (has(words, "then"))
        return;
    for (size_t i = 0; i < waiting_.size(); ++i) {
        waiting_[i].request.sg_list = waiting_[i].pieces.data();
        waiting_[i].request.num_sge = static_cast<int>(waiting_[i].pieces.size());
        waiting_[i].request.next = i + 1 < waiting_.size() ? &waiting_[i + 1].request : nullptr;
    }
    ibv_send_wr *bad;
    if (ibv_post_send(pair(words[1]), &waiting_[0].request, &bad) != 0)
        say("refused");
    waiting_.clear();
}

void Side::poll(const Words &words) {
    const uint64_t wanted = number_of(words[1]), until = now_ms() + (wanted ? 20'000 : 50);
    // Work and receives of one queue pair may end in any order among each other.
    std::map<std::pair<std::string, bool>, std::vector<ibv_wc>> found;
    uint64_t n = 0;
    while ((n < wanted || wanted == 0) && now_ms() < until) {
        ibv_wc wc;
        const int r = ibv_poll_cq(queue_, 1, &wc);
        if (r < 0)
            wrong("poll");
        if (r == 0) {
            usleep(500);
            continue;
        }
        found[{names_[wc.qp_num], receives_.count(wc.wr_id) != 0}].push_back(wc);
        ++n;
    }
    for (const auto &[where, completions] : found)
        for (const auto &name = where.first; const ibv_wc &wc : completions)
            if (wc.status != IBV_WC_SUCCESS)
                say("%s %llu %s", name.c_str(), static_cast<unsigned long long>(wc.wr_id),
                    status_name(wc.status));
            else if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM)
                say("%s %llu received %u bytes, immediate %u%s", name.c_str(),
                    static_cast<unsigned long long>(wc.wr_id), wc.byte_len, ntohl(wc.imm_data),
                    wc.wc_flags & IBV_WC_WITH_IMM ? "" : " without its flag");
            else
                say("%s %llu %s", name.c_str(), static_cast<unsigned long long>(wc.wr_id),
                    wc.opcode == IBV_WC_RDMA_WRITE ? "written" : "something else");
    if (n != wanted || n == 0)
        say("%llu completions", static_cast<unsigned long long>(n));
}

void Side::event(const Words &, bool wanted) {
    pollfd p = {channel_->fd, POLLIN, 0};
    if (::poll(&p, 1, wanted ? 20'000 : 100) != 1)
        return say("no event");
    ibv_cq *q;
    void *user;
    if (ibv_get_cq_event(channel_, &q, &user) != 0)
        return say("no event");
    ibv_ack_cq_events(q, 1);
    say("event%s", q == queue_ ? "" : " of another queue");
}

void Side::async() {
    pollfd p = {device_.context->async_fd, POLLIN, 0};
    ibv_async_event e;
    if (::poll(&p, 1, 20'000) != 1 || ibv_get_async_event(device_.context, &e) != 0)
        return say("no event");
    const bool of_pair = e.event_type == IBV_EVENT_QP_FATAL || e.event_type == IBV_EVENT_QP_ACCESS_ERR ||
                         e.event_type == IBV_EVENT_QP_REQ_ERR;
    say("%s %s", event_name(e.event_type), of_pair ? names_[e.element.qp->qp_num].c_str() : "");
    ibv_ack_async_event(&e);
}

void Side::step(uint32_t number, const Words &words, bool for_us) {
    number_ = number;
    const std::string &name = words[0];
    if (name == "pair") // these concern both sides
        return make_pair(words);
    if (name == "memory")
        return make_memory(words);
    if (!for_us)
        return;
    if (name == "fill")
        fill(words);
    else if (name == "show")
        show(words);
    else if (name == "receive")
        receive(words);
    else if (name == "write")
        write(words);
    else if (name == "poll")
        poll(words);
    else if (name == "arm")
        ibv_req_notify_cq(queue_, words[1] == "solicited");
    else if (name == "event" || name == "no-event")
        event(words, name == "event");
    else if (name == "async")
        async();
    else if (name == "error") {
        ibv_qp_attr a{};
        a.qp_state = IBV_QPS_ERR;
        if (ibv_modify_qp(pair(words[1]), &a, IBV_QP_STATE) != 0)
            say("refused");
    } else if (name == "state") {
        ibv_qp_attr a{};
        ibv_qp_init_attr i{};
        say("%s", ibv_query_qp(pair(words[1]), &a, IBV_QP_STATE, &i) == 0 ? state_name(a.qp_state) : "unknown");
    } else if (name == "destroy") {
        if (ibv_destroy_qp(pair(words[1])) != 0)
            say("refused");
        pairs_.erase(words[1]);
    } else if (name == "forget") {
        ibv_mr *&registered = memories_.at(words[1]).registered;
        if (ibv_dereg_mr(std::exchange(registered, nullptr)) != 0)
            say("refused");
    } else
        wrong("no such step");
}

} // namespace sd::verbs
