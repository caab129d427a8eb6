// sddump: accelerated connections as packets, for Wireshark.
#include "monitor/sddump/capture.hpp"
#include "monitor/sdstat/snapshot.hpp"
#include "monitor/tools/command_line.hpp"

#include <bit>
#include <cstdio>
#include <fmt/core.h>
#include <unistd.h>

using sd::stat::Exit;
using sd::stat::Failure;

int main(int argc, char **argv) {
    sd::dump::Options options;
    options.buffer = sd::kCaptureMaxRing;
    CLI::App app("Captures accelerated connections as pcapng, for Wireshark and the like.", "sddump");
    app.add_option("-i,--connection", options.connection, "the connection, as sdstat --each names it")
        ->type_name("LINK.SLOT");
    app.add_option("-p,--process", options.pid, "all connections of a process, or its end of the connection")
        ->type_name("PID")
        ->check(CLI::Range(1U, 1U << 22));
    app.add_option("-w,--write", options.output, "the file to make; \"-\", the default, is standard output")
        ->type_name("FILE")
        ->default_str("-");
    app.add_option("-s,--snapshot-length", options.snap, "keep at most so many bytes of what is sent at once")
        ->type_name("BYTES")
        ->check(CLI::Range(0U, UINT32_MAX));
    app.add_option("-c,--count", options.count, "end after so many packets")
        ->type_name("PACKETS")
        ->check(CLI::Range(uint64_t{1}, UINT64_MAX));
    app.add_option("-B,--buffer", options.buffer, "memory for what was not written yet; 4K to 16M")
        ->type_name("BYTES")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(uint64_t{sd::kCaptureMinRing}, uint64_t{sd::kCaptureMaxRing}));
    app.add_option("--socket", options.socket, "the monitor's socket")->type_name("PATH");
    app.set_version_flag("--version", "sddump " SD_VERSION);
    app.failure_message([](const CLI::App *, const CLI::Error &error) {
        return fmt::format("sddump: {}\nsddump --help shows the options\n", error.what());
    });
    try {
        app.parse(argc, argv);
        if (options.connection.empty() && options.pid == 0) {
            throw Failure(Exit::usage, "what is to be captured? -i CONNECTION or -p PID");
        }
        if (options.output.empty()) {
            options.output = "-";
        }
        options.buffer = std::bit_floor(options.buffer);
        sd::dump::capture(options);
    } catch (const CLI::ParseError &error) {
        return sd::tools::end_of_parsing(app, error, "sddump", static_cast<int>(Exit::usage));
    } catch (const Failure &failure) {
        if (failure.status != Exit::done) {
            fmt::print(stderr, "sddump: {}\n", failure.what());
        }
        return static_cast<int>(failure.status);
    } catch (const std::exception &error) {
        fmt::print(stderr, "sddump: {}\n", error.what());
        return static_cast<int>(Exit::failed);
    }
    return 0;
}
