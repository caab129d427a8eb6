// TLS 1.3 between two hosts, with OpenSSL: who is at the other end, proven by a key that the two hosts share
// or by a certificate.
#pragma once
#include "monitor/peers/peer_settings.hpp"
#include "monitor/peers/report.hpp"

#include <memory>
#include <openssl/ssl.h>
#include <optional>
#include <string>
#include <vector>

namespace sd::monitor {

template <auto Free> struct OpenSslDeleter {
    template <typename T> void operator()(T *object) const { Free(object); }
};
using SslPtr = std::unique_ptr<SSL, OpenSslDeleter<SSL_free>>;
using SslContext = std::unique_ptr<SSL_CTX, OpenSslDeleter<SSL_CTX_free>>;
using Certificate = std::unique_ptr<X509, OpenSslDeleter<X509_free>>;
using CertificateStore = std::unique_ptr<X509_STORE, OpenSslDeleter<X509_STORE_free>>;

class Credentials;

/// One handshake: who may be at the other end, and what came of it. Outlives its SSL.
struct Handshake {
    std::shared_ptr<const Credentials> credentials;
    std::vector<size_t> candidates;    ///< peers, by place in the settings
    std::optional<size_t> claimed;     ///< whom the other end says it is, or can only mean to be
    PeerCause cause = PeerCause::none; ///< what was found wrong with a certificate
    std::string detail;

    /// After the handshake: who is there, proven. Nothing: nobody that is known.
    std::optional<size_t> proven(const SSL *ssl) const;
};

/// What this host shows, and what it takes for proof. Does not change.
class Credentials {
  public:
    explicit Credentials(PeersSettings settings);
    Credentials(const Credentials &) = delete;
    Credentials &operator=(const Credentials &) = delete;

    const PeersSettings &settings() const { return settings_; }
    /// Why there can be no channel to a peer; empty: there can.
    const std::string &objection(size_t peer) const { return peers_[peer].objection; }
    /// Both need a handshake that is where it will stay. Null: no memory.
    SslPtr client(Handshake &handshake) const { return make(client_.get(), handshake); }
    SslPtr server(Handshake &handshake) const { return make(server_.get(), handshake); }

  private:
    struct Peer {
        std::string objection;
        std::vector<Certificate> certificates;
        CertificateStore store;
    };
    friend struct Callbacks;
    static SslPtr make(SSL_CTX *context, Handshake &handshake);
    SslContext make_context(const SSL_METHOD *method);
    void load_peer(const PeerSettings &settings, Peer &peer) const;
    PeerCause verify(size_t peer, X509_STORE_CTX *shown, bool as_server, int &error) const;

    PeersSettings settings_;
    std::vector<Peer> peers_;
    std::string own_objection_; ///< to this host's certificate
    SslContext client_, server_;
};

/// What OpenSSL has against going on, and in which words.
struct TlsFailure {
    PeerCause cause = PeerCause::no_tls;
    std::string detail;
};
/// Right after the call that failed, which `result` is of. `by_key`: how the other end is to be proven.
TlsFailure failure_of(const SSL *ssl, int result, const Handshake &handshake, bool by_key);

} // namespace sd::monitor
