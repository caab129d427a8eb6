// What a helper of the monitor gives up before it looks at anything that a stranger could have written.
#pragma once

namespace sd::monitor {

/// Becomes these users and groups ("real,effective,saved"; null: stays who it is), without other groups,
/// capabilities, or a way to have any again. False, with errno: it cannot; it must not go on then.
[[nodiscard]] bool give_up_privileges(const char *users, const char *groups);

} // namespace sd::monitor
