// Ends of accelerated connections as sockets.
#include "monitor/sdstat/sockets.hpp"

#include <iterator>

namespace sd::stat {

using monitor::ConnectionRow;
using monitor::RowEnd;

namespace {

constexpr const char *kFilterNames[kStates] = {"established", "syn-sent",  "syn-recv", "fin-wait-1",
                                               "fin-wait-2",  "time-wait", "closed",   "close-wait",
                                               "last-ack",    "listening", "closing"};
constexpr const char *kTableNames[kStates] = {"ESTAB",      "SYN-SENT",  "SYN-RECV", "FIN-WAIT-1",
                                              "FIN-WAIT-2", "TIME-WAIT", "CLOSED",   "CLOSE-WAIT",
                                              "LAST-ACK",   "LISTEN",    "CLOSING"};

/// What the kernel would say: there is no way between two ends, so a FIN has arrived when it is sent.
State state_of(uint32_t own, uint32_t other) {
    if (((own | other) & (kFlagReset | kFlagDead)) != 0) {
        return State::closed;
    }
    const bool is_shut = (own & (kFlagWriteShut | kFlagClosed)) != 0;
    const bool is_ended = (other & (kFlagWriteShut | kFlagClosed)) != 0;
    return is_shut && is_ended ? State::last_ack
           : is_shut           ? State::fin_wait_2
           : is_ended          ? State::close_wait
                               : State::established;
}

} // namespace

const char *filter_name(State state) { return kFilterNames[static_cast<size_t>(state)]; }
const char *table_name(State state) { return kTableNames[static_cast<size_t>(state)]; }

Socket socket_of(const Snapshot &snapshot, const ConnectionRow &row, unsigned side) {
    const RowEnd &own = row.end[side], &peer = row.end[1 - side];
    Socket s;
    s.state = state_of(own.flags, peer.flags);
    s.send_path = static_cast<monitor::Path>(own.path);
    s.receive_path = static_cast<monitor::Path>(peer.path);
    s.local = own.address;
    s.peer = peer.address;
    s.pid = own.pid;
    s.peer_pid = peer.pid;
    s.comm = comm_of(own);
    s.peer_comm = comm_of(peer);
    if (const auto it = snapshot.processes.find(own.pid); it != snapshot.processes.end()) {
        s.unit = it->second.unit;
    }
    s.send_queue = monitor::queued(row, side);
    s.receive_queue = monitor::queued(row, 1 - side);
    s.sent_bytes = monitor::bytes_from(row, side);
    s.received_bytes = monitor::bytes_from(row, 1 - side);
    s.since = row.since;
    s.row = &row;
    s.side = side;
    return s;
}

} // namespace sd::stat
