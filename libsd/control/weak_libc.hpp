// Included in front of everything that becomes libsd.so: what it takes from the C library are weak
// references, so that a program whose C library lacks one of them (musl, an old glibc) starts all the same.
// The library does nothing there (api/init.cpp).
#pragma once
#ifdef __clang__
#pragma clang system_header // no warning of names that a file does not use
#endif

#define SD_WEAK_PRAGMA(text) _Pragma(#text)
#define SD_ANYWHERE(name)
#define SD_NEEDS(name) SD_WEAK_PRAGMA(weak name)
#define SD_LATE(name) SD_WEAK_PRAGMA(weak name)
#include "libsd/control/libc_needs.def"
#undef SD_ANYWHERE
#undef SD_NEEDS
#undef SD_LATE
#undef SD_WEAK_PRAGMA
