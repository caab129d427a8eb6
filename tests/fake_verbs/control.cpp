#include "tests/fake_verbs/control.hpp"
#include "tests/fake_verbs/completion.hpp"
#include "tests/fake_verbs/engine.hpp"
#include "tests/fake_verbs/process.hpp"

namespace sd::fake_verbs {

namespace {

void set_fault(Fault which, uint32_t value) {
    Faults &f = fabric()->faults;
    std::atomic<uint32_t> *const word[] = {&f.device, &f.late_us, &f.reorder, &f.early, &f.cut, &f.rnr};
    word[static_cast<uint32_t>(which)]->store(value);
}

template <class Do> void each_context(uint32_t host, uint32_t device, Do act) {
    Fabric &f = *fabric();
    for (uint32_t i = 0; i < kContexts; ++i)
        if (Context &c = f.context[i]; c.used.load() && c.host == host && c.device == device && alive(i))
            act(i, c);
}

void device(uint32_t host, uint32_t device, int present) {
    Fabric &f = *fabric();
    f.device[host][device].removed.store(present ? 0 : 1);
    if (present)
        return;
    each_context(host, device, [&](uint32_t i, Context &c) {
        c.gone.store(1);
        for (uint32_t q = 0; q < kQueuePairs; ++q)
            if (f.queue_pair[q].used.load() && f.queue_pair[q].context == i)
                sd::fake_verbs::fail(f, q);
        raise_event(i, {IBV_EVENT_DEVICE_FATAL, 0, 0});
    });
}

void port(uint32_t host, uint32_t device, int up) {
    fabric()->device[host][device].port_down.store(up ? 0 : 1);
    each_context(host, device, [&](uint32_t i, Context &) {
        raise_event(i, {up ? uint32_t{IBV_EVENT_PORT_ACTIVE} : uint32_t{IBV_EVENT_PORT_ERR}, 1, 0});
    });
}

void full(uint32_t host, uint32_t device, int is_full) {
    fabric()->device[host][device].full.store(is_full ? 1 : 0);
}

void fail_pair(uint32_t number) {
    Fabric &f = *fabric();
    const uint32_t i = queue_pair_of(number);
    const QueuePair &q = f.queue_pair[i];
    if (!q.used.load() || queue_pair_number(i, q.number.load()) != number)
        return;
    sd::fake_verbs::fail(f, i);
    raise_event(q.context, {IBV_EVENT_QP_FATAL, i, q.number.load()});
}

void run(uint32_t parent) { sd::fake_verbs::run_device(*fabric(), parent); }

template <class T, size_t N> uint32_t in_use(const T (&table)[N]) {
    uint32_t n = 0;
    for (const T &e : table)
        n += e.used.load() && alive(e.context);
    return n;
}
uint32_t count(char kind) {
    const Fabric &f = *fabric();
    switch (kind) {
    case 'c':
        return in_use(f.context);
    case 'd':
        return in_use(f.domain);
    case 'm':
        return in_use(f.memory);
    case 'q':
        return in_use(f.queue);
    case 'p':
        return in_use(f.queue_pair);
    default:
        return 0;
    }
}
uint64_t through_kernel() { return fabric()->through_kernel.load(); }

} // namespace
} // namespace sd::fake_verbs

extern "C" {

extern const sd::fake_verbs::Control sd_fake_verbs_control;
const sd::fake_verbs::Control sd_fake_verbs_control = {
    sd::fake_verbs::set_fault, sd::fake_verbs::device, sd::fake_verbs::port,  sd::fake_verbs::full,
    sd::fake_verbs::fail_pair, sd::fake_verbs::run,    sd::fake_verbs::count, sd::fake_verbs::through_kernel};

const char *ibv_wc_status_str(ibv_wc_status s) {
    switch (s) {
    case IBV_WC_SUCCESS:
        return "success";
    case IBV_WC_LOC_PROT_ERR:
        return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
        return "Work Request Flushed Error";
    case IBV_WC_REM_ACCESS_ERR:
        return "remote access error";
    case IBV_WC_RETRY_EXC_ERR:
        return "transport retry counter exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "RNR retry counter exceeded";
    default:
        return "unknown";
    }
}

const char *ibv_event_type_str(ibv_event_type e) {
    switch (e) {
    case IBV_EVENT_CQ_ERR:
        return "CQ error";
    case IBV_EVENT_QP_FATAL:
        return "local work queue catastrophic error";
    case IBV_EVENT_QP_ACCESS_ERR:
        return "local access violation work queue error";
    case IBV_EVENT_PORT_ACTIVE:
        return "port active";
    case IBV_EVENT_PORT_ERR:
        return "port error";
    case IBV_EVENT_DEVICE_FATAL:
        return "local catastrophic error";
    default:
        return "unknown";
    }
}

} // extern "C"
