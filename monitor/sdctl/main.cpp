// sdctl: turns acceleration on and off, for services and for what runs, and says what is wrong.
#include "monitor/sdctl/calibrate.hpp"
#include "monitor/sdctl/command.hpp"
#include "monitor/sdctl/doctor.hpp"
#include "monitor/sdctl/failure.hpp"
#include "monitor/sdctl/peers.hpp"
#include "monitor/sdctl/report.hpp"
#include "monitor/sdctl/steer.hpp"
#include "monitor/sdctl/units.hpp"
#include "monitor/tools/command_line.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fmt/core.h>
#include <functional>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace {

using namespace sd::ctl;
using nlohmann::json;

struct Options {
    std::vector<std::string> units, command;
    std::string output, connection, path;
    std::vector<std::string> processes;
    double seconds = 2;
    bool user = false, now = false, all = false, json = false, stays = false, force = false;
    Calibration calibration;
};

void list(const Options &options) {
    const std::vector<Enabled> units = enabled_units(Manager(options.user));
    if (options.json) {
        json out = json::array();
        for (const Enabled &unit : units) {
            out.push_back({{"unit", unit.unit},
                           {"state", unit.state},
                           {"pid", unit.pid > 0 ? json(unit.pid) : json()},
                           {"library", unit.library.empty() ? json() : json(unit.library)}});
        }
        fmt::print("{}\n", out.dump(2));
        return;
    }
    if (units.empty()) {
        fmt::print("No unit is enabled; sdctl enable UNIT does that.\n");
        return;
    }
    size_t width = 4;
    for (const Enabled &unit : units) {
        width = std::max(width, unit.unit.size());
    }
    fmt::print("{:<{}}  {:<10}  {:>7}  {}\n", "UNIT", width, "STATE", "PID", "LIBRARY");
    for (const Enabled &unit : units) {
        fmt::print("{:<{}}  {:<10}  {:>7}  {}\n", unit.unit, width, unit.state,
                   unit.pid > 0 ? std::to_string(unit.pid) : "", unit.library);
    }
}

Exit doctor(const Options &options) {
    static constexpr const char *names[] = {"good", "remark", "wrong"};
    bool wrong = false;
    json out = json::array();
    for (const Diagnosis &d : examine()) {
        wrong = wrong || d.level == Level::wrong;
        const char *level = names[static_cast<int>(d.level)];
        if (options.json) {
            out.push_back(
                {{"level", level}, {"subject", d.subject}, {"text", d.text}, {"remedy", d.remedy}, {"page", d.page}});
            continue;
        }
        fmt::print("{:<7} {}: {}\n", level, d.subject, d.text);
        if (!d.remedy.empty()) {
            fmt::print("        do: {}   (see {})\n", d.remedy, d.page);
        }
    }
    if (options.json) {
        fmt::print("{}\n", out.dump(2));
    }
    return wrong ? Exit::trouble : Exit::done;
}

/// sdrun of the same installation takes over.
Exit run_session(const Options &options) {
    std::string sdrun = own_directory() + "/sdrun";
    std::vector<char *> argv{sdrun.data(), const_cast<char *>("--")};
    for (const std::string &word : options.command) {
        argv.push_back(const_cast<char *>(word.c_str()));
    }
    argv.push_back(nullptr);
    execv(sdrun.c_str(), argv.data());
    throw Failure(Exit::cannot_run, sdrun + ": " + strerror(errno));
}

/// For each unit that is named; the first failure decides the status, the others are tried all the same.
Exit for_each(const Options &options, const std::function<void(const std::string &)> &action) {
    Exit first = Exit::done;
    for (const std::string &unit : options.units) {
        try {
            action(unit_name(unit));
        } catch (const Failure &failure) {
            fflush(stdout);
            fmt::print(stderr, "sdctl: {}\n", failure.what());
            first = first == Exit::done ? failure.status : first;
        }
    }
    return first;
}

Exit disable_units(const Options &options) {
    const Manager manager(options.user);
    if (options.all == !options.units.empty()) {
        throw Failure(Exit::usage, "disable: needs either --all or units");
    }
    if (options.all) {
        disable_all(manager);
        return Exit::done;
    }
    return for_each(options, [&](const std::string &unit) { disable(manager, unit, options.now); });
}

} // namespace

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); // a reader that has gone is an error like another
    Options options;
    Exit status = Exit::done;
    CLI::App app("Turns SocksDirect on and off for services, and says what is wrong.", "sdctl");
    app.require_subcommand(1);
    app.set_version_flag("--version", "sdctl " SD_VERSION);
    CLI::App *enable_ = app.add_subcommand("enable", "accelerate units from their next start on");
    CLI::App *disable_ = app.add_subcommand("disable", "no longer accelerate units");
    CLI::App *list_ = app.add_subcommand("list", "the units that are enabled");
    CLI::App *run_ = app.add_subcommand("run", "run a program accelerated, as sdrun does");
    CLI::App *doctor_ = app.add_subcommand("doctor", "look for what is wrong, and say what to do");
    CLI::App *report_ =
        app.add_subcommand("report", "pack what a bug report needs, without names and addresses");
    report_->add_option("-o,--output", options.output, "the file to make")->type_name("FILE");
    for (CLI::App *sub : {enable_, disable_, list_}) {
        sub->add_flag("--user", options.user, "units of the user's service manager");
    }
    CLI::App *peers_ = app.add_subcommand("peers", "the hosts whose monitors this one talks with");
    CLI::App *calibrate_ = app.add_subcommand(
        "calibrate", "measure from which sizes on handing over pages pays, and have it so");
    Calibration &how = options.calibration;
    calibrate_->add_flag("--dry-run", how.only_look, "measure and print, and change nothing");
    calibrate_->add_flag("--if-needed", how.if_needed, "only if it was not done since the module was loaded");
    calibrate_->add_flag("--all-sizes", how.all_sizes, "from 4 KiB to 64 MiB");
    calibrate_->add_flag("--predict", how.predict, "what a model says, without the module");
    for (CLI::App *sub : {list_, doctor_, peers_, calibrate_}) {
        sub->add_flag("--json", options.json, "print one JSON document");
    }
    for (CLI::App *sub : {enable_, disable_}) {
        sub->add_flag("--now", options.now, "restart the units that run");
        sub->add_option("UNIT", options.units, "services; .service may be left out");
    }
    enable_->get_option("UNIT")->required();
    disable_->add_flag("--all", options.all, "all units that are enabled");
    CLI::App *path_ = app.add_subcommand("path", "have a connection go over the kernel, or shared memory");
    path_->add_option("CONNECTION", options.connection, "as sdstat --each names it")->required();
    path_->add_option("PATH", options.path, "kernel or shm")->required();
    CLI::App *detach_ = app.add_subcommand("detach", "put processes back on kernel TCP, while they run");
    CLI::App *attach_ = app.add_subcommand("attach", "take that back");
    detach_->add_flag("--stay", options.stays, "with all: programs that are started later, too");
    detach_->add_flag("--force", options.force,
                      "stop processes that make no call, at a safe point, for a moment");
    for (CLI::App *sub : {path_, detach_}) {
        sub->add_option("--wait", options.seconds, "for that at most")->type_name("SECONDS");
    }
    for (CLI::App *sub : {detach_, attach_}) {
        sub->add_option("WHICH", options.processes, "process numbers, units, containers, or all")->required();
    }
    run_->add_option("COMMAND", options.command, "the program and its arguments")->required();
    run_->prefix_command();
    // "run" takes all that follows as it is, options of the program included.
    if (argc >= 3 && strcmp(argv[1], "run") == 0 && strcmp(argv[2], "--help") != 0) {
        options.command.assign(argv + (strcmp(argv[2], "--") == 0 ? 3 : 2), argv + argc);
    }
    app.failure_message([](const CLI::App *, const CLI::Error &error) {
        return fmt::format("sdctl: {}\nsdctl --help shows the commands and options\n", error.what());
    });
    try {
        const auto commands = app.get_subcommands(nullptr);
        if (argc > 1 && argv[1][0] != '-' &&
            std::none_of(commands.begin(), commands.end(),
                         [&](const CLI::App *c) { return c->get_name() == argv[1]; })) {
            throw Failure(Exit::usage,
                          fmt::format("{}: there is no such command; sdctl --help shows them", argv[1]));
        }
        if (argc > 1 && argv[1][0] == '-' && app.get_option_no_throw(argv[1]) == nullptr) {
            throw Failure(Exit::usage,
                          fmt::format("{}: there is no such option; sdctl --help shows them", argv[1]));
        }
        if (!options.command.empty()) {
            return static_cast<int>(run_session(options));
        }
        app.parse(argc, argv);
        if (enable_->parsed()) {
            const Manager manager(options.user);
            status = for_each(options, [&](const std::string &unit) { enable(manager, unit, {options.now}); });
        } else if (disable_->parsed()) {
            status = disable_units(options);
        } else if (list_->parsed()) {
            list(options);
        } else if (doctor_->parsed()) {
            status = doctor(options);
        } else if (path_->parsed()) {
            status = move_connection(options.connection, options.path, options.seconds);
        } else if (detach_->parsed()) {
            status = detach_processes(options.processes, options.seconds, options.stays, options.force);
        } else if (attach_->parsed()) {
            status = attach_processes(options.processes);
        } else if (peers_->parsed()) {
            status = show_peers(options.json);
        } else if (calibrate_->parsed()) {
            options.calibration.as_json = options.json;
            calibrate(options.calibration);
        } else if (report_->parsed()) {
            const std::string path = options.output.empty() ? report_name() : options.output;
            write_report(path, report_parts());
            fmt::print("{}\n", path);
        }
        if (fflush(stdout) != 0) {
            throw Failure(Exit::failed, std::string("standard output: ") + strerror(errno));
        }
    } catch (const CLI::ParseError &error) {
        return sd::tools::end_of_parsing(app, error, "sdctl", static_cast<int>(Exit::usage));
    } catch (const Failure &failure) {
        fflush(stdout);
        fmt::print(stderr, "sdctl: {}\n", failure.what());
        return static_cast<int>(failure.status);
    } catch (const std::exception &error) {
        fmt::print(stderr, "sdctl: {}\n", error.what());
        return static_cast<int>(Exit::failed);
    }
    return static_cast<int>(status);
}
