// main() of every Catch2 program, and a listener that records one line per finished test case.
//
// With SD_TEST_RESULTS=DIR in the environment each program leaves DIR/PROGRAM.results with lines
// "passed|failed|skipped <test case>", from which scripts/count-results.py makes the totals.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

#include "tests/support/skip.hpp"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

namespace sd::test {

namespace {
std::string skip_reason;
}

void note_skip(const char *reason) { skip_reason = reason; }

namespace {

class ResultListener : public Catch::TestEventListenerBase {
  public:
    using TestEventListenerBase::TestEventListenerBase;

    void testRunStarting(const Catch::TestRunInfo &info) override {
        TestEventListenerBase::testRunStarting(info);
        if (const char *dir = std::getenv("SD_TEST_RESULTS"); dir != nullptr && *dir != '\0') {
            out_.open(std::string(dir) + "/" + info.name + ".results", std::ios::trunc);
        }
    }

    void testCaseStarting(const Catch::TestCaseInfo &info) override {
        TestEventListenerBase::testCaseStarting(info);
        skip_reason.clear();
    }

    void testCaseEnded(const Catch::TestCaseStats &stats) override {
        TestEventListenerBase::testCaseEnded(stats);
        const bool ok = stats.totals.testCases.failed == 0;
        const char *verdict = !ok ? "failed" : skip_reason.empty() ? "passed" : "skipped";
        if (ok && !skip_reason.empty()) {
            std::cout << "skipped: " << stats.testInfo.name << ": " << skip_reason << std::endl;
        }
        if (out_.is_open()) {
            out_ << verdict << ' ' << stats.testInfo.name << std::endl;
        }
    }

  private:
    std::ofstream out_;
};

CATCH_REGISTER_LISTENER(ResultListener)

} // namespace
} // namespace sd::test
