// Alone, so that each test still shows what else it includes: tests/support/meson.build. g++ has nobody say
// "#pragma once" here.
#include <catch2/catch.hpp>
