// What init needs of asynchronous I/O.
#pragma once

namespace sd {

/// Requests belong to the process that made them.
void reset_aio_in_child() noexcept;

} // namespace sd
