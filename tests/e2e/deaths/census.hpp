// What is in use, in this process and in everything that sd-monitor sees: to tell whether a round left
// something behind.
#pragma once

#include "tests/e2e/deaths/board.hpp"

#include <map>

namespace deaths {

using Census = std::map<std::string, long>;

// Empty if no monitor answers (on kernel sockets).
Census take_census();

// Waits until nothing is more than in `before`, as the monitor cleans up at its own pace; names what stayed.
// False: something did.
bool returns_to(const Census &before, int patience_ms);

} // namespace deaths
