// Steps that make processes and threads, execute programs, run a shell, and end threads.
#include "tests/differential/actor.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" pid_t _Fork() noexcept;

namespace sd::differential {

namespace {

char *const kNoEnvironment[] = {nullptr};

/// The hosts do not want to hear of children; whoever asks how one ended does.
class Children {
  public:
    Children() {
        struct sigaction usual {};
        usual.sa_handler = SIG_DFL;
        sigaction(SIGCHLD, &usual, &before_);
    }
    ~Children() { sigaction(SIGCHLD, &before_, nullptr); }

  private:
    struct sigaction before_ {};
};

void say_status(int status, Observation &o) {
    if (WIFSIGNALED(status)) {
        o.say(" killed by %s", sigabbrev_np(WTERMSIG(status)));
    } else {
        o.say(" status %d", WEXITSTATUS(status));
    }
}

// --- threads

pthread_t threads[kMaxActors];
bool is_thread[kMaxActors];

void *thread_main(void *actor) {
    pthread_cleanup_push([](void *) { say_cancelled(); }, nullptr);
    serve(static_cast<int>(reinterpret_cast<intptr_t>(actor)), true);
    pthread_cleanup_pop(0);
    return nullptr;
}

void start_thread(int actor, Observation &o) {
    pthread_t id;
    const int error =
        pthread_create(&id, nullptr, thread_main, reinterpret_cast<void *>(static_cast<intptr_t>(actor)));
    o.say("%s", error == 0 ? "started" : strerrorname_np(error));
    if (error == 0) {
        pthread_detach(id);
        threads[actor] = id;
        is_thread[actor] = true;
    }
}

// A thread that has ended is not asked for: the controller knows which are alive.
void cancel(int actor, Observation &o) {
    if (!is_thread[actor] || actor == own_actor) {
        o.say("no such thread");
        return;
    }
    is_thread[actor] = false;
    o.result(pthread_cancel(threads[actor]));
}

// --- processes

void give_up_rights() {
    const char *user = getenv(kGivesUp);
    if (user == nullptr || geteuid() != 0) {
        return;
    }
    const auto id = static_cast<uid_t>(atoi(user));
    if (setgroups(0, nullptr) != 0 || setresgid(id, id, id) != 0 || setresuid(id, id, id) != 0) {
        _exit(126);
    }
}

int cloned(void *actor) {
    give_up_rights();
    serve(*static_cast<int *>(actor));
    _exit(0);
}

void start_process(int actor, int variant, Observation &o) {
    pid_t child;
    if (variant == 2) {
        static char stack[1 << 20];
        child = clone(cloned, stack + sizeof stack, SIGCHLD, &actor);
    } else {
        child = variant == 1 ? _Fork() : fork();
    }
    if (child == 0) {
        for (bool &it : is_thread) {
            it = false;
        }
        give_up_rights();
        serve(actor);
        _exit(0);
    }
    o.say("%s", child > 0 ? "started" : strerrorname_np(errno));
}

/// The program that goes on as `actor`: this one.
struct Image {
    char program[16] = "/proc/self/exe", name[8] = "actor", word[8] = "resume", number[16];
    char *arguments[4] = {name, word, number, nullptr};
    explicit Image(int actor) { snprintf(number, sizeof number, "%d", actor); }
};

// The new image goes on serving the same channel.
void execute(int variant, Observation &o) {
    Image image(own_actor);
    char nothing[] = "/no/such/program", device[] = "/dev/null";
    switch (variant) {
    case 0:
        execv(image.program, image.arguments);
        break;
    case 1:
        execve(image.program, image.arguments, kNoEnvironment);
        break;
    case 2:
        execvp(image.program, image.arguments);
        break;
    case 3:
        execl(image.program, image.name, image.word, image.number, nullptr);
        break;
    case 4:
        execle(image.program, image.name, image.word, image.number, nullptr, environ);
        break;
    case 5:
    case 6: {
        const int program = open(image.program, O_RDONLY | O_CLOEXEC);
        variant == 5 ? fexecve(program, image.arguments, environ)
                     : execveat(program, "", image.arguments, environ, AT_EMPTY_PATH);
        const int error = errno;
        close(program);
        errno = error;
        break;
    }
    default:
        execv(variant == 7 ? nothing : device, image.arguments);
    }
    o.say("exec: %s", strerrorname_np(errno));
}

/// What happens to descriptors on the way: 1 dup2, 2 close, 3 open, 4 dup2 and close, 5 dup2 onto itself, 6
/// dup2 of a number that is not open.
int prepare(int action, int fd, int target) {
    switch (action) {
    case 1:
        return dup2(fd, target);
    case 2:
        return close(fd);
    case 3:
        close(target);
        return open("/dev/null", O_RDWR) < 0 ? -1 : 0;
    case 4:
        return dup2(fd, target) < 0 ? -1 : close(fd);
    case 5:
        return fcntl(fd, F_SETFD, 0);
    case 6:
        return dup2(371, target);
    default:
        return 0;
    }
}

int describe(posix_spawn_file_actions_t *actions, int action, int fd, int target) {
    switch (action) {
    case 1:
        return posix_spawn_file_actions_adddup2(actions, fd, target);
    case 2:
        return posix_spawn_file_actions_addclose(actions, fd);
    case 3:
        return posix_spawn_file_actions_addopen(actions, target, "/dev/null", O_RDWR, 0);
    case 4:
        return posix_spawn_file_actions_adddup2(actions, fd, target) |
               posix_spawn_file_actions_addclose(actions, fd);
    case 5:
        return posix_spawn_file_actions_adddup2(actions, fd, fd);
    case 6:
        return posix_spawn_file_actions_adddup2(actions, 371, target);
    default:
        return 0;
    }
}

struct Start {
    Image *image;
    int action, fd, target;
    int failure; ///< end of a pipe that closes when the program is executed
};

int child_of_clone(void *context) {
    const Start &start = *static_cast<Start *>(context);
    if (prepare(start.action, start.fd, start.target) >= 0) {
        execv(start.image->program, start.image->arguments);
    }
    const int error = errno;
    if (write(start.failure, &error, sizeof error) < 0) {
        _exit(126);
    }
    _exit(127);
}

void spawn(Image &image, bool by_path, int action, int fd, int target, Observation &o) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    pid_t child;
    int error = describe(&actions, action, fd, target);
    if (error == 0) {
        error = by_path ? posix_spawnp(&child, image.program, &actions, nullptr, image.arguments, environ)
                        : posix_spawn(&child, image.program, &actions, nullptr, image.arguments, environ);
    }
    posix_spawn_file_actions_destroy(&actions);
    o.say("%s", error == 0 ? "started" : strerrorname_np(error));
}

// 0 and 1 posix_spawn, 2 vfork, 3 clone as vfork does, 4 fork
void start_program(int actor, int way, int action, int fd, int target, Observation &o) {
    Image image(actor);
    if (way < 2) {
        return spawn(image, way == 1, action, fd, target, o);
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return o.result(-1);
    }
    const int reading = fcntl(ends[0], F_DUPFD_CLOEXEC, 200), writing = fcntl(ends[1], F_DUPFD_CLOEXEC, 200);
    close(ends[0]);
    close(ends[1]);
    Start start{&image, action, fd, target, writing};
    pid_t child;
    if (way == 3) {
        static char stack[1 << 16];
        child = clone(child_of_clone, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
    } else {
        child = way == 2 ? vfork() : fork();
        if (child == 0) {
            child_of_clone(&start);
        }
    }
    int error = child < 0 ? errno : 0;
    close(writing);
    if (read(reading, &error, sizeof error) < 0) {
        o.say("no answer ");
    }
    close(reading);
    o.say("%s", error == 0 ? "started" : strerrorname_np(error));
}

// A child closes all that it has from `fd` on, looks what it still has, and ends.
void close_all(int fd, int variant, Observation &o) {
    constexpr int kLooks = 24;
    auto *seen =
        static_cast<char *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const Children wanted;
    const pid_t child = fork();
    if (child == 0) {
        const auto first = static_cast<unsigned>(fd);
        long r = 0;
        if (variant == 0) {
            closefrom(fd);
        } else {
            r = close_range(first, ~0u,
                            variant == 1   ? 0
                            : variant == 2 ? CLOSE_RANGE_CLOEXEC
                                           : CLOSE_RANGE_UNSHARE);
        }
        for (int i = 0; i < kLooks; ++i) {
            const int flags = fcntl(i, F_GETFD);
            seen[i] = flags < 0 ? '-' : flags == 0 ? 'o' : 'x';
        }
        seen[kLooks] = r == 0 ? ' ' : '!';
        if (variant == 2) {
            execl("/bin/true", "true", nullptr);
        }
        _exit(3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    o.say("%.*s", kLooks + 1, seen);
    say_status(status, o);
    munmap(seen, 4096);
}

bool has_input(int fd, Observation &o) {
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, 0) == 1) {
        return true;
    }
    o.say("nothing there");
    return false;
}

// 0 the shell writes, 1 a program reads for us, 2 a program writes what we give it, 3 nobody touches the
// socket
void shell(int fd, int variant, Observation &o) {
    if (fd > 9) {
        o.say("more than a shell can name");
        return;
    }
    const Children wanted;
    char command[80];
    static constexpr const char *kCommands[] = {"exec 2>/dev/null; printf shell >&%d",
                                                "exec 2>/dev/null; head -c 4 <&%d",
                                                "exec 2>/dev/null; cat >&%d || cat >/dev/null", "exit 3"};
    snprintf(command, sizeof command, kCommands[variant], fd); // NOLINT: the format is one of ours
    if (variant == 0 || variant == 3) {
        return say_status(system(command), o);
    }
    if (variant == 1 && !has_input(fd, o)) {
        return;
    }
    FILE *pipe = popen(command, variant == 1 ? "r" : "w");
    if (pipe == nullptr) {
        return o.result(-1);
    }
    if (variant == 1) {
        char text[16];
        const size_t got = fread(text, 1, sizeof text, pipe);
        o.say("%zu", got);
        o.data(text, got);
    } else {
        fputs("popen", pipe);
    }
    say_status(pclose(pipe), o);
}

} // namespace

bool perform_process(Op op, int, Arguments a, Observation &o) {
    switch (op) {
    case Op::fork:
        start_process(a[0], a[1], o);
        return true;
    case Op::thread:
        start_thread(a[0], o);
        return true;
    case Op::cancel:
        cancel(a[0], o);
        return true;
    case Op::exec:
        execute(a[0], o);
        return true;
    case Op::spawn:
        start_program(a[0], a[1], a[2], a[3], a[4], o);
        return true;
    case Op::close_all:
        close_all(a[0], a[1], o);
        return true;
    case Op::shell:
        shell(a[0], a[1], o);
        return true;
    default:
        return false;
    }
}

} // namespace sd::differential
