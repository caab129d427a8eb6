// What sharing.cpp finds in each of the two modules.
#pragma once

extern "C" {
__attribute__((visibility("default"))) void sharing_setup();
__attribute__((visibility("default"))) void sharing_run(unsigned long rounds);
__attribute__((visibility("default"))) void sharing_round_trips(unsigned long rounds, int cpu);
}
