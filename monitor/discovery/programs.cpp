// Loading the BPF programs of discovery, and reading what they keep.
#include "monitor/discovery/programs.hpp"
#include "monitor/kernel/unique_fd.hpp"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <linux/capability.h>
#include <random>
#include <sstream>
#include <sys/syscall.h>

namespace sd::monitor {

// option.bpf.c, as the build has compiled it
extern const unsigned char kOptionObject[];
extern const size_t kOptionObjectSize;

namespace {

/// What the monitor has now, whoever it runs as.
bool has_capability(unsigned number) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    return syscall(SYS_capget, &header, data) == 0 && (data[number / 32].effective >> number % 32 & 1) != 0;
}

void need_capabilities() {
    if (!has_capability(CAP_SYS_ADMIN) && !has_capability(CAP_BPF)) {
        throw DiscoveryUnavailable("it takes CAP_BPF");
    }
    if (!has_capability(CAP_NET_ADMIN)) {
        throw DiscoveryUnavailable("it takes CAP_NET_ADMIN");
    }
}

/// libbpf says what failed in errno, or as a negative result, by its version.
[[noreturn]] void fail(const std::string &what, int result) {
    const int error = result < -1 ? -result : errno;
    throw DiscoveryUnavailable(what + ": " + strerror(error));
}

/// "const volatile" data of the programs, of which the keys are all, lie in a map of their own. Returns the
/// one that is told.
ProofKey set_keys(bpf_object *object) {
    std::random_device device;
    std::array<uint64_t, 4> keys{};
    for (uint64_t &half : keys) {
        half = uint64_t{device()} << 32 | device();
    }
    bpf_map *map = nullptr;
    bpf_object__for_each_map(map, object) {
        if (std::string(bpf_map__name(map)).ends_with(".rodata")) {
            break;
        }
    }
    if (map == nullptr || bpf_map__set_initial_value(map, keys.data(), sizeof keys) != 0) {
        throw DiscoveryUnavailable("the programs were built without a place for the keys");
    }
    return {keys[2], keys[3]};
}

sd_network key_of(const AddressMatch &network) {
    sd_network key{};
    key.bits = network.prefix;
    memcpy(key.address, network.ip, sizeof key.address);
    return key;
}

} // namespace

void OptionPrograms::Closer::operator()(bpf_object *object) const { bpf_object__close(object); }

OptionPrograms::OptionPrograms(const std::string &group, const std::vector<AddressMatch> &networks) {
    need_capabilities();
    const UniqueFd directory(open(group.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (group.empty() || !directory) {
        throw DiscoveryUnavailable(group.empty() ? "there is no unified hierarchy of control groups"
                                                 : group + ": " + strerror(errno));
    }
    libbpf_set_print(nullptr); // it would write to stderr; what fails is said here
    object_.reset(bpf_object__open_mem(kOptionObject, kOptionObjectSize, nullptr));
    if (!object_) {
        fail("the programs cannot be read", -1);
    }
    proof_key_ = set_keys(object_.get());
    if (const int result = bpf_object__load(object_.get()); result != 0) {
        fail("the kernel does not take the programs", result);
    }
    ends_ = bpf_object__find_map_by_name(object_.get(), "ends");
    networks_ = bpf_object__find_map_by_name(object_.get(), "networks");
    counts_ = bpf_object__find_map_by_name(object_.get(), "counts");
    ask(networks);
    const std::pair<const char *, bpf_attach_type> programs[] = {{"sd_option", BPF_CGROUP_SOCK_OPS},
                                                                 {"sd_mark", BPF_CGROUP_SETSOCKOPT}};
    for (size_t i = 0; i < links_.size(); ++i) {
        const auto &[name, type] = programs[i];
        const bpf_program *program = bpf_object__find_program_by_name(object_.get(), name);
        // A link stands beside what others have attached, as BPF_F_ALLOW_MULTI does, and ends with us.
        links_[i] = bpf_link_create(bpf_program__fd(program), directory.get(), type, nullptr);
        if (links_[i] < 0) {
            const int result = links_[i];
            links_[i] = -1;
            const UniqueFd first(links_[0]);
            links_[0] = -1;
            fail("the programs cannot be attached to " + group, result);
        }
    }
}

OptionPrograms::~OptionPrograms() {
    for (const int link : links_) {
        const UniqueFd ends(link);
    }
}

void OptionPrograms::ask(const std::vector<AddressMatch> &networks) {
    const int map = bpf_map__fd(networks_);
    const unsigned char yes = 1;
    for (const AddressMatch &network : networks) {
        const sd_network key = key_of(network);
        if (bpf_map_update_elem(map, &key, &yes, BPF_ANY) != 0) {
            throw DiscoveryUnavailable("there are too many networks");
        }
    }
    std::vector<sd_network> former;
    sd_network key{};
    for (const sd_network *last = nullptr; bpf_map_get_next_key(map, last, &key) == 0; last = &former.back()) {
        former.push_back(key);
    }
    for (const sd_network &each : former) {
        bool wanted = false;
        for (const AddressMatch &network : networks) {
            const sd_network other = key_of(network);
            wanted = wanted || memcmp(&other, &each, sizeof each) == 0;
        }
        if (!wanted) {
            bpf_map_delete_elem(map, &each);
        }
    }
}

std::optional<sd_end> OptionPrograms::end_of(int socket) const {
    sd_end end{};
    return bpf_map_lookup_elem(bpf_map__fd(ends_), &socket, &end) == 0 ? std::optional(end) : std::nullopt;
}

OptionPrograms::Counts OptionPrograms::counts() const {
    Counts result{};
    const int processors = libbpf_num_possible_cpus();
    std::vector<uint64_t> each(processors > 0 ? static_cast<size_t>(processors) : 1);
    for (unsigned state = 0; state < SD_STATES; ++state) {
        if (processors > 0 && bpf_map_lookup_elem(bpf_map__fd(counts_), &state, each.data()) == 0) {
            for (const uint64_t n : each) {
                result[state] += n;
            }
        }
    }
    return result;
}

const char *state_name(unsigned state) {
    constexpr const char *kNames[] = {"marked", "wanted", "reserved",   "sent",    "paired", "other_host",
                                      "plain",  "echoed", "sent_again", "no_room", "far",    "shy"};
    static_assert(std::size(kNames) == SD_STATES);
    return state < SD_STATES ? kNames[state] : "unknown";
}

std::string unified_top() {
    std::ifstream mounts("/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        if (line.find(" - cgroup2 ") == std::string::npos) {
            continue;
        }
        std::istringstream words(line);
        std::string id, parent, device, root, at;
        words >> id >> parent >> device >> root >> at;
        if (root == "/") {
            return at;
        }
    }
    return {};
}

} // namespace sd::monitor
