// A sequence as a C program of its own: a function per actor, its steps in order, and a shared word that says
// whose turn it is.
#include "tests/differential/print_c.hpp"

#include "tests/differential/c_prelude.hpp"
#include "tests/differential/option_list.hpp"

#include <sstream>

namespace sd::differential {

namespace {

// The three arguments all data steps have, as text: descriptor, size, flags.
struct Parts {
    std::string fd, size, flags;
};

Parts parts_of(const Step &step) {
    const std::string text = text_of(step); // name(FD, SIZE, FLAGS, VARIANT)
    const size_t open = text.find('('), first = text.find(", "), second = text.find(", ", first + 2),
                 third = text.find(", ", second + 2);
    return {text.substr(open + 1, first - open - 1), text.substr(first + 2, second - first - 2),
            text.substr(second + 2, third - second - 2)};
}

std::string request_call(const std::string &name, const std::string &fd, const std::string &bytes,
                         const std::string &size) {
    return "({ struct aiocb r = {.aio_fildes = " + fd + ", .aio_buf = " + bytes + ", .aio_nbytes = " + size +
           "}; " +
           name + "(&r); while (aio_error(&r) == EINPROGRESS) usleep(1000); errno = aio_error(&r); aio_return(&r); })";
}

std::string send_call(const Step &step) {
    const auto [fd, size, flags] = parts_of(step);
    const std::string bytes = "data(" + size + ")", rest = fd + ", " + bytes + ", " + size;
    const int third = step.arguments[1] / 3;
    const std::string parts = "(struct iovec[]){{" + bytes + ", " + std::to_string(third) +
                              "}, {buffer, 0}, {buffer + " + std::to_string(third) + ", " +
                              std::to_string(step.arguments[1] - third) + "}}";
    switch (step.arguments[3]) {
    case 0:
        return "write(" + rest + ")";
    case 2:
    case 3:
        return "sendto(" + rest + ", " + flags + ", 0, 0)";
    case 4:
        return "writev(" + fd + ", " + parts + ", 3)";
    case 5:
        return "sendmsg(" + fd + ", &(struct msghdr){.msg_iov = " + parts + ", .msg_iovlen = 3}, " + flags + ")";
    case 6:
        return "sendmmsg(" + fd + ", (struct mmsghdr[]){{{.msg_iov = " + parts +
               ", .msg_iovlen = 1}}, {{.msg_iov = " + parts + " + 1, .msg_iovlen = 2}}}, 2, " + flags + ")";
    case 7:
        return "pwritev2(" + fd + ", " + parts + ", 3, -1, 0)";
    case 8:
        return "({ int f = memfd_create(\"data\", 0); off_t o = 0; long n = write(f, " + bytes + ", " + size +
               "); sendfile(" + fd + ", f, &o, n); })";
    case 9:
        return "({ int p[2]; pipe(p); write(p[1], " + bytes + ", " + size + "); splice(p[0], 0, " + fd +
               ", 0, " + size + ", 0); })";
    case 10:
        return "dprintf(" + fd + ", \"%.*s\", " + size + ", " + bytes + ")";
    case 11:
        return "({ FILE *f = fdopen(dup(" + fd + "), \"w\"); f ? fwrite(" + bytes + ", 1, " + size +
               ", f), fclose(f) : -1; })";
    case 12:
        return "send(" + fd + ", bad(), " + size + ", " + flags + ")";
    case 13:
        return "writev(" + fd + ", (struct iovec[]){{" + bytes + ", " + std::to_string(third) +
               "}, {bad(), 9}}, 2)";
    case 14:
        return "writev(" + fd + ", " + parts + ", " + (step.arguments[1] % 2 != 0 ? "-1" : "2000") + ")";
    case 15:
        return "pwrite(" + rest + ", 0)";
    case 16:
        return "sendmsg(" + fd + ", bad(), " + flags + ")";
    case 18:
        return "syscall(SYS_write, " + rest + ")";
    case 19:
        return "syscall(SYS_sendto, " + rest + ", " + flags + ", 0, 0)";
    case 20:
        return "syscall(SYS_writev, " + fd + ", " + parts + ", 3)";
    case 21:
        return "pwritev2(" + fd + ", " + parts + ", 3, 0, 0)";
    case 22:
        return "pwritev2(" + fd + ", " + parts + ", 3, -1, RWF_NOWAIT)";
    case 23:
        return "pwritev2(" + fd + ", " + parts + ", 3, -1, 0x4000)";
    case 24:
    case 25:
        return request_call("aio_write", fd, bytes, size);
    default:
        return "send(" + rest + ", " + flags + ")";
    }
}

std::string recv_call(const Step &step) {
    const auto [fd, size, flags] = parts_of(step);
    const int third = step.arguments[1] / 3;
    const std::string parts = "(struct iovec[]){{buffer, " + std::to_string(third) + "}, {buffer + " +
                              std::to_string(third) + ", " + std::to_string(step.arguments[1] - third) + "}}";
    const auto got = [&size = size](const std::string &call) {
        return "got(" + call + ", buffer, " + size + ")";
    };
    switch (step.arguments[3]) {
    case 0:
        return got("read(" + fd + ", buffer, " + size + ")");
    case 2:
        return got("recvfrom(" + fd + ", buffer, " + size + ", " + flags + ", 0, 0)");
    case 3:
        return got("readv(" + fd + ", " + parts + ", 2)");
    case 4:
        return got("recvmsg(" + fd + ", &(struct msghdr){.msg_iov = " + parts + ", .msg_iovlen = 2}, " +
                   flags + ")");
    case 5:
        return "recvmmsg(" + fd + ", (struct mmsghdr[]){{{.msg_iov = " + parts +
               ", .msg_iovlen = 1}}, {{.msg_iov = " + parts + " + 1, .msg_iovlen = 1}}}, 2, " + flags + ", 0)";
    case 6:
        return got("preadv2(" + fd + ", " + parts + ", 2, -1, 0)");
    case 7:
        return "({ int p[2]; pipe(p); splice(" + fd + ", 0, p[1], 0, " + size + ", SPLICE_F_NONBLOCK); })";
    case 8:
        return "recv(" + fd + ", bad(), " + size + ", " + flags + ")";
    case 10:
        return "recv(" + fd + ", buffer, 0, " + flags + ")";
    case 11:
        return "pread(" + fd + ", buffer, " + size + ", 0)";
    case 12:
        return "recv(" + fd + ", 0, " + size + ", (" + flags + ") | MSG_TRUNC)";
    case 13:
        return "readv(" + fd + ", " + parts + ", " + (step.arguments[1] % 2 != 0 ? "-1" : "2000") + ")";
    case 14:
        return "recvmsg(" + fd + ", bad(), " + flags + ")";
    case 15:
        return got("syscall(SYS_read, " + fd + ", buffer, " + size + ")");
    case 16:
        return got("syscall(SYS_recvfrom, " + fd + ", buffer, " + size + ", " + flags + ", 0, 0)");
    case 17:
    case 18:
        return got(request_call("aio_read", fd, "buffer", size));
    case 19:
        return got("preadv2(" + fd + ", " + parts + ", 2, 0, 0)");
    case 20:
        return got("preadv2(" + fd + ", " + parts + ", 2, -1, RWF_NOWAIT)");
    case 21:
        return got("preadv2(" + fd + ", " + parts + ", 2, -1, 0x4000)");
    case 22:
        return "({ FILE *f = fdopen(dup(" + fd +
               "), \"r\"); setvbuf(f, 0, _IONBF, 0); int c = getc(f); fclose(f); c; })";
    case 23:
        return got("read(" + fd + ", buffer, " + size + ")");
    default:
        return got("recv(" + fd + ", buffer, " + size + ", " + flags + ")");
    }
}

std::string option_call(const Step &step) {
    const Option &option = kOptions[step.arguments[1]];
    const int value = option.values[step.arguments[2] & 3];
    const std::string text = text_of(step), head = text.substr(0, text.rfind(", "));
    const std::string number = std::to_string(value);
    const char *length = step.arguments[2] == 4 ? "1" : step.arguments[2] == 6 ? "64" : nullptr;
    if (step.arguments[2] == 5) {
        return head + ", bad(), 4)";
    }
    if (option.kind == OptionKind::time) {
        return head + ", &(struct timeval){" + (value < 0 ? "-1" : "0") + ", " +
               (value < 0 ? "0" : std::to_string(value * 1000L)) + "}, " +
               (length != nullptr ? length : "sizeof(struct timeval)") + ")";
    }
    if (option.kind == OptionKind::linger) {
        return head + ", &(struct linger){" + number + ", " + ((step.arguments[2] & 3) == 3 ? "1" : "0") +
               "}, " + (length != nullptr ? length : "sizeof(struct linger)") + ")";
    }
    if (option.kind == OptionKind::text) {
        return head + ", " + ((step.arguments[2] & 1) != 0 ? "\"reno\", 4)" : "\"no such thing\", 13)");
    }
    return head + ", (int[16]){" + number + "}, " + (length != nullptr ? length : "sizeof(int)") + ")";
}

std::string shell_call(const Step &step) {
    const std::string text = text_of(step), fd = text.substr(6, text.rfind(", ") - 6); // shell(FD, VARIANT)
    switch (step.arguments[1]) {
    case 0:
        return "({ char c[80]; snprintf(c, 80, \"exec 2>/dev/null; printf shell >&%d\", " + fd +
               "); system(c); })";
    case 1:
        return "({ char c[80]; snprintf(c, 80, \"exec 2>/dev/null; head -c 4 <&%d\", " + fd +
               "); FILE *f = popen(c, \"r\"); long n = fread(buffer, 1, 16, f); pclose(f); n; })";
    case 2:
        return "({ char c[80]; snprintf(c, 80, \"exec 2>/dev/null; cat >&%d\", " + fd +
               "); FILE *f = popen(c, \"w\"); fputs(\"popen\", f); pclose(f); })";
    default:
        return "system(\"exit 3\")";
    }
}

std::string statement(const Step &step) {
    const std::string id = std::to_string(step.id);
    const std::string other = std::to_string(step.arguments[0]);
    const auto shown = [](const std::string &call) { return "SHOW(" + call + ");"; };
    switch (step.op) {
    case Op::send:
        return shown(send_call(step));
    case Op::recv:
        return shown(recv_call(step));
    case Op::setsockopt:
        return shown(option_call(step));
    case Op::socket:
    case Op::accept:
    case Op::dup:
    case Op::dup2:
    case Op::dup3:
    case Op::fcntl_dup:
    case Op::epoll_create:
    case Op::open:
        return shown("v[" + id + "] = " + text_of(step));
    case Op::bind:
    case Op::listen: {
        const std::string text = text_of(step);
        const size_t open = text.find('(') + 1;
        return shown(text) + " note(" + text.substr(open, text.find(',') - open) + ");";
    }
    case Op::fork:
        return "fflush(stdout); if (fork() == 0) { done(); actor_" + other + "(); _exit(0); }";
    case Op::thread:
        return "{ pthread_t t; pthread_create(&t, 0, (void *(*)(void *))actor_" + other + ", 0); }";
    case Op::exit:
        return step.arguments[0] == 2 ? "done(); return;" : "done(); fflush(stdout); _exit(0);";
    case Op::kill:
        return "kill(s->pid[" + other + "], SIGKILL);";
    case Op::signal:
        return "syscall(SYS_tgkill, s->pid[" + other + "], s->tid[" + other + "], " +
               (step.arguments[1] == 0 ? "SIGUSR1" : "SIGUSR2") + ");";
    case Op::signals:
        return "";
    case Op::shell:
        return shown(shell_call(step));
    case Op::exec:
    case Op::spawn:
    case Op::crowd:
    case Op::close_all:
    case Op::cancel:
    case Op::handler_sends:
    case Op::jump:
    case Op::make:
    case Op::raw:
    case Op::standard:
    case Op::pass:
    case Op::take_passed:
        return "/* " + text_of(step) + ": run the seed to perform this step */";
    default:
        return shown(text_of(step));
    }
}

} // namespace

std::string c_program(const Sequence &sequence) {
    std::ostringstream body;
    std::array<std::ostringstream, kMaxActors> actors;
    for (const Step &step : sequence.steps) {
        // Whoever can still act does what concerns another, who may be dead or blocked.
        const std::string text = statement(step);
        actors[static_cast<size_t>(step.actor)] << "    turn(" << step.id << "); " << text << " done();\n";
    }
    for (int i = 0; i < kMaxActors; ++i) {
        body << "static void actor_" << i << "(void);\n";
    }
    for (int i = 0; i < kMaxActors; ++i) {
        body << "static void actor_" << i << "(void) {\n    s->pid[" << i << "] = getpid();\n    s->tid[" << i
             << "] = gettid();\n"
             << actors[static_cast<size_t>(i)].str() << "    usleep(300000); /* stay until all is over */\n}\n";
    }
    std::ostringstream out;
    out << "// Seed " << sequence.seed
        << ". cc -o program program.c; ./program; sdrun ./program: the lines should be the same.\n";
    for (int i = 0; i < sequence.roots; ++i) {
        if ((sequence.plain >> i & 1) != 0) {
            out << "// Actor " << i
                << " runs without libsd in either case; here it does not, which may hide the difference.\n";
        }
    }
    out << kCommon;
    for (const Helper &helper : kHelpers) {
        if (body.str().find(std::string(helper.name) + "(") != std::string::npos) {
            out << helper.text;
        }
    }
    out << "#define SHOW(call) show(#call, call)\n"
        << body.str() << R"(int main(void) {
    setvbuf(stdout, 0, _IOLBF, 0);
    s = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 200; i++) v[i] = w[i] = -1, port[i] = 1;
    signal(SIGPIPE, SIG_IGN);
)";
    for (int i = 0; i < sequence.roots; ++i) {
        out << "    if (fork() == 0) { actor_" << i << "(); _exit(0); }\n";
    }
    out << "    while (wait(0) > 0) {\n    }\n    return 0;\n}\n";
    return out.str();
}

} // namespace sd::differential
