// Sockets: ends of accelerated connections, and those of a process that the kernel carries.
#pragma once
#include "monitor/sdstat/snapshot.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace sd::stat {

/// As ss(8) names them.
enum class State : uint8_t {
    established,
    syn_sent,
    syn_recv,
    fin_wait_1,
    fin_wait_2,
    time_wait,
    closed,
    close_wait,
    last_ack,
    listening,
    closing,
};
constexpr unsigned kStates = 11;
/// "established": for filters. In a table: "ESTAB".
const char *filter_name(State state);
const char *table_name(State state);

struct Socket {
    State state = State::established;
    monitor::Path send_path = monitor::Path::shm, receive_path = monitor::Path::shm;
    SlotAddress local{}, peer{};
    uint32_t pid = 0, peer_pid = 0; ///< 0: not known
    std::string comm, peer_comm, unit;
    int64_t send_queue = -1, receive_queue = -1; ///< bytes; -1: not known
    uint64_t sent_bytes = 0, received_bytes = 0;
    double since = 0;                            ///< 0: not known
    const monitor::ConnectionRow *row = nullptr; ///< null: a socket of the kernel
    unsigned side = 0;
    int descriptor = -1; ///< of the kernel's only: libsd alone knows the others' numbers
};

/// One end of an accelerated connection, as its process has it.
Socket socket_of(const Snapshot &snapshot, const monitor::ConnectionRow &row, unsigned side);
/// TCP sockets of a process that the kernel carries. `why`: what could not be seen, or empty.
std::vector<Socket> kernel_sockets(uint32_t pid, std::string *why);

} // namespace sd::stat
