// Which of libsd's memory files a process has mapped. On kernel sockets there are none.
#pragma once

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace sdtest {

// Those whose names begin so, by device and inode. "sd-family": the records of connections; "sd-link": what
// they go over.
inline std::set<std::string> mapped(const std::string &which) {
    std::set<std::string> result;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::istringstream parts(line);
        std::string range, rights, offset, device, inode, name;
        parts >> range >> rights >> offset >> device >> inode >> name;
        if (name.rfind("/memfd:" + which, 0) == 0)
            result.insert(device + " " + inode);
    }
    return result;
}

// Is any of these still there?
inline bool still_mapped(const std::set<std::string> &before) {
    for (const std::string &file : mapped("sd-"))
        if (before.count(file) != 0)
            return true;
    return false;
}

} // namespace sdtest
