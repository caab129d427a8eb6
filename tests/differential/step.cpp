// Names of steps, and their arguments as C text.
#include "tests/differential/step.hpp"

#include "tests/differential/option_list.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

namespace sd::differential {

namespace {

constexpr OpInfo kInfo[] = {
#define OP(name, arguments, text) {#name, arguments, text},
#include "tests/differential/ops.def"
#undef OP
};

struct Bit {
    unsigned bit;
    const char *name;
};

constexpr Bit kMessageBits[] = {{MSG_PEEK, "MSG_PEEK"},
                                {MSG_WAITALL, "MSG_WAITALL"},
                                {MSG_DONTWAIT, "MSG_DONTWAIT"},
                                {MSG_TRUNC, "MSG_TRUNC"},
                                {MSG_OOB, "MSG_OOB"},
                                {MSG_NOSIGNAL, "MSG_NOSIGNAL"},
                                {MSG_MORE, "MSG_MORE"},
                                {MSG_ERRQUEUE, "MSG_ERRQUEUE"},
                                {MSG_EOR, "MSG_EOR"},
                                {MSG_DONTROUTE, "MSG_DONTROUTE"},
                                {MSG_CTRUNC, "MSG_CTRUNC"},
                                {MSG_CMSG_CLOEXEC, "MSG_CMSG_CLOEXEC"},
                                {MSG_WAITFORONE, "MSG_WAITFORONE"}};
constexpr Bit kEventBits[] = {
    {EPOLLIN, "EPOLLIN"},       {EPOLLPRI, "EPOLLPRI"},         {EPOLLOUT, "EPOLLOUT"},
    {EPOLLRDHUP, "EPOLLRDHUP"}, {EPOLLERR, "EPOLLERR"},         {EPOLLHUP, "EPOLLHUP"},
    {EPOLLET, "EPOLLET"},       {EPOLLONESHOT, "EPOLLONESHOT"}, {EPOLLEXCLUSIVE, "EPOLLEXCLUSIVE"}};
constexpr const char *kForms[] = {"v4_loopback", "v4_any",       "v6_loopback", "v6_any",       "mapped",
                                  "v4_other",    "v4_foreign",   "bad_family",  "short_length", "bad_pointer",
                                  "unspecified", "null_address", "v4_near",     "v4_far",       "v6_near",
                                  "v6_far",      "mapped_near",  "mapped_far"};

template <size_t N> std::string names(const Bit (&bits)[N], unsigned value) {
    std::string text;
    for (const Bit &entry : bits) {
        if (value & entry.bit) {
            text += text.empty() ? "" : " | ";
            text += entry.name;
            value &= ~entry.bit;
        }
    }
    if (value != 0 || text.empty()) {
        text += text.empty() ? "" : " | ";
        text += std::to_string(value);
    }
    return text;
}

std::string descriptor(int value) {
    if (value >= kNumber) {
        return std::to_string(value - kNumber);
    }
    if (value >= kSecond) {
        return "w[" + std::to_string(value - kSecond) + "]";
    }
    return value >= 0           ? "v[" + std::to_string(value) + "]"
           : value == kUnusedFd ? "370"
           : value == kNoFd     ? "NONE"
                                : "-1";
}

std::string argument(char kind, int value) {
    switch (kind) {
    case 'f':
        return descriptor(value);
    case 'p':
        return value >= 0 ? "port[" + std::to_string(value) + "]" : value == kDeadPort ? "1" : "0";
    case 'n':
        return "moved[" + std::to_string(value) + "]";
    case 'm':
        return names(kMessageBits, static_cast<unsigned>(value));
    case 'e':
        return names(kEventBits, static_cast<unsigned>(value));
    case 'd':
        return value == AF_INET ? "AF_INET" : value == AF_INET6 ? "AF_INET6" : std::to_string(value);
    case 't': {
        const int type = value & 0xf, flags = value & ~0xf;
        std::string text = type == SOCK_STREAM ? "SOCK_STREAM" : std::to_string(type);
        text += flags & SOCK_NONBLOCK ? " | SOCK_NONBLOCK" : "";
        text += flags & SOCK_CLOEXEC ? " | SOCK_CLOEXEC" : "";
        const int rest = flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
        return rest != 0 ? text + " | " + std::to_string(rest) : text;
    }
    case 'a':
        return kForms[value];
    case 'o':
        return kOptions[value].text;
    case 'x':
        return std::to_string(value);
    default:
        return std::to_string(value);
    }
}

} // namespace

const OpInfo &info(Op op) { return kInfo[static_cast<int>(op)]; }

std::string text_of(const Step &step) {
    std::string result;
    const OpInfo &about = info(step.op);
    for (const char *at = about.text; *at != '\0'; ++at) {
        if (*at == '$') {
            const int index = *++at - '0';
            result += argument(about.arguments[index], step.arguments[static_cast<size_t>(index)]);
        } else {
            result += *at;
        }
    }
    return result;
}

} // namespace sd::differential
