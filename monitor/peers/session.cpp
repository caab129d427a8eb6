// One connection to another host's monitor.
#include "monitor/peers/session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <openssl/err.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace sd::monitor {

namespace {

constexpr size_t kMostOutgoing = 65536;  ///< that the other end has not taken; no more is read from it then
constexpr size_t kMostUntaken = 1 << 20; ///< of what the monitor says; then it is too slow
constexpr int kReadsAtOnce = 16;         ///< then it is the others' turn

} // namespace

std::shared_ptr<Session> Session::start(EventLoop &loop, UniqueFd socket, bool connects,
                                        std::shared_ptr<const Credentials> credentials,
                                        std::vector<size_t> candidates, const PeerHello &own, Events events) {
    std::shared_ptr<Session> made(new Session(loop, std::move(socket), connects, std::move(events)));
    made->own_ = own;
    made->handshake_.credentials = std::move(credentials);
    made->handshake_.candidates = std::move(candidates);
    if (connects) {
        made->handshake_.claimed = made->handshake_.candidates.at(0);
    }
    const Credentials &by = *made->handshake_.credentials;
    made->ssl_ = connects ? by.client(made->handshake_) : by.server(made->handshake_);
    if (!made->ssl_ || SSL_set_fd(made->ssl_.get(), made->socket_.get()) != 1) {
        ERR_clear_error();
        return nullptr;
    }
    made->state_ = connects ? State::connecting : State::proving;
    made->started_ = made->heard_ = EventLoop::Clock::now();
    made->watch(connects ? EPOLLOUT : EPOLLIN);
    made->tick_later();
    return made;
}

Session::Session(EventLoop &loop, UniqueFd socket, bool connects, Events events)
    : loop_(loop), socket_(std::move(socket)), connects_(connects), events_(std::move(events)) {}

Session::~Session() { close(); }

const PeerSettings *Session::peer() const {
    const std::optional<size_t> who = proven_ ? proven_ : handshake_.claimed;
    return who ? &handshake_.credentials->settings().peers[*who] : nullptr;
}

void Session::watch(uint32_t events) {
    if (watch_ == 0) {
        watch_ = loop_.add(socket_.get(), events, [weak = weak_from_this()](uint32_t) {
            if (const auto self = weak.lock()) {
                self->drive();
            }
        });
    } else if (events != watched_) {
        loop_.change(watch_, socket_.get(), events);
    }
    watched_ = events;
}

/// As far as it goes without waiting.
void Session::drive() {
    const auto self = shared_from_this(); // who hears of its end lets go of it
    if (state_ == State::connecting && !finish_connecting()) {
        return;
    }
    if (state_ == State::proving && !prove()) {
        return;
    }
    // First what has come: the other end's reason to end it may lie there, and a write would find less.
    if ((state_ == State::greeting || state_ == State::up) && read() && flush()) {
        watch((may_read() ? EPOLLIN : 0u) | (outgoing_.empty() && !tls_waits_to_write_ ? 0u : EPOLLOUT));
    }
}

bool Session::finish_connecting() {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
        return fail(error == ECONNREFUSED ? PeerCause::refused : PeerCause::unreachable, strerror(error));
    }
    state_ = State::proving;
    return true;
}

/// True: it is proven who is there, and said who is here.
bool Session::prove() {
    ERR_clear_error();
    errno = 0;
    const int result = connects_ ? SSL_connect(ssl_.get()) : SSL_accept(ssl_.get());
    if (result != 1) {
        const int wants = SSL_get_error(ssl_.get(), result);
        if (wants == SSL_ERROR_WANT_READ || wants == SSL_ERROR_WANT_WRITE) {
            watch(wants == SSL_ERROR_WANT_READ ? EPOLLIN : EPOLLOUT);
            return false;
        }
        return fail_tls(result);
    }
    proven_ = handshake_.proven(ssl_.get());
    if (!proven_) {
        return fail(PeerCause::other_proof);
    }
    state_ = State::greeting;
    say(encode(own_));
    return true;
}

/// False: it is over.
bool Session::read() {
    for (int i = 0; i < kReadsAtOnce; ++i) {
        if (!may_read()) {
            return true;
        }
        char bytes[kMostMessageBody];
        ERR_clear_error();
        errno = 0;
        const int n = SSL_read(ssl_.get(), bytes, static_cast<int>(std::min(sizeof bytes, reader_.room())));
        if (n <= 0) {
            const int wants = SSL_get_error(ssl_.get(), n);
            tls_waits_to_write_ = wants == SSL_ERROR_WANT_WRITE;
            return wants == SSL_ERROR_WANT_READ || wants == SSL_ERROR_WANT_WRITE || fail_tls(n);
        }
        reader_.add({bytes, static_cast<size_t>(n)});
        Message message;
        MessageReader::State state;
        while ((state = reader_.next(message)) == MessageReader::State::message) {
            if (!take(message)) {
                return false;
            }
        }
        if (state == MessageReader::State::malformed) {
            return fail(PeerCause::malformed, "no such message");
        }
    }
    drive_soon(); // TLS may hold what the descriptor does not show any more
    return true;
}

bool Session::may_read() const {
    return outgoing_.size() < kMostOutgoing && (!events_.may_read || events_.may_read());
}

void Session::drive_soon() {
    loop_.soon([weak = weak_from_this()] {
        if (const auto self = weak.lock()) {
            self->drive();
        }
    });
}

/// False: it is over.
bool Session::take(const Message &message) {
    if (state_ == State::greeting) {
        return message.kind == MessageKind::hello
                   ? greeted(message.body)
                   : fail(PeerCause::malformed, "it does not begin with hello");
    }
    heard_ = EventLoop::Clock::now();
    switch (message.kind) {
    case MessageKind::hello:
        return fail(PeerCause::malformed, "a second hello");
    case MessageKind::ping:
        say(encode(MessageKind::pong, message.body));
        return true;
    case MessageKind::pong:
        return true;
    case MessageKind::ending:
        return fail(PeerCause::ended);
    case MessageKind::key:
        if (const std::optional<TellableKey> key = key_of(message.body)) {
            events_.told_key(*this, *key);
            return state_ == State::up;
        }
        return fail(PeerCause::malformed, "a key that is none");
    default:
        if (version_ < version_of(message.kind) || !between_hosts::decode(message.kind, message.body)) {
            return fail(PeerCause::malformed, "a message about links that is none");
        }
        if (events_.message) {
            events_.message(*this, message);
        }
        return state_ == State::up;
    }
}

bool Session::greeted(const std::string &body) {
    const std::optional<PeerHello> hello = hello_of(body);
    if (!hello) {
        return fail(PeerCause::malformed, "a hello that is none");
    }
    if (hello->name != peer()->name) {
        return fail(PeerCause::wrong_name, "it is called otherwise than what it has proven to be");
    }
    version_ = common_version(own_, *hello);
    if (version_ == 0) {
        (void)flush(); // it is to see ours, too
        return fail(PeerCause::no_version,
                    "it knows " + std::to_string(hello->oldest) + " to " + std::to_string(hello->newest) +
                        ", this host " + std::to_string(own_.oldest) + " to " + std::to_string(own_.newest));
    }
    state_ = State::up;
    heard_ = EventLoop::Clock::now();
    events_.up(*this);
    return state_ == State::up;
}

/// False: it is over.
bool Session::flush() {
    while (!outgoing_.empty()) {
        ERR_clear_error();
        errno = 0;
        const int n = SSL_write(ssl_.get(), outgoing_.data(), static_cast<int>(outgoing_.size()));
        if (n <= 0) {
            const int wants = SSL_get_error(ssl_.get(), n);
            return wants == SSL_ERROR_WANT_READ || wants == SSL_ERROR_WANT_WRITE || fail_tls(n);
        }
        outgoing_.erase(0, static_cast<size_t>(n));
    }
    return true;
}

void Session::tick_later() {
    const std::chrono::milliseconds deadline = std::chrono::seconds(handshake_.credentials->settings().deadline);
    timer_ = loop_.after(deadline / 3, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) {
            self->timer_ = 0;
            self->tick();
        }
    });
}

/// Three times within each deadline.
void Session::tick() {
    const auto self = shared_from_this();
    const auto now = EventLoop::Clock::now();
    const std::chrono::milliseconds deadline = std::chrono::seconds(handshake_.credentials->settings().deadline);
    if (state_ != State::up) {
        if (now - started_ >= deadline) {
            (void)fail(PeerCause::no_answer);
            return;
        }
    } else if (now - heard_ >= deadline) {
        (void)fail(outgoing_.size() >= kMostOutgoing ? PeerCause::too_slow : PeerCause::silent);
        return;
    } else if (now - heard_ >= deadline / 4 && outgoing_.empty()) {
        say(encode(MessageKind::ping, {}));
        drive();
        if (state_ == State::over) {
            return;
        }
    }
    tick_later();
}

bool Session::fail_tls(int result) {
    const PeerSettings *who = peer();
    const bool by_key = who != nullptr && !who->key.empty();
    const TlsFailure failure = failure_of(ssl_.get(), result, handshake_, by_key);
    return fail(failure.cause, failure.detail);
}

/// False, for who has to stop now.
bool Session::fail(PeerCause cause, const std::string &detail) {
    if (state_ != State::over) {
        close();
        events_.over(*this, cause, detail);
    }
    return false;
}

void Session::tell(const TellableKey &key) {
    say(encode(key));
    drive_soon();
}

void Session::refuse(const std::string &why) {
    const auto self = shared_from_this();
    (void)fail(PeerCause::malformed, why);
}

void Session::tell(MessageKind kind, std::string_view body) {
    const auto self = shared_from_this();
    if (state_ != State::up || version_ < kLinksVersion) {
        return;
    }
    if (outgoing_.size() >= kMostUntaken) {
        (void)fail(PeerCause::too_slow);
        return;
    }
    if (outgoing_.empty()) {
        drive_soon();
    }
    say(encode(kind, body));
}

void Session::end() {
    const auto self = shared_from_this();
    if (state_ == State::up) {
        events_.over = [](Session &, PeerCause, const std::string &) {};
        say(encode(MessageKind::ending, {}));
        if (flush()) {
            SSL_shutdown(ssl_.get());
            ERR_clear_error();
        }
    }
    close();
}

void Session::close() {
    state_ = State::over;
    if (timer_ != 0) {
        loop_.cancel(timer_);
        timer_ = 0;
    }
    if (watch_ != 0) {
        loop_.remove(watch_, socket_.get());
        watch_ = 0;
    }
    socket_.reset();
}

} // namespace sd::monitor
