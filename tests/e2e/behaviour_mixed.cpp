// Server and client as separate programs: either, both or none under sdrun, with the same lines each time.
#include "tests/e2e/runner.hpp"

#include <catch2/catch.hpp>

namespace sd::e2e {

namespace {

struct Dialogue {
    Outcome server, client;
};

Dialogue play(const char *name, const std::string &scene, Mode server_mode, Mode client_mode,
              const TemporaryDirectory &directory, const std::string &tag) {
    const std::string port = directory.file("port-" + tag);
    Process server({program(name), "server", scene, port}, server_mode,
                   {"SD_STATS_FILE=" + directory.file("server-" + tag)});
    Process client({program(name), "client", scene, port}, client_mode,
                   {"SD_STATS_FILE=" + directory.file("client-" + tag)});
    Dialogue result;
    result.client = client.finish();
    result.server = server.finish();
    return result;
}

void same_in_all_mixtures(const std::string &scene, const char *name = "dialogue") {
    const TemporaryDirectory directory;
    const Mode on = self_check() ? Mode::kernel : Mode::sdrun;
    const Dialogue oracle = play(name, scene, Mode::kernel, Mode::kernel, directory, "none");
    require_success(oracle.server);
    require_success(oracle.client);
    const struct {
        const char *tag;
        Mode server, client;
    } mixtures[] = {{"both", on, on}, {"server", on, Mode::kernel}, {"client", Mode::kernel, on}};
    for (const auto &mixture : mixtures) {
        INFO("under sdrun: " << mixture.tag);
        const Dialogue seen = play(name, scene, mixture.server, mixture.client, directory, mixture.tag);
        const Statistics server = read_statistics(directory.file(std::string("server-") + mixture.tag));
        const Statistics client = read_statistics(directory.file(std::string("client-") + mixture.tag));
        INFO("server's statistics:\n" << server.text << "client's statistics:\n" << client.text);
        INFO("server's errors:\n" << seen.server.errors << "client's errors:\n" << seen.client.errors);
        CHECK(difference(oracle.server.output, seen.server.output) == "");
        CHECK(difference(oracle.client.output, seen.client.output) == "");
        require_success(seen.server);
        require_success(seen.client);
        if (self_check()) {
            continue;
        }
        const bool both = mixture.server == on && mixture.client == on;
        CHECK((server.accepts > 0) == both);
        CHECK((client.connects > 0) == both);
    }
}

} // namespace

TEST_CASE("dialogue: echo in every mixture", "[dialogue]") { same_in_all_mixtures("echo"); }
TEST_CASE("dialogue: bulk data and half-close in every mixture", "[dialogue]") {
    same_in_all_mixtures("bulk");
}
TEST_CASE("dialogue: event-driven server in every mixture", "[dialogue]") { same_in_all_mixtures("events"); }
TEST_CASE("dialogue: resets in every mixture", "[dialogue]") { same_in_all_mixtures("resets"); }
TEST_CASE("dialogue: names and options in every mixture", "[dialogue]") { same_in_all_mixtures("names"); }
TEST_CASE("dialogue: short connections in every mixture", "[dialogue]") { same_in_all_mixtures("short"); }
TEST_CASE("dialogue: forking server in every mixture", "[dialogue]") { same_in_all_mixtures("forks"); }
TEST_CASE("accept pool: processes in accept on one listener, in every mixture", "[dialogue]") {
    same_in_all_mixtures("processes", "accept_pool");
}
TEST_CASE("accept pool: threads in accept on one listener, in every mixture", "[dialogue]") {
    same_in_all_mixtures("threads", "accept_pool");
}
TEST_CASE("dialogue: waiting in every mixture", "[dialogue]") { same_in_all_mixtures("waiting"); }

} // namespace sd::e2e
