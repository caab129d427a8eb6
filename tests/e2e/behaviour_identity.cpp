// Processes that become another user, or have another root directory, before their first socket:
// whether they find the monitor, and which rules it looks at.
#include "tests/e2e/runner.hpp"
#include "tests/support/skip.hpp"

#include <catch2/catch.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <unistd.h>

namespace sd::e2e {

namespace {

using namespace std::chrono_literals;

// A monitor and a file for statistics, in a directory that other users may enter.
class Place {
  public:
    explicit Place(const std::string &rules = "") {
        std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
        std::ofstream(statistics()).flush();
        std::filesystem::permissions(statistics(), std::filesystem::perms(0666));
        std::ofstream(directory_.file("rules")) << rules;
        monitor_ =
            std::make_unique<Process>(std::vector<std::string>{build_file("sd-monitor"), "--socket", socket(),
                                                               "--config", directory_.file("rules")},
                                      Mode::kernel);
        for (int i = 0; i < 1000 && !std::filesystem::exists(socket()); ++i)
            std::this_thread::sleep_for(10ms);
    }

    void play(const char *behaviour, Mode mode) const {
        INFO(behaviour);
        Process process({program("identity"), behaviour}, mode,
                        {"SD_MONITOR=" + socket(), "SD_STATS_FILE=" + statistics()});
        require_success(process.finish());
    }

    std::string socket() const { return directory_.file("monitor.sock"); }
    std::string statistics() const { return directory_.file("statistics"); }

  private:
    TemporaryDirectory directory_;
    std::unique_ptr<Process> monitor_;
};

} // namespace

// Where no sdrun has left a channel, chroot opens one.
TEST_CASE("identity: another root directory, without sdrun", "[identity]") {
    if (self_check() || geteuid() != 0)
        SKIP_TEST("needs libsd, and root to change the root directory");
    const Place place;
    for (const char *behaviour : {"another_root", "another_root_by_system_call", "another_root_and_another_user"})
        place.play(behaviour, Mode::preloaded);
    const Statistics sum = read_statistics(place.statistics());
    INFO(sum.text);
    CHECK(sum.connects == 6);
    CHECK_FALSE(sum.fallbacks);
}

// Whoever opened the channel: rules are about the user that a process has become.
TEST_CASE("identity: rules see the user that a process has become", "[identity]") {
    if (self_check() || geteuid() != 0)
        SKIP_TEST("needs libsd, and root to become another user");
    for (const char *party : {"server", "client"}) {
        const Place place("[[policy.rule]]\naction = 'deny'\n" + std::string(party) + ".uid = 65534\n");
        place.play(party[0] == 's' ? "listens_as_another_user" : "connects_as_another_user", Mode::sdrun);
        const Statistics sum = read_statistics(place.statistics());
        INFO(sum.text);
        CHECK(sum.connects == 0);
        CHECK(sum.text.find("\"policy\":") != std::string::npos);
    }
    const Place place("[[policy.rule]]\naction = 'deny'\nserver.uid = 65533\n");
    place.play("listens_as_another_user", Mode::sdrun);
    CHECK(read_statistics(place.statistics()).connects == 2);
}

} // namespace sd::e2e
