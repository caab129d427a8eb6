// Tests of the runner: it shortens, it repeats itself, and above all it can fail.
#include "tests/differential/generate.hpp"
#include "tests/differential/judge.hpp"
#include "tests/differential/print_c.hpp"
#include "tests/differential/shrink.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <sys/socket.h>

namespace sd::differential {

namespace {

// Where a monitor can be started; removed at the end.
struct Workplace {
    Setting setting;
    Workplace() {
        std::string name = "/tmp/sd-differential-XXXXXX";
        REQUIRE(mkdtemp(name.data()) != nullptr);
        setting.directory = name;
        const char *build = std::getenv("SD_BUILD_DIR");
        REQUIRE(build != nullptr);
        setting.build = build;
        provide_programs(setting);
    }
    ~Workplace() {
        std::error_code ignored;
        std::filesystem::remove_all(setting.directory, ignored);
    }
};

Step make_step(int id, Op op, std::initializer_list<int> arguments, int actor = 0) {
    Step step;
    step.id = id;
    step.actor = actor;
    step.op = op;
    std::copy(arguments.begin(), arguments.end(), step.arguments.begin());
    return step;
}

} // namespace

TEST_CASE("The shrinker finds the items that are needed, and only those", "[differential]") {
    std::vector<int> items(200);
    std::iota(items.begin(), items.end(), 0);
    int asked = 0;
    const auto fails = [&](const std::vector<int> &list) {
        ++asked;
        const auto has = [&](int value) { return std::find(list.begin(), list.end(), value) != list.end(); };
        return has(3) && has(77) && has(78) && has(199);
    };
    CHECK(shrink(items, fails, 1000) == std::vector<int>{3, 77, 78, 199});
    CHECK(asked < 200);
}

TEST_CASE("The shrinker keeps within its budget and keeps the order", "[differential]") {
    std::vector<int> items(64);
    std::iota(items.begin(), items.end(), 0);
    int asked = 0;
    const std::vector<int> left = shrink(
        items,
        [&](const std::vector<int> &list) {
            ++asked;
            return list.size() >= 10;
        },
        20);
    CHECK(asked <= 20);
    CHECK(left.size() >= 10);
    CHECK(left.size() < 64);
    CHECK(std::is_sorted(left.begin(), left.end()));
}

TEST_CASE("A seed always gives the same sequence, and different seeds different ones", "[differential]") {
    const Features features;
    CHECK(report(generate(7, features), {}, {}) == report(generate(7, features), {}, {}));
    CHECK(report(generate(7, features), {}, {}) != report(generate(8, features), {}, {}));
    std::vector<bool> seen(static_cast<size_t>(Op::take_passed) + 1);
    for (uint64_t seed = 1; seed < 1000; ++seed) {
        for (const Step &step : generate(seed, features).steps) {
            seen[static_cast<size_t>(step.op)] = true;
        }
    }
    CHECK(std::count(seen.begin(), seen.end(), false) == 0);
}

TEST_CASE("The kernel compared with itself shows no difference", "[differential]") {
    Workplace place;
    Judge judge(place.setting, true);
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const Verdict verdict = judge.judge(generate(seed, {}));
        CHECK((verdict == Verdict::same || verdict == Verdict::unsteady || verdict == Verdict::undecided));
    }
}

TEST_CASE("A sequence that does not do the same on both sides is found, shortened and shown",
          "[differential]") {
    Workplace place;
    place.setting.environment = {"SD_LIBRARY=" + place.setting.build + "/tests/differential/libbroken.so",
                                 "LD_PRELOAD=" + place.setting.build + "/libsd.so"};
    Judge judge(place.setting, false);
    Sequence sequence;
    sequence.seed = 42;
    sequence.roots = 1;
    sequence.steps = {
        make_step(0, Op::socket, {AF_INET, SOCK_STREAM, 0}),
        make_step(1, Op::bind, {0, v4_loopback, kAnyPort}),
        make_step(2, Op::listen, {0, 16}),
        make_step(3, Op::getsockname, {0, 0}),
        make_step(4, Op::socket, {AF_INET, SOCK_STREAM, 0}),
        make_step(5, Op::connect, {4, v4_loopback, 1}),
        make_step(6, Op::accept, {0, 0, 0}),
        make_step(7, Op::dup, {4}),
        make_step(8, Op::send, {4, 10, 0, 1}),
        make_step(9, Op::ready, {6}),
        make_step(10, Op::recv, {6, 10, MSG_DONTWAIT, 1}),
        make_step(11, Op::close, {7}),
    };
    REQUIRE(judge.judge(sequence) == Verdict::different);
    const Sequence shortest = judge.shortest(sequence, 100);
    CHECK(shortest.steps.size() == 8); // all but getsockname, dup, ready and close
    CHECK(judge.explain(shortest).find("libsd:  10 \"opqr!") != std::string::npos);
    CHECK(c_program(shortest).find("recv(") != std::string::npos);
}

} // namespace sd::differential
