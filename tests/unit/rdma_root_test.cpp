// After a chroot the plugin is not loaded: its name may lead to anybody's file.
#include "libsd/rdma/root.hpp"
#include <catch2/catch.hpp>
#include <cstdlib>
#include <sched.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace {

/// What `body` returns in a process of its own.
template <typename F> int in_child(F body) {
    const pid_t child = fork();
    if (child == 0)
        _exit(body());
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace

TEST_CASE("the root folder is as ever until a chroot") {
    REQUIRE_FALSE(sd::rdma::is_root_as_ever()); // it was not remembered
    sd::rdma::remember_root();
    REQUIRE(sd::rdma::is_root_as_ever());
    REQUIRE(chdir("/tmp") == 0);
    REQUIRE(sd::rdma::is_root_as_ever());

    std::string folder = "/tmp/sd-root-XXXXXX";
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    const int found = in_child([&] {
        if (geteuid() != 0 && unshare(CLONE_NEWUSER) != 0)
            return 2;
        if (chroot(folder.c_str()) != 0)
            return 2;
        return sd::rdma::is_root_as_ever() ? 1 : 0;
    });
    rmdir(folder.c_str());
    if (found == 2)
        WARN("no chroot for this user");
    else
        REQUIRE(found == 0);
}
