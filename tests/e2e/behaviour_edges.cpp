// Corners that random sequences of calls (tests/differential) brought to light, each compared with the
// kernel.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

BEHAVES("a reset after the peer's end of file", edges, reset_after_half_close, accelerated)
BEHAVES("data for a peer that shut both directions", edges, data_for_a_peer_that_shut_both, accelerated)
BEHAVES("no edge at a close that sends nothing", edges, no_edge_at_a_close_that_sends_nothing, accelerated)
BEHAVES("a handler that sends to the call it interrupts", edges, handler_sends_to_the_call_it_interrupts,
        accelerated)
BEHAVES("close after a reset", edges, close_after_a_reset, accelerated)
BEHAVES("nothing sent to a closed peer resets nothing", edges, nothing_sent_to_a_closed_peer, accelerated)
BEHAVES("small messages at bad addresses", edges, small_messages_at_bad_addresses, accelerated)
BEHAVES("much sent to a closed peer", edges, much_sent_to_a_closed_peer, accelerated)
BEHAVES("a connection undone with AF_UNSPEC", edges, undone_connection, accelerated)
BEHAVES("a listener undone with AF_UNSPEC", edges, undone_listener, any)
BEHAVES("bind of a connection looks at the address first", edges, bind_looks_at_the_address_first, accelerated)
BEHAVES("shutdown before connecting", edges, shutdown_before_connecting, any)
BEHAVES("accept takes clients in the order of arrival", edges, accept_in_order_of_arrival, accelerated)
BEHAVES("each shutdown is an edge", edges, edge_at_each_shutdown, accelerated)
BEHAVES("data is an edge also when read meanwhile", edges, edge_of_data_read_meanwhile, accelerated)
BEHAVES("select that cannot end is interrupted", edges, select_that_cannot_end_is_interrupted, accelerated)
BEHAVES("MSG_PEEK with MSG_WAITALL is interrupted", edges, peek_for_all_is_interrupted, accelerated)
BEHAVES("MSG_PEEK with MSG_WAITALL ends with the data", edges, peek_for_all_ends_with_the_data, accelerated)
BEHAVES("a part sent is told at a signal", edges, a_part_sent_is_told_at_a_restarting_signal, accelerated)
BEHAVES("connect again after SO_ERROR", edges, connecting_again_after_asking_for_the_error, accelerated)
BEHAVES("MSG_WAITALL ends at urgent data", edges, waiting_for_all_ends_at_urgent_data, accelerated)
BEHAVES("shutdown wakes readers in other processes", edges, shutdown_wakes_readers_elsewhere, accelerated)
BEHAVES("recvmmsg tells a waiting error first", edges, errors_told_by_recvmmsg, accelerated)
BEHAVES("messages that cannot be read", edges, unreadable_messages, untouched)
BEHAVES("how a dead process ends its connections", edges, how_a_dead_process_ends_connections, accelerated)
