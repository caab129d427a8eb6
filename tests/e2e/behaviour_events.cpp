// Descriptors, readiness and listeners, each compared with the kernel.
#include "tests/e2e/runner.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

BEHAVES("duplicates share O_NONBLOCK and the stream", descriptors, duplicates_share_status, accelerated)
BEHAVES("status flags", descriptors, status_flags, accelerated)
BEHAVES("the last close ends the connection", descriptors, last_close_ends, accelerated)
BEHAVES("dup2 over a connection", descriptors, dup2_replaces, accelerated)
BEHAVES("lowest number first", descriptors, lowest_number_first, accelerated)
BEHAVES("numbers of short connections", descriptors, numbers_of_short_connections, accelerated)
BEHAVES("connections on 0, 1 and 2", descriptors, standard_numbers, accelerated)
BEHAVES("close_range and closefrom", descriptors, close_ranges, accelerated)
BEHAVES("close_range with CLOSE_RANGE_CLOEXEC", descriptors, marked_by_range, any)
BEHAVES("closing everything in a loop", descriptors, close_everything_loop, accelerated)
BEHAVES("EMFILE", descriptors, no_numbers_left, accelerated)
BEHAVES("a copy under the number of a closed socket", descriptors, duplicate_onto_a_closed_number, accelerated)
BEHAVES("waiting without a number to spare", exhausted, waiting_without_numbers, accelerated)
BEHAVES("the last number connects", exhausted, last_number_connects, any)
BEHAVES("the last number connects, with no number for the library before", exhausted,
        last_number_from_the_start, any)
BEHAVES("every number below the limit is the program's", exhausted, all_numbers, accelerated)
BEHAVES("used up numbers stay used up, with a final limit", exhausted, final_limit_stays_used_up, any)
BEHAVES("used up numbers stay used up, with several threads", exhausted, threads_limit_stays_used_up, any)
BEHAVES("clients of the kernel's queue get each number", exhausted, kernel_clients_get_each_number, any)
BEHAVES("fstat and /proc/self/fd", descriptors, file_status, accelerated)
BEHAVES("a reused number knows nothing of before", descriptors, reused_number_is_a_stranger, accelerated)

BEHAVES("readiness in every state", waiting, every_state, accelerated)
BEHAVES("a full connection, drained", waiting, full_and_drained, accelerated)
BEHAVES("only what was asked for", waiting, only_what_was_asked, accelerated)
BEHAVES("mixed kinds of descriptors", waiting, mixed_kinds, accelerated)
BEHAVES("woken by each kind", waiting, woken_by_each_kind, accelerated)
BEHAVES("deadlines of poll, ppoll, select, pselect", waiting, deadlines, accelerated)
BEHAVES("sets of select", waiting, select_sets, accelerated)
BEHAVES("the same descriptor twice", waiting, same_descriptor_twice, accelerated)
BEHAVES("200 connections", waiting, many, accelerated)
BEHAVES("bad arguments", waiting, bad_arguments, accelerated)
BEHAVES("signal masks", waiting, signal_masks, accelerated)
BEHAVES("the peer closes meanwhile", waiting, closed_while_waiting_elsewhere, accelerated)

BEHAVES("level triggering", epoll_basics, level, accelerated)
BEHAVES("edge triggering", epoll_basics, edge, accelerated)
BEHAVES("edge triggering, and a peer that stops reading", epoll_basics, edge_and_a_peer_that_stops_reading,
        accelerated)
BEHAVES("edge triggering for writing", epoll_basics, edge_writable, accelerated)
BEHAVES("EPOLLOUT after a drain", epoll_basics, edge_and_level_writable_after_drain, accelerated)
BEHAVES("one-shot", epoll_basics, one_shot, accelerated)
BEHAVES("EPOLLRDHUP and EPOLLHUP", epoll_basics, hang_up_bits, accelerated)
BEHAVES("ready before it is added", epoll_basics, already_ready_when_added, accelerated)
BEHAVES("changes that must fail", epoll_basics, wrong_changes, accelerated)
BEHAVES("closed members leave", epoll_basics, closed_members_leave, accelerated)
BEHAVES("duplicates keep members", epoll_basics, duplicates_keep_members, accelerated)
BEHAVES("removed members are silent", epoll_basics, removed_members_are_silent, accelerated)
BEHAVES("the data word is kept", epoll_basics, data_word_is_kept, accelerated)
BEHAVES("several sets", epoll_basics, several_sets, accelerated)

BEHAVES("nested sets", epoll_nested, nested, accelerated)
BEHAVES("a set in poll and select", epoll_nested, set_in_poll_and_select, accelerated)
BEHAVES("mixed kinds of members", epoll_more, mixed_kinds, accelerated)
BEHAVES("fair with room for one event", epoll_more, fair_with_little_room, accelerated)
BEHAVES("fair to all when busy", epoll_more, fair_when_busy, accelerated)
BEHAVES("a busy socket does not hide a pipe", epoll_more, busy_socket_and_quiet_pipe, accelerated)
BEHAVES("rules of EPOLLEXCLUSIVE", epoll_more, exclusive, accelerated)
BEHAVES("several exclusive waiters", epoll_more, exclusive_listeners, accelerated)
BEHAVES("changed while somebody waits", epoll_more, changed_while_waiting, accelerated)
BEHAVES("several waiters, one-shot", epoll_more, several_waiters_one_shot, accelerated)
BEHAVES("shared with a child", epoll_more, shared_with_a_child, accelerated)
BEHAVES("deadlines", epoll_more, deadlines, accelerated)
BEHAVES("signal masks", epoll_more, signal_masks, accelerated)
BEHAVES("no lost wake-up", epoll_more, no_lost_wakeup, accelerated)
BEHAVES("a client that another thread adds beside an idle listener", epoll_more,
        client_added_beside_an_idle_listener, accelerated)
BEHAVES("a client after the last connection has left the set", epoll_more,
        client_after_the_last_connection_has_left, accelerated)

BEHAVES("a set with a readable pipe in another", epoll_nested, nested_set_with_a_readable_pipe, accelerated)
BEHAVES("sets nested beneath sleepers", epoll_nested, nested_beneath_sleepers, accelerated)
BEHAVES("a full one-shot member is armed again while somebody waits", rearmed, full_one_shot_armed_again,
        accelerated)
BEHAVES("a one-shot member is filled and armed again while somebody waits", rearmed,
        one_shot_filled_and_armed_again, accelerated)
BEHAVES("an edge-triggered member is filled while somebody waits", rearmed, edge_triggered_and_filled, accelerated)
BEHAVES("workers arm one-shot members", waiters, one_shot_armed_by_workers, accelerated)
BEHAVES("many waiters on a level-triggered set", waiters, level_triggered_with_many_waiters, accelerated)
BEHAVES("many waiters on an edge-triggered set", waiters, edge_triggered_with_many_waiters, accelerated)
BEHAVES("workers take members out and put them back", waiters, members_taken_out_and_put_back, accelerated)
BEHAVES("members that another thread changes", waiters, changed_by_a_thread_beside, accelerated)
BEHAVES("members and a set that another thread polls", waiters, polled_beside, accelerated)
BEHAVES("members of two sets", waiters, members_of_two_sets, accelerated)
BEHAVES("many waiters on a nested set", waiters, nested_set_with_many_waiters, accelerated)
BEHAVES("an edge-triggered nested set", waiters, edge_triggered_nested_set, accelerated)
BEHAVES("numbers of members are used again", waiters, numbers_used_again, accelerated)
BEHAVES("two wait before there is a member", waiters, waiters_before_the_first_member, accelerated)
BEHAVES("a long transfer with a thread that polls for others", waiters, bulk_with_a_polling_thread, accelerated)
BEHAVES("a member through a new listener while others sleep", waiters, new_listener_while_others_sleep, accelerated)
BEHAVES("arrivals in an edge-triggered nested set", epoll_nested, arrivals_in_an_edge_triggered_set, accelerated)
BEHAVES("a set for each answer", short_lived, a_set_for_each_answer, accelerated)
BEHAVES("a set for each client", short_lived, a_set_for_each_client, accelerated)
BEHAVES("a thread for each answer", short_lived, a_thread_for_each_answer, accelerated)
BEHAVES("sets and threads in turn", short_lived, sets_and_threads_in_turn, accelerated)
BEHAVES("a set before a fork and one after", short_lived, a_set_before_a_fork_and_one_after, accelerated)

BEHAVES("readiness and EAGAIN", accepting, readiness, accelerated)
BEHAVES("edge-triggered listener", accepting, edge_triggered, accelerated)
BEHAVES("flags of accept4", accepting, flags, accelerated)
BEHAVES("a timeout that is no wait at all", accepting, does_not_wait, accelerated)
BEHAVES("first come, first served", accepting, first_come_first_served, accelerated)
BEHAVES("data before accept", accepting, data_before_accept, accelerated)
BEHAVES("closed before accept", accepting, closed_before_accept, accelerated)
BEHAVES("half-closed before accept", accepting, shut_before_accept, accelerated)
BEHAVES("reset before accept", accepting, reset_before_accept, accelerated)
BEHAVES("listener closed with connections waiting", accepting, listener_closed, accelerated)
BEHAVES("the address used again", accepting, listen_again, accelerated)
BEHAVES("a filled backlog", accepting, backlog, accelerated)
BEHAVES("a client that is quicker than accept", accepting, quick_client, all_accelerated)
BEHAVES("woken by a connection", accepting, woken_by_connection, accelerated)
BEHAVES("woken by shutdown", accepting, woken_by_shutdown, any)
BEHAVES("poll woken by shutdown", accepting, poll_woken_by_listener_shutdown, any)
BEHAVES("several processes share a listener", accepting, several_processes, accelerated)
BEHAVES("several processes with epoll share a listener", accepting, several_processes_epoll, accelerated)
BEHAVES("acceptors that take one connection each are all woken", accepting, acceptors_that_take_one_each,
        accelerated)
BEHAVES("several threads share a listener", accepting, several_threads, accelerated)
BEHAVES("SO_REUSEPORT", accepting, reuse_port, any)

BEHAVES("UDP", untouched, udp, untouched)
BEHAVES("AF_UNIX", untouched, unix_stream, untouched)
BEHAVES("socketpair", untouched, socket_pairs, untouched)
BEHAVES("pipes", untouched, pipes, untouched)
BEHAVES("files", untouched, files, untouched)
BEHAVES("netlink", untouched, netlink, untouched)
BEHAVES("eventfd", untouched, event_counter, untouched)
BEHAVES("memory barriers", untouched, memory_barriers, untouched)
BEHAVES("waiting with bad pointers", untouched, waits_with_bad_pointers, untouched)

BEHAVES("a connection made by syscall()", other_doors, raw_connection, any)
BEHAVES("syscall() with socket numbers", other_doors, raw_calls, accelerated)
BEHAVES("glibc's aliases", other_doors, aliases, accelerated)
BEHAVES("fortified wrappers", other_doors, fortified, accelerated)
BEHAVES("stdio over a connection", other_doors, streams, accelerated)
BEHAVES("stdio streams that are opened again", other_doors, streams_opened_again, accelerated)
BEHAVES("much data through stdio", other_doors, streams_large, accelerated)
BEHAVES("dprintf", other_doors, formatted_to_descriptor, accelerated)
BEHAVES("printf into a connection", other_doors, standard_output, accelerated)
BEHAVES("an epoll set changed by io_uring", uring_syscalls, members_of_a_set, accelerated)
BEHAVES("data by io_uring", uring_syscalls, data, any)
BEHAVES("connect and accept by io_uring", uring_syscalls, connecting, any)
#ifdef SD_HAVE_LIBURING
BEHAVES("data by liburing", liburing, data, any)
BEHAVES("connect and accept by liburing", liburing, connecting, any)
BEHAVES("sockets that a ring of liburing keeps", liburing, kept_files, any)
BEHAVES("liburing's names of the system calls", liburing, bare_calls, any)
#endif
BEHAVES("POSIX asynchronous I/O", other_doors, asynchronous, accelerated)
BEHAVES("an asynchronous read of nothing", other_doors, asynchronous_of_nothing, accelerated)
BEHAVES("an asynchronous write that nobody can receive raises no SIGPIPE", other_doors,
        asynchronous_to_nobody, accelerated)

BEHAVES("epoll reports in order of arrival, level-triggered", epoll_order, level_triggered, accelerated)
BEHAVES("epoll reports in order of arrival, edge-triggered", epoll_order, edge_triggered, accelerated)
BEHAVES("clients are writable in the order of their connecting", epoll_order,
        clients_are_writable_as_they_connected, accelerated)
BEHAVES("epoll reports in order of arrival, with EPOLLOUT", epoll_order, with_interest_in_writing, accelerated)
BEHAVES("epoll reports ends in order of arrival", epoll_order, ends, accelerated)
BEHAVES("epoll reports in order what comes to a program that is client and server", epoll_order,
        client_and_server_in_one_set, accelerated)
BEHAVES("epoll reports a listener before the clients that wait for it", epoll_order,
        listener_before_its_clients, accelerated)
BEHAVES("edge-triggered epoll overlooks no arrival", epoll_order, no_edge_is_lost, accelerated)
BEHAVES("epoll reports the cause before the effect", epoll_order, cause_before_effect, accelerated)

namespace sd::e2e {

// With a monitor at hand, "no monitor" would send the user looking in the wrong place.
TEST_CASE("exhausted: a connection that finds no number for the library names that as the cause",
          "[exhausted]") {
    if (self_check())
        SKIP_TEST("needs libsd");
    const TemporaryDirectory directory;
    const std::string statistics = directory.file("statistics");
    for (const char *behaviour : {"last_number_connects", "final_limit_stays_used_up"}) {
        INFO(behaviour);
        Process process({program("exhausted"), behaviour}, Mode::sdrun, {"SD_STATS_FILE=" + statistics});
        require_success(process.finish());
    }
    const std::string text = read_statistics(statistics).text;
    INFO(text);
    CHECK(text.find("no_descriptor") != std::string::npos);
    CHECK(text.find("no_monitor") == std::string::npos);
}

} // namespace sd::e2e
