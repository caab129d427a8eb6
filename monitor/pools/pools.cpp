// Operations on pools: who is given the memory from which a connection's bytes are handed over.
//
// A pool is named to the processes of its owner's side, and shown to those of the other side alone, if they
// are of the owner's trust domain: they read in place what the owner could still write. To a bridge it is
// shown if it carries that domain's connections: what lies in it unread when one crosses goes on as bytes.
#include "libsd/layout/pool_layout.hpp"
#include "monitor/kernel/descriptor_kind.hpp"
#include "monitor/operations/monitor.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>

namespace sd::monitor {

namespace {

constexpr size_t kMostPoolsOfLink = 8192;

/// Sealed as those need it who map it, and nothing else than shared memory. The size, or nothing.
std::optional<uint64_t> sealed_size(int fd, int seals) {
    struct stat st {};
    if (!safe_to_map(fd, 1) || fcntl(fd, F_GET_SEALS) != seals || fstat(fd, &st) != 0) {
        return std::nullopt;
    }
    return static_cast<uint64_t>(st.st_size);
}

bool both_released(const Link &link, uint32_t slot) {
    const Slot &s = link.view(1).slot(slot);
    return (s.side[0].control.flags.load(std::memory_order_acquire) &
            s.side[1].control.flags.load(std::memory_order_acquire) & kFlagReleased) != 0;
}

} // namespace

/// Those of connections that are over: who should have said so was killed.
void Monitor::drop_ended_pools(Link &link) {
    std::erase_if(link.pools, [&link](const auto &entry) {
        const LinkPool &pool = entry.second;
        return link.arrival(pool.slot) != pool.arrival || both_released(link, pool.slot);
    });
}

Reply Monitor::pool(Client &client, Request &request) {
    const auto body = request.as<wire::Pool>();
    Link *link = client.link(body.link_id, body.side);
    if (link == nullptr || link->is_fake() || body.slot >= kLinkSlots) {
        return Reply::error(ENOENT);
    }
    const auto bytes = sealed_size(request.fds[0].get(), kPoolSeals),
               ledger = sealed_size(request.fds[1].get(), kLedgerSeals);
    const bool is_pool = bytes && *bytes >= kLeastPool && *bytes <= kMostPool;
    if ((!is_pool && !is_channel_end(request.fds[0].get())) || ledger != sizeof(PoolLedger)) {
        return Reply::error(EINVAL);
    }
    drop_ended_pools(*link);
    if (link->pools.size() >= kMostPoolsOfLink) {
        return Reply::error(ENOSPC, Cause::limit);
    }
    // One that a former monitor named has a name of another run, or the caller makes one up: then it is in
    // use here, or only the caller's own peers are told of it.
    const uint64_t name = body.pool != 0 ? body.pool : next_id_++;
    if (link->pools.count(name) != 0) {
        return Reply::error(EEXIST);
    }
    LinkPool made{std::move(request.fds[0]),
                  std::move(request.fds[1]),
                  body.side,
                  body.slot,
                  link->arrival(body.slot),
                  domain_of(client, request.sender),
                  charge(client.payer, Resource::pools, 2),
                  !is_pool};
    link->pools.emplace(name, std::move(made));
    Reply reply;
    reply.set(wire::PoolReply{name});
    return reply;
}

Reply Monitor::peer_pool(Client &client, Request &request) {
    const auto body = request.as<wire::PoolRef>();
    Link *link = body.side < 2 ? client.link(body.link_id, 1 - body.side) : nullptr;
    if (link == nullptr) {
        return Reply::error(ENOENT);
    }
    const auto found = link->pools.find(body.pool);
    if (found == link->pools.end() || found->second.side != body.side) {
        return Reply::error(ENOENT);
    }
    // A bridge has fewer rights than those whose connections it carries, but no others to tell of them.
    const BridgeProgram *bridge = bridge_of(client);
    const Domain &owner = found->second.domain;
    if (!owner.shares_with(bridge != nullptr ? bridge->domain : domain_of(client, request.sender))) {
        return Reply::error(EXDEV);
    }
    Reply reply;
    reply.fds = {found->second.bytes.get(), found->second.ledger.get()};
    return reply;
}

Reply Monitor::end_pool(Client &client, Request &request) {
    const auto body = request.as<wire::PoolRef>();
    for (const unsigned side : {0u, 1u}) {
        if (Link *link = client.link(body.link_id, side)) {
            const auto found = link->pools.find(body.pool);
            if (found != link->pools.end() && found->second.side == body.side) {
                link->pools.erase(found);
                return {};
            }
        }
    }
    return Reply::error(ENOENT);
}

} // namespace sd::monitor
