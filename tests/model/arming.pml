/* How threads that wait on one epoll set are woken, for the model checker spin: A1 to A4 of
   libsd/vfs/readiness/epoll/epoll_set.hpp, with the sender's steps S1 to S3 of * libsd/transport/link.cpp.
   * * WAITERS threads wait on a set, in which another thread puts two members while they may sleep
   already. Member IN is edge-triggered; its peer sends * once. Member OUT is reported each time that there
   is room; a thread of ours then takes the room, and its peer reads. With EDGE it is edge-triggered, * and
   the thread's send finds no room; otherwise it is one-shot, and the thread arms it again with MOD. A wait
   returns one event at a time. A thread that has * got one comes back or never does, as long as one is
   left that does. Checked: when nothing can go on any more, everything has been told. * * What is done
   with the set's lock is one step, but for what a peer may do in between. The memory of x86: what a peer
   publishes with a plain store waits * in its store buffer until some time, a locked instruction of its
   own, or anybody's membarrier; its look at the arm word may be older than that. * * -DMUTANT=n breaks the
   protocol in one place; spin must find each of them. tests/model/check.py runs all.
 */
#ifndef WAITERS
#define WAITERS 2
#endif
#ifndef TURNS
#define TURNS 2
#endif
#ifndef EDGE
#define EDGE 0
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define IN 0
#define OUT 1
#define NOBODY 255

mtype = { absent, fired, hot, unconfirmed, cold };

/* Shared memory. */
bool ready[2];       /* data in the ring; room in the other */
bool buffered[2];    /* published, in the peer's store buffer */
bool arm[2];
bool mark[2];
bool sleep_mask;
bool bell;           /* the eventfd, of which the kernel's set tells as long as it is not drained */

/* The set. */
byte lock = NOBODY;
mtype place[2] = absent;
bool due;            /* a send has found no room, or the member is new */
bool level = false;  /* was there room at the last look? */
bool tx_armed;
byte sleepers, plain;
byte told[2];
byte turn;           /* reports of OUT that its thread has not acted on */
byte gone;           /* threads that will not come back */

#define owns(t)      (lock == t)
#define ours         (place[IN] != absent || place[OUT] != absent)
#define drain(m)     if :: buffered[m] -> buffered[m] = false; ready[m] = true :: else fi
#define make_hot(m)  if :: place[m] != absent && place[m] != fired -> place[m] = hot :: else fi
#define collect()    make_hot_if_marked(IN); make_hot_if_marked(OUT)
#define make_hot_if_marked(m) if :: mark[m] -> mark[m] = false; make_hot(m) :: else fi

inline barrier() {
    if
    :: MUTANT == 3
    :: else -> drain(IN); drain(OUT)
    fi
}

/* What a report would tell of. Each look notes what it saw. */
inline look(m, news) {
    if
    :: m == IN -> news = ready[IN] && !told[IN]
    :: m == OUT && EDGE -> news = ready[OUT] && (due || !level); level = ready[OUT]
    :: m == OUT && !EDGE -> news = ready[OUT]; level = ready[OUT]
    fi
}

inline arm_member(m) {
    if
    :: m == IN -> arm[IN] = true
    :: m == OUT -> tx_armed = !level; arm[OUT] = arm[OUT] || tx_armed
    fi;
    place[m] = unconfirmed
}

/* One look after the barrier. */
inline confirm(m) {
    if
    :: place[m] == unconfirmed ->
        look(m, news);
        if
        :: news -> place[m] = hot; found = true
        :: !news && m == OUT && !level && !tx_armed && MUTANT != 1 -> arm_member(OUT); again = true
        :: else -> place[m] = cold
        fi
    :: place[m] == hot -> look(m, news); found = found || news
    :: else
    fi;
    news = false
}

inline finish() {
    sleepers--;
    sleep_mask = sleep_mask && sleepers > 0
}

inline hand_over() {
    bell = bell || found || (plain > 0 && MUTANT != 5);
    found = false;
    finish()
}

/* prepare_sleep(), the barrier and any_ready(): `found` says whether to stay awake. With the lock, which
   is let go of with the last step. What * falls between the barrier and a look is the same as before or
   after both. */
inline get_ready(handing_over) {
    atomic { lock == NOBODY -> lock = me; sleepers++; sleep_mask = true };     /* W1 */
    d_step {
    if
    :: MUTANT == 6
    :: else -> collect()
    fi;
    if :: place[IN] == hot -> arm_member(IN) :: else fi;
    if :: place[OUT] == hot -> arm_member(OUT) :: else fi };
    d_step { barrier(); collect(); confirm(IN); confirm(OUT) };                /* W2, W3 */
    atomic {
    if
    :: again -> barrier(); again = false; confirm(OUT)
    :: else
    fi;
    if
    :: handing_over -> hand_over()
    :: else
    fi;
    lock = NOBODY }
}

proctype Waiter(byte me) {
    bool found, again, news;

wait:
    atomic { lock == NOBODY;
    if
    :: !ours -> plain++
    :: else -> lock = me; goto scanning
    fi };
in_kernel:                                      /* wait_plain() */
end_plain:
    bell;
    bell = false;
    atomic { if :: !ours -> goto in_kernel :: else fi };
    atomic { lock == NOBODY -> plain--; lock = me };
scanning:
    skip;
    atomic {
        collect();
        if                                      /* one event at most; in whatever order */
        :: place[IN] == hot -> look(IN, news); if :: news -> told[IN]++; found = true :: else fi
        :: place[OUT] == hot -> look(OUT, news);
            if
            :: news -> told[OUT]++; turn++; found = true; due = false;
                if :: EDGE :: else -> place[OUT] = fired fi
            :: else
            fi
        :: else
        fi;
        news = false;
        lock = NOBODY
    };
    if
    :: atomic { found -> found = false; goto leave }
    :: else
    fi;
sleep:
    get_ready(false);
    if
    :: atomic { found -> found = false }
    :: else ->
end_asleep:
        bell
    fi;
    atomic { lock == NOBODY -> finish() };
    atomic { lock == NOBODY -> bell = false; lock = me; goto scanning }; /* sift() */

leave:
    atomic { lock == NOBODY;
    if
    :: MUTANT == 2 || (sleepers == 0 && (plain == 0 || MUTANT == 5)) -> goto left
    :: MUTANT != 2 && sleepers == 0 && plain > 0 && MUTANT != 5 -> bell = true; goto left
    :: else
    fi };
    get_ready(true);
left:
    if
    :: goto wait
    :: atomic { gone < WAITERS - 1 -> gone++ }
    fi
}

/* ADD: the first one rings for those that are in the kernel already. */
proctype Adder() {
    atomic { lock == NOBODY ->
    bell = bell || plain > 0;
    place[IN] = hot;
    place[OUT] = hot;
    due = true }
}

/* A thread of ours that uses the room and wants to be told when there is some again. */
proctype Sender() {
    byte turns = TURNS;
    do
    :: turns > 0 ->
        atomic { turn > 0 -> turn--; turns--; ready[OUT] = false; due = EDGE };
        atomic { lock == NOBODY ->
        if
        :: EDGE                                 /* epoll_touch() */
        :: else ->                              /* EPOLL_CTL_MOD */
            place[OUT] = cold;
            if :: MUTANT == 1 :: else -> level = false fi
        fi;
        make_hot(OUT);
        bell = bell || (sleepers > 0 && MUTANT != 4) }
    :: else -> break
    od
}

/* A peer: publishes, and looks whether somebody wants to be told. */
proctype Peer(byte m; byte times) {
    bool armed;
    do
    :: times > 0 ->
        atomic { !ready[m] && !buffered[m] -> times--; buffered[m] = true };   /* S1 */
        armed = arm[m];                                                        /* S2 */
        if
        :: armed ->
            d_step { drain(m); armed = arm[m]; arm[m] = false };               /* S3 */
            if
            :: armed -> mark[m] = true; bell = bell || sleep_mask
            :: else
            fi
        :: else
        fi
    :: else -> break
    od
}

/* Store buffers drain by themselves. */
active proctype Memory() {
end:
    do
    :: d_step { buffered[IN] -> drain(IN) }
    :: d_step { buffered[OUT] -> drain(OUT) }
    od
}

active proctype Judge() {
end:
    timeout -> assert(told[IN] == 1 && told[OUT] == TURNS + 1)
}

init {
    atomic {
        run Waiter(0);
#if WAITERS > 1
        run Waiter(1);
#endif
#if WAITERS > 2
        run Waiter(2);
#endif
        run Adder();
        run Sender();
        run Peer(IN, 1);
        run Peer(OUT, TURNS + 1)
    }
}
