// Nothing grows in a program that makes and ends connections for ever.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

BEHAVES("listeners that come and go leave nothing", growth, listeners_come_and_go, accelerated)
BEHAVES("connections that children close last leave nothing", growth, children_close_last, accelerated)
