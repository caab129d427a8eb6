// What sd-peers leaves itself before it hears of any stranger.
#pragma once

namespace sd::monitor {

/// From here on only the calls that TCP connections take; others fail with EPERM. No file can be opened,
/// nothing executed or signalled. False, with errno.
[[nodiscard]] bool enter_peers_sandbox();

} // namespace sd::monitor
