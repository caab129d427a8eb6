// Where what every start of a program touches lies. Most programs never make a TCP socket: for them each page
// of the library that its constructor writes costs a copy, and each part of its code that it runs a fault, of
// a microsecond or more. So it stands together.
#pragma once

/// In front of a variable that the constructor writes, and no constant initializes.
#define SD_START_STATE [[gnu::section("sd_start_state")]]
/// In front of a function that the constructor runs.
#define SD_START_CODE [[gnu::section(".text.startup.sd")]]
