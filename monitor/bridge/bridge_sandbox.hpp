// What sd-bridge gives up before it looks at anything that a program could have written.
#pragma once

namespace sd::monitor {

/// Becomes the user and group whose connections it carries ("real,effective,saved"; null: stays who it is),
/// without other groups, capabilities, or a way to have any again. False, with errno: it cannot; it must not
/// go on then.
[[nodiscard]] bool give_up_privileges(const char *users, const char *groups);
/// From here on only the calls that carrying bytes takes; others fail with EPERM. No file can be opened,
/// nothing executed, connected to or signalled. False, with errno.
[[nodiscard]] bool enter_bridge_sandbox();

} // namespace sd::monitor
