// What most unit tests include of other people's headers: tests/support/meson.build.
#pragma once

#include <catch2/catch.hpp>

#include "tests/support/pch/standard.hpp"
