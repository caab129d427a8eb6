/* The token protocol of libsd/queue/token.hpp for the model checker spin: same labels, same order of
   steps. * * THREADS threads do OPERATIONS operations each on one token; up to DEATHS of them are killed,
   at any step. Checked in every reachable state: *  - never two threads at work (O3) at a time; *  -
   whoever starts to work finds nothing left half done by a dead one; *  - nobody repairs while another
   works; *  - nobody waits for ever: every thread that lives gets to its end. * * The memory of x86: a
   plain store waits in the thread's store buffer and becomes visible at some time; a locked instruction, a
   membarrier of anybody, or * the end of the thread (its retired stores still drain) makes it visible at
   once. Only the busy mark is followed by a load that must not be older * than it, so only the busy mark
   is modelled with a buffer. * * What is decided by counting in the program (when to go over to lock mode
   and back) is left open here: both ways are tried everywhere. A signal * handler that runs while its
   thread waits for the lock is an operation in the middle of another. Threads do not come back: ids are
   not * used again. * * -DMUTANT=n breaks the protocol in one place; spin must find each of them.
   tests/model/check.py runs all.
 */
#ifndef THREADS
#define THREADS 3
#endif
#ifndef OPERATIONS
#define OPERATIONS 2
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef NESTING
#define NESTING 0
#endif
#define NOBODY 255
#define SHARED 254

byte owner = NOBODY, lock = NOBODY, prev = NOBODY;
bool busy[THREADS], buffered[THREADS], dead[THREADS];
bool half;          /* something is half done */
byte at_work;       /* threads in O3 */
byte deaths = DEATHS;

#define drain(t) if :: buffered[t] -> buffered[t] = false; busy[t] = true :: else fi

inline may_die() {
    if
    :: true
    :: atomic { deaths > 0 -> deaths--; goto dying }
    fi
}

/* A locked instruction of our own. */
inline swap(word, value) {
    d_step { drain(me); word = value }
}

inline mark()   { buffered[me] = true }
inline unmark() { d_step { buffered[me] = false; busy[me] = false } }

/* The dead one's work is done for it. */
inline repair() {
    assert(at_work == 0);
    if
    :: MUTANT == 3
    :: else -> half = false
    fi
}

proctype Thread(byte me) {
    byte left = OPERATIONS, other = NOBODY;
    bool inherited, locked, nested, may_nest = NESTING, to_lock;

start:
    if
    :: left == 0 -> goto finished
    :: else -> left--
    fi;

fast:
    mark();                                     /* O1 */
    may_die();
    if
    :: atomic { owner == me -> goto work }      /* O2 */
    :: atomic { else -> unmark() }
    fi;

take:
    if                                          /* the lock, and T1 or L1 */
    :: atomic { lock == NOBODY -> drain(me); lock = me; mark() }
    :: atomic { lock != NOBODY && lock != me && dead[lock] -> drain(me); lock = me; inherited = true; mark() }
    /* A handler, before we have the lock */
    :: atomic { may_nest -> may_nest = false; nested = true; goto fast }
    fi;
    may_die();
    if
    :: atomic { owner == SHARED && (prev == NOBODY || MUTANT == 2) ->
        if
        :: inherited -> inherited = false; repair()
        :: else
        fi };
        if
        :: locked = true                        /* L3 */
        :: atomic {                             /* L2 */
           if
           :: MUTANT == 4 -> unmark()
           :: else
           fi;
           owner = me };
           may_die();
           swap(lock, NOBODY)
        fi;
        goto work
    :: atomic { else ->
        if                                      /* T0 */
        :: (prev == NOBODY || MUTANT == 2) && owner != me -> prev = owner
        :: else
        fi;
        other = (prev == me -> NOBODY : prev) }
    fi;
    may_die();
    if
    :: atomic { to_lock = true; swap(owner, SHARED) } /* T2 */
    :: atomic { swap(owner, me) }
    fi;
    may_die();
    if
    :: other != NOBODY ->
        atomic {
        if
        :: MUTANT == 1
        :: else -> drain(other)                 /* T3 */
        fi };
        if                                      /* T4 */
        :: atomic { !busy[other] -> other = NOBODY }
        :: atomic { dead[other] -> other = NOBODY; repair() }
        :: atomic { busy[other] && !dead[other] -> /* a handler wants to run: let go, and begin again */
            other = NOBODY; to_lock = false; owner = NOBODY };
            may_die();
            unmark();
            inherited = false;
            swap(lock, NOBODY);
            goto take
        fi
    :: else
    fi;
    atomic {
    if
    :: inherited -> inherited = false; repair()
    :: else
    fi };
    may_die();
    prev = NOBODY;                              /* T5 */
    may_die();
    if
    :: atomic { to_lock -> to_lock = false; locked = true }
    :: atomic { else -> swap(lock, NOBODY) }
    fi;

work:                                           /* O3 */
    atomic {
        at_work++;
        assert(at_work == 1);
        assert(!half);
        half = true
    };
    atomic {
        if
        :: half = false; at_work--
        :: deaths > 0 -> deaths--; at_work--; goto dying
        fi
    };
    may_die();
    unmark();                                   /* O4 */
    may_die();
    if
    :: atomic { locked -> locked = false; swap(lock, NOBODY) }
    :: else
    fi;
    if
    :: atomic { nested -> nested = false; goto take }
    :: else -> goto start
    fi;

dying:
    skip;
    d_step { drain(me); dead[me] = true };
finished:
    skip;
    d_step { other = 0; inherited = false; locked = false; nested = false; may_nest = false; to_lock = false; left = 0 }
}

/* Store buffers drain by themselves. */
active proctype Memory() {
    byte t;
end:
    do
    :: atomic { buffered[0] -> drain(0) }
    :: atomic { buffered[1] -> drain(1) }
#if THREADS > 2
    :: atomic { buffered[2] -> drain(2) }
#endif
    od
}

init {
    atomic {
        run Thread(0);
        run Thread(1);
#if THREADS > 2
        run Thread(2)
#endif
    }
}
