// The BPF programs of discovery (option.bpf.c): in the kernel for as long as this lives.
#pragma once
#include "monitor/discovery/option_layout.h"
#include "monitor/service/policy.hpp"

#include <array>
#include <memory>
#include <stdexcept>

struct bpf_map;
struct bpf_object;

namespace sd::monitor {

/// Why there is no discovery, for people.
struct DiscoveryUnavailable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using ProofKey = std::array<uint64_t, 2>;

class OptionPrograms {
  public:
    using Counts = std::array<uint64_t, SD_STATES>; ///< how many ends have come to each sd_state

    /// For sockets that processes in `group` make, or below it: a directory of the unified hierarchy.
    /// `networks`: the option is put into SYNs to these only. Throws DiscoveryUnavailable.
    OptionPrograms(const std::string &group, const std::vector<AddressMatch> &networks);
    ~OptionPrograms();
    OptionPrograms(const OptionPrograms &) = delete;
    OptionPrograms &operator=(const OptionPrograms &) = delete;

    /// From now on SYNs to these have the option, and others have not.
    void ask(const std::vector<AddressMatch> &networks);
    /// What the kernel keeps for the socket. Nothing: it is not marked.
    std::optional<sd_end> end_of(int socket) const;
    Counts counts() const;
    /// Which proofs are made with: for the monitors of peer hosts.
    const ProofKey &proof_key() const { return proof_key_; }

  private:
    struct Closer {
        void operator()(bpf_object *object) const;
    };
    std::unique_ptr<bpf_object, Closer> object_;
    ProofKey proof_key_{};
    std::array<int, 2> links_{-1, -1}; ///< descriptors: the programs are detached when these are closed
    bpf_map *ends_ = nullptr, *networks_ = nullptr, *counts_ = nullptr;
};

/// What the kernel calls the state ("paired"), for sdstat.
const char *state_name(unsigned state);

/// Where the unified hierarchy is mounted, empty: nowhere. Only its top holds all processes.
std::string unified_top();

} // namespace sd::monitor
