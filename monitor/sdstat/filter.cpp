// The language of filters: a parser that goes down from "or" over "and" and "not" to a single test.
//
//   filter    := { "state" NAME | "exclude" NAME } [ or ]
//   or        := and { ( "or" | "|" | "||" ) and }
//   and       := not { [ "and" | "&" | "&&" ] not }
//   not       := ( "not" | "!" ) not | "(" or ")" | test
//   test      := ( "src" | "dst" ) [ op ] HOST | ( "sport" | "dport" ) [ op ] PORT
//              | ( "pid" | "program" | "unit" | "path" ) [ "=" | "!=" ] VALUE
#include "monitor/sdstat/filter.hpp"

#include <arpa/inet.h>
#include <charconv>
#include <cstring>
#include <fmt/core.h>
#include <fnmatch.h>
#include <netdb.h>
#include <optional>

namespace sd::stat {

// What a parser's lambdas keep: no type of this file alone, or g++ warns where many sources are compiled as
// one.
namespace filters {
enum class Op { equal, unequal, less, greater, at_most, at_least };

/// An address with the length of a prefix, and a port: each may be missing.
struct Host {
    uint8_t ip[16]{};
    unsigned bits = 0;
    std::optional<uint16_t> port;

    bool matches(const SlotAddress &address) const {
        if (port && address.port != *port) {
            return false;
        }
        if (memcmp(ip, address.ip, bits / 8) != 0) {
            return false;
        }
        const unsigned rest = bits % 8;
        return rest == 0 || (ip[bits / 8] ^ address.ip[bits / 8]) >> (8 - rest) == 0;
    }
};
} // namespace filters

namespace {

using filters::Host;
using filters::Op;

constexpr unsigned bit(State state) { return 1u << static_cast<unsigned>(state); }
constexpr unsigned kAll = (1u << kStates) - 1;
constexpr unsigned kConnected = kAll & ~bit(State::listening) & ~bit(State::closed);

std::optional<Op> operator_of(const std::string &word) {
    static const std::vector<std::pair<std::string, Op>> all = {
        {"=", Op::equal},     {"==", Op::equal},    {"eq", Op::equal},    {"!=", Op::unequal},
        {"ne", Op::unequal},  {"neq", Op::unequal}, {"<", Op::less},      {"lt", Op::less},
        {">", Op::greater},   {"gt", Op::greater},  {"<=", Op::at_most},  {"le", Op::at_most},
        {"leq", Op::at_most}, {">=", Op::at_least}, {"ge", Op::at_least}, {"geq", Op::at_least}};
    for (const auto &[name, op] : all) {
        if (name == word) {
            return op;
        }
    }
    return std::nullopt;
}

bool compare(unsigned a, Op op, unsigned b) {
    switch (op) {
    case Op::equal:
        return a == b;
    case Op::unequal:
        return a != b;
    case Op::less:
        return a < b;
    case Op::greater:
        return a > b;
    case Op::at_most:
        return a <= b;
    default:
        return a >= b;
    }
}

[[noreturn]] void fail(const std::string &what) {
    throw Failure(Exit::usage, "filter: " + what + "; sdstat(1) describes the language");
}

unsigned states_of(const std::string &name) {
    if (name == "all") {
        return kAll;
    }
    if (name == "connected") {
        return kConnected;
    }
    if (name == "synchronized") {
        return kConnected & ~bit(State::syn_sent);
    }
    if (name == "bucket") {
        return bit(State::syn_recv) | bit(State::time_wait);
    }
    if (name == "big") {
        return kAll & ~bit(State::syn_recv) & ~bit(State::time_wait);
    }
    for (unsigned i = 0; i < kStates; ++i) {
        if (name == filter_name(static_cast<State>(i))) {
            return 1u << i;
        }
    }
    fail(fmt::format("\"{}\" is no state", name));
}

template <typename T> std::optional<T> number_of(const std::string &text, T most) {
    T value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value <= most ? std::optional(value)
                                                                                     : std::nullopt;
}

uint16_t port_of(const std::string &text) {
    if (const auto number = number_of<unsigned>(text, 65535)) {
        return static_cast<uint16_t>(*number);
    }
    if (!text.empty() && isalpha(static_cast<unsigned char>(text[0])) != 0) {
        if (const servent *service = getservbyname(text.c_str(), "tcp")) {
            return ntohs(static_cast<uint16_t>(service->s_port));
        }
    }
    fail(fmt::format("\"{}\" is no port", text));
}

Host host_of(const std::string &word) {
    Host host;
    std::string address = word;
    if (!word.empty() && word[0] == '[') {
        const size_t end = word.find(']');
        if (end == std::string::npos || (end + 1 < word.size() && word[end + 1] != ':' && word[end + 1] != '/')) {
            fail(fmt::format("\"{}\" is no address", word));
        }
        address = word.substr(1, end - 1);
        std::string rest = word.substr(end + 1);
        const size_t colon = rest.find(':');
        if (colon != std::string::npos) {
            host.port =
                rest.substr(colon + 1) == "*" ? std::nullopt : std::optional(port_of(rest.substr(colon + 1)));
        }
        address += rest.substr(0, colon);
    } else if (const size_t colon = word.rfind(':');
               colon != std::string::npos && (word.find(':') == colon || word.substr(0, colon) == "*")) {
        address = word.substr(0, colon);
        const std::string port = word.substr(colon + 1);
        host.port = port == "*" ? std::nullopt : std::optional(port_of(port));
    }
    if (address.empty() || address == "*") {
        return host;
    }
    const size_t slash = address.find('/');
    const std::string plain = address.substr(0, slash);
    const bool is_four = inet_pton(AF_INET, plain.c_str(), host.ip + 12) == 1;
    if (is_four) {
        host.ip[10] = host.ip[11] = 0xff;
    } else if (inet_pton(AF_INET6, plain.c_str(), host.ip) != 1) {
        fail(fmt::format("\"{}\" is no address", word));
    }
    const unsigned most = is_four ? 32 : 128;
    host.bits = most;
    if (slash != std::string::npos) {
        const auto bits = number_of<unsigned>(address.substr(slash + 1), most);
        if (!bits) {
            fail(fmt::format("\"{}\" is no address with the length of a prefix", word));
        }
        host.bits = *bits;
    }
    host.bits += is_four ? 96 : 0;
    return host;
}

/// Words as they were given, with brackets and operators apart: "(dport=:80)" is four words for ss as well.
std::vector<std::string> split(const std::vector<std::string> &given) {
    std::vector<std::string> words;
    for (const std::string &text : given) {
        std::string word;
        const auto end_word = [&] {
            if (!word.empty()) {
                words.push_back(word);
                word.clear();
            }
        };
        for (size_t i = 0; i < text.size(); ++i) {
            const char c = text[i];
            if (isspace(static_cast<unsigned char>(c)) != 0) {
                end_word();
            } else if (c == '(' || c == ')') {
                end_word();
                words.emplace_back(1, c);
            } else if (strchr("=!<>&|", c) != nullptr) {
                end_word();
                word = c;
                const char next = i + 1 < text.size() ? text[i + 1] : '\0';
                if ((next == '=' && c != '&' && c != '|') || ((c == '&' || c == '|') && next == c)) {
                    word += next;
                    ++i;
                }
                end_word();
            } else {
                word += c;
            }
        }
        end_word();
    }
    return words;
}

} // namespace

class Filter::Parser {
  public:
    explicit Parser(std::vector<std::string> words) : words_(std::move(words)) {}

    bool at_end() const { return at_ == words_.size(); }
    bool take(std::initializer_list<const char *> any) {
        for (const char *word : any) {
            if (!at_end() && words_[at_] == word) {
                ++at_;
                return true;
            }
        }
        return false;
    }
    std::string next(const char *what) {
        if (at_end()) {
            fail(fmt::format("ends where {} should be", what));
        }
        return words_[at_++];
    }

    Test either() { // NOLINT(misc-no-recursion): as deep as the brackets, which are bounded
        Test left = both();
        while (take({"or", "|", "||"})) {
            left = [left, right = both()](const Socket &s) { return left(s) || right(s); };
        }
        return left;
    }

  private:
    Test both() { // NOLINT(misc-no-recursion)
        Test left = negated();
        for (;;) {
            const bool is_named = take({"and", "&", "&&"});
            if (!is_named && (at_end() || words_[at_] == ")" || words_[at_] == "or" || words_[at_][0] == '|')) {
                return left;
            }
            left = [left, right = negated()](const Socket &s) { return left(s) && right(s); };
        }
    }

    Test negated() { // NOLINT(misc-no-recursion)
        if (++depth_ > kMostDepth) {
            fail("is too deep");
        }
        Test result;
        if (take({"not", "!"})) {
            result = [inner = negated()](const Socket &s) { return !inner(s); };
        } else if (take({"("})) {
            result = either();
            if (!take({")"})) {
                fail("a bracket is not closed");
            }
        } else {
            result = single();
        }
        --depth_;
        return result;
    }

    Op comparison() {
        const auto op = at_end() ? std::nullopt : operator_of(words_[at_]);
        at_ += op ? 1 : 0;
        return op.value_or(Op::equal);
    }
    bool equality(const std::string &of) {
        const Op op = comparison();
        if (op != Op::equal && op != Op::unequal) {
            fail(fmt::format("{} can only be equal or not", of));
        }
        return op == Op::equal;
    }

    Test single() {
        const std::string word = next("a condition");
        if (word == "src" || word == "dst") {
            const bool is_equal = equality(word);
            return [host = host_of(next("an address")), is_equal, is_local = word == "src"](const Socket &s) {
                return host.matches(is_local ? s.local : s.peer) == is_equal;
            };
        }
        if (word == "sport" || word == "dport") {
            const Op op = comparison();
            std::string text = next("a port");
            if (text[0] == ':') {
                text.erase(0, 1);
            }
            return [port = port_of(text), op, is_local = word == "sport"](const Socket &s) {
                return compare(is_local ? s.local.port : s.peer.port, op, port);
            };
        }
        if (word == "pid") {
            const Op op = comparison();
            const std::string text = next("a process number");
            const auto pid = number_of<unsigned>(text, 1u << 30);
            if (!pid) {
                fail(fmt::format("\"{}\" is no process number", text));
            }
            return [pid = *pid, op](const Socket &s) { return compare(s.pid, op, pid); };
        }
        if (word == "program" || word == "unit") {
            const bool is_equal = equality(word);
            return [pattern = next("a name"), is_equal, is_unit = word == "unit"](const Socket &s) {
                const std::string &name = is_unit ? s.unit : s.comm;
                return (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) == is_equal;
            };
        }
        if (word == "path") {
            const bool is_equal = equality(word);
            const std::string name = next("a path");
            for (const auto path : {monitor::Path::shm, monitor::Path::kernel, monitor::Path::rdma}) {
                if (name == monitor::path_name(path)) {
                    return [path, is_equal](const Socket &s) {
                        return (s.send_path == path || s.receive_path == path) == is_equal;
                    };
                }
            }
            fail(fmt::format("\"{}\" is no path: shm, rdma or kernel", name));
        }
        fail(fmt::format("\"{}\" is not understood", word));
    }

    static constexpr unsigned kMostDepth = 64;
    std::vector<std::string> words_;
    size_t at_ = 0;
    unsigned depth_ = 0;
};

Filter::Filter(const std::vector<std::string> &words) {
    Parser parser(split(words));
    is_empty_ = parser.at_end();
    unsigned included = 0, excluded = 0;
    for (;;) {
        if (parser.take({"state"})) {
            included |= states_of(parser.next("a state"));
        } else if (parser.take({"exclude"})) {
            excluded |= states_of(parser.next("a state"));
        } else {
            break;
        }
    }
    states_ = (included != 0 ? included : excluded != 0 ? kAll : kConnected) & ~excluded;
    if (!parser.at_end()) {
        test_ = parser.either();
        if (!parser.at_end()) {
            fail(fmt::format("\"{}\" is too much", parser.next("")));
        }
    }
}

bool Filter::matches(const Socket &socket) const {
    return (states_ & bit(socket.state)) != 0 && (!test_ || test_(socket));
}

bool Filter::matches(const Snapshot &snapshot, const monitor::ConnectionRow &row) const {
    return is_empty_ || matches(socket_of(snapshot, row, 0)) || matches(socket_of(snapshot, row, 1));
}

} // namespace sd::stat
