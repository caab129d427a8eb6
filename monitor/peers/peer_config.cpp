// The sections [peers] and [[peer]]: which hosts there are, and how each is proven.
#include "monitor/peers/peer_config.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sd::monitor {

namespace {

constexpr size_t kMostFile = 65536; ///< of a key, or of certificates

bool is_host_name(const std::string &name) {
    return !name.empty() && name.size() <= kMostPeerName &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
               return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_';
           });
}

class PeerReader {
  public:
    explicit PeerReader(const Reader &reader) : reader_(reader) {}

    void own(const toml::table &table, PeersSettings &settings) const {
        reader_.only(table, "peers.",
                     {"name", "listen", "port", "deadline", "certificate", "private_key", "rdma", "addresses",
                      "registered"});
        if (const toml::node *node = table.get("name")) {
            settings.name = name(*node, "peers.name");
        }
        if (const toml::node *node = table.get("listen")) {
            settings.listen = address(*node, "peers.listen");
        }
        port(table, "peers.", settings.port);
        if (const toml::node *node = table.get("deadline")) {
            settings.deadline = static_cast<unsigned>(reader_.number(*node, "peers.deadline", 1, 3600));
        }
        if (const toml::node *node = table.get("rdma")) {
            settings.rdma = use_of_rdma(*node);
        }
        networks(table, "peers.", settings.addresses);
        if (const toml::node *node = table.get("registered")) {
            settings.registered =
                static_cast<unsigned>(reader_.number(*node, "peers.registered", 1, kMostRegistered));
        }
        const toml::node *certificate = table.get("certificate"), *key = table.get("private_key");
        if ((certificate == nullptr) != (key == nullptr)) {
            const toml::node &given = certificate == nullptr ? *key : *certificate;
            reader_.fail(given.source(), certificate == nullptr ? "peers.private_key" : "peers.certificate",
                         "certificate and private_key belong together");
        }
        if (certificate != nullptr) {
            settings.certificate = pem(*certificate, "peers.certificate", "CERTIFICATE-----", false);
            settings.private_key = pem(*key, "peers.private_key", "PRIVATE KEY-----", true);
        }
    }

    void peer(const toml::table &table, const std::string &prefix, PeersSettings &settings) const {
        reader_.only(table, prefix, {"name", "address", "port", "key", "certificate", "addresses"});
        PeerSettings made;
        made.name = name(needed(table, "name", prefix), prefix + "name");
        made.address = address(needed(table, "address", prefix), prefix + "address");
        made.port = settings.port;
        port(table, prefix, made.port);
        for (const PeerSettings &other : settings.peers) {
            if (other.name == made.name) {
                reader_.fail(table.get("name")->source(), prefix + "name", "there is another peer of this name");
            }
        }
        if (made.name == settings.name) {
            reader_.fail(table.get("name")->source(), prefix + "name",
                         "is the name of this host; peers.name is another one if that is wrong");
        }
        const toml::node *key = table.get("key"), *certificate = table.get("certificate");
        if ((key == nullptr) == (certificate == nullptr)) {
            reader_.fail(table.source(), prefix.substr(0, prefix.size() - 1),
                         "needs either key or certificate: a host that proves nothing is nobody's peer");
        }
        if (key != nullptr) {
            made.key = shared_key(*key, prefix + "key");
        } else {
            made.certificates = pem(*certificate, prefix + "certificate", "CERTIFICATE-----", false);
            if (settings.certificate.empty()) {
                reader_.fail(
                    certificate->source(), prefix + "certificate",
                    "this host has none to show: peers.certificate and peers.private_key are missing");
            }
        }
        made.addresses.push_back(made.address);
        networks(table, prefix, made.addresses);
        settings.peers.push_back(std::move(made));
    }

  private:
    const toml::node &needed(const toml::table &table, const char *what, const std::string &prefix) const {
        const toml::node *node = table.get(what);
        if (node == nullptr) {
            reader_.fail(table.source(), prefix + what, "must be given");
        }
        return *node;
    }

    UseRdma use_of_rdma(const toml::node &node) const {
        if (node.is_boolean()) {
            return node.as_boolean()->get() ? UseRdma::always : UseRdma::never;
        }
        if (!node.is_string() || node.as_string()->get() != "auto") {
            reader_.fail(node.source(), "peers.rdma", "must be true, false or \"auto\"");
        }
        return UseRdma::automatic;
    }

    std::string name(const toml::node &node, const std::string &key) const {
        std::string text = reader_.text(node, key);
        if (!is_host_name(text)) {
            reader_.fail(node.source(), key, "must be 1 to 63 letters, digits, '-', '.' and '_'");
        }
        return text;
    }

    void networks(const toml::table &table, const std::string &prefix, std::vector<std::string> &out) const {
        reader_.each(table, "addresses", [&](const toml::node &node) {
            const std::string text = reader_.text(node, prefix + "addresses");
            if (!AddressMatch::parse(text)) {
                reader_.fail(node.source(), prefix + "addresses",
                             "must be an IP address, or one with a prefix length as in \"10.0.0.0/8\"");
            }
            out.push_back(text);
        });
    }

    std::string address(const toml::node &node, const std::string &key) const {
        std::string text = reader_.text(node, key);
        if (text.find('/') != std::string::npos || !AddressMatch::parse(text)) {
            reader_.fail(node.source(), key, "must be an IP address");
        }
        return text;
    }

    void port(const toml::table &table, const std::string &prefix, uint16_t &out) const {
        if (const toml::node *node = table.get("port")) {
            // Below 1024 it would take a capability, and sd-peers has none.
            out = static_cast<uint16_t>(reader_.number(*node, prefix + "port", 1024, 65535));
        }
    }

    /// The contents of the file that a key names.
    std::string file(const toml::node &node, const std::string &key, bool is_secret) const {
        const std::string path = reader_.text(node, key);
        const auto fail = [&](const std::string &reason) {
            reader_.fail(node.source(), key, path + ": " + reason);
        };
        if (path.empty() || path[0] != '/') {
            fail("must be an absolute path");
        }
        const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        struct stat about {};
        if (!fd || fstat(fd.get(), &about) != 0) {
            fail(strerror(errno));
        }
        if (!S_ISREG(about.st_mode)) {
            fail("is no regular file");
        }
        if (is_secret && (about.st_mode & (S_IROTH | S_IWOTH)) != 0) {
            fail("everybody can read or write it; chmod o= takes that away");
        }
        std::string text(kMostFile + 1, '\0');
        size_t size = 0;
        for (ssize_t n = 1; n > 0 && size < text.size();) {
            n = read(fd.get(), text.data() + size, text.size() - size);
            if (n < 0 && errno != EINTR) {
                fail(strerror(errno));
            }
            size += n > 0 ? static_cast<size_t>(n) : 0;
        }
        if (size > kMostFile) {
            fail("is too long");
        }
        text.resize(size);
        return text;
    }

    /// What OpenSSL thinks of it, sd-peers says: nothing else here is linked with it.
    std::string pem(const toml::node &node, const std::string &key, const char *kind, bool is_secret) const {
        std::string text = file(node, key, is_secret);
        if (text.find("-----BEGIN ") == std::string::npos || text.find(kind) == std::string::npos) {
            reader_.fail(node.source(), key,
                         reader_.text(node, key) + ": has no PEM block of the kind \"" +
                             std::string(kind).substr(0, strlen(kind) - 5) + "\"");
        }
        return text;
    }

    std::string shared_key(const toml::node &node, const std::string &key) const {
        std::string digits = file(node, key, true), bytes;
        std::erase_if(digits, [](unsigned char c) { return std::isspace(c) != 0; });
        const bool is_hexadecimal =
            std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
        if (!is_hexadecimal || digits.size() % 2 != 0 || digits.size() < 2 * kLeastKey ||
            digits.size() > 2 * kMostKey) {
            reader_.fail(node.source(), key,
                         reader_.text(node, key) +
                             ": must be 64 to 128 hexadecimal digits, as from \"openssl rand "
                             "-hex 32\"");
        }
        for (size_t i = 0; i < digits.size(); i += 2) {
            bytes.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
        }
        return bytes;
    }

    const Reader &reader_;
};

std::string this_host() {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return name;
}

} // namespace

void read_peers(const Reader &reader, const toml::table &root, PeersSettings &settings) {
    const PeerReader peers(reader);
    if (const toml::table *table = reader.table(root, "peers", "")) {
        peers.own(*table, settings);
    }
    const toml::node *list = root.get("peer");
    if (list == nullptr) {
        return;
    }
    if (!list->is_array()) {
        reader.fail(list->source(), "peer", "must be written as [[peer]]");
    }
    if (list->as_array()->size() > kMostPeers) {
        reader.fail(list->source(), "peer", "there are more than " + std::to_string(kMostPeers));
    }
    settings.name = settings.name.empty() ? this_host() : settings.name;
    if (!is_host_name(settings.name)) {
        reader.fail(list->source(), "peers.name", "must be given: the host's own name is none that can be used");
    }
    size_t count = 0;
    for (const toml::node &node : *list->as_array()) {
        const std::string name = "peer[" + std::to_string(++count) + "]";
        if (!node.is_table()) {
            reader.fail(node.source(), name, "must be a table");
        }
        peers.peer(*node.as_table(), name + ".", settings);
    }
    // Each pair has a key of its own: one for several would let a host pose as another.
    for (size_t i = 0; i < settings.peers.size(); ++i) {
        for (size_t j = i + 1; j < settings.peers.size() && !settings.peers[i].key.empty(); ++j) {
            if (settings.peers[i].key == settings.peers[j].key) {
                reader.fail(list->as_array()->get(j)->source(), "peer[" + std::to_string(j + 1) + "].key",
                            "is the key of peer \"" + settings.peers[i].name +
                                "\", too: with it, each of the two could pose as the other");
            }
        }
    }
}

} // namespace sd::monitor
