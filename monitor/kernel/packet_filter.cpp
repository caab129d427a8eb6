// Reading the rules for packets with libnftables, and hearing of changes over netlink.
#include "monitor/kernel/packet_filter.hpp"
#include "monitor/records/listener.hpp"
#include "monitor/service/network_visit.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/nsfs.h>
#include <nftables/libnftables.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

/// Whether the network namespace that we are in is one of a user namespace below ours: then somebody whom we
/// do not trust makes its rules.
bool is_strangers() {
    const UniqueFd net(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    const UniqueFd owner(net ? ioctl(net.get(), NS_GET_USERNS) : -1);
    struct stat its, own;
    return owner && fstat(owner.get(), &its) == 0 && stat("/proc/self/ns/user", &own) == 0 &&
           (its.st_ino != own.st_ino || its.st_dev != own.st_dev);
}

/// Counts the changes of the rules, from 1 on; 0: the kernel does not say.
uint32_t rule_generation(int netlink) {
    struct {
        nlmsghdr header;
        nfgenmsg family;
    } question{};
    question.header.nlmsg_len = sizeof question;
    question.header.nlmsg_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN;
    question.header.nlmsg_flags = NLM_F_REQUEST;
    alignas(nlmsghdr) char answer[4096];
    if (::send(netlink, &question, sizeof question, 0) != sizeof question) {
        return 0;
    }
    const ssize_t n = recv(netlink, answer, sizeof answer, MSG_DONTWAIT);
    const auto *header = reinterpret_cast<const nlmsghdr *>(answer);
    if (n < static_cast<ssize_t>(NLMSG_SPACE(sizeof(nfgenmsg)) + NLA_HDRLEN + sizeof(uint32_t)) ||
        header->nlmsg_type != (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN)) {
        return 0;
    }
    const char *first = answer + NLMSG_SPACE(sizeof(nfgenmsg)); // which is NFTA_GEN_ID
    nlattr attribute;
    uint32_t value;
    memcpy(&attribute, first, sizeof attribute);
    memcpy(&value, first + NLA_HDRLEN, sizeof value);
    return attribute.nla_type == NFTA_GEN_ID ? ntohl(value) : 0;
}

UniqueFd rule_events() {
    UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_NETFILTER));
    sockaddr_nl own{};
    own.nl_family = AF_NETLINK;
    own.nl_groups = 1u << (NFNLGRP_NFTABLES - 1);
    if (fd && bind(fd.get(), reinterpret_cast<sockaddr *>(&own), sizeof own) != 0) {
        const int error = errno;
        fd = UniqueFd();
        errno = error;
    }
    return fd;
}

} // namespace

PacketFilter::PacketFilter(uint64_t netns, pid_t pid) : nft_(nullptr, nft_ctx_free) {
    const UniqueFd here(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    std::unique_ptr<Visit> visit;
    if (!here || netns_cookie(here.get()) != netns) {
        visit = std::make_unique<Visit>(pid);
        if (!visit->is_inside()) {
            why_ = std::string("its network namespace cannot be entered: ") + strerror(errno);
            return;
        }
    }
    events_ = rule_events();
    if (!events_ && (errno == EPROTONOSUPPORT || errno == ENOENT)) {
        seen_ = true; // a kernel without packet filters
        return;
    }
    if (!events_) {
        why_ = std::string("changes of the rules cannot be heard of: ") + strerror(errno);
        return;
    }
    if (netns_cookie(events_.get()) != netns) {
        events_ = UniqueFd();
        why_ = "the process has left the network namespace";
        return;
    }
    const std::string process = visit ? "/proc/thread-self/net/" : "/proc/self/net/";
    for (const auto &[names, file] :
         {std::pair{&legacy_names_[0], "ip_tables_names"}, {&legacy_names_[1], "ip6_tables_names"}}) {
        *names = UniqueFd(open((process + file).c_str(), O_RDONLY | O_CLOEXEC));
        if (!*names && errno != ENOENT) {
            why_ = process + file + ": " + strerror(errno);
            events_ = UniqueFd(); // there is nothing to read anew
            return;
        }
    }
    // Without one libnftables would end the process.
    if (const UniqueFd spare(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER)); !spare) {
        why_ = std::string("no socket to read the rules: ") + strerror(errno);
        events_ = UniqueFd();
        return;
    }
    if (is_strangers()) {
        generations_ = UniqueFd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
        look_for_legacy();
        read();
        return;
    }
    nft_.reset(nft_ctx_new(NFT_CTX_DEFAULT)); // its socket is of this namespace from now on
    if (nft_ && nft_ctx_buffer_output(nft_.get()) == 0 && nft_ctx_buffer_error(nft_.get()) == 0) {
        nft_ctx_output_set_flags(nft_.get(), NFT_CTX_OUTPUT_JSON | NFT_CTX_OUTPUT_STATELESS |
                                                 NFT_CTX_OUTPUT_NUMERIC_PROTO);
        look_for_legacy();
        read();
    } else {
        why_ = "libnftables has no memory";
    }
}

PacketFilter::~PacketFilter() = default;

bool PacketFilter::look_for_legacy() {
    bool found = false;
    for (const UniqueFd &names : legacy_names_) {
        char byte;
        found = found || (names && pread(names.get(), &byte, 1, 0) == 1);
    }
    return std::exchange(legacy_, found) != found;
}

void PacketFilter::read() {
    seen_ = false;
    if (generations_) {
        const uint32_t generation = rule_generation(generations_.get());
        seen_ = generation != 0;
        any_ = generation != 1;
        why_ = seen_ ? "" : "the kernel does not say whether there are any";
        return;
    }
    const bool listed = nft_run_cmd_from_buffer(nft_.get(), "list ruleset") == 0;
    const char *text = nft_ctx_get_output_buffer(nft_.get()), *error = nft_ctx_get_error_buffer(nft_.get());
    if (!listed || text == nullptr) {
        why_ = std::string("the rules cannot be listed: ") + (error == nullptr ? "" : error);
        why_.resize(std::min(why_.size(), why_.find('\n')));
        return;
    }
    try {
        rules_ = Ruleset(nlohmann::json::parse(text));
        seen_ = true;
        why_.clear();
    } catch (const nlohmann::json::exception &problem) {
        why_ = std::string("the list of rules is not understood: ") + problem.what();
    }
}

bool PacketFilter::drain() {
    for (;;) {
        char event[8192];
        const ssize_t n = recv(events_.get(), event, sizeof event, 0);
        if (n < 0 && errno != ENOBUFS) { // more than the socket holds: some have changed in any case
            return changed_;
        }
        changed_ = true;
    }
}

void PacketFilter::refresh() {
    changed_ = false; // what comes while they are read makes them stale again
    read();
}

} // namespace sd::monitor
