// What memory the control group of a process may have, and how large its rings may be there.
#include "monitor/records/group_memory.hpp"
#include "monitor/service/policy.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sys/syscall.h>
#include <unistd.h>

using namespace sd::monitor;

namespace {

constexpr uint64_t kMiB = 1 << 20;

/// Folders that look like a mounted hierarchy.
class Hierarchies {
  public:
    Hierarchies() {
        char name[] = "/tmp/sd-groups-XXXXXX";
        at_ = mkdtemp(name);
    }
    ~Hierarchies() { std::filesystem::remove_all(at_); }
    Hierarchies(const Hierarchies &) = delete;
    Hierarchies &operator=(const Hierarchies &) = delete;

    void write(const std::string &path, const std::string &text) const {
        const std::filesystem::path file = at_ + "/" + path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text << "\n";
    }
    [[nodiscard]] std::string unified(const std::string &root = "/") const {
        return "41 31 0:38 " + root + " " + at_ + " rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
    }
    [[nodiscard]] std::string of(const std::string &controllers) const {
        return "35 31 0:32 / " + at_ + "/" + controllers + " rw - cgroup cgroup rw," + controllers + "\n";
    }

  private:
    std::string at_;
};

} // namespace

TEST_CASE("the limit of a group is the least of its own and those above it") {
    const Hierarchies all;
    all.write("a/memory.max", "max");
    all.write("a/b/memory.max", std::to_string(512 * kMiB));
    all.write("a/b/c/memory.max", std::to_string(1024 * kMiB));
    CHECK(memory_limit_in(all.unified(), "0::/a/b/c\n") == 512 * kMiB);
    CHECK_FALSE(memory_limit_in(all.unified(), "0::/a\n"));
    all.write("a/b/c/memory.high", std::to_string(64 * kMiB)); // beyond it everything is slow
    CHECK(memory_limit_in(all.unified(), "0::/a/b/c\n") == 64 * kMiB);
    CHECK(memory_limit_in(all.unified(), "0::/a/b\n") == 512 * kMiB);
    CHECK_FALSE(memory_limit_in(all.unified(), "0::/gone\n"));
    CHECK_FALSE(memory_limit_in("", "0::/a/b\n"));
}

TEST_CASE("the limit of a container's group, as the container sees it") {
    const Hierarchies all;
    all.write("memory.max", std::to_string(64 * kMiB));
    CHECK(memory_limit_in(all.unified(), "0::/\n") == 64 * kMiB);
    CHECK(memory_limit_in(all.unified("/pod/one"), "0::/pod/one\n") == 64 * kMiB);
    CHECK(memory_limit_in(all.unified("/pod/one"), "0::/pod/one/deeper\n") == 64 * kMiB);
    CHECK_FALSE(memory_limit_in(all.unified("/pod/one"), "0::/pod/other\n"));
    CHECK_FALSE(memory_limit_in(all.unified(), "0::/../elsewhere\n"));
}

TEST_CASE("the limit of a group in a hierarchy of memory alone") {
    const Hierarchies all;
    all.write("memory/memory.limit_in_bytes", "9223372036854771712"); // none
    all.write("memory/a/memory.limit_in_bytes", std::to_string(64 * kMiB));
    all.write("pids/a/memory.limit_in_bytes", "1");
    const std::string mounts = all.of("pids") + all.of("memory");
    CHECK(memory_limit_in(mounts, "8:pids:/a\n4:memory:/a\n0::/\n") == 64 * kMiB);
    CHECK_FALSE(memory_limit_in(mounts, "8:pids:/a\n4:memory:/\n"));
}

TEST_CASE("the limit of a process's group can be asked for") {
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    REQUIRE(pidfd >= 0);
    CHECK(memory_limit_of(getpid(), pidfd).value_or(kMiB) >= kMiB); // this test runs
    CHECK_FALSE(memory_limit_of(0, pidfd));
    CHECK_FALSE(memory_limit_of(getpid(), -1));
    close(pidfd);
}

TEST_CASE("arenas may take a part of a group's memory") {
    CHECK(most_arenas_within(0) == 1);
    CHECK(most_arenas_within(64 * kMiB) * sd::wire::kArenasUnit == 16 * kMiB);
    CHECK(most_arenas_within(sizeof(sd::Directory) * 4 * sd::wire::kArenasUnit) != sizeof(sd::Directory));
    CHECK(most_arenas_within(UINT64_MAX) == UINT32_MAX);
}

TEST_CASE("rings are smaller where there is little memory for them") {
    CHECK(most_ring_within(0) == kLeastRing);
    CHECK(most_ring_within(64 * kMiB) == kLeastRing);
    CHECK(sd::kRingSize[most_ring_within(1024 * kMiB)] == 256u << 10);
    CHECK(sd::kRingSize[most_ring_within(8192 * kMiB)] == 1u << 20);
    CHECK(most_ring_within(uint64_t{1} << 40) == sd::kRingClasses - 1);
}
