// What the monitor and the shared memory it knows of hold now. Numbers that do not come back to where they
// were once the programs have gone are a leak.
#include "monitor/operations/monitor.hpp"

#include <nlohmann/json.hpp>
#include <sys/stat.h>

namespace sd::monitor {

namespace {

uint64_t memory_of(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? static_cast<uint64_t>(st.st_blocks) * 512 : 0;
}

} // namespace

nlohmann::json Monitor::resources_json() const {
    Segment::Census census;
    uint64_t segments = 0, slots = 0, bells = 0, memory = 0;
    for (const auto &[file, weak] : segments_) {
        if (const std::shared_ptr<Segment> segment = weak.lock()) {
            ++segments;
            census += segment->census();
            memory += memory_of(segment->fd());
        }
    }
    for (const auto &[file, link] : links_) {
        slots += slots_in_use(*link);
        memory += memory_of(link->memfd.get());
        for (const LinkSide &side : link->side) {
            for (const Bell &bell : side.bells) {
                bells += bell.eventfd ? 1 : 0;
            }
        }
    }
    for (const auto &[id, listener] : listeners_) {
        memory += memory_of(listener->memfd.get());
        bells += listener->accept_bells.size();
    }
    nlohmann::json accounts = nlohmann::json::array();
    accounts_.for_each([&](const Account &account) {
        nlohmann::json entry{{"name", account.name}, {"descriptors", account.descriptors}};
        for (unsigned i = 0; i < kResources; ++i) {
            entry[resource_name(static_cast<Resource>(i))] = account.count[i];
        }
        accounts.push_back(std::move(entry));
    });
    return {{"accounts", std::move(accounts)},
            {"channels", clients_.size()},
            {"segments", segments},
            {"open_files", census.open_files},
            {"family_processes", census.processes},
            {"family_threads", census.threads},
            {"links", links_.size()},
            {"slots", slots},
            {"listeners", listeners_.size()},
            {"doorbells", bells},
            {"parcels", parcels_.size()},
            {"awaited", awaited_.size() + strangers_.size()},
            {"shared_memory", memory}};
}

} // namespace sd::monitor
