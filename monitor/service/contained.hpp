// What clients may ask that came by the containers' socket.
#pragma once
#include "libsd/layout/protocol.hpp"

namespace sd::monitor {

bool is_answered_when_contained(wire::Op op);

} // namespace sd::monitor
