// sdctl peers: the hosts whose monitors this one talks with.
#pragma once
#include "monitor/sdctl/failure.hpp"

namespace sd::ctl {

/// Prints them. `trouble`: there is one that is not up. Throws Failure.
Exit show_peers(bool as_json);

} // namespace sd::ctl
