// The monitor: everything that is registered, and the operations of the protocol on it.
#pragma once
#include "monitor/discovery/discovery.hpp"
#include "monitor/kernel/group_programs.hpp"
#include "monitor/kernel/listener_watch.hpp"
#include "monitor/kernel/listening.hpp"
#include "monitor/kernel/process_info.hpp"
#include "monitor/kernel/socket_search.hpp"
#include "monitor/records/client.hpp"
#include "monitor/records/connection_table.hpp"
#include "monitor/records/moved.hpp"
#include "monitor/records/offer.hpp"
#include "monitor/records/parcel.hpp"
#include "monitor/records/remote_host.hpp"
#include "monitor/service/config.hpp"
#include "monitor/service/packet.hpp"
#include "monitor/service/socket_question.hpp"

#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>

namespace sd::monitor {

/// A client, its user or its control group has the monitor hold as much as it may.
struct OverShare : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class PeersHelper;

std::chrono::milliseconds patience_after_restart(std::chrono::milliseconds usual);
/// When to ask look_at_descriptors() again.
std::chrono::milliseconds soon_after(std::chrono::steady_clock::time_point when);

class Monitor {
  public:
    /// `socket_path` is only shown. `exit_when_unused`: stop the loop some time after the last channel has
    /// gone.
    Monitor(EventLoop &loop, Config config, std::string socket_path, bool exit_when_unused);
    ~Monitor();
    Monitor(const Monitor &) = delete;
    Monitor &operator=(const Monitor &) = delete;

    /// Starts to accept clients. The sockets stay the caller's. `containers`: where containers come, which
    /// get less (service/contained.hpp); -1: they have no socket of their own.
    void serve(int listening_socket, int containers = -1);
    /// What is asked for from now on is judged by this. Listeners, links and connections that there are stay,
    /// but where connections are to begin on the kernel, links are not used for new ones; the path of the
    /// socket is not looked at.
    void reconfigure(Config config);
    /// Tells all processes that this monitor ends in order.
    void announce_end();
    /// A file in which what listens is written down for the next monitor; what a former one wrote is listed.
    void keep_listeners(UniqueFd file);
    /// What has not been written yet.
    void write_listeners();
    /// metrics.cpp: what all have made together, in Prometheus' text format.
    std::string metrics();

  private:
    // monitor.cpp: channels and dispatch
    struct Operation;
    static const Operation *find_operation(uint16_t op);
    struct Door { ///< where clients come
        int fd = -1;
        EventLoop::Watch watch = 0;
        bool contained = false;
    };
    void open_door(Door &door, int listening, bool contained);
    bool accept_client(const Door &door);
    void accept_clients(const Door &door);
    Client &add_client(ClientChannel channel, Payer payer, Charge charge);
    /// A client at one end of a pair of sockets, and the other end.
    std::pair<Client &, UniqueFd> make_channel(const Client &asking, const Payer &payer);
    void channel_ready(uint64_t client_id);
    void listen_to(Client &client);
    bool handle(Client &client, Request &request);
    Reply perform(Client &client, Request &request, const Operation &operation);
    void arm_exit(std::chrono::milliseconds grace);
    /// Whether a line about what a client did may be logged: no client can fill the disk.
    bool may_log();
    /// accounting.cpp: for one thing more that is held in the name of the client. Throws OverShare.
    Charge charge(const Payer &payer, Resource what, unsigned descriptors);
    Charge charge_client(const Payer &payer, const Client *asking);
    bool drop_silent(const Payer &payer, const Client *asking);
    Payer payer_of(const ucred &who, bool contained = false);
    void pay_as(Client &client, const ucred &sender);

    // lifecycle.cpp: processes coming and going
    Reply hello(Client &client, Request &request);
    wire::HelloReply hello_reply(Client &client) const;
    Reply presence(Client &client, Request &request);
    Reply stay(Client &client, Request &request);
    Reply enter(Client &client, Request &request);
    Reply fork(Client &client, Request &request);
    Reply child(Client &client, Request &request);
    Reply segment(Client &client, Request &request);
    Reply part(Client &client, Request &request);
    [[nodiscard]] bool identify(Client &client, const ucred &sender, bool forked = false);
    std::shared_ptr<Segment> find_segment(const Client &payer, Request &request);
    void share_segment(Client &client, const std::shared_ptr<Segment> &segment, unsigned proc_index,
                       uint64_t name);
    void copy_holdings(const Client &from, Client &to);
    void move_holdings(Client &from, Client &to);
    void take_back(Client &client, const Request &request, const Reply &reply, bool new_listener);
    bool any_alive(const Listener &listener);
    void channel_closed(Client &client);
    void hear_out(Client &client);
    void gone(Client &client, const char *why);
    Client *find_process(pid_t pid, uint64_t start, const Client *other_than);
    bool has_presence(pid_t pid, uint64_t start) const;

    // endings.cpp: what ended processes held, in pieces
    struct Ending;
    struct ClosedLink;
    using Endings = std::map<uint64_t, Ending>;
    void release_holdings(Client &client);
    void release_share(Client &client, const Client::Share &share);
    void end_by_pieces(Client &client, const std::shared_ptr<Segment> &segment, Segment::Reaping reaping);
    void end_by_pieces(const std::shared_ptr<Segment> &segment, Segment::Reaping reaping);
    void end_by_pieces(Ending ending);
    void drop_links(Client &client);
    Ending &ending_of(Client &client);
    bool one_piece(Client *client, const std::shared_ptr<Segment> &segment, Segment::Reaping &reaping);
    void go_on_ending();
    void go_on_ending_soon();
    bool let_go_of_links(Client &client, EventLoop::Clock::time_point until);
    EventLoop::Clock::time_point ends_until();
    void one_step(Ending &ending);
    void work_on(Endings::iterator it);
    void forget_client(Client &client);
    void take_ended();
    Reply ends(Client &client, Request &request);
    bool is_awaited(const Client &asker, uint64_t until) const;
    void answer_waiting();

    // sandboxed_clients.cpp: processes in a sandbox
    static bool is_answered_when_sandboxed(wire::Op op);
    bool is_sandboxed(const Client &client, const ucred &sender) const;
    Reply withdraw(Client &client, Request &request);
    Reply sandbox(Client &client, Request &request);

    // sharing.cpp: who may be shown what
    Domain domain_of(Client &client, const ucred &sender);
    static bool alone_in(const Client &client, const Segment &segment);
    /// As far as can be told, and not only as we have been told. Of one that has ended nothing is known any
    /// more, and that is not to be held against those who come next.
    static bool has_ended(const Client &client);
    static bool members_share_with(const Segment &segment, const Domain &now);
    bool may_share(const Client &client, Segment &segment, const Domain &now) const;
    static bool may_accept_from(const Client &client, Link &link, const Domain &now);
    static bool is_among_own(const Client &client, const Link &link, unsigned side);
    void stamp(Client &passer, Segment &segment, const Domain &now);
    const BridgeProgram *bridge_of(const Client &client) const;

    // images.cpp: exec
    Reply image(Client &client, Request &request);
    Reply leave(Client &client, Request &request);

    // parcels.cpp: connections on their way to another process
    Reply pass(Client &client, Request &request);
    Reply claim(Client &client, Request &request);
    Reply claimed(Client &client, Request &request);
    void parcel_ready(uint64_t id, uint32_t events);
    std::optional<InHands> look_at_descriptors(ino_t inode);
    void look_for_parcel_later(Parcel &parcel);
    void look_for_parcel_after(Parcel &parcel, std::chrono::milliseconds pause);
    void stop_looking_for(Parcel &parcel);
    void end_parcel(Parcel &parcel);
    void sender_gone(uint64_t client_id, const Payer &payer);
    void finish_segment(Segment &segment);

    // moved.cpp: connections whose holders go over to a kernel socket
    using MovedConnections = std::map<std::pair<const Segment *, uint32_t>, MovedConnection>; ///< by Ofd
    [[nodiscard]] int can_move(const Parcel &parcel, Charge &paid);
    [[nodiscard]] int move_holders(Parcel &parcel, ClientSocket socket);
    void move_with_receiver(Parcel &parcel, ClientSocket socket);
    [[nodiscard]] int carry_for_all(Parcel &parcel, ClientSocket socket, Charge paid);
    const ClientSocket *common_socket(const Parcel &parcel) const;
    Reply moved(Client &client, Request &request);
    Reply let_go(Client &client, Request &request);
    MovedConnections::iterator find_moved(const Client &client, const wire::Moved &body);
    void review_moved(const Segment &segment);

    // offers.cpp: connections that began in the kernel
    static constexpr size_t kMostOffers = 4096;    ///< of one process, whose other ends have not come
    static constexpr size_t kMostFarLinks = 65536; ///< with one host
    using Offers = std::map<OfferKey, Offer>;
    Offer *find_other_end(const Offer &offer);
    const Listener *listener_of(const Offer &acceptor) const;
    Cause join_objects(const Offer &connector, const Offer &acceptor);
    Link *link_between(Client &connector, Client &acceptor);
    Cause join(Offer &first, Offer &second);
    Offers::iterator forget_offer(Offers::iterator it);
    void give_up_offer(Offers::iterator it);
    void give_up_offers(const Client &client);
    void leave_if_untold(Client &client, Link &link, unsigned side);
    static Reply answer(const Offer &offer);
    void forget_offers(const Link &link);
    std::optional<ConnectedSocket> examine(const Request &request) const;
    Reply offer(Client &client, Request &request);
    Reply other_end(Client &client, Request &request);
    Reply take_back(Client &client, Request &request);
    Reply greet(Client &client, Request &request);
    bool may_use_address(const unsigned char (&hello)[48]) const;
    static void name_slot(Link &link, uint32_t slot, const ConnectionNames::Name &client,
                          const ConnectionNames::Name &server);

    // hosts/hosts.cpp: the monitors of other hosts. heard() says what is wrong with a message, if it is
    RemoteHost &remote_host(const std::string &name);
    void tell(const RemoteHost &host, const between_hosts::LinkMessage &message);
    void host_is_there(const std::string &name);
    void host_is_away(const std::string &name);
    void host_says(const std::string &name, const between_hosts::LinkMessage &message);
    const char *heard(RemoteHost &host, const between_hosts::Epoch &m);
    const char *heard(RemoteHost &host, const between_hosts::Links &m);
    static const char *learn_number(RemoteHost &host, uint64_t here, uint64_t there);
    void lose_links(RemoteHost &host);
    void add_host(const std::string &name, nlohmann::json &row) const;

    // hosts/far_offers.cpp: ends whose other end is on another host
    const char *heard(RemoteHost &host, const between_hosts::Offer &m);
    static const char *heard(RemoteHost &host, const between_hosts::Withdrawn &m);
    const char *heard(RemoteHost &host, const between_hosts::Joined &m);
    const char *heard(RemoteHost &host, const between_hosts::Taken &m);
    const char *heard(RemoteHost &host, const between_hosts::Refused &m);
    Cause far_objects(const Offer &offer) const;
    void not_taken(RemoteHost &host, const between_hosts::Joined &asked);
    void forget_closed(RemoteHost &host);
    Reply offer_to_host(Client &client, uint32_t side, uint32_t no_rdma, const ConnectedSocket &socket,
                        const ForeignEnd &end, const std::string &name);
    void join_far(Offer &offer, const between_hosts::Offer &foreign);
    static void begin_far_slot(Offer &offer, Link &link, uint32_t slot);
    static void leave_link(Offer &offer);
    static void stay_with_kernel(Offer &offer, Cause cause);
    static void wake_offerer(Client &client);
    static void close_offer(const Offer &offer);
    void withdraw_from_host(Offer &offer);

    // hosts/far_links.cpp: links between a process here and one there
    const char *heard(RemoteHost &host, const between_hosts::Greeting &m);
    const char *heard(RemoteHost &host, const between_hosts::Gone &m);
    Link *link_to_host(Client &connector, RemoteHost &host, uint64_t process);
    Link *make_far_link(Client &own, const Link::Far &far);
    void greet_host(const Link &link, uint32_t step);
    void far_side_gone(Link &link);
    void forget_far(Link &link);
    void own_side_gone(Link &link);

    // hosts/lost_links.cpp: what a queue pair had not carried when it ended
    static bool may_pair_again(Client &connector, const Client &acceptor);
    static bool may_pair_again(Client &connector, const RemoteHost &host, uint64_t process);
    static bool may_pair(const Client &client);
    void owner_gone(Link &link, unsigned side, const Client &client);
    Reply carry(Client &client, Request &request);

    // hosts/far_lost_links.cpp: the same between two hosts
    Reply carry_far(Link &link, uint32_t slot, bool tells);
    void tell_lost(Link &link);
    static bool give_up_slot(const Link &link, uint32_t slot);
    static void give_up_slots(const Link &link);
    void begin_carrying(RemoteHost &host);
    void stop_carrying(RemoteHost &host);
    void give_up_host(RemoteHost &host);
    void carry_on(RemoteHost &host);
    void carry_on_soon(RemoteHost &host);
    void answer_pull(RemoteHost &host, const between_hosts::Pull &m);
    void ask_next(RemoteHost &host);
    static bool is_kept_for_peer(const Link &link);
    bool end_if_read(Link &link);
    void refuse_asked(Link &link);
    void review_soon(RemoteHost &host);
    const char *heard(RemoteHost &host, const between_hosts::Lost &m);
    const char *heard(RemoteHost &host, const between_hosts::Changed &m);
    const char *heard(RemoteHost &host, const between_hosts::Pull &m);
    static const char *heard(RemoteHost &host, const between_hosts::Words &m);
    static const char *heard(RemoteHost &host, const between_hosts::Records &m);
    const char *heard(RemoteHost &host, const between_hosts::Pulled &m);

    // pools/pools.cpp: memory from which a connection's bytes are handed over
    static void drop_ended_pools(Link &link);
    Reply pool(Client &client, Request &request);
    Reply peer_pool(Client &client, Request &request);
    Reply end_pool(Client &client, Request &request);

    // bridges.cpp: those that end at somebody without libsd
    void bridge(Parcel &parcel);
    void join_with(const ClientSocket &common, Parcel &parcel, const BridgeProgram *program);
    BridgeProgram *bridge_program_for(const Segment &segment, const Payer &payer);
    BridgeProgram *start_bridge_program(const Domain &domain, const Payer &payer);
    BridgeProgram *ask_for_bridge_program(const Domain &domain, const Payer &payer);
    BridgeProgram *keep_bridge_program(UniqueFd channel, const Domain &domain, const Payer &payer);
    void watch_bridge_process(BridgeProgram &program, pid_t pid);
    bool hear_bridge_program(BridgeProgram &program);
    void meet_bridge_programs();
    void bridge_program_ready(uint64_t id);
    void bridge_program_ended(uint64_t id);
    bool awaits_claim(const BridgeProgram &program) const;
    template <typename Predicate> void dismiss_bridge_programs(Predicate which);
    void dismiss_bridge_programs_later();

    // attachments.cpp: listeners and links, and how they end
    Namespace &find_namespace(uint64_t cookie, const Payer &payer);
    void forget_namespace(uint64_t cookie);
    static uint64_t name_of(const Client &client, const Link &link);
    [[nodiscard]] bool attach(Client &client, Link &link, uint64_t name, unsigned side);
    void detach(Client &client, uint64_t name, unsigned side);
    void side_changed(Link &link, unsigned side);
    void forget(Link &link);
    void leave_listener(Client &client, Listener &listener);
    void close_listener(Listener &listener);
    void close_link(const ClosedLink &closed);
    // orphan_listeners.cpp: those that the kernel has, and nobody with libsd
    void abandon(Listener &listener);
    void look_for_holder_later(Listener &listener);
    [[nodiscard]] bool take_up(Listener &listener, uint32_t backlog);
    void close_orphans(const Namespace &ns);

    // kept_listeners.cpp: listeners over a restart
    [[nodiscard]] bool expect_listener(const nlohmann::json &kept);
    void expected_came(Listener &listener, int socket);
    void listeners_changed();

    // awaited_listeners.cpp: what waited to be accepted before a restart
    void await_listener(Link &link);
    void look_for_listeners_after(std::chrono::milliseconds pause);
    void look_for_listeners();
    std::optional<bool> may_be_accepted(const Link &link, ListeningSockets &sockets,
                                        std::map<ino_t, std::optional<InHands>> &seen);
    void give_up_waiting(const FileId &file);
    void turn_away(const Namespace &ns, const ListenAddress &address);
    bool give_to_listener(Link &link);
    void take_waiting_links();

    // crossed_listeners.cpp: those whose connections go on to others
    void note_crossing(const Link &link);
    void note_acceptors(Listener &listener);
    void leave_to_kernel(Listener &listener, std::chrono::milliseconds pause);

    // ended_listeners.cpp: those whose kernel socket has gone, whoever says that he has it
    void watch_listener(Listener &listener, int socket);
    void forget_watch(Listener &listener);
    void take_ended_listeners();
    void make_way(const Namespace &ns, const ListenProof &proof);
    void end_listener(Listener &listener);
    Reply check(Client &client, Request &request);

    // server_links.cpp: how many links lead to one server
    bool has_room(const Client &client, const Listener &listener) const;
    bool has_many_waiting(const Account *maker, const Listener &listener) const;
    bool has_room_at(const Client &acceptor, const Account *maker, bool at_home) const;
    Reply no_room(Client &client, Request &request);
    static bool has_memory(const Client &client, size_t links);

    Listener *held_listener(const Client &client, uint32_t id) const;

    // birth.cpp: whether a connection may begin in shared memory
    const PacketFilter *rules_of(Namespace &ns, pid_t pid);
    void rules_changed(Namespace &ns);
    Cause rules_object(const Client &client, const Listener &listener, uint32_t reach);
    Cause end_objects(pid_t pid, bool same_user);
    static bool has_one_user(const Client &client, const Listener &listener);
    Cause birth_objects(const Client &client, const Listener &listener, uint32_t reach, bool ends);
    void review_birth(Link &link, bool ends);
    void review_births(const Namespace *only, bool ends);
    void look_at_groups_later(std::chrono::milliseconds pause = std::chrono::seconds(2));
    void look_at_legacy_rules();
    void pause_idle_links();
    Reply renew(Client &client, Request &request);
    /// To the log, and to the directories of clients.
    void say_discovery();
    bool is_rdma_on() const;
    bool takes_soft_devices() const; ///< those that the kernel emulates, with is_rdma_on()
    uint32_t discovery_word() const; ///< for directories

    // doorbells.cpp
    std::shared_ptr<BellFd> keep_eventfd(Client &client, UniqueFd &fd);
    static Reply bell_reply(const Link &link, unsigned side, unsigned id, const Client &waiter);
    const Bell *bell_to_ring(const Client &client, const wire::BellRef &which) const;
    static std::optional<BellDomain> foreign_domain(const Link &link, unsigned side, const BellFd &bell,
                                                    const Client &waiter);
    Reply bell(Client &client, Request &request);
    Reply unbell(Client &client, Request &request);
    Reply peer_bell(Client &client, Request &request);
    Reply ring_peer(Client &client, Request &request);
    Reply foreign_bell(Client &client, Request &request);
    Reply accept_bell(Client &client, Request &request);
    Reply mute_bell(Client &client, Request &request);

    /// What `question` says of a socket that `user` has sent; nothing: its lock is held by somebody. Only
    /// where all users come here: nobody holds up but himself elsewhere.
    template <typename Fn>
    std::optional<std::invoke_result_t<Fn, int>> ask(int socket, uid_t user, Fn question) const {
        using Result = std::optional<std::invoke_result_t<Fn, int>>;
        return config_.all_users ? ask_about(socket, user, question) : Result(std::in_place, question(socket));
    }

    // requests.cpp
    Reply listen(Client &client, Request &request);
    Reply unlisten(Client &client, Request &request);
    Reply unlist(Client &client, Request &request);
    Reply links(Client &client, Request &request);
    static bool has_moved(const Client &client);
    Reply connect(Client &client, Request &request);
    Reply drop_link(Client &client, Request &request);
    Reply log(Client &client, Request &request);
    Reply memory(Client &client, Request &request);

    // adopt.cpp: links that outlived a former monitor
    Reply adopt_link(Client &client, Request &request);
    void await_holders(const Client &payer, Link &link, unsigned side);
    bool find_attached(const Link &link, unsigned side, pid_t pid) const;
    void stop_awaiting(uint64_t watch);
    void stop_awaiting(Link &link, unsigned side, pid_t pid);

    // audit.cpp: what dead processes left behind without a record
    struct Audit;
    struct AuditRound;
    void audit_soon(Link &link, unsigned side);
    void audit_later();
    void begin_audit();
    void go_on_auditing();
    void audit_step();
    void note_held(const Segment &segment, AuditRound &round) const;
    void audit_side(Link &link, unsigned side, const Audit &audit, const std::bitset<kLinkSlots> &held);
    const Link *family_link(const Segment &segment, uint64_t link_id, unsigned side) const;
    void meet_strangers(const std::shared_ptr<Segment> &segment);
    void reap_stranger(const std::shared_ptr<Segment> &segment, unsigned index, pid_t pid);

    // requests.cpp
    /// Over the fake transport with changes that stay behind: the monitor comes by for as long as there are
    /// links.
    void carry_late_soon();

    // steering/steering.cpp: where connections are to go, as who may has said
    struct SteeredEnd;
    struct SteeredPair;
    Reply steer(Client &client, Request &request);
    Reply steer_mine(Client &client, Request &request);
    struct OwnSteering;
    Reply steer_own(Client &client, const OwnSteering &asked);
    void steer_later(uint64_t client, const OwnSteering &asked, EventLoop::Clock::duration left);
    Reply steer_to(const wire::Steer &body, bool both, const std::function<bool(const Client &)> &may);
    std::vector<SteeredPair> steered_pairs(const std::vector<Client *> &meant) const;
    bool goes_on_adopting(const SteeredPair &pair, bool to_kernel);
    void count_steered(const SteeredPair &pair, bool to_kernel, Blocker refused, wire::SteerReply &reply) const;

    // steering/adoption.cpp: connections born in shared memory get kernel sockets
    Blocker adoption_objects(const SteeredPair &pair) const;
    [[nodiscard]] Blocker begin_adoption(const SteeredPair &pair, const bool (&told)[2]);
    MovedConnections::iterator adopted_end(const Adoption &adoption, unsigned side);
    static bool is_there(const MovedConnection &moved);
    static bool is_adopting(const MovedConnection &moved);
    [[nodiscard]] static bool change_mark(Ofd &words, uint32_t serial, uint32_t set, uint32_t clear);
    static void clear_adoption(Ofd &words);
    void wake_holders(const Segment &segment, uint32_t ofd_index) const;
    void rest_adoption(const std::shared_ptr<Adoption> &adoption);
    void forget_adoption(const std::shared_ptr<Adoption> &adoption);
    std::shared_ptr<Adoption> resting_adoption(const SteeredPair &pair);
    static bool may_have_names(const SteeredPair &pair, const SlotAddress &client, const SlotAddress &server);
    [[nodiscard]] bool make_adoption(const SteeredPair &pair, const SlotAddress &client,
                                     const SlotAddress &server, std::shared_ptr<Adoption> &adoption);
    uint16_t next_adoption();
    [[nodiscard]] long any_pair(const SlotAddress &client, const SlotAddress &server, int family, int made[2]);
    [[nodiscard]] bool finish_adoption(const SteeredPair &pair, unsigned side);
    void get_sockets(const std::shared_ptr<Adoption> &adoption, bool all);
    void review_adoption(const std::shared_ptr<Adoption> &adoption);
    void copy_fetched(const Client &from, const Client &to);

    // steering/detach.cpp: processes that are back on kernel TCP
    void set_detached(Client &client, bool is_detached);
    void apply_detached(Client &client);
    void review_listing(Listener &listener);

    // status.cpp
    Reply status(Client &client, Request &request);
    /// Whose turn it is not yet: it is not read from until then.
    Reply await_turn(Client &client);
    /// It is the client's turn. Null: it has gone.
    Client *end_awaiting(uint64_t id);
    void answer_status_later();
    Reply make_status(const ucred &asker, wire::Op op);
    struct Viewer {
        bool all = false, is_near = false; ///< in the monitor's own namespaces
        uid_t uid = 0;
        Payer payer;
        bool may_see(const Client &client) const;
    };
    Viewer viewer_of(const ucred &asker);
    nlohmann::json status_json(const Viewer &viewer);
    ConnectionTable connections(const Viewer &viewer) const;

    // metrics.cpp
    std::string make_metrics();

    // resources.cpp
    nlohmann::json resources_json() const;

    EventLoop &loop_;
    Config config_;
    Accounts accounts_; ///< before all that pays
    const std::string socket_path_;
    const bool exit_when_unused_;
    const uint64_t epoch_; ///< differs between starts, so that no id is used twice
    const EventLoop::Clock::time_point started_ = EventLoop::Clock::now();
    Door door_, containers_door_;
    UniqueFd spare_; ///< given up for a moment to turn a client away when descriptors have run out
    EventLoop::Timer exit_timer_ = 0;
    const FakeTransport fake_ = FakeTransport::from_environment();
    EventLoop::Timer carry_timer_ = 0;
    UniqueFd kept_;
    EventLoop::Timer keep_timer_ = 0;
    EventLoop::Timer listeners_look_ = 0; ///< for those whom clients have waited for since before a restart
    EventLoop::Clock::time_point log_window_{};
    unsigned logged_ = 0; ///< in this window
    std::unordered_map<uid_t, unsigned> logged_by_;
    static constexpr uid_t kContainers = -2; ///< users of containers count as one that nobody is
    uid_t asker_ = 0;                        ///< whose request is being dealt with

    uint64_t next_id_; ///< for clients and links
    uint32_t next_listener_;
    std::unordered_map<uint64_t, std::unique_ptr<Namespace>> namespaces_;
    std::unordered_map<FileId, std::weak_ptr<Segment>, FileIdHash> segments_;
    std::unordered_map<FileId, std::unique_ptr<Link>, FileIdHash> links_;
    std::unordered_map<uint32_t, std::unique_ptr<Listener>> listeners_;
    /// By namespace and socket cookie
    std::map<std::pair<uint64_t, uint64_t>, Listener *> listener_by_socket_;
    ListenerWatch ends_of_listeners_;
    EventLoop::Watch ends_watch_ = 0;
    std::unordered_map<int, Listener *> watched_listeners_; ///< by number in the above
    std::unordered_map<uint64_t, std::unique_ptr<Client>> clients_;
    SeenGroups groups_seen_;
    Discovery discovery_;
    std::map<std::string, RemoteHost> remote_hosts_; ///< by name; those that have been there
    std::unique_ptr<PeersHelper> peers_;             ///< never null
    EventLoop::Timer groups_timer_ = 0;

    struct Awaited {
        UniqueFd pidfd;
        pid_t pid;
        Link *link;
        unsigned side;
        Charge charge;
    };
    std::map<EventLoop::Watch, Awaited> awaited_;

    struct Suspect {
        uint64_t arrival; ///< of the connection, which tells it from the next one in the slot
        EventLoop::Clock::time_point since;
        unsigned looks; ///< in which it was found
    };
    struct Audit {
        bool wanted = false;
        std::map<uint32_t, Suspect> suspects; ///< slots that looked left behind the last time
    };
    std::unordered_map<FileId, std::array<Audit, 2>, FileIdHash> audits_;
    /// A look that is under way: first at what families hold, then at the links.
    struct AuditRound {
        std::unordered_map<FileId, std::array<Audit, 2>, FileIdHash> audits;
        std::vector<std::weak_ptr<Segment>> segments; ///< that have not been looked at
        std::unordered_map<FileId, std::array<std::bitset<kLinkSlots>, 2>, FileIdHash> held;
    };
    std::optional<AuditRound> audit_round_;
    EventLoop::Timer audit_timer_ = 0;
    EventLoop::Clock::time_point next_audit_{}; ///< not before this

    struct Stranger {
        UniqueFd pidfd;
        std::weak_ptr<Segment> segment;
        Charge charge;
    };
    std::map<EventLoop::Watch, Stranger> strangers_;

    struct ClosedLink { ///< of a listener that has closed
        FileId file;
        uint64_t id;
    };
    /// One process's, or that of a record without one, of a listener or of parcels.
    struct Ending {
        struct Job {
            std::shared_ptr<Segment> segment;
            Segment::Reaping reaping;
        };
        Client *client = nullptr;
        Payer payer;
        std::deque<Job> jobs; ///< one after the other: an exec's, then an end's of the same record
        std::deque<ClosedLink> links;
        std::deque<uint64_t> left; ///< parcels whose sender has executed something else
        std::deque<uint64_t> lost; ///< parcels whose sd-bridge has ended
        [[nodiscard]] bool is_over() const {
            return jobs.empty() && links.empty() && left.empty() && lost.empty() &&
                   (client == nullptr || client->to_drop.empty());
        }
    };
    Endings endings_;                           ///< by an id of their own, older ones first
    uint64_t last_worked_ = 0;                  ///< of these: they take turns
    bool is_ending_ = false;                    ///< the next turn of the loop goes on with it
    uint64_t ends_turn_ = 0;                    ///< of the loop, in which something ended last
    EventLoop::Clock::time_point ends_until_{}; ///< that turn's share
    struct Waiting {
        wire::Header header; ///< of the request
        uint64_t until;      ///< endings up to this one
    };
    struct AwaitingStatus {
        uint64_t client;
        wire::Header header; ///< of the request
        ucred asker;
    };
    std::deque<AwaitingStatus> awaiting_status_;
    EventLoop::Timer status_timer_ = 0;
    EventLoop::Clock::time_point next_status_{};
    std::string metrics_; ///< as they were made last
    EventLoop::Clock::time_point next_metrics_{};
    std::map<uint64_t, Waiting> waiting_; ///< for the end of what ended processes held, by client

    std::unordered_map<uint64_t, std::unique_ptr<Parcel>> parcels_;
    std::optional<SocketSearch> search_;                ///< in descriptor tables: one at a time
    SocketSearch::Found looked_for_, seen_;             ///< by the next one; by the last one
    std::chrono::steady_clock::time_point next_look_{}; ///< not before this
    std::unordered_map<uint64_t, Parcel *> parcel_by_cookie_;
    std::map<uint64_t, BridgeProgram> bridge_programs_; ///< by an id; those that may get more work
    struct RunningBridge {
        UniqueFd pidfd;
        EventLoop::Watch watch = 0;
        Payer payer;
    };
    std::map<uint64_t, RunningBridge> running_bridges_; ///< also those that get no more work
    EventLoop::Timer bridge_timer_ = 0;
    MovedConnections moved_;
    EventLoop::Clock::time_point next_any_pair_{}; ///< not before this
    /// Some process may still have one of a former monitor's: so not from 0 on
    uint16_t last_adoption_ = static_cast<uint16_t>(epoch_ >> 16);
    /// For tests, by SD_TEST_PATHS in the monitor's environment as well: joins what discovery has not found.
    const bool joins_all_ = std::getenv("SD_TEST_PATHS") != nullptr;
    Offers offers_;
    std::map<ConnectionNames, Offers::key_type> offers_by_names_;
    std::map<PairKey, Offers::key_type> offers_by_pair_; ///< of those that discovery has found

    Counters past_; ///< of segments whose processes have all gone
    std::vector<RecentFallback> past_fallbacks_;
};

} // namespace sd::monitor
