// TLS 1.3 between two hosts.
//
// Only what OpenSSL offers is used; what is ours is who is asked for which proof. A peer with a key never
// passes by a certificate, nor the other way round. There are no tickets and no early data: each connection
// proves anew who is there, with a key exchange of its own.
#include "monitor/peers/tls.hpp"

#include <cstring>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

namespace sd::monitor {

namespace {

constexpr unsigned char kProtocol[] = {11, 's', 'o', 'c', 'k', 's', 'd', 'i', 'r', 'e', 'c', 't'};
constexpr unsigned char kCipher[] = {0x13, 0x02}; ///< TLS_AES_256_GCM_SHA384, which a key is bound to
constexpr const char *kCiphers = "TLS_AES_256_GCM_SHA384";
constexpr long kMostShown = 32768; ///< bytes of certificates that a stranger may show

using Bio = std::unique_ptr<BIO, OpenSslDeleter<BIO_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, OpenSslDeleter<EVP_PKEY_free>>;

std::string last_error() {
    const unsigned long error = ERR_peek_last_error();
    const char *reason = error == 0 ? nullptr : ERR_reason_error_string(error);
    ERR_clear_error();
    return reason == nullptr ? "OpenSSL refuses it" : reason;
}

Bio reader_of(const std::string &text) {
    return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

/// Nobody is there to be asked for a passphrase.
int no_passphrase(char *, int, int, void *) { return 0; }

std::vector<Certificate> certificates_of(const std::string &pem) {
    std::vector<Certificate> list;
    const Bio in = reader_of(pem);
    while (X509 *one = in ? PEM_read_bio_X509(in.get(), nullptr, no_passphrase, nullptr) : nullptr) {
        list.emplace_back(one);
    }
    if (!list.empty()) {
        ERR_clear_error(); // the end of the file counts as one
    }
    return list;
}

std::string use_own(SSL_CTX *context, const PeersSettings &settings) {
    const std::vector<Certificate> shown = certificates_of(settings.certificate);
    const Bio in = reader_of(settings.private_key);
    const PrivateKey key(in ? PEM_read_bio_PrivateKey(in.get(), nullptr, no_passphrase, nullptr) : nullptr);
    if (shown.empty()) {
        return "peers.certificate: " + last_error();
    }
    if (!key) {
        return "peers.private_key: " + last_error();
    }
    if (SSL_CTX_use_certificate(context, shown[0].get()) != 1 ||
        SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
        return "peers.certificate and peers.private_key: " + last_error();
    }
    for (size_t i = 1; i < shown.size(); ++i) {
        SSL_CTX_add1_chain_cert(context, shown[i].get());
    }
    return {};
}

Handshake *handshake_of(const SSL *ssl) { return static_cast<Handshake *>(SSL_get_app_data(ssl)); }

/// A key as OpenSSL wants it. Null: no memory.
SSL_SESSION *session_of(SSL *ssl, const std::string &key) {
    std::unique_ptr<SSL_SESSION, OpenSslDeleter<SSL_SESSION_free>> session(SSL_SESSION_new());
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, kCipher);
    if (!session || cipher == nullptr ||
        SSL_SESSION_set1_master_key(session.get(), reinterpret_cast<const unsigned char *>(key.data()),
                                    key.size()) != 1 ||
        SSL_SESSION_set_cipher(session.get(), cipher) != 1 ||
        SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) != 1) {
        return nullptr;
    }
    return session.release();
}

PeerCause cause_of_certificate(int error) {
    switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return PeerCause::expired;
    case X509_V_ERR_HOSTNAME_MISMATCH:
        return PeerCause::wrong_name;
    default:
        return PeerCause::untrusted;
    }
}

} // namespace

/// What OpenSSL calls in the middle of a handshake.
struct Callbacks {
    /// The client's: the key for the one peer that it connects to, under this host's name.
    static int use_key(SSL *ssl, const EVP_MD *, const unsigned char **name, size_t *length,
                       SSL_SESSION **session) {
        const Handshake &handshake = *handshake_of(ssl);
        const PeersSettings &settings = handshake.credentials->settings();
        const std::string &key = settings.peers[handshake.candidates[0]].key;
        *session = nullptr;
        if (key.empty()) {
            return 1;
        }
        *name = reinterpret_cast<const unsigned char *>(settings.name.data());
        *length = settings.name.size();
        *session = session_of(ssl, key);
        return *session != nullptr;
    }

    /// The server's: whose key is it? OpenSSL then looks whether the client has it. One name for each
    /// connection, so that what was proven is what was claimed.
    static int find_key(SSL *ssl, const unsigned char *name, size_t length, SSL_SESSION **session) {
        Handshake &handshake = *handshake_of(ssl);
        const PeersSettings &settings = handshake.credentials->settings();
        *session = nullptr;
        for (const size_t i : handshake.candidates) {
            const PeerSettings &peer = settings.peers[i];
            if (peer.key.empty() || peer.name.size() != length || memcmp(peer.name.data(), name, length) != 0) {
                continue;
            }
            if (handshake.claimed && *handshake.claimed != i) {
                return 0;
            }
            handshake.claimed = i;
            *session = session_of(ssl, peer.key);
            return *session != nullptr;
        }
        return 1; // by a certificate, then
    }

    static int verify(X509_STORE_CTX *shown, void *) {
        const auto *ssl =
            static_cast<const SSL *>(X509_STORE_CTX_get_ex_data(shown, SSL_get_ex_data_X509_STORE_CTX_idx()));
        Handshake &handshake = *handshake_of(ssl);
        const Credentials &credentials = *handshake.credentials;
        size_t by_certificate = 0, last = 0;
        int error = X509_V_ERR_CERT_UNTRUSTED;
        handshake.cause = PeerCause::other_proof;
        for (const size_t i : handshake.candidates) {
            if (!credentials.settings().peers[i].key.empty()) {
                continue; // it has to have the key
            }
            const PeerCause cause = credentials.verify(i, shown, SSL_is_server(ssl) == 1, error);
            if (cause == PeerCause::none) {
                handshake.claimed = i;
                handshake.cause = PeerCause::none;
                X509_STORE_CTX_set_error(shown, X509_V_OK);
                return 1;
            }
            handshake.cause = cause;
            ++by_certificate;
            last = i;
        }
        if (by_certificate == 1) {
            handshake.claimed = last;
        }
        handshake.detail = X509_verify_cert_error_string(error);
        X509_STORE_CTX_set_error(shown, error);
        return 0;
    }

    static int choose_protocol(SSL *, const unsigned char **out, unsigned char *length,
                               const unsigned char *in, unsigned in_length, void *) {
        unsigned char *chosen = nullptr;
        if (SSL_select_next_proto(&chosen, length, kProtocol, sizeof kProtocol, in, in_length) !=
            OPENSSL_NPN_NEGOTIATED) {
            return SSL_TLSEXT_ERR_ALERT_FATAL;
        }
        *out = chosen;
        return SSL_TLSEXT_ERR_OK;
    }
};

std::optional<size_t> Handshake::proven(const SSL *ssl) const {
    if (!claimed && candidates.size() != 1) {
        return std::nullopt;
    }
    const size_t peer = claimed.value_or(candidates[0]);
    const bool by_key = !credentials->settings().peers[peer].key.empty();
    const Certificate shown(SSL_get1_peer_certificate(ssl));
    // OpenSSL counts a key as a session that is taken up again.
    return by_key == (SSL_session_reused(ssl) == 1) && by_key == (shown == nullptr) ? std::optional(peer)
                                                                                    : std::nullopt;
}

Credentials::Credentials(PeersSettings settings) : settings_(std::move(settings)) {
    client_ = make_context(TLS_client_method());
    server_ = make_context(TLS_server_method());
    if (!client_ || !server_) {
        own_objection_ = last_error();
    } else {
        SSL_CTX_set_psk_use_session_callback(client_.get(), Callbacks::use_key);
        SSL_CTX_set_psk_find_session_callback(server_.get(), Callbacks::find_key);
        // A server's sessions are of some context, a client's of none
        constexpr unsigned char kUse[] = "sd-peers";
        SSL_CTX_set_session_id_context(server_.get(), kUse, sizeof kUse - 1);
        SSL_CTX_set_alpn_protos(client_.get(), kProtocol, sizeof kProtocol);
        SSL_CTX_set_alpn_select_cb(server_.get(), Callbacks::choose_protocol, nullptr);
        for (SSL_CTX *context : {client_.get(), server_.get()}) {
            if (!settings_.certificate.empty() && own_objection_.empty()) {
                own_objection_ = use_own(context, settings_);
            }
        }
    }
    for (const PeerSettings &one : settings_.peers) {
        load_peer(one, peers_.emplace_back());
    }
}

SslContext Credentials::make_context(const SSL_METHOD *method) {
    SslContext context(SSL_CTX_new(method));
    if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context.get(), kCiphers) != 1 ||
        SSL_CTX_set_num_tickets(context.get(), 0) != 1) {
        return nullptr;
    }
    SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
    SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_max_cert_list(context.get(), kMostShown);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_cert_verify_callback(context.get(), Callbacks::verify, nullptr);
    return context;
}

void Credentials::load_peer(const PeerSettings &settings, Peer &peer) const {
    if (!client_ || !server_) {
        peer.objection = own_objection_;
        return;
    }
    if (!settings.key.empty()) {
        return;
    }
    peer.objection = own_objection_;
    peer.certificates = certificates_of(settings.certificates);
    peer.store.reset(X509_STORE_new());
    if (peer.certificates.empty() || !peer.store) {
        peer.objection = "the peer's certificate: " + last_error();
        return;
    }
    for (const Certificate &one : peer.certificates) {
        X509_STORE_add_cert(peer.store.get(), one.get());
    }
}

/// A certificate of the peer's file itself will do. One that is signed by one of these has to be made out to
/// the peer's name.
PeerCause Credentials::verify(size_t index, X509_STORE_CTX *shown, bool as_server, int &error) const {
    const Peer &peer = peers_[index];
    X509 *leaf = X509_STORE_CTX_get0_cert(shown);
    const std::unique_ptr<X509_STORE_CTX, OpenSslDeleter<X509_STORE_CTX_free>> check(X509_STORE_CTX_new());
    error = X509_V_ERR_UNSPECIFIED;
    if (!check || !peer.store ||
        X509_STORE_CTX_init(check.get(), peer.store.get(), leaf, X509_STORE_CTX_get0_untrusted(shown)) != 1 ||
        X509_STORE_CTX_set_default(check.get(), as_server ? "ssl_client" : "ssl_server") != 1) {
        return PeerCause::untrusted;
    }
    X509_VERIFY_PARAM *how = X509_STORE_CTX_get0_param(check.get());
    X509_VERIFY_PARAM_set_flags(how, X509_V_FLAG_PARTIAL_CHAIN);
    X509_VERIFY_PARAM_set_auth_level(how, 2); // what OpenSSL asks of keys in TLS
    if (X509_verify_cert(check.get()) != 1) {
        error = X509_STORE_CTX_get_error(check.get());
        return cause_of_certificate(error);
    }
    for (const Certificate &one : peer.certificates) {
        if (X509_cmp(one.get(), leaf) == 0) {
            return PeerCause::none;
        }
    }
    const std::string &name = settings_.peers[index].name;
    if (X509_check_host(leaf, name.data(), name.size(), X509_CHECK_FLAG_NO_WILDCARDS, nullptr) != 1) {
        error = X509_V_ERR_HOSTNAME_MISMATCH;
        return PeerCause::wrong_name;
    }
    return PeerCause::none;
}

SslPtr Credentials::make(SSL_CTX *context, Handshake &handshake) {
    SslPtr ssl(context == nullptr ? nullptr : SSL_new(context));
    if (ssl) {
        SSL_set_app_data(ssl.get(), &handshake);
    }
    return ssl;
}

TlsFailure failure_of(const SSL *ssl, int result, const Handshake &handshake, bool by_key) {
    const int system = errno;
    const int kind = SSL_get_error(ssl, result);
    const unsigned long error = ERR_peek_last_error();
    const int reason = ERR_GET_REASON(error);
    TlsFailure failure;
    if (kind == SSL_ERROR_ZERO_RETURN || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING ||
        (kind == SSL_ERROR_SYSCALL && error == 0)) {
        failure = {PeerCause::closed, system == 0 || kind != SSL_ERROR_SYSCALL ? "" : strerror(system)};
        ERR_clear_error();
        return failure;
    }
    switch (reason) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
        failure.cause = PeerCause::wrong_key;
        break;
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER: // what OpenSSL's server answers to a wrong key
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        failure.cause = by_key ? PeerCause::wrong_key : PeerCause::no_tls;
        break;
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        // Instead of the key that was named: it does not know us by one.
        failure.cause = by_key ? PeerCause::unknown_host : handshake.cause;
        failure.detail = handshake.detail;
        break;
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
        failure.cause = by_key ? PeerCause::unknown_host : PeerCause::other_proof;
        break;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        failure.cause = PeerCause::other_proof;
        break;
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        failure.cause = PeerCause::expired;
        break;
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
        failure.cause = PeerCause::untrusted;
        break;
    default:
        failure.cause = PeerCause::no_tls;
        break;
    }
    if (failure.detail.empty()) {
        failure.detail = last_error();
    }
    ERR_clear_error();
    return failure;
}

} // namespace sd::monitor
