// Two hosts that meet: both ends of a TCP connection in one process, each with what its host is configured
// with.
#include "monitor/peers/session.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/epoll.h>
#include <sys/socket.h>

using namespace sd::monitor;

namespace {

using PrivateKey = std::unique_ptr<EVP_PKEY, OpenSslDeleter<EVP_PKEY_free>>;

/// A certificate of its own, or signed by another.
struct Shown {
    PrivateKey key{EVP_EC_gen("P-256")};
    Certificate certificate{X509_new()};

    explicit Shown(const std::string &name, const Shown *signer = nullptr, long from_s = -3600, long to_s = 3600) {
        X509 *x = certificate.get();
        X509_set_version(x, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(x), signer == nullptr ? 1 : 2);
        X509_gmtime_adj(X509_getm_notBefore(x), from_s);
        X509_gmtime_adj(X509_getm_notAfter(x), to_s);
        X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                                   reinterpret_cast<const unsigned char *>(name.c_str()), -1, -1, 0);
        X509_set_issuer_name(x, signer == nullptr ? X509_get_subject_name(x)
                                                  : X509_get_subject_name(signer->certificate.get()));
        X509_set_pubkey(x, key.get());
        extend(NID_basic_constraints, signer == nullptr ? "critical,CA:TRUE" : "critical,CA:FALSE");
        extend(NID_subject_alt_name, "DNS:" + name);
        X509_sign(x, signer == nullptr ? key.get() : signer->key.get(), EVP_sha256());
    }

    void extend(int what, const std::string &value) {
        X509_EXTENSION *extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str());
        X509_add_ext(certificate.get(), extension, -1);
        X509_EXTENSION_free(extension);
    }

    template <typename Write> static std::string pem(Write write) {
        BIO *out = BIO_new(BIO_s_mem());
        write(out);
        char *text = nullptr;
        const long size = BIO_get_mem_data(out, &text);
        std::string result(text, static_cast<size_t>(size));
        BIO_free(out);
        return result;
    }
    std::string certificate_pem() const {
        return pem([this](BIO *out) { PEM_write_bio_X509(out, certificate.get()); });
    }
    std::string key_pem() const {
        return pem([this](BIO *out) {
            PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
        });
    }
};

PeersSettings host(const std::string &name, const Shown *shown = nullptr) {
    PeersSettings settings;
    settings.name = name;
    settings.deadline = 60;
    if (shown != nullptr) {
        settings.certificate = shown->certificate_pem();
        settings.private_key = shown->key_pem();
    }
    return settings;
}

PeersSettings &by_key(PeersSettings &settings, const std::string &name, char key) {
    settings.peers.push_back({name, "127.0.0.1", 7471, std::string(32, key), "", {"127.0.0.1"}});
    return settings;
}

PeersSettings &by_certificate(PeersSettings &settings, const std::string &name, const std::string &pem) {
    settings.peers.push_back({name, "127.0.0.1", 7471, "", pem, {"127.0.0.1"}});
    return settings;
}

std::pair<UniqueFd, UniqueFd> connected() {
    UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0)), client(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr *>(&name), size) == 0);
    REQUIRE(listen(listener.get(), 1) == 0);
    REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr *>(&name), &size) == 0);
    REQUIRE(connect(client.get(), reinterpret_cast<sockaddr *>(&name), size) == 0);
    UniqueFd server(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
    REQUIRE(fcntl(client.get(), F_SETFL, O_NONBLOCK) == 0);
    return {std::move(client), std::move(server)};
}

struct End {
    bool up = false, over = false;
    PeerCause cause = PeerCause::none;
    std::string detail, peer;
    std::optional<TellableKey> key;
    std::vector<Message> messages;
    bool may_read = true;
    std::shared_ptr<Session> session;

    Session::Events events() {
        return {[this](Session &s) {
                    up = true;
                    peer = s.peer()->name;
                },
                [this](Session &, const TellableKey &told) { key = told; },
                [this](Session &, PeerCause why, const std::string &what) {
                    over = true;
                    cause = why;
                    detail = what;
                },
                [this](Session &, const Message &message) { messages.push_back(message); },
                [this] { return may_read; }};
    }
};

struct Meeting {
    EventLoop loop;
    End client, server;

    template <typename Done> void run(Done done) {
        signal(SIGPIPE, SIG_IGN);
        const auto timer = loop.after(std::chrono::seconds(60), [] { FAIL("nothing happens any more"); });
        while (!done()) {
            loop.step();
        }
        loop.cancel(timer);
    }

    void begin(const PeersSettings &a, const PeersSettings &b, PeerHello a_hello = {}, PeerHello b_hello = {}) {
        auto [one, other] = connected();
        std::vector<size_t> everybody(b.peers.size());
        for (size_t i = 0; i < everybody.size(); ++i) {
            everybody[i] = i;
        }
        a_hello.name = a_hello.name.empty() ? a.name : a_hello.name;
        b_hello.name = b_hello.name.empty() ? b.name : b_hello.name;
        client.session = Session::start(loop, std::move(one), true, std::make_shared<const Credentials>(a),
                                        {0}, a_hello, client.events());
        server.session = Session::start(loop, std::move(other), false, std::make_shared<const Credentials>(b),
                                        everybody, b_hello, server.events());
        REQUIRE(client.session);
        REQUIRE(server.session);
    }

    /// Until both are up, or both are over.
    void meet(const PeersSettings &a, const PeersSettings &b, PeerHello a_hello = {}, PeerHello b_hello = {}) {
        begin(a, b, std::move(a_hello), std::move(b_hello));
        run([this] { return (client.up && server.up) || (client.over && server.over); });
        if (client.over) {
            CHECK_FALSE((client.up && server.up));
        }
    }
};

} // namespace

TEST_CASE("two hosts with one key are proven to each other") {
    PeersSettings a = host("alpha"), b = host("beta");
    by_key(by_key(b, "aardvark", 'x'), "alpha", 'k');
    Meeting m;
    m.meet(by_key(a, "beta", 'k'), b);
    CHECK(m.client.peer == "beta");
    CHECK(m.server.peer == "alpha");
    CHECK(m.client.session->version() == kPeerVersion);
    TellableKey key;
    key.fill(7);
    m.server.session->tell(key);
    m.run([&] { return m.client.key.has_value(); });
    CHECK(m.client.key == key);
    m.client.session->end();
    m.run([&] { return m.server.over; });
    CHECK(m.server.cause == PeerCause::ended);
}

TEST_CASE("messages about links arrive in their order, and only while somebody takes them") {
    PeersSettings a = host("alpha"), b = host("beta");
    Meeting m;
    m.meet(by_key(a, "beta", 'k'), by_key(b, "alpha", 'k'));
    constexpr uint64_t kMany = 5000;
    m.server.may_read = false;
    for (uint64_t i = 1; i <= kMany; ++i) {
        m.client.session->tell(MessageKind::gone, between_hosts::encode(between_hosts::Gone{i}));
    }
    for (int i = 0; i < 20; ++i) {
        const auto timer = m.loop.after(std::chrono::milliseconds(1), [] {});
        m.loop.step();
        m.loop.cancel(timer);
    }
    CHECK(m.server.messages.size() < kMany);
    m.server.may_read = true;
    m.server.session->resume();
    m.run([&] { return m.server.messages.size() == kMany; });
    for (uint64_t i = 1; i <= kMany; ++i) {
        const Message &message = m.server.messages[i - 1];
        REQUIRE(between_hosts::decode(message.kind, message.body) ==
                between_hosts::LinkMessage(between_hosts::Gone{i}));
    }
    CHECK_FALSE(m.client.over);
    CHECK_FALSE(m.server.over);
}

TEST_CASE("a message about links of another form ends the session") {
    PeersSettings a = host("alpha"), b = host("beta");
    Meeting m;
    m.meet(by_key(a, "beta", 'k'), by_key(b, "alpha", 'k'));
    m.client.session->tell(MessageKind::joined, "short");
    m.run([&] { return m.server.over; });
    CHECK(m.server.cause == PeerCause::malformed);
    CHECK(m.server.messages.empty());
}

TEST_CASE("a peer of a version without them is told nothing about links") {
    PeersSettings a = host("alpha"), b = host("beta");
    Meeting m;
    PeerHello old;
    old.newest = 1;
    m.meet(by_key(a, "beta", 'k'), by_key(b, "alpha", 'k'), {}, old);
    CHECK(m.client.session->version() == 1);
    m.client.session->tell(MessageKind::gone, between_hosts::encode(between_hosts::Gone{1}));
    TellableKey key;
    key.fill(7);
    m.client.session->tell(key);
    m.run([&] { return m.server.key.has_value(); });
    CHECK(m.server.messages.empty());
    CHECK_FALSE(m.server.over);
}

TEST_CASE("a peer that does not take what it is told is too slow") {
    PeersSettings a = host("alpha"), b = host("beta");
    Meeting m;
    m.meet(by_key(a, "beta", 'k'), by_key(b, "alpha", 'k'));
    const auto client = m.client.session;
    const std::string body = between_hosts::encode(between_hosts::Gone{1});
    for (int i = 0; i < 100000 && !m.client.over; ++i) {
        client->tell(MessageKind::gone, body);
    }
    CHECK(m.client.over);
    CHECK(m.client.cause == PeerCause::too_slow);
}

TEST_CASE("with another key nobody gets in, and both are told that it is the key") {
    PeersSettings a = host("alpha"), b = host("beta");
    Meeting m;
    m.meet(by_key(a, "beta", 'k'), by_key(b, "alpha", 'l'));
    CHECK(m.client.cause == PeerCause::wrong_key);
    CHECK(m.server.cause == PeerCause::wrong_key);
    CHECK(m.server.session->peer()->name == "alpha"); // who claims it
}

TEST_CASE("a key is bound to the name: the key of one host is not another's") {
    PeersSettings a = host("gamma"), b = host("beta"); // gamma has a key for beta, and calls itself alpha
    a.name = "alpha";
    by_key(by_key(b, "alpha", 'a'), "gamma", 'g');
    Meeting m;
    m.meet(by_key(a, "beta", 'g'), b);
    CHECK(m.server.cause == PeerCause::wrong_key);
    CHECK_FALSE(m.server.up);
}

TEST_CASE("a host that proves one name and says another is refused") {
    PeersSettings a = host("alpha"), b = host("beta");
    PeerHello lie;
    lie.name = "gamma";
    Meeting m;
    m.begin(by_key(a, "beta", 'k'), by_key(b, "alpha", 'k'), lie);
    m.run([&] { return m.server.over; });
    CHECK(m.server.cause == PeerCause::wrong_name);
    CHECK_FALSE(m.server.up);
}

TEST_CASE("a host that the other one has no key for hears that it is not known") {
    PeersSettings a = host("alpha"), b = host("beta");
    Meeting m;
    m.meet(by_key(a, "beta", 'k'), by_key(b, "gamma", 'k'));
    CHECK(m.client.cause == PeerCause::unknown_host);
}

TEST_CASE("two hosts with each other's certificates are proven to each other") {
    const Shown alpha("alpha"), beta("beta");
    PeersSettings a = host("alpha", &alpha), b = host("beta", &beta);
    by_certificate(by_key(b, "gamma", 'g'), "alpha", alpha.certificate_pem());
    Meeting m;
    m.meet(by_certificate(a, "beta", beta.certificate_pem()), b);
    CHECK(m.client.peer == "beta");
    CHECK(m.server.peer == "alpha");
}

TEST_CASE("a certificate that an authority signed has to be made out to the peer's name") {
    const Shown authority("authority"), alpha("alpha", &authority), beta("beta", &authority),
        other("gamma", &authority), stranger("alpha");
    PeersSettings a = host("alpha", &alpha), b = host("beta", &beta);
    by_certificate(a, "beta", authority.certificate_pem());
    by_certificate(b, "alpha", authority.certificate_pem());
    SECTION("it is") {
        Meeting m;
        m.meet(a, b);
        CHECK(m.client.peer == "beta");
        CHECK(m.server.peer == "alpha");
    }
    SECTION("it is not") {
        PeersSettings g = host("alpha", &other);
        by_certificate(g, "beta", authority.certificate_pem());
        Meeting m;
        m.meet(g, b);
        CHECK(m.server.cause == PeerCause::wrong_name);
        CHECK_FALSE(m.server.up);
        CHECK(m.client.over);
    }
    SECTION("somebody else signed it") {
        PeersSettings g = host("alpha", &stranger);
        by_certificate(g, "beta", authority.certificate_pem());
        Meeting m;
        m.meet(g, b);
        CHECK(m.server.cause == PeerCause::untrusted);
        CHECK(m.client.cause == PeerCause::untrusted);
    }
}

TEST_CASE("a certificate counts between its two dates only") {
    const auto [from, to] = GENERATE(std::pair(-7200L, -3600L), std::pair(3600L, 7200L));
    const Shown alpha("alpha"), beta("beta", nullptr, from, to);
    PeersSettings a = host("alpha", &alpha), b = host("beta", &beta);
    Meeting m;
    m.meet(by_certificate(a, "beta", beta.certificate_pem()),
           by_certificate(b, "alpha", alpha.certificate_pem()));
    CHECK(m.client.cause == PeerCause::expired);
}

TEST_CASE("a key on one side and a certificate on the other do not meet") {
    const Shown alpha("alpha"), beta("beta");
    SECTION("who connects has a key") {
        PeersSettings a = host("alpha"), b = host("beta", &beta);
        Meeting m;
        m.meet(by_key(a, "beta", 'k'), by_certificate(b, "alpha", alpha.certificate_pem()));
        CHECK(m.client.cause == PeerCause::unknown_host);
        CHECK_FALSE(m.server.up);
    }
    SECTION("who is connected to has a key") {
        PeersSettings a = host("alpha", &alpha), b = host("beta");
        Meeting m;
        m.meet(by_certificate(a, "beta", beta.certificate_pem()), by_key(b, "alpha", 'k'));
        CHECK(m.client.cause == PeerCause::other_proof);
        CHECK_FALSE(m.server.up);
    }
    SECTION("a right certificate of a host that has to have a key") {
        PeersSettings a = host("alpha", &alpha), b = host("beta", &beta);
        Meeting m;
        m.meet(by_certificate(a, "beta", beta.certificate_pem()), by_key(b, "alpha", 'k'));
        CHECK_FALSE(m.server.up);
        CHECK(m.client.over);
    }
}

TEST_CASE("monitors without a common version say which they know") {
    PeersSettings a = host("alpha"), b = host("beta");
    PeerHello later;
    later.oldest = 7;
    later.newest = 9;
    Meeting m;
    m.meet(by_key(a, "beta", 'k'), by_key(b, "alpha", 'k'), later);
    CHECK((m.client.cause == PeerCause::no_version || m.server.cause == PeerCause::no_version));
    CHECK_FALSE((m.client.up || m.server.up));
}

TEST_CASE("settings that cannot be used are named, and those of the other peers are used") {
    PeersSettings a = host("alpha");
    by_certificate(by_key(a, "beta", 'k'), "gamma",
                   "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    const Credentials credentials(a);
    CHECK(credentials.objection(0).empty());
    CHECK_FALSE(credentials.objection(1).empty());
}

TEST_CASE("whoever says nothing, or anything, is rid of within the deadline") {
    PeersSettings b = host("beta");
    b.deadline = 1;
    by_key(b, "alpha", 'k');
    Meeting m;
    auto [one, other] = connected();
    PeerHello own;
    own.name = "beta";
    m.server.session = Session::start(m.loop, std::move(other), false, std::make_shared<const Credentials>(b),
                                      {0}, own, m.server.events());
    SECTION("nothing") {
        m.run([&] { return m.server.over; });
        CHECK(m.server.cause == PeerCause::no_answer);
    }
    SECTION("anything") {
        const std::string text(100000, 'x');
        (void)send(one.get(), text.data(), text.size(), MSG_NOSIGNAL);
        m.run([&] { return m.server.over; });
        CHECK(m.server.cause == PeerCause::no_tls);
    }
    SECTION("goodbye") {
        one.reset();
        m.run([&] { return m.server.over; });
        CHECK(m.server.cause == PeerCause::closed);
    }
}

TEST_CASE("a host that is not heard of any more counts as gone") {
    PeersSettings a = host("alpha"), b = host("beta");
    b.deadline = 1;
    by_key(a, "beta", 'k');
    by_key(b, "alpha", 'k');
    // The client gets no turn any more once it is up: it is in a loop of its own.
    EventLoop asleep;
    Meeting m;
    auto [one, other] = connected();
    PeerHello a_hello, b_hello;
    a_hello.name = "alpha";
    b_hello.name = "beta";
    m.client.session = Session::start(asleep, std::move(one), true, std::make_shared<const Credentials>(a),
                                      {0}, a_hello, m.client.events());
    m.server.session = Session::start(m.loop, std::move(other), false, std::make_shared<const Credentials>(b),
                                      {0}, b_hello, m.server.events());
    for (auto *loop : {&asleep, &m.loop, &asleep, &m.loop}) {
        if (!m.server.up) {
            loop->step();
        }
    }
    m.run([&] {
        if (!m.server.up) {
            asleep.after(std::chrono::milliseconds(0), [] {});
            asleep.step();
        }
        return m.server.over;
    });
    CHECK(m.server.up);
    CHECK(m.server.cause == PeerCause::silent);
}

namespace {

/// A host that is proven, and then says whatever it likes.
struct Liar {
    Handshake handshake;
    UniqueFd socket;
    SslPtr ssl;

    Liar(Meeting &m, const PeersSettings &a, const PeersSettings &b) {
        auto [one, other] = connected();
        socket = std::move(one);
        handshake.credentials = std::make_shared<const Credentials>(a);
        handshake.candidates = {0};
        handshake.claimed = 0;
        ssl = handshake.credentials->client(handshake);
        REQUIRE(SSL_set_fd(ssl.get(), socket.get()) == 1);
        PeerHello own;
        own.name = b.name;
        m.server.session = Session::start(m.loop, std::move(other), false,
                                          std::make_shared<const Credentials>(b), {0}, own, m.server.events());
        m.run([&] {
            // The loop waits no longer than this for what only our own next step brings.
            m.loop.after(std::chrono::milliseconds(1), [] {});
            return SSL_connect(ssl.get()) == 1;
        });
    }

    /// As much as goes out at once; false: no more does.
    bool say(const std::string &bytes) {
        return SSL_write(ssl.get(), bytes.data(), static_cast<int>(bytes.size())) ==
               static_cast<int>(bytes.size());
    }
};

std::string hello_of_alpha() {
    PeerHello hello;
    hello.name = "alpha";
    return encode(hello);
}

} // namespace

TEST_CASE("a proven host that says what cannot be ends its channel, and nothing else") {
    PeersSettings a = host("alpha"), b = host("beta");
    by_key(a, "beta", 'k');
    by_key(b, "alpha", 'k');
    Meeting m;
    Liar liar(m, a, b);
    const std::string what = GENERATE(encode(MessageKind::ping, ""), std::string("GET / HTTP/1.1\r\n\r\n"),
                                      encode(MessageKind::hello, "short"), hello_of_alpha() + hello_of_alpha(),
                                      hello_of_alpha() + encode(MessageKind::key, "short"),
                                      hello_of_alpha() + std::string(8, '\xff'));
    REQUIRE(liar.say(what));
    m.run([&] { return m.server.over; });
    CHECK(m.server.cause == PeerCause::malformed);
    CHECK(m.server.session->state() == Session::State::over);
}

TEST_CASE("a host that has itself answered and takes no answer is not read from for ever") {
    PeersSettings a = host("alpha"), b = host("beta");
    b.deadline = 2;
    by_key(a, "beta", 'k');
    by_key(b, "alpha", 'k');
    Meeting m;
    Liar liar(m, a, b);
    REQUIRE(liar.say(hello_of_alpha()));
    const std::string ping = encode(MessageKind::ping, std::string(kMostMessageBody, 'x'));
    bool was_refused = false;
    m.run([&] {
        for (int i = 0; i < 64 && liar.say(ping); ++i) {
        }
        was_refused = was_refused || SSL_want(liar.ssl.get()) == SSL_WRITING;
        m.loop.after(std::chrono::milliseconds(1), [] {});
        return m.server.over;
    });
    CHECK(was_refused);
    CHECK(m.server.up);
    CHECK(m.server.cause == PeerCause::too_slow);
}
