// The TCP option of discovery: connections of two hosts, and a stranger who writes, copies, changes and loses
// what is on the wire. Nobody may be taken for an end that he is not, and nothing of other programs is lost.
#include "monitor/discovery/discovery.hpp"
#include "monitor/discovery/option_hash.h"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/option/kernel.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <sys/socket.h>
#include <tuple>

namespace {

using namespace sdfuzz::kernel;

constexpr unsigned kMostSteps = 96, kMostEnds = 12, kMostPackets = 12, kMostRequests = 12;
constexpr uint32_t kWrites = BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
constexpr uint8_t kSyn = 0x02, kAck = 0x10;
constexpr uint32_t kClosed = 7, kListens = 10;
constexpr size_t kMostOptions = 40;

void must(bool holds) {
    if (!holds) {
        abort();
    }
}

enum class Stage { closed, listens, syn_sent, connected };

struct End {
    Socket socket;
    unsigned host = 0;
    Stage stage = Stage::closed;
    unsigned address = 0, peer_address = 0;
    uint32_t port = 0, peer_port = 0;
    uint32_t isn = 0;
    bool had_flag = false; ///< for writing options, before it began to connect
    bool is_sent = false;  ///< since it has begun to connect, a SYN had the option
};

struct Packet {
    bool is_answer = false;
    unsigned end = 0; ///< of who has asked
    Bytes options;
    uint32_t isn = 0;
    unsigned request = 0;
};

/// A SYN that is being answered.
struct Request {
    unsigned listener = 0, end = 0;
    Bytes syn;
    uint32_t isn = 0, peer_isn = 0;
    bool is_answered = false;
};

class World {
  public:
    explicit World(sdfuzz::Input &input, uint64_t seed) : in_(input), seed_(seed) {
        restart_clock();
        for (unsigned i = 0; i < hosts_.size(); ++i) {
            start_host(i);
        }
        for (unsigned i = 0; i < 4; ++i) {
            add_end(i % 2);
        }
    }
    void run() {
        for (unsigned i = 0; i < kMostSteps && !in_.empty(); ++i) {
            step();
        }
    }

  private:
    /// Keys follow from the whole input: what the fuzzer sees of them is worth nothing with the next one.
    void start_host(unsigned i) {
        hosts_[i] = Host{};
        for (size_t k = 0; k < hosts_[i].keys.size(); ++k) {
            hosts_[i].keys[k] = sd_hash(seed_, ++started_, k, 0);
        }
        keys_.push_back({hosts_[i].keys[2], hosts_[i].keys[3]});
        owners_.push_back(hosts_[i].keys[0]);
        const uint8_t yes = 1;
        for (const auto &[bits, first] : {std::pair{8u + 96, 127u}, std::pair{8u + 96, 10u}}) {
            sd_network v4{bits, {}};
            v4.address[10] = v4.address[11] = 0xff;
            v4.address[12] = static_cast<uint8_t>(first);
            hosts_[i].networks.put(&v4, &yes);
        }
        const sd_network v6{7, {0xfc}};
        hosts_[i].networks.put(&v6, &yes);
        for (const auto &end : ends_) { // the former programs have gone with their storage
            if (end->host == i) {
                end->socket.end.reset();
            }
        }
    }

    unsigned add_end(unsigned host) {
        auto end = std::make_unique<End>();
        end->host = host;
        end->port = 40000 + static_cast<uint32_t>(ends_.size());
        end->socket.seen.protocol = 6;
        end->socket.seen.state = kClosed;
        end->socket.seen.src_port = end->port;
        ends_.push_back(std::move(end));
        return static_cast<unsigned>(ends_.size() - 1);
    }

    static bool is_v6(unsigned address) { return address == 3; }
    /// In networks that are asked but for the second one.
    static uint32_t v4_of(unsigned address) {
        constexpr uint32_t kFirst[] = {127, 8, 10};
        return kFirst[address % 3] | 1u << 24;
    }
    static void set_names(bpf_sock_ops &ops, unsigned local, uint32_t local_port, unsigned remote,
                          uint32_t remote_port) {
        if (is_v6(local) || is_v6(remote)) {
            ops.family = AF_INET6;
            ops.local_ip6[0] = ops.remote_ip6[0] = 0xfd;
            ops.local_ip6[3] = local;
            ops.remote_ip6[3] = remote;
        } else {
            ops.family = AF_INET;
            ops.local_ip4 = v4_of(local);
            ops.remote_ip4 = v4_of(remote);
        }
        ops.local_port = local_port;
        ops.remote_port = remote_port;
    }

    /// A call about the socket, which must not change what others have set.
    void call(End &end, Call &c) {
        c.host = &hosts_[end.host];
        c.socket = &end.socket;
        const uint32_t flags = end.socket.flags, reply = c.ops.reply;
        set_names(c.ops, end.address, end.port, end.peer_address, end.peer_port);
        run_option_program(c);
        must(((flags ^ end.socket.flags) & ~kWrites) == 0 && c.ops.reply == reply);
        must(!end.socket.others_use || (end.socket.flags & kWrites) != 0);
    }

    uint32_t next_isn() { return ++isns_ * 0x9e3779b1u; }

    void mark(End &end) {
        bpf_sockopt context{};
        std::array<uint8_t, 8> value{};
        const bool is_usual = !in_.rarely(4);
        context.level = is_usual ? SD_MARK_LEVEL : static_cast<int>(in_.below(8));
        context.optname = is_usual || in_.below(2) == 0 ? SD_MARK_NAME : static_cast<int>(in_.below(4));
        const uint32_t said = in_.below(4);
        memcpy(value.data(), &said, sizeof said);
        context.optlen = is_usual ? 4 : in_.take<int>();
        const auto size = static_cast<size_t>(std::clamp(context.optlen, 0, 8));
        context.optval = value.data();
        context.optval_end = value.data() + size;
        if (in_.rarely(16)) {
            end.socket.seen.protocol ^= 1;
        }
        const int level = context.level, optlen = context.optlen;
        const bool had = end.socket.end != nullptr;
        const bool may = run_mark_program(hosts_[end.host], end.socket, context);
        if (level != SD_MARK_LEVEL) {
            must(may && context.optlen == (optlen > 4096 ? 0 : optlen));
            must((end.socket.end != nullptr) == had);
            return;
        }
        must(!may || context.optlen == -1); // it is not for the kernel
        const bool may_be = end.stage == Stage::closed && said != SD_MARK_AGAIN;
        const bool again = end.stage == Stage::listens && said == SD_MARK_AGAIN;
        must(!may || (end.socket.seen.protocol == 6 && (may_be || again)));
        must(may || (end.socket.end != nullptr) == had);
        must(!may || (end.socket.end != nullptr) == (said != 0));
    }

    void others(End &end) {
        if (end.stage != Stage::closed) {
            return; // the BPF program could not tell whose the flag is
        }
        end.socket.others_use = in_.below(2) != 0;
        end.socket.flags = end.socket.others_use ? kWrites | 1 : in_.below(2);
    }

    void listen(End &end) {
        if (end.stage != Stage::closed) {
            return;
        }
        end.stage = Stage::listens;
        end.socket.seen.state = kListens;
        end.address = in_.below(4);
        end.peer_port = 0;
        Call c;
        c.ops.op = BPF_SOCK_OPS_TCP_LISTEN_CB;
        call(end, c);
    }

    void connect(End &end) {
        if (end.stage == Stage::listens || end.stage == Stage::syn_sent) {
            return;
        }
        end.stage = Stage::syn_sent;
        end.socket.seen.state = 2;
        end.address = in_.below(4);
        end.peer_address = in_.below(4);
        end.peer_port = 40000 + in_.below(kMostEnds);
        end.isn = next_isn();
        end.is_sent = false;
        end.had_flag = (end.socket.flags & kWrites) != 0;
        Call c;
        c.ops.op = BPF_SOCK_OPS_TCP_CONNECT_CB;
        call(end, c);
        send_syn(end);
    }

    /// The kernel asks only where the flag is set. What its own options take is the input's.
    void send_syn(End &end) {
        Packet packet;
        packet.end = index_of(end);
        packet.isn = end.isn;
        packet.options.assign(in_.below(3) * 10, 1);
        if ((end.socket.flags & kWrites) != 0) {
            Call room;
            room.room = static_cast<uint32_t>(kMostOptions - packet.options.size());
            room.ops.op = BPF_SOCK_OPS_HDR_OPT_LEN_CB;
            room.ops.skb_tcp_flags = kSyn;
            call(end, room);
            must(room.reserved == 0 || room.reserved == sizeof(sd_option));
            if (room.reserved != 0) {
                Call c;
                c.ops.op = BPF_SOCK_OPS_WRITE_HDR_OPT_CB;
                c.ops.skb_tcp_flags = kSyn;
                c.room = room.reserved;
                call(end, c);
                if (take_written(c, packet)) {
                    must(!end.is_sent); // what is sent again goes without
                    end.is_sent = true;
                    sent_.insert({hosts_[end.host].keys[0], end.socket.end->nonce});
                }
            }
        }
        send(std::move(packet));
    }

    /// The one option, whole, and nothing else.
    static bool take_written(const Call &c, Packet &packet) {
        must(c.written.empty() || c.written.size() == sizeof(sd_option));
        packet.options.insert(packet.options.end(), c.written.begin(), c.written.end());
        const uint8_t id[] = {SD_OPTION_ID >> 8, SD_OPTION_ID & 0xff};
        must(c.written.empty() || find_option(packet.options, SD_OPTION_KIND, id, 2) != nullptr);
        return !c.written.empty();
    }

    void send(Packet packet) {
        if (packets_.size() == kMostPackets) {
            packets_.erase(packets_.begin());
        }
        packets_.push_back(std::move(packet));
    }

    /// What a stranger on the wire does.
    void change(Packet &packet) {
        switch (in_.below(6)) {
        case 0:
            packet.options.resize(in_.below(kMostOptions + 1));
            break;
        case 1:
            packet.options.resize(1 + in_.below(kMostOptions));
            in_.fill(packet.options.data(), packet.options.size());
            break;
        case 2:
            if (!packet.options.empty()) {
                packet.options[in_.below(static_cast<unsigned>(packet.options.size()))] ^= in_.take<uint8_t>();
            }
            break;
        case 3:
            packet.options = packets_[in_.below(static_cast<unsigned>(packets_.size()))].options;
            break;
        case 4:
            packet.isn ^= in_.take<uint32_t>();
            break;
        case 5: // the option's words from elsewhere
            if (const Packet &other = packets_[in_.below(static_cast<unsigned>(packets_.size()))];
                other.options.size() >= sizeof(sd_option) && packet.options.size() >= sizeof(sd_option)) {
                const unsigned from = in_.below(sizeof(sd_option)), n = in_.below(sizeof(sd_option) - from + 1);
                std::copy_n(other.options.end() - sizeof(sd_option) + from, n,
                            packet.options.end() - sizeof(sd_option) + from);
            }
            break;
        }
    }

    /// Whoever listens there gets it.
    void arrive(const Packet &packet, unsigned which) {
        const auto listener = std::find_if(ends_.begin(), ends_.end(), [&](const auto &each) {
            return each->stage == Stage::listens && each->port == 40000 + which;
        });
        if (packet.is_answer || listener == ends_.end()) {
            return;
        }
        Request request;
        request.listener = which;
        request.end = packet.end;
        request.syn = packet.options;
        request.peer_isn = packet.isn;
        request.isn = next_isn();
        if (requests_.size() == kMostRequests) {
            requests_.erase(requests_.begin());
        }
        requests_.push_back(std::move(request));
        answer(requests_.back());
    }

    /// SYN-ACK; there is no socket yet.
    void answer(Request &request) {
        End &listener = *ends_[request.listener];
        const End &asker = *ends_[request.end];
        Packet packet;
        packet.is_answer = true;
        packet.end = request.end;
        packet.isn = request.isn;
        packet.options.assign(in_.below(3) * 10, 1);
        if ((listener.socket.flags & kWrites) != 0) {
            Call c[2];
            const bool is_cookie = in_.rarely(8);
            for (unsigned i = 0; i < 2; ++i) {
                c[i].host = &hosts_[listener.host];
                c[i].syn = &request.syn;
                c[i].ops.op = i == 0 ? BPF_SOCK_OPS_HDR_OPT_LEN_CB : BPF_SOCK_OPS_WRITE_HDR_OPT_CB;
                c[i].ops.skb_tcp_flags = kSyn | kAck;
                c[i].ops.args[0] = is_cookie ? BPF_WRITE_HDR_TCP_SYNACK_COOKIE : 0;
                c[i].room = i == 0 ? static_cast<uint32_t>(kMostOptions - packet.options.size()) : c[0].reserved;
                set_names(c[i].ops, listener.address, listener.port, asker.address, asker.port);
                if (i == 0 || c[0].reserved != 0) {
                    run_option_program(c[i]);
                }
            }
            must(c[0].reserved == 0 || (c[0].reserved == sizeof(sd_option) && !is_cookie));
            if (take_written(c[1], packet)) {
                sd_option asked{}, said{};
                const uint8_t id[] = {SD_OPTION_ID >> 8, SD_OPTION_ID & 0xff};
                const uint8_t *option = find_option(request.syn, SD_OPTION_KIND, id, 2);
                must(option != nullptr && option[1] == sizeof asked);
                memcpy(&asked, option, sizeof asked);
                memcpy(&said, c[1].written.data(), sizeof said);
                const uint64_t nonce = asked.nonce, of_answer = said.nonce; // copies: these are not aligned
                must(asked.version == SD_OPTION_VERSION && of_answer != nonce);
                answered_.insert({hosts_[listener.host].keys[0], nonce, of_answer});
                request.is_answered = true;
            }
        }
        send(std::move(packet));
    }

    void answered(const Packet &packet) {
        End &end = *ends_[packet.end];
        if (!packet.is_answer || end.stage != Stage::syn_sent) {
            return;
        }
        end.stage = Stage::connected;
        end.socket.seen.state = 1;
        const bool had_end = end.socket.end != nullptr;
        const uint8_t former = had_end ? end.socket.end->state : uint8_t{SD_MARKED};
        Call c;
        c.ops.op = BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB;
        c.ops.snd_nxt = end.isn + 1;
        c.ops.rcv_nxt = packet.isn + 1;
        c.packet = &packet.options;
        call(end, c);
        must(had_end == (end.socket.end != nullptr));
        must(end.had_flag || !had_end || end.socket.end->role != SD_ROLE_CONNECTED ||
             (end.socket.flags & kWrites) == 0);
        if (had_end && end.socket.end->state != former) {
            must(former == SD_SENT && end.is_sent);
            judge(end, packet.isn);
        }
    }

    void accepted(const Request &request) {
        if (ends_.size() == kMostEnds) {
            return;
        }
        const End &listener = *ends_[request.listener];
        const uint32_t flags = listener.socket.flags;
        const unsigned host = listener.host, address = listener.address;
        const uint32_t port = listener.port;
        End &end = *ends_[add_end(host)];
        end.stage = Stage::connected;
        end.socket.flags = flags; // as the kernel copies them
        end.socket.seen.state = 1;
        end.address = address;
        end.peer_address = ends_[request.end]->address;
        end.port = port;
        end.peer_port = ends_[request.end]->port;
        end.isn = request.isn;
        Call c;
        c.ops.op = BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
        c.ops.snd_nxt = request.isn + 1;
        c.ops.rcv_nxt = request.peer_isn + 1;
        call(end, c);
        if (end.socket.end) {
            must((flags & kWrites) != 0 && end.socket.end->role == SD_ROLE_ACCEPTED);
            judge(end, request.peer_isn);
        }
    }

    /// An end whose connection stands.
    void judge(const End &end, uint32_t peer_isn) const {
        const sd_end &kept = *end.socket.end;
        const uint64_t key = hosts_[end.host].keys[0];
        must(kept.own_isn == end.isn && kept.peer_isn == peer_isn);
        if (kept.state == SD_PAIRED) {
            must(kept.role == SD_ROLE_ACCEPTED ? sent_.count({key, kept.nonce}) != 0
                                               : answered_.count({key, kept.nonce, kept.answer}) != 0);
            return;
        }
        if (kept.state != SD_OTHER_HOST) {
            return;
        }
        sd::monitor::ForeignEnd foreign;
        foreign.has_connected = kept.role == SD_ROLE_CONNECTED;
        foreign.pair.nonce = kept.nonce;
        foreign.pair.answer = kept.answer;
        std::copy(std::begin(kept.proof), std::end(kept.proof), foreign.proof.begin());
        for (size_t i = 0; i < keys_.size(); ++i) {
            if (foreign.is_of(keys_[i])) {
                const auto said = answered_.lower_bound({owners_[i], kept.nonce, 0});
                must(foreign.has_connected ? said != answered_.end() && std::get<0>(*said) == owners_[i] &&
                                                 std::get<1>(*said) == kept.nonce
                                           : sent_.count({owners_[i], kept.nonce}) != 0);
            }
        }
    }

    unsigned index_of(const End &end) const {
        return static_cast<unsigned>(
            std::find_if(ends_.begin(), ends_.end(), [&](const auto &each) { return each.get() == &end; }) -
            ends_.begin());
    }

    void step() {
        const unsigned what = in_.below(16);
        End &end = *ends_[in_.below(static_cast<unsigned>(ends_.size()))];
        Host &host = hosts_[in_.below(2)];
        switch (what) {
        case 0:
        case 1:
            mark(end);
            break;
        case 2:
            listen(end);
            break;
        case 3:
        case 4:
            connect(end);
            break;
        case 5:
            if (end.stage == Stage::syn_sent) {
                send_syn(end); // again
            }
            break;
        case 6:
            others(end);
            break;
        case 7:
            host.requests.forget_one(in_.take<uint8_t>());
            break;
        case 8:
            (in_.below(2) == 0 ? host.listeners : host.shy).forget_one(in_.take<uint8_t>());
            break;
        case 9:
            if (in_.rarely(4)) {
                start_host(in_.below(2));
            } else if (ends_.size() < kMostEnds) {
                add_end(in_.below(2));
            }
            break;
        default:
            if (!packets_.empty()) {
                packet_step(what);
            }
        }
    }

    void packet_step(unsigned what) {
        const unsigned which = in_.below(static_cast<unsigned>(packets_.size()));
        if (what == 10) {
            change(packets_[which]);
        } else if (what == 11) {
            const Packet packet = packets_[which];
            arrive(packet, in_.below(kMostEnds));
        } else if (what == 12 && !requests_.empty()) {
            answer(requests_[in_.below(static_cast<unsigned>(requests_.size()))]);
        } else if (what == 13 && !requests_.empty()) {
            accepted(requests_[in_.below(static_cast<unsigned>(requests_.size()))]);
        } else if (what == 14) {
            const Packet packet = packets_[which];
            arrive(packet, ends_[packet.end]->peer_port - 40000);
        } else if (what == 15) {
            const Packet packet = packets_[which];
            answered(packet);
        }
    }

    sdfuzz::Input &in_;
    const uint64_t seed_;
    uint64_t started_ = 0;
    uint32_t isns_ = 0;
    std::array<Host, 2> hosts_;
    std::vector<sd::monitor::ProofKey> keys_; // of all that have been started
    std::vector<uint64_t> owners_;            // the same ones' other keys
    std::vector<std::unique_ptr<End>> ends_;
    std::vector<Packet> packets_;
    std::vector<Request> requests_;
    std::set<std::pair<uint64_t, uint64_t>> sent_;                // key, nonce
    std::set<std::tuple<uint64_t, uint64_t, uint64_t>> answered_; // key, nonce, answer
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t seed = size;
    for (size_t i = 0; i < size; ++i) {
        seed = (seed ^ data[i]) * 0x100000001b3ull;
    }
    sdfuzz::Input input(data, size);
    World(input, seed).run();
    return 0;
}
