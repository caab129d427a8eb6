// Inside an actor: its context, and the steps by family.
#pragma once

#include "tests/differential/channel.hpp"
#include "tests/differential/step.hpp"

#include <csetjmp>
#include <sys/socket.h>

namespace sd::differential {

/// What one step observed; becomes the reply.
class Observation {
  public:
    /// Value or error of the call just made.
    void result(long value);
    /// A call that returns a descriptor: its number is the kernel's lowest, so it is compared too.
    void made(int fd);
    __attribute__((format(printf, 2, 3))) void say(const char *format, ...);
    /// Data: as text when short, else its hash.
    void data(const char *bytes, size_t size);

    Reply reply;
    size_t length = 0;
};

using Arguments = const int32_t *;

/// Each returns false when the step is not of its family.
bool perform_names(Op op, int step, Arguments a, Observation &o);
bool perform_fd(Op op, int step, Arguments a, Observation &o);
bool perform_options(Op op, int step, Arguments a, Observation &o);
bool perform_io(Op op, int step, Arguments a, Observation &o);
bool perform_ready(Op op, int step, Arguments a, Observation &o);
bool perform_signals(Op op, int step, Arguments a, Observation &o);
bool perform_passing(Op op, int step, Arguments a, Observation &o);
bool perform_crowd(Op op, int step, Arguments a, Observation &o);
bool perform_process(Op op, int step, Arguments a, Observation &o);
bool perform_other(Op op, int step, Arguments a, Observation &o);

/// What a handler jumps out to; true when it did. A macro: the frame has to stay.
#define begin_to_jump() (sigsetjmp(jump_target, 1) != 0 || !may_jump())
extern thread_local sigjmp_buf jump_target;
/// From here on a handler may jump; always true.
bool may_jump();
void no_more_jumping();
/// The last words of a thread that was cancelled.
void say_cancelled();

/// Serves one channel until it is told to end. What `main` of a host, a forked child and a new thread all
/// call.
void serve(int actor, bool thread = false);

/// Handlers every actor begins with.
void install_handlers();
/// The channel of the calling thread, for the report of a crash.
extern thread_local int own_channel;
extern thread_local int own_actor;
/// SIGPIPEs that this thread got since it was last asked.
int take_sigpipes();

/// Bytes of step `step`, from `offset` on.
void fill_pattern(char *bytes, size_t size, int step, size_t offset = 0);
size_t first_mismatch(const char *bytes, size_t size, int step, size_t offset);

/// By aio_write and aio_read, or two at once by lio_listio; by getc and fread.
void give_request(int fd, char *bytes, size_t size, bool both, Observation &o);
void get_request(int fd, char *bytes, size_t size, bool both, Observation &o);
void get_stdio(int fd, size_t size, Observation &o);

void *forbidden_page();

/// "host {port}" of an address.
void say_name(Observation &o, const sockaddr_storage &name, socklen_t length);

} // namespace sd::differential
