// What each interposed call asks before anything else, side by side in one cache line: a system call of the
// kernel's throws much out of the first-level cache, and a program that has no use for the library feels
// every further line.
#pragma once

/// On the definition of such a variable: puts it next to the others. Together they are less than 64 bytes.
#define SD_HOT_STATE [[gnu::section("sd_hot_state")]]
