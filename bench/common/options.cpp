// Command line parsing of the measuring programs.
#include "bench/common/options.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace sd::bench {

Options::Options(int argc, char **argv, const char *purpose, std::initializer_list<OptionSpec> specs)
    : program_(argv[0]), purpose_(purpose), specs_(specs) {
    for (const OptionSpec &spec : specs_) {
        values_[spec.name] = spec.value;
    }
    for (int i = 1; i < argc; ++i) {
        std::string word = argv[i];
        if (word == "--help" || word == "-h") {
            help(0);
        }
        if (word.rfind("--", 0) != 0) {
            std::fprintf(stderr, "%s: unexpected argument '%s'\n", program_, argv[i]);
            help(2);
        }
        word.erase(0, 2);
        std::string value;
        const std::size_t equals = word.find('=');
        if (equals != std::string::npos) {
            value = word.substr(equals + 1);
            word.erase(equals);
        } else if (i + 1 < argc) {
            value = argv[++i];
        } else {
            std::fprintf(stderr, "%s: --%s needs a value\n", program_, word.c_str());
            help(2);
        }
        const auto found = values_.find(word);
        if (found == values_.end()) {
            std::fprintf(stderr, "%s: unknown option --%s\n", program_, word.c_str());
            help(2);
        }
        found->second = value;
    }
}

void Options::help(int status) const {
    std::FILE *out = status == 0 ? stdout : stderr;
    std::fprintf(out, "%s: %s\n", program_, purpose_);
    for (const OptionSpec &spec : specs_) {
        std::fprintf(out, "  --%-14s %s (default %s)\n", spec.name, spec.help, *spec.value ? spec.value : "none");
    }
    std::exit(status);
}

const std::string &Options::text(const std::string &name) const { return values_.at(name); }

long Options::integer(const std::string &name) const {
    const std::string &value = values_.at(name);
    char *end = nullptr;
    errno = 0;
    const long result = std::strtol(value.c_str(), &end, 10);
    if (errno != 0 || end == value.c_str() || *end != '\0') {
        std::fprintf(stderr, "%s: --%s wants a whole number, not '%s'\n", program_, name.c_str(), value.c_str());
        std::exit(2);
    }
    return result;
}

double Options::number(const std::string &name) const {
    const std::string &value = values_.at(name);
    char *end = nullptr;
    errno = 0;
    const double result = std::strtod(value.c_str(), &end);
    if (errno != 0 || end == value.c_str() || *end != '\0') {
        std::fprintf(stderr, "%s: --%s wants a number, not '%s'\n", program_, name.c_str(), value.c_str());
        std::exit(2);
    }
    return result;
}

int Options::cpu(std::size_t index) const {
    std::vector<int> list;
    const char *next = values_.at("cpu").c_str();
    while (*next != '\0') {
        char *end = nullptr;
        const long value = std::strtol(next, &end, 10);
        if (end == next) {
            std::fprintf(stderr, "%s: --cpu wants processor numbers with commas between\n", program_);
            std::exit(2);
        }
        list.push_back(static_cast<int>(value));
        next = *end == ',' ? end + 1 : end;
    }
    return list.empty() ? -1 : list[index % list.size()];
}

} // namespace sd::bench
