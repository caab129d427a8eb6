// Profiles: files, each about a program or a unit.
#include "monitor/service/profiles.hpp"
#include "libsd/layout/link_layout.hpp"
#include "monitor/service/config_reader.hpp"

#include <algorithm>
#include <filesystem>

namespace sd::monitor {

namespace {

void read_patterns(const Reader &reader, const toml::table &root, Profile &profile) {
    reader.each(root, "program", [&](const toml::node &node) {
        const std::string pattern = reader.text(node, "program");
        if (pattern.empty() || (pattern[0] != '/' && pattern[0] != '*')) {
            reader.fail(node.source(), "program", "must be an absolute path, in which * ? [] may be used");
        }
        profile.programs.push_back(pattern);
    });
    reader.each(root, "unit", [&](const toml::node &node) {
        const std::string pattern = reader.text(node, "unit");
        if (!pattern.ends_with(".service") || pattern.find('/') != std::string::npos) {
            reader.fail(node.source(), "unit",
                        "must be a service as in \"nginx.service\", in which * ? [] may be used");
        }
        profile.units.push_back(pattern);
    });
    if (profile.programs.empty() && profile.units.empty()) {
        reader.fail(root.source(), "program", "is missing, and so is unit: whom is it about?");
    }
}

Profile load_profile(const std::string &file, bool is_system) {
    const toml::table root = Reader::parse(file);
    const Reader reader(file);
    Profile profile;
    profile.file = file;
    reader.only(root, "", {"program", "unit", "spin", "path", "buffer", "rdma", "rule"});
    read_patterns(reader, root, profile);
    if (const toml::node *node = root.get("spin")) {
        const std::string value = reader.text(*node, "spin");
        if (value != "auto" && value != "never" && value != "always") {
            reader.fail(node->source(), "spin", "must be \"auto\", \"never\" or \"always\"");
        }
        profile.spin = value == "never"    ? wire::Spin::never
                       : value == "always" ? wire::Spin::always
                                           : wire::Spin::automatic;
    }
    if (const toml::node *node = root.get("path")) {
        profile.birth = reader.birth(*node, "path");
        if (*profile.birth == Birth::shm && !is_system) {
            reader.fail(node->source(), "path",
                        "\"shm\" is for the system's profiles: a user's only narrow what is allowed");
        }
        if (*profile.birth == Birth::shm && !profile.programs.empty()) {
            reader.fail(node->source(), "path",
                        "\"shm\" needs unit, not program: whoever starts a program can have it do anything");
        }
    }
    reader.flag(root, "rdma", "", profile.rdma);
    if (const toml::node *node = root.get("buffer")) {
        const int64_t bytes = reader.number(*node, "buffer", kRingSize[kLeastRing], int64_t{1} << 40);
        unsigned cls = kLeastRing;
        while (cls + 1 < kRingClasses && kRingSize[cls + 1] <= bytes) {
            ++cls;
        }
        profile.most_ring = cls;
    }
    if (const toml::node *rules = root.get("rule")) {
        if (!rules->is_array_of_tables()) {
            reader.fail(rules->source(), "rule", "must be written as [[rule]]");
        }
        size_t count = 0;
        for (const toml::node &node : *rules->as_array()) {
            const std::string name = "rule[" + std::to_string(++count) + "].";
            profile.rules.push_back(reader.rule(*node.as_table(), name));
            if (profile.rules.back().birth) {
                reader.fail(node.source(), name + "birth", "path says it for the whole profile");
            }
        }
    }
    return profile;
}

} // namespace

std::vector<Profile> load_profiles(const std::string &directory, bool is_system) {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator(directory, error)) {
        if (entry.path().extension() == ".toml" && entry.path().filename().string()[0] != '.') {
            files.push_back(entry.path());
        }
    }
    if (error && error != std::errc::no_such_file_or_directory) {
        throw ConfigError(directory + ": " + error.message());
    }
    std::sort(files.begin(), files.end());
    std::vector<Profile> profiles;
    profiles.reserve(files.size());
    for (const std::string &file : files) {
        profiles.push_back(load_profile(file, is_system));
    }
    return profiles;
}

} // namespace sd::monitor
