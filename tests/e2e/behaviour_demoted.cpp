// Processes that give up rights while they hold connections with others.
#include "tests/e2e/runner.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

#include <unistd.h>

BEHAVES("another user, the parent has closed its copy", demoted, parent_closes_before, accelerated)
BEHAVES("another user, and the parent closes its copy afterwards", demoted, parent_closes_afterwards, accelerated)
BEHAVES("a seccomp filter", demoted, by_a_filter, accelerated)
BEHAVES("no capabilities", demoted, by_capabilities, accelerated)
BEHAVES("a user namespace", demoted, by_a_user_namespace, accelerated)
BEHAVES("what it inherited and does not use", demoted, it_keeps_what_is_not_its_own, accelerated)
BEHAVES("both go on with one connection", demoted, both_go_on, accelerated)
BEHAVES("the parent waits on it meanwhile", demoted, the_parent_waits_meanwhile, accelerated)
BEHAVES("connections in any state", demoted, in_any_state, accelerated)
BEHAVES("a client", demoted, as_a_client, accelerated)
BEHAVES("a connection of its own over its master's link", demoted, over_a_shared_link, accelerated)
BEHAVES("the parent of a process that does not", demoted, the_parent_changes, accelerated)
BEHAVES("nobody else has what it has", demoted, alone, all_accelerated)
BEHAVES("in an epoll set", demoted, watched, accelerated)
BEHAVES("in an epoll set of its parent's", demoted, watched_by_an_inherited_set, accelerated)
BEHAVES("a thread is blocked on a connection", demoted, with_a_thread_that_waits, accelerated)
BEHAVES("other threads", demoted, with_threads, accelerated)

namespace sd::e2e {

namespace {

/// What the processes of a behaviour counted.
std::string counted(const char *behaviour) {
    INFO(behaviour);
    const TemporaryDirectory directory;
    const std::string statistics = make_statistics(directory);
    Process process({program("demoted"), behaviour}, Mode::sdrun, {"SD_STATS_FILE=" + statistics});
    require_success(process.finish());
    return read_statistics(statistics).text;
}

} // namespace

TEST_CASE("demoted: connections that crossed are counted, and what stayed shared", "[demoted]") {
    if (self_check() || geteuid() != 0)
        SKIP_TEST("needs libsd, and root to become another user");
    CHECK(counted("parent_closes_before").find("{\"crossed\":1}") != std::string::npos);
    CHECK(counted("both_go_on").find("{\"crossed\":1}") != std::string::npos);
    CHECK(counted("with_a_thread_that_waits").find("{\"still_shared\":") != std::string::npos);
    CHECK(counted("over_a_shared_link").find("{\"crossed\":1}") != std::string::npos);
    const std::string alone = counted("alone");
    CHECK(alone.find("crossed") == std::string::npos);
    CHECK(alone.find("still_shared") == std::string::npos);
}

} // namespace sd::e2e
