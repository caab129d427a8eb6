// What another user, or a process that gave up rights, can gain: nothing that the kernel would not have
// given.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

BEHAVES("whoever listens next at an address gets its clients", strangers, next_listener_has_the_library, any)
BEHAVES("also without the library", strangers, next_listener_has_not, any)
BEHAVES("also when the former socket listens elsewhere", strangers, first_one_listens_elsewhere, any)
BEHAVES("also when the former socket listens elsewhere, without the library", strangers,
        first_one_listens_elsewhere_and_next_has_no_library, any)

BEHAVES("a client cannot have a privileged port", strangers, forged_privileged_port, accelerated)
BEHAVES("a client cannot be at another host", strangers, forged_remote_client, accelerated)
BEHAVES("a client cannot give the server another name", strangers, forged_own_name, accelerated)
BEHAVES("a client cannot give the server another port", strangers, forged_own_port, accelerated)
BEHAVES("a client cannot give the server no name", strangers, forged_wildcard, accelerated)
BEHAVES("a client cannot give the server another family", strangers, forged_family, accelerated)

BEHAVES("sockets of both families", strangers, sockets_of_both_families, any)
BEHAVES("a family that a filter refuses from the start", strangers, started_without_a_family, any)
BEHAVES("sockets made before a filter", strangers, sockets_before_a_filter, any)
BEHAVES("no socket of ours is left behind a filter", strangers, nothing_kept_behind_a_filter, accelerated)
BEHAVES("sockets in two network namespaces", strangers, sockets_in_two_namespaces, any)
