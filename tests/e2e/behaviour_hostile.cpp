// What a peer can do with the memory it shares with us: break its own connection.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

BEHAVES("rubbish in a ring resets the connection", hostile, scribbled_record, accelerated)
BEHAVES("a victim survives whatever a peer writes", hostile, victim_survives_anything, accelerated)
