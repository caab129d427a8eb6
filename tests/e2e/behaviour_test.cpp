// Every behaviour program under acceleration must do what it does on kernel sockets.
// The cases stand in behaviour_*.cpp; here is the check that none is forgotten.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>
#include <sstream>

namespace sd::e2e {

TEST_CASE("Every behaviour of every program has a test case", "[coverage]") {
    std::set<std::string> programs;
    for (const auto &[name, behaviour] : Covered::all()) {
        programs.insert(name);
    }
    for (const std::string &name : programs) {
        Process process({program(name), "--list"}, Mode::kernel);
        const Outcome outcome = process.finish();
        require_success(outcome);
        std::istringstream lines(outcome.output);
        for (std::string behaviour; std::getline(lines, behaviour);) {
            INFO(name << " " << behaviour);
            CHECK(std::count(Covered::all().begin(), Covered::all().end(), std::pair(name, behaviour)) == 1);
        }
    }
}

} // namespace sd::e2e
