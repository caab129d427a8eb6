// What another host's monitor says: whatever it is, it is taken or refused, in whichever pieces it comes.
#include "monitor/peers/link_message.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace sd::monitor;

/// All messages, and how it ends. `piece`: bytes at a time.
std::vector<std::string> read(std::string_view bytes, size_t piece) {
    std::vector<std::string> got;
    MessageReader reader;
    for (size_t at = 0;;) {
        Message message;
        MessageReader::State state;
        while ((state = reader.next(message)) == MessageReader::State::message) {
            if (message.body.size() > kMostMessageBody) {
                abort();
            }
            got.push_back(encode(message.kind, message.body));
            (void)key_of(message.body);
            // What is understood about links says the same when it is said again, byte by byte.
            if (const auto said = between_hosts::decode(message.kind, message.body);
                said && (!is_about_links(message.kind) || between_hosts::kind_of(*said) != message.kind ||
                         between_hosts::encode(*said) != message.body ||
                         message.body.size() > between_hosts::kMostLinkBody)) {
                abort();
            }
            if (message.kind == MessageKind::hello) {
                if (const auto hello = hello_of(message.body)) {
                    // What is understood says the same when it is said again.
                    if (hello_of(std::string_view(encode(*hello)).substr(kMessageHeader)) != hello ||
                        common_version(*hello, *hello) != hello->newest) {
                        abort();
                    }
                }
            }
        }
        if (state == MessageReader::State::malformed) {
            got.emplace_back("malformed");
            return got;
        }
        if (at == bytes.size()) {
            return got;
        }
        const size_t n = std::min({piece, reader.room(), bytes.size() - at});
        if (n == 0) {
            abort(); // it waits for what it has no room for
        }
        reader.add(bytes.substr(at, n));
        at += n;
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string_view bytes(reinterpret_cast<const char *>(data), size);
    const std::vector<std::string> whole = read(bytes, size);
    if (read(bytes, 1) != whole || read(bytes, 7) != whole) {
        abort();
    }
    std::string again;
    for (const std::string &message : whole) {
        again += message == "malformed" ? "" : message;
    }
    if (bytes.substr(0, again.size()) != again) {
        abort();
    }
    return 0;
}
