// How the kernel looks for an option in a TCP header.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace sdfuzz::kernel {

using Bytes = std::vector<uint8_t>;

/// `magic`: the bytes behind kind and length. Null: there is none, or what lies before it is no option.
inline const uint8_t *find_option(const Bytes &options, uint8_t kind, const uint8_t *magic, size_t magic_size) {
    for (size_t at = 0; at < options.size();) {
        if (options[at] == 0) {
            return nullptr; // the end of the list
        }
        if (options[at] == 1) {
            ++at; // a pad
            continue;
        }
        if (options.size() - at < 2 || options[at + 1] < 2 || options[at + 1] > options.size() - at) {
            return nullptr;
        }
        const size_t length = options[at + 1];
        if (options[at] == kind && magic_size + 2 > length) {
            return nullptr; // one of the kind that is too short ends the search
        }
        if (options[at] == kind && memcmp(options.data() + at + 2, magic, magic_size) == 0) {
            return options.data() + at;
        }
        at += length;
    }
    return nullptr;
}

} // namespace sdfuzz::kernel
