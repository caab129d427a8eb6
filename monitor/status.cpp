// What sdstat shows, as a JSON document.
#include "monitor/monitor.hpp"

namespace sd::monitor {

std::string Monitor::status_json(const ucred &) const {
    return "{}";
}

Reply Monitor::status(Client &, Request &request) {
    const std::string text = status_json(request.sender);
    UniqueFd memfd = make_memfd("sd-status", 0);
    size_t written = 0;
    while (written < text.size()) {
        const ssize_t n = write(memfd.get(), text.data() + written, text.size() - written);
        if (n <= 0) {
            return Reply::error(ENOMEM, Cause::no_memory);
        }
        written += static_cast<size_t>(n);
    }
    Reply reply;
    reply.fds.push_back(memfd.get());
    reply.owned.push_back(std::move(memfd));
    return reply;
}

} // namespace sd::monitor
