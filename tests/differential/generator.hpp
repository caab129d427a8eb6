// The generator's inside: one function per family of steps.
#pragma once

#include "tests/differential/generate.hpp"
#include "tests/differential/model.hpp"

namespace sd::differential {

class Generator {
  public:
    Generator(uint64_t seed, const Features &features);
    Sequence make();

  private:
    enum Family {
        setup,
        transfer,
        waiting,
        options,
        descriptors,
        endings,
        errors,
        filling,
        urgency,
        names,
        processes,
        signalling,
        passing,
        kFamilies
    };

    int emit(int actor, Op op, std::initializer_list<int> arguments, bool finite = false);
    bool step();
    int free_actor();
    int ready_actor();
    /// A descriptor of the actor's process, of the given kind.
    const Descriptor *find(int actor, Kind kind);
    const Descriptor *any(int actor);
    /// What is known of a reference; nullptr if nothing.
    Descriptor *known(int actor, int reference);
    /// A reference that is usually right, sometimes closed, bad, or of the wrong kind.
    int reference(int actor, Kind kind);
    void open(int actor, int reference, int object, bool cloexec = false);
    int target_form(const Object &listener, int domain);
    /// What an address of this host is called in the namespace `place`.
    int form_at(int form, int place) const;

    // generate_setup.cpp
    int make_listener(int actor);
    int make_socket(int actor, int domain);
    void connect_to(int actor, int listener, bool nonblocking);
    void accept_from(int actor, const Descriptor &listener);
    bool new_connection(int actor);
    bool setup_step(int actor);
    bool name_step(int actor);
    bool error_step(int actor);

    // generate_data.cpp
    bool transfer_step(int actor);
    bool send_step(int actor, const Descriptor &stream);
    bool recv_step(int actor, const Descriptor &stream);
    bool may_request(int actor);
    bool standard_step(int actor, const Descriptor &stream);
    bool filling_step(int actor);
    bool urgency_step(int actor);
    bool ending_step(int actor);

    // generate_rest.cpp
    bool waiting_step(int actor);
    bool epoll_step(int actor);
    bool option_step(int actor);
    bool descriptor_step(int actor);
    bool closing_range_step(int actor);
    void closing_looks();

    // generate_processes.cpp
    bool process_step(int actor);
    bool crowd_step(int actor);
    bool connect_shared(int actor);
    bool new_process(int actor, int process, int fresh);
    bool new_program(int actor, int process, int fresh);
    bool execute_step(int actor, int process);
    bool end_step(int actor, int process);
    bool shell_step(int actor);
    bool may_end(int process);
    bool signal_step(int actor);
    bool jump_step(int actor);
    bool passing_step(int actor);

    Random random_;
    Features features_;
    Sequence sequence_;
    Model model_;
    std::array<int, kFamilies> weights_{};
    std::vector<int> in_the_mail_[kMaxActors]; ///< objects
    bool one_way_ = false;                     ///< only clients send, and nobody asks for TCP_NODELAY
    bool timed_ = false;                       ///< some socket has a deadline
    int sends_ = 0;
};

} // namespace sd::differential
