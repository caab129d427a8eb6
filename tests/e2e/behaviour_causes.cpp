// Why connections fell back is counted under the right name.
#include "tests/e2e/runner.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

#include <unistd.h>

namespace sd::e2e {

namespace {

struct Case {
    const char *cause, *program, *behaviour;
};

// Of the others, limit, monitor_version, no_slot, listener_gone, server_full, firewalled, group_filtered,
// labelled, born_on_kernel and rules_unseen are said by the monitor, whose unit tests have them; policy,
// no_descriptor, crossed and still_shared have their own cases.
constexpr Case kCases[] = {
    {"peer_unaccelerated", "connecting", "refused"},
    {"remote_host", "connecting", "bad_arguments"},
    {"backlog_full", "connecting", "blocking_times_out"},
    {"bound_source", "connecting", "from_a_low_port"},
    {"fast_open", "connecting", "data_with_the_request"},
    {"foreign_namespace", "connecting", "in_another_namespace"},
    {"plain_client", "connecting", "refused_then_accepted"},
    {"option", "options", "set_before_connect"},
    {"no_memory", "limited", "all_memory_locked"},
    {"corrupt_peer", "hostile", "scribbled_record"},
    {"passed", "passing", "not_connected_yet"},
    {"signals", "notified", "io_signal"},
    {"shared_early", "shared_early", "the_parent_connects"},
    {"raw_use", "uring_syscalls", "connecting"},
    {"kernel_acceptor", "hostile", "acceptor_in_the_kernel"},
    {"forked_briefly", "forking", "server_forks_for_each"},
    {"landlocked", "sandbox", "landlock_forbids_a_port"},
};

void check_counted(const Case &one, Mode mode, std::vector<std::string> environment = {}) {
    INFO(one.program << " " << one.behaviour);
    const TemporaryDirectory directory;
    const std::string statistics = make_statistics(directory);
    environment.push_back("SD_STATS_FILE=" + statistics);
    Process process({program(one.program), one.behaviour}, mode, environment);
    const Outcome outcome = process.finish();
    require_success(outcome);
    if (outcome.output.find("no io_uring here") != std::string::npos)
        return;
    const std::string counted = read_statistics(statistics).text;
    INFO(counted);
    CHECK(counted.find(std::string("\"") + one.cause + "\":") != std::string::npos);
}

} // namespace

TEST_CASE("causes: what a program falls back for is counted", "[causes]") {
    if (self_check() || geteuid() != 0)
        SKIP_TEST("needs libsd, and root for low ports and namespaces");
    for (const Case &one : kCases)
        check_counted(one, Mode::sdrun);
}

TEST_CASE("causes: another user who gets a connection does not share it, and counts that", "[causes]") {
    if (self_check() || geteuid() != 0)
        SKIP_TEST("needs libsd, and root to become another user");
    check_counted({"passed", "buffers", "passed"}, Mode::sdrun, {"SD_E2E_STRANGERS=60002"});
}

TEST_CASE("causes: that there is no monitor is counted", "[causes]") {
    if (self_check())
        SKIP_TEST("needs libsd");
    const TemporaryDirectory directory;
    check_counted({"no_monitor", "connecting", "blocking"}, Mode::preloaded,
                  {"SD_MONITOR=" + directory.file("nobody.sock")});
}

} // namespace sd::e2e
