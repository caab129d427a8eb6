// Finding the library's entry in the memory of a process; see forced_entry.hpp.
#include "monitor/sdctl/force/forced_entry.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace sd::ctl {

namespace {

constexpr size_t kMostSearched = size_t{4} << 20; ///< of memory; the library's constants are a part of that
constexpr uint64_t kMostStack = 65536;

/// Also of one that was replaced by another version since.
bool is_library(const Mapping &m) {
    const std::string name = m.name.substr(m.name.rfind('/') + 1);
    return name == "libsd.so" || name == "libsd.so (deleted)";
}

/// Can all that it says be true? A function of the library, and memory that the process may write itself.
std::optional<ForcedEntry> checked(const forced::Entry &said, const std::vector<Mapping> &mappings) {
    ForcedEntry entry{};
    memcpy(&entry.function, &said.function, sizeof entry.function);
    memcpy(&entry.stack_top, &said.stack_top, sizeof entry.stack_top);
    memcpy(&entry.call, &said.call, sizeof entry.call);
    const auto any = [&](auto test) { return std::any_of(mappings.begin(), mappings.end(), test); };
    const bool is_possible =
        said.version == forced::kVersion && said.call_bytes == sizeof(forced::Call) && entry.call % 64 == 0 &&
        entry.stack_top >= kMostStack &&
        any([&](const Mapping &m) { return m.executable && is_library(m) && m.has(entry.function, 1); }) &&
        any([&](const Mapping &m) {
            return m.readable && m.writable && m.has(entry.call, sizeof(forced::Call));
        }) &&
        any([&](const Mapping &m) {
            return m.readable && m.writable && m.has(entry.stack_top - kMostStack, kMostStack);
        });
    return is_possible ? std::optional(entry) : std::nullopt;
}

} // namespace

std::vector<Mapping> parse_mappings(const std::string &text) {
    std::vector<Mapping> result;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        unsigned long long start = 0, end = 0;
        char rights[5]{};
        int name = 0;
        if (sscanf(line.c_str(), "%llx-%llx %4s %*x %*x:%*x %*u %n", &start, &end, rights, &name) != 3 ||
            name == 0 || end < start || strlen(rights) != 4) {
            continue;
        }
        result.push_back({start, end, rights[0] == 'r', rights[1] == 'w', rights[2] == 'x',
                          line.substr(std::min(static_cast<size_t>(name), line.size()))});
    }
    return result;
}

std::optional<ForcedEntry> find_entry(const std::vector<Mapping> &mappings, const ReadMemory &read) {
    size_t left = kMostSearched;
    for (const Mapping &m : mappings) {
        if (!m.readable || m.executable || !is_library(m)) {
            continue;
        }
        std::vector<uint8_t> bytes(std::min<uint64_t>(m.end - m.start, left));
        left -= bytes.size();
        if (bytes.size() < sizeof(forced::Entry) || !read(m.start, bytes.data(), bytes.size())) {
            continue;
        }
        for (size_t at = 0; at + sizeof(forced::Entry) <= bytes.size(); at += sizeof(uint64_t)) {
            forced::Entry said{};
            memcpy(&said, bytes.data() + at, sizeof said);
            if (said.magic[0] == forced::kMagic && said.magic[1] == ~forced::kMagic) {
                if (const auto entry = checked(said, mappings)) {
                    return entry;
                }
            }
        }
    }
    return {};
}

} // namespace sd::ctl
