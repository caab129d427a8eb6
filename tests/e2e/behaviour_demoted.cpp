// Processes that give up rights while they hold connections with others: what is counted.
#include "tests/e2e/runner.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

#include <unistd.h>

namespace sd::e2e {

namespace {

/// What the processes of a behaviour counted.
std::string counted(const char *behaviour, const char *of = "demoted") {
    INFO(behaviour);
    const TemporaryDirectory directory;
    const std::string statistics = make_statistics(directory);
    Process process({program(of), behaviour}, Mode::sdrun, {"SD_STATS_FILE=" + statistics});
    require_success(process.finish());
    return read_statistics(statistics).text;
}

} // namespace

TEST_CASE("demoted: connections that crossed are counted, and what stayed shared", "[demoted]") {
    if (self_check() || geteuid() != 0)
        SKIP_TEST("needs libsd, and root to become another user");
    CHECK(counted("parent_closes_before").find("{\"crossed\":1}") != std::string::npos);
    CHECK(counted("both_go_on").find("{\"crossed\":1}") != std::string::npos);
    const std::string woken = counted("with_a_thread_that_waits", "demoted_threads");
    CHECK(woken.find("{\"crossed\":2}") != std::string::npos);
    CHECK(woken.find("still_shared") == std::string::npos);
    CHECK(counted("with_a_thread_on_what_was_closed", "demoted_threads").find("\"still_shared\":1") !=
          std::string::npos);
    for (const char *heir : {"with_threads_and_an_heir", "with_a_thread_and_an_heir"})
        CHECK(counted(heir, "demoted_threads").find("still_shared") == std::string::npos);
    CHECK(counted("over_a_shared_link").find("{\"crossed\":1}") != std::string::npos);
    CHECK(counted("other_end_of_former_domain").find("{\"crossed\":1}") != std::string::npos);
    const std::string alone = counted("alone");
    CHECK(alone.find("crossed") == std::string::npos);
    CHECK(alone.find("still_shared") == std::string::npos);
}

} // namespace sd::e2e
