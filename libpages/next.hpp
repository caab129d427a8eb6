// The functions that stand behind this library's own of the same names.
#pragma once
#include <cstdlib>
#include <fcntl.h>
#include <malloc.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

namespace sd::pages {

/// Null where there is no such function.
struct Next {
#define SD_NEXT(name) decltype(&::name) name;
#include "libpages/next.def"
#undef SD_NEXT
};

/// Any thread, and before any constructor has run: the dynamic linker's first call of malloc comes here.
/// Looks everything up at the first call; neither that nor later ones allocate.
const Next &next() noexcept;

/// True where malloc and free of this library are those that the program calls: no object in front of it
/// exports one of them.
bool serves_malloc() noexcept;

} // namespace sd::pages
