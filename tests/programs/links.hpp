// Where a process has the memory that it shares with its peers. On kernel sockets there is none.
#pragma once
#include "libsd/layout/link_layout.hpp"
#include "tests/programs/common.hpp"

#include <vector>

namespace sdtest {

struct Mapping {
    char *begin;
    size_t size;
};

/// Where this process has links mapped, from their headers on; nowhere on kernel sockets.
inline std::vector<Mapping> find_links() {
    FILE *maps = fopen("/proc/self/maps", "re");
    std::vector<Mapping> found;
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (strstr(line, "memfd:sd-link") && sscanf(line, "%lx-%lx", &from, &to) == 2 &&
            reinterpret_cast<const sd::LinkHeader *>(from)->magic == sd::kLinkMagic)
            found.push_back({reinterpret_cast<char *>(from), to - from});
    }
    if (maps)
        fclose(maps);
    return found;
}

} // namespace sdtest
