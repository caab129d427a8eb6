/* Sleeping without a barrier, for the model checker spin: kArmFenced of libsd/queue/sleeper.hpp, with the
   sender's steps of take_armed() in * libsd/transport/link.cpp. * * WAITERS threads wait for what SENDERS
   publish, TIMES each, and any of them may take it. They share one arm word; each has an id in it. With
   OLD the last * sender is one of an earlier version, which swaps the word with 0. Checked: when nothing
   can go on any more, everything has been taken. * * The memory of x86: what a sender publishes with a
   plain store waits in its store buffer until some time, a locked instruction of its own, or anybody's *
   membarrier; its look at the word may be older than that. * * -DMUTANT=n breaks the protocol in one
   place; spin must find each of them. tests/model/check.py runs all.
 */
#ifndef WAITERS
#define WAITERS 2
#endif
#ifndef SENDERS
#define SENDERS 2
#endif
#ifndef TIMES
#define TIMES 2
#endif
#ifndef OLD
#define OLD 0
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

byte ready;             /* published, and to be seen by everybody */
bool buffered[SENDERS]; /* published, in the sender's store buffer */
bool id[WAITERS];       /* the arm word */
bool fenced;
bool mask[WAITERS];     /* sleep_mask */
bool bell[WAITERS];

#define drain(s) if :: buffered[s] -> buffered[s] = false; ready++ :: else fi
#define is_armed (fenced || id[0] || id[WAITERS - 1])

inline barrier() {
    drain(0);
    if :: SENDERS > 1 -> drain(SENDERS - 1) :: else fi
}

proctype Waiter(byte me) {
    bool was;
begin:
    mask[me] = true;                                                  /* 1 */
    d_step { was = fenced; id[me] = true };                           /* 2 */
    if
    :: was
    :: else ->
        d_step { if :: MUTANT == 2 :: else -> barrier() fi };         /* 3 */
        d_step { if :: id[me] || MUTANT == 1 -> fenced = true :: else fi } /* settle() */
    fi;
    if
    :: atomic { ready > 0 -> ready--; mask[me] = false; goto begin }  /* 4 */
    :: atomic { ready == 0 ->
end_asleep:
        bell[me] };
        bell[me] = false                                              /* 5 */
    fi;
    mask[me] = false;                                                 /* 6 */
    if
    :: atomic { ready > 0 -> ready-- }
    :: ready == 0
    fi;
    goto begin
}

proctype Sender(byte me) {
    bool armed, ids[WAITERS];
    byte times = TIMES, w;
    do
    :: times > 0 ->
        atomic { !buffered[me] -> times--; buffered[me] = true };     /* A */
        armed = is_armed;                                             /* B */
        if
        :: !armed || (MUTANT == 3 && !id[0] && !id[WAITERS - 1])
        :: else ->
            d_step {                                                  /* C */
                drain(me);
                ids[0] = id[0];
                ids[WAITERS - 1] = id[WAITERS - 1];
                id[0] = false;
                id[WAITERS - 1] = false;
                if :: OLD && me == SENDERS - 1 -> fenced = false :: else fi
            };
            if
            :: ids[0] || ids[WAITERS - 1] ->
                w = 0;
                do
                :: w < WAITERS ->                                     /* D */
                    if :: ids[w] && mask[w] -> bell[w] = true :: else fi;
                    w++
                :: else -> break
                od
            :: else ->                                                /* some times in a row */
                if
                :: true
                :: d_step { fenced && !id[0] && !id[WAITERS - 1] -> fenced = false }
                :: !fenced || id[0] || id[WAITERS - 1]
                fi
            fi
        fi
    :: else -> break
    od
}

/* Store buffers drain by themselves. */
active proctype Memory() {
end:
    do
    :: d_step { buffered[0] -> drain(0) }
    :: d_step { buffered[SENDERS - 1] -> drain(SENDERS - 1) }
    od
}

active proctype Judge() {
end:
    timeout -> assert(ready == 0)
}

init {
    atomic {
        run Waiter(0);
#if WAITERS > 1
        run Waiter(1);
#endif
        run Sender(0);
#if SENDERS > 1
        run Sender(1)
#endif
    }
}
