// Where what every fork touches lies. A page that parent or child writes after a fork has to be copied, and
// one with code of the library that the child runs has to be mapped there: about a microsecond each, for a
// child that may do nothing but exit. So it stands together.
#pragma once

/// In front of a variable that every fork writes, or reads in the child. The line of cache is its own.
#define SD_FORK_STATE [[gnu::section("sd_fork_state")]] alignas(64)
/// In front of a function that every fork runs.
#define SD_FORK_CODE [[gnu::section(".text.hot.sd_fork")]]
