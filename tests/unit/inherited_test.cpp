// A socket that a process leaves to the child that it has made for it.
#include "libsd/vfs/paths/inherited.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace sd;

namespace {

/// A File of a socket that was just made here.
struct Held {
    File file;
    Held() { hold_alone(file); }
};

/// A child that the library knows of: it asks its questions one after the other, each when it is told to.
class Child {
  public:
    explicit Child(const std::function<bool(unsigned turn)> &ask) {
        REQUIRE(pipe(go_) == 0);
        REQUIRE(pipe(told_) == 0);
        inherited_fork_prepare();
        pid_ = fork();
        if (pid_ != 0)
            return;
        close(go_[1]);
        inherited_fork_child();
        char byte;
        for (unsigned turn = 0; read(go_[0], &byte, 1) == 1; ++turn) {
            byte = ask(turn) ? 'y' : 'n';
            if (write(told_[1], &byte, 1) != 1)
                break;
        }
        for (;;)
            syscall(SYS_exit_group, 0);
    }
    bool answer() {
        char byte = 0;
        REQUIRE(write(go_[1], "?", 1) == 1);
        REQUIRE(read(told_[0], &byte, 1) == 1);
        return byte == 'y';
    }
    ~Child() {
        for (const int fd : {go_[0], go_[1], told_[0], told_[1]})
            close(fd);
        waitpid(pid_, nullptr, 0);
    }
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;

  private:
    int go_[2], told_[2];
    pid_t pid_;
};

/// Of this process's mappings of such a table: how many, and are they all closed to writing for good?
struct Tables {
    unsigned count = 0;
    bool are_sealed = true;
    Tables() {
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[512];
        while (maps && fgets(line, sizeof line, maps)) {
            unsigned long from = 0;
            char rights[5] = "";
            if (!strstr(line, "socksdirect-left") || sscanf(line, "%lx-%*x %4s", &from, rights) != 2)
                continue;
            ++count;
            are_sealed = are_sealed && strcmp(rights, "r--s") == 0 &&
                         mprotect(reinterpret_cast<void *>(from), 4096, PROT_READ | PROT_WRITE) != 0 &&
                         errno == EACCES;
        }
        if (maps)
            fclose(maps);
    }
};

} // namespace

TEST_CASE("a child has a socket alone once its parent has left it, and not before") {
    Held one, other;
    CHECK(is_held_alone(one.file));
    Child child([&](unsigned turn) {
        switch (turn) {
        case 0: // held by the parent
            return !is_held_alone(one.file) && !is_of_this_process(one.file) && !is_left_here(one.file) &&
                   may_be_left_here(one.file);
        case 1: // left
            return is_left_here(one.file) && !is_left_here(other.file);
        default:
            hold_alone(one.file);
            return is_held_alone(one.file) && is_of_this_process(one.file) && !is_held_alone(other.file);
        }
    });
    CHECK_FALSE(is_held_alone(one.file));
    CHECK(is_of_this_process(one.file));
    CHECK_FALSE(may_be_left_here(one.file));
    CHECK(child.answer());
    leave_to_child(one.file);
    CHECK(child.answer());
    CHECK(child.answer());
    CHECK_FALSE(is_left_here(one.file)); // the parent is not meant
}

TEST_CASE("of two children that have a socket neither has it alone") {
    Held one;
    const auto is_left = [&](unsigned) { return is_left_here(one.file); };
    Child first(is_left), second(is_left);
    leave_to_child(one.file);
    CHECK_FALSE(first.answer());
    CHECK_FALSE(second.answer());
}

TEST_CASE("a child that is made before a socket has no part in it") {
    Child earlier([](unsigned) { return true; });
    Held one;
    Child child([&](unsigned) { return is_left_here(one.file); });
    leave_to_child(one.file);
    CHECK(child.answer());
}

TEST_CASE("a child that has made one itself does not have it alone, nor does that one") {
    Held one;
    Child child([&](unsigned) {
        Child grandchild([&](unsigned) { return is_left_here(one.file) || may_be_left_here(one.file); });
        return grandchild.answer() || is_left_here(one.file) || may_be_left_here(one.file);
    });
    leave_to_child(one.file);
    CHECK_FALSE(child.answer());
}

TEST_CASE("what was left to a child is the child's to leave") {
    Held one;
    Child child([&](unsigned) {
        if (!is_left_here(one.file))
            return false;
        hold_alone(one.file);
        Child grandchild(
            [&](unsigned turn) { return turn == 0 ? !is_left_here(one.file) : is_left_here(one.file); });
        const bool is_held = grandchild.answer();
        leave_to_child(one.file);
        return is_held && grandchild.answer();
    });
    leave_to_child(one.file);
    CHECK(child.answer());
}

TEST_CASE("a child does not take what was left long ago for its own") {
    Held one;
    Child child([&](unsigned turn) { return turn == 0 ? is_left_here(one.file) : may_be_left_here(one.file); });
    leave_to_child(one.file);
    for (unsigned i = 0; i < 512; ++i) {
        Held later;
        inherited_fork_prepare();
        leave_to_child(later.file);
    }
    CHECK_FALSE(child.answer()); // 512 others were left since
    CHECK(child.answer());
}

TEST_CASE("only a process itself says what it leaves") {
    Held one, other;
    Child child([&](unsigned turn) {
        if (turn == 0) {
            const Tables tables;
            return tables.count == 1 && tables.are_sealed;
        }
        leave_to_child(other.file);
        return is_left_here(one.file) || is_left_here(other.file);
    });
    CHECK(child.answer());
    const pid_t unseen = static_cast<pid_t>(syscall(SYS_fork)); // without the library's knowledge
    if (unseen == 0) {
        leave_to_child(one.file);
        for (;;)
            syscall(SYS_exit_group, 0);
    }
    int status = -1;
    REQUIRE(waitpid(unseen, &status, 0) == unseen);
    CHECK(WIFEXITED(status));
    CHECK_FALSE(child.answer());
}
