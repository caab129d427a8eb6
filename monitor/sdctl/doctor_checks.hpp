// The single checks of "sdctl doctor" that look at the host: each appends what it has found.
#pragma once
#include "monitor/sdctl/doctor.hpp"

#include <vector>

namespace sd::ctl {

using Findings = std::vector<Diagnosis>;

void check_versions(Findings &out);
/// `monitor_pid`: of the one that answers, as seen from here; 0: none does.
void check_containers(Findings &out, int monitor_pid);
void check_bpf(Findings &out, int monitor_pid);
void check_devices(Findings &out);
void check_memory(Findings &out);

} // namespace sd::ctl
