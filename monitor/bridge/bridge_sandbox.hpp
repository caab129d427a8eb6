// What sd-bridge leaves itself before it looks at anything that a program could have written. Its rights have
// gone by then: sandbox/privileges.hpp.
#pragma once

namespace sd::monitor {

/// From here on only the calls that carrying bytes takes; others fail with EPERM. No file can be opened,
/// nothing executed, connected to or signalled. False, with errno.
[[nodiscard]] bool enter_bridge_sandbox();

} // namespace sd::monitor
