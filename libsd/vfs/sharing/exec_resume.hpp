// Taking over, in a new program image, what the former one left.
#pragma once

namespace sd {

/// In the new image, once, before any other thread: takes over what the table lists. A number that is no
/// table is ignored.
void resume_after_exec(int table_fd) noexcept;

} // namespace sd
