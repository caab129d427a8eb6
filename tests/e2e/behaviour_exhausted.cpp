// What a program that has no descriptor number left is told to look for.
#include "tests/e2e/runner.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

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
