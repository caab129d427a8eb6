// Every behaviour of every program in tests/programs under acceleration must do what it does on kernel
// sockets. The programs list their behaviours; each becomes a test case "PROGRAM: TITLE" with the tag
// [PROGRAM]. SD_E2E_PROGRAMS says which programs are asked, where the time for all would be wasted.
#include "tests/e2e/programs.h"
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace sd::e2e {

namespace {

class Comparison : public Catch::ITestInvoker {
  public:
    Comparison(std::string program, std::string behaviour, Expect expect)
        : program_(std::move(program)), behaviour_(std::move(behaviour)), expect_(expect) {}

    void invoke() const override { same_as_kernel(program_.c_str(), behaviour_.c_str(), expect_); }

  private:
    std::string program_, behaviour_;
    Expect expect_;
};

/// Stands for the behaviours of a program that could not tell them.
class NoList : public Catch::ITestInvoker {
  public:
    explicit NoList(std::string why) : why_(std::move(why)) {}

    void invoke() const override { FAIL(why_); }

  private:
    std::string why_;
};

void add(const std::string &program_name, const std::string &title, Catch::ITestInvoker *invoker) {
    const std::string name = program_name + ": " + title, tag = "[" + program_name + "]";
    Catch::AutoReg(invoker, CATCH_INTERNAL_LINEINFO, Catch::StringRef(), Catch::NameAndTags(name, tag));
}

Expect expectation(const std::string &word) {
    const auto *found = std::find(std::begin(sdtest::kExpectWords), std::end(sdtest::kExpectWords), word);
    if (found == std::end(sdtest::kExpectWords))
        throw std::runtime_error("there is no expectation '" + word + "'");
    return static_cast<Expect>(found - std::begin(sdtest::kExpectWords));
}

/// From what `program --list` printed.
void add_all(const std::string &program_name, const Outcome &listing) {
    std::istringstream lines(listing.output);
    int behaviours = 0;
    for (std::string line; std::getline(lines, line); ++behaviours) {
        std::istringstream words(line);
        std::string behaviour, expect, title;
        words >> behaviour >> expect >> std::ws;
        std::getline(words, title);
        add(program_name, title, new Comparison(program_name, behaviour, expectation(expect)));
    }
    if (listing.timed_out || listing.status != 0 || behaviours == 0)
        throw std::runtime_error("it does not list its behaviours: " + listing.errors);
}

std::vector<std::string> programs_to_ask() {
    if (const char *some = std::getenv("SD_E2E_PROGRAMS")) {
        std::istringstream words(some);
        return {std::istream_iterator<std::string>(words), {}};
    }
    return {SD_PROGRAMS};
}

/// Before main(), where Catch collects its test cases.
[[maybe_unused]] const bool found_them = [] {
    const std::vector<std::string> programs = programs_to_ask();
    std::vector<std::unique_ptr<Process>> listings;
    try {
        for (const std::string &name : programs)
            listings.push_back(
                std::make_unique<Process>(std::vector<std::string>{program(name), "--list"}, Mode::kernel));
    } catch (const std::exception &error) { // no SD_BUILD_DIR: there is nothing to run
        std::fprintf(stderr, "behaviour_test: %s\n", error.what());
        std::exit(2);
    }
    for (size_t i = 0; i < listings.size(); ++i) {
        try {
            add_all(programs[i], listings[i]->finish());
        } catch (const std::exception &error) {
            add(programs[i], "list", new NoList(error.what()));
        }
    }
    return true;
}();

} // namespace

} // namespace sd::e2e
