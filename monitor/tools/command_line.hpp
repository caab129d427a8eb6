// How a command ends that has only read its command line: help, the version, or an option that cannot be.
#pragma once
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

namespace sd::tools {

/// Prints what `error` asks for, or what is wrong. The status of `command`: 0, `usage` for what cannot be,
/// or 1 if help or the version could not be printed.
inline int end_of_parsing(const CLI::App &app, const CLI::ParseError &error, const char *command, int usage) {
    if (app.exit(error) != 0) {
        return usage;
    }
    if (std::cout.flush()) {
        return 0;
    }
    std::cerr << command << ": standard output: " << strerror(errno) << '\n';
    return 1;
}

} // namespace sd::tools
