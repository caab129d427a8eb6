// Looking through the descriptor tables of all processes.
#include "monitor/kernel/socket_search.hpp"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

namespace sd::monitor {

namespace {

namespace fs = std::filesystem;

constexpr unsigned kBetweenLooksAtTheClock = 32;
constexpr std::string_view kSocket = "socket:[";

/// Whether the program has our library loaded, whether it has spoken to us yet or not. A process that is
/// ending has lost its memory before its descriptors: it is not going to use what it has.
bool is_stranger(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", static_cast<int>(pid));
    FILE *maps = fopen(path, "re");
    if (maps == nullptr) {
        return errno != ENOENT && errno != ESRCH;
    }
    bool any = false, found = false;
    char line[PATH_MAX + 128];
    while (!found && fgets(line, sizeof line, maps) != nullptr) {
        any = true;
        found = strstr(line, "/libsd.so") != nullptr;
    }
    fclose(maps);
    return any && !found;
}

fs::directory_iterator all_processes() {
    std::error_code error; // processes and descriptors come and go, and some are not ours to see
    return fs::directory_iterator("/proc", error);
}

} // namespace

SocketSearch::SocketSearch(Found wanted) : found_(std::move(wanted)), processes_(all_processes()) {
    for (auto &[inode, hands] : found_) {
        hands = InHands::nobody;
    }
}

void SocketSearch::found_at(InHands &result, pid_t pid) {
    if (result == InHands::stranger) {
        return;
    }
    if (!is_strangers_) {
        is_strangers_ = is_stranger(pid);
    }
    result = *is_strangers_ ? InHands::stranger : InHands::library;
}

/// Of the process that it is at, from the descriptor on that it is at. False: it is time to stop.
bool SocketSearch::go_through_descriptors(Clock::time_point until) {
    const fs::path &process = processes_->path();
    std::error_code hidden;
    if (!is_inside_) {
        descriptors_ = fs::directory_iterator(process / "fd", hidden);
        is_inside_ = true;
        is_strangers_.reset();
    }
    for (unsigned n = 1; !hidden && descriptors_ != fs::directory_iterator(); ++n) {
        std::error_code gone;
        const std::string leads_to = fs::read_symlink(descriptors_->path(), gone);
        if (leads_to.starts_with(kSocket)) {
            const auto it = found_.find(strtoull(leads_to.c_str() + kSocket.size(), nullptr, 10));
            if (it != found_.end()) {
                found_at(it->second, atoi(process.filename().c_str()));
            }
        }
        descriptors_.increment(hidden);
        if (n % kBetweenLooksAtTheClock == 0 && Clock::now() >= until) {
            return false;
        }
    }
    all_seen_ = all_seen_ && hidden != std::errc::permission_denied;
    descriptors_ = fs::directory_iterator();
    is_inside_ = false;
    return true;
}

std::optional<SocketSearch::Found> SocketSearch::go_on(Clock::time_point until) {
    for (std::error_code error; !error && processes_ != fs::directory_iterator();) {
        const std::string name = processes_->path().filename();
        if (!name.empty() && name[0] >= '1' && name[0] <= '9' && !go_through_descriptors(until)) {
            return std::nullopt;
        }
        processes_.increment(error);
        if (Clock::now() >= until) {
            return std::nullopt;
        }
    }
    for (auto &[inode, hands] : found_) {
        hands = hands == InHands::nobody && !all_seen_ ? InHands::unknown : hands;
    }
    return found_;
}

} // namespace sd::monitor
