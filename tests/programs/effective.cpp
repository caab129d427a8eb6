// Rights that are given up for a while: what is shared stays shared, as the process can take them back.
#include "tests/programs/cases.hpp"
#include "tests/programs/process.hpp"
#include "tests/programs/rights.hpp"
#include "tests/programs/talking.hpp"

using namespace sdtest;

namespace {

// A child serves a connection that it has inherited, before, meanwhile and afterwards.
void serve_meanwhile(const std::function<void()> &change, const std::function<void()> &undo) {
    const Pair pair = make_pair();
    const pid_t child = spawn([&] {
        close(pair.client);
        send_all(pair.server, receive(pair.server, 6));
        for (const auto &next : {change, undo}) {
            const std::string word = receive(pair.server, 6);
            next();
            send_all(pair.server, word);
        }
    });
    for (const char *word : {"before", "during", "after."}) {
        send_all(pair.client, word);
        say("%s", receive(pair.client, 6).c_str());
    }
    reap("child", child);
}

void set_effective(bool all) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct own[2];
    MUST(syscall(SYS_capget, &header, own));
    for (auto &half : own)
        half.effective = all ? half.permitted : 0;
    SHOW(syscall(SYS_capset, &header, own));
}

} // namespace

BEHAVIOUR("another effective user meanwhile", another_effective_user, all_accelerated) {
    serve_meanwhile([] { SHOW(seteuid(kNobody)); }, [] { SHOW(seteuid(0)); });
}

// As file servers do that act for a user in one thread.
BEHAVIOUR("another effective user meanwhile, by system call", effective_by_system_call, all_accelerated) {
    serve_meanwhile([] { SHOW(syscall(SYS_setresuid, -1, kNobody, -1)); },
                    [] { SHOW(syscall(SYS_setresuid, -1, 0, -1)); });
}

BEHAVIOUR("the real user's rights again", effective_as_the_real_one, all_accelerated) {
    serve_meanwhile([] { SHOW(setreuid(-1, 0)); }, [] { SHOW(setregid(-1, 0)); });
}

BEHAVIOUR("no effective capabilities meanwhile", no_effective_capabilities, all_accelerated) {
    serve_meanwhile([] { set_effective(false); }, [] { set_effective(true); });
}

BEHAVIOUR("other users that the kernel refuses", users_that_are_refused, all_accelerated) {
    serve_meanwhile(
        [] {
            set_effective(false);
            SHOW(setuid(kNobody));
            SHOW(setreuid(kNobody, kNobody));
            SHOW(syscall(SYS_setresuid, kNobody, kNobody, kNobody));
        },
        [] {
            SHOW(setgid(kNobody));
            SHOW(setregid(kNobody, -1));
            SHOW(setresgid(-1, -1, kNobody));
            set_effective(true);
        });
}

BEHAVIOUR("capset with bad arguments", capset_with_bad_arguments, all_accelerated) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0}, unknown{1, 0};
    __user_cap_data_struct none[2]{};
    serve_meanwhile(
        [&] {
            SHOW(syscall(SYS_capset, bad_pointer<void>(), none));
            SHOW(syscall(SYS_capset, &header, bad_pointer<void>()));
        },
        [&] { SHOW(syscall(SYS_capset, &unknown, none)); });
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
