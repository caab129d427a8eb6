/* How all who hold the two ends of a connection that was born in shared memory come to have a kernel
   socket under their numbers, for the model * checker spin: libsd/vfs/paths/adopt.hpp and
   monitor/steering/adoption.cpp. * * End 0 has two holders, of which the first forks FORKS times, in
   another thread, at any step; end 1 has one. Each takes the next step with each of its * calls, and
   sleeps when there is none. DEATHS of them are killed at any step. ENDINGS times the monitor takes the
   marks away, as it is told to, and * then sets them again, with the same sockets if it has given one out.
   FAILS times a holder cannot ask (a sandbox), and takes the marks away. * RESTARTS times the monitor is
   killed, and the next one knows of nothing; what sockets there are stay with those who have them. *
   Checked: whoever leaves the ring (both ends have answered for their first move) finds that all who hold
   either end have the two sockets of one * adoption under their numbers; no adoption ends after somebody
   has begun; no end is told to begin that is not marked; no sockets are made while somebody * has others
   with the same names; and when nothing can go on any more, everybody has got there, or nobody has one of
   the ends, or the connection stays in * the ring because the adoption was ended, or a monitor was killed
   and the next one was not asked again. * * -DMUTANT=n breaks the protocol in one place; spin must find
   each of them. tests/model/check.py runs all.
 */
#ifndef FORKS
#define FORKS 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef ENDINGS
#define ENDINGS 1
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define PROCESSES (3 + FORKS)
#define end_of(p) (p == 2 -> 1 : 0)

/* Shared memory, of each end: `marked` is the adoption that kTxAdopt is about, 0: none; with may_begin it
   is one word, Ofd::tx_block. `owner`: 1 + who * has the tokens. */
byte marked[2];
bool may_begin[2], has_paths[2], taken[2];
byte owner[2];

/* Of each process. A child holds from before the request on, lives from the fork on, and runs later. */
bool holds[PROCESSES], lives[PROCESSES], runs[PROCESSES], dead[PROCESSES];
/* The adoption whose socket stands under its numbers; 0: a placeholder */
byte number[PROCESSES];
/* File::Stream::fetched; a child does not count its parent's */
byte fetched[PROCESSES];

/* Requests to the monitor after which it looks whether all have the socket; it has answered when it is
   `none` again. Which socket there is is read * while it serves nobody. */
mtype = { none, has_socket, has_none, lets_go, ends };
mtype request[PROCESSES] = none;
byte about[PROCESSES];                          /* of has_socket: which adoption */
bool serves;
bool told[PROCESSES];
/* Whose sockets are kept; 0: it has begun, or nobody had a socket when it ended */
byte adoption = 1;
bool is_given, rests;
/* Else nobody gets one, and who asks has let go of those of a former monitor */
bool has_sockets = true;
/* Sockets of adoptions up to this one have ended, and keep no names */
byte dropped;
byte endings = ENDINGS, fails = FAILS, deaths = DEATHS, restarts = RESTARTS;
byte again = ENDINGS + RESTARTS;                /* so often the monitor is asked again */

#define gone(e) (e == 1 -> !holds[2] : !holds[0] && !holds[1] && (FORKS == 0 || !holds[3]) && (FORKS < 2 || !holds[PROCESSES - 1]))
#define leaves_ring (taken[0] && taken[1])

/* One write to the word of e. */
inline unmark(e) { d_step { marked[e] = 0; may_begin[e] = false } }

/* With the tokens of e. Killed on the way, it is followed by the next one. */
inline begin(e) {
    if :: !has_paths[e] -> has_paths[e] = true :: else fi;
    if
    :: MUTANT == 4 -> unmark(e); taken[e] = true
    :: else -> taken[e] = true; unmark(e)
    fi
}

inline ask(p, what, serial) {
    d_step { about[p] = serial; request[p] = what };
    request[p] == none
}

proctype holder(byte p) {
    byte e = end_of(p), serial, q;
    bool got, waits;
    {
        runs[p] = true;
end:    do
        :: atomic { marked[e] != 0 && may_begin[e] && owner[e] == 0 -> owner[e] = p + 1 };
            if :: marked[e] != 0 -> begin(e) :: else fi;
            owner[e] = 0
        :: atomic { marked[e] != 0 && !may_begin[e] && fetched[p] != marked[e] -> serial = marked[e] };
            if
            :: d_step { number[p] > dropped && number[p] != serial && MUTANT != 10 -> dropped = number[p] }
            :: else
            fi;
            if
            :: atomic {
                    !serves -> got = (adoption == serial && has_sockets); waits = (adoption == serial && !has_sockets);
                    if :: got -> is_given = true :: else fi
                }
            :: atomic { fails > 0 -> fails--; got = false }
            fi;
            if
            :: got ->
                if :: MUTANT == 5 -> ask(p, has_socket, serial) :: else fi;
                d_step { number[p] = serial; fetched[p] = serial }; /* a child sees the former only */
                ask(p, has_socket, serial)
            :: waits -> ask(p, has_none, serial); fetched[p] = serial
            :: !got && !waits && !(marked[e] == serial && may_begin[e]) ->
                atomic { owner[e] == 0 -> owner[e] = p + 1 };
                if
                :: marked[e] == serial && may_begin[e] -> begin(e)
                :: marked[e] == serial && !may_begin[e] -> unmark(e)
                :: marked[e] != serial
                fi;
                owner[e] = 0;
                ask(p, lets_go, serial)
            :: !got && !waits && marked[e] == serial && may_begin[e]
            fi;
            d_step { serial = 0; got = false; waits = false; about[p] = 0 }
        :: atomic { leaves_ring ->
                do
                :: q < PROCESSES -> assert(!holds[q] || !lives[q] || dead[q] || number[q] != 0 && number[q] == number[p]); q++
                :: else -> break
                od;
                q = 0; goto over
            }
        od
    } unless {
        /* The tokens go to the next one. The monitor hears of it later. */
        atomic { dead[p] -> if :: owner[e] == p + 1 -> owner[e] = 0 :: else fi };
        atomic { request[p] == none -> request[p] = ends };
        request[p] == none
    };
over: skip
}

/* Another thread of process 0. */
proctype forker(byte child) {
    {
        /* The request, with a record that was there before */
        atomic { holds[child] = true; told[child] = told[0] };
        atomic { number[child] = number[0]; fetched[child] = (MUTANT == 7 -> fetched[0] : 0); lives[child] = true; run holder(child) }
    } unless {
        atomic { dead[0] -> if :: holds[child] -> request[child] = ends :: else fi }
    }
}

/* Shared memory changes meanwhile. */
inline review() {
    d_step {
        all[0] = !gone(0) && !gone(1); all[1] = all[0]; q = 0;
        do
        :: q < PROCESSES -> if :: holds[q] && !told[q] && !(MUTANT == 2 && !runs[q]) -> all[end_of(q)] = false :: else fi; q++
        :: else -> break
        od;
        free = true; q = 0;
        do
        :: q < PROCESSES -> if :: holds[q] && !dead[q] && number[q] > dropped -> free = false :: else fi; q++
        :: else -> break
        od;
        q = 0
    };
    if
    :: adoption != 0 && (gone(0) || gone(1)) -> end_adoption(); adoption = 0
    :: adoption != 0 && !gone(0) && !gone(1) && !rests && (marked[0] != adoption || marked[1] != adoption) -> end_adoption()
    :: adoption != 0 && marked[0] == adoption && marked[1] == adoption && !has_sockets && (free || all[0] && all[1]) ->
        assert(free); /* nobody else has these names */
        d_step {
            p = adoption; last++; adoption = last; has_sockets = true; is_given = false; q = 0;
            do :: q < PROCESSES -> told[q] = false; q++ :: else -> break od;
            q = 0
        };
        atomic { if :: marked[0] == p -> marked[0] = adoption :: else fi };
        atomic { if :: marked[1] == p -> marked[1] = adoption :: else fi };
        p = client
    :: adoption != 0 && marked[0] == adoption && marked[1] == adoption && has_sockets && all[0] && (all[1] || MUTANT == 1) ->
        if
        :: atomic { marked[0] == adoption || MUTANT == 9 -> may_begin[0] = true };
            if
            :: restarts > 0 -> restart()
            :: all[1] -> atomic { if :: marked[1] == adoption || MUTANT == 9 -> may_begin[1] = true :: else fi; adoption = 0 }
            :: else
            fi
        :: marked[0] != adoption && MUTANT != 9 -> end_adoption()
        fi
    :: else
    fi;
    d_step { all[0] = false; all[1] = false }
}

inline restart() {
    d_step {
        restarts--; all[0] = false; all[1] = false; q = 0;
        do
        :: q < PROCESSES -> if :: number[q] == adoption && adoption != 0 && holds[q] -> all[end_of(q)] = true :: else fi; told[q] = false; q++
        :: else -> break
        od;
        q = 0;
        /* One of the two had the monitor as its only owner: it is reset. */
        if :: adoption > dropped && !(all[0] && all[1]) -> dropped = adoption :: else fi;
        all[0] = false; all[1] = false; adoption = 0; has_sockets = true; is_given = false; rests = false
    }
}

inline end_adoption() {
    assert(!has_paths[0] && !has_paths[1]);
    if :: marked[0] == adoption -> unmark(0) :: else fi;
    if :: marked[1] == adoption -> unmark(1) :: else fi;
    if :: is_given && MUTANT != 3 -> rests = true :: else -> adoption = 0 fi
}

proctype monitor() {
    byte p, client, q, last = 1;
    bool all[2], free, wants_review;
end: do
    :: atomic {
            if
            :: request[0] != none -> p = 0
            :: request[1] != none -> p = 1
            :: request[2] != none -> p = 2
#if FORKS
            :: request[3] != none -> p = 3
#endif
#if FORKS > 1
            :: request[4] != none -> p = 4
#endif
            fi;
            serves = true; client = p;
            if
            :: request[p] == has_none ->
                if :: about[p] == adoption && !has_sockets -> told[p] = true :: else fi;
                wants_review = true
            :: request[p] == has_socket ->
                if :: about[p] == adoption && has_sockets || MUTANT == 3 && adoption != 0 -> told[p] = true :: else fi;
                wants_review = true
            :: request[p] == lets_go -> wants_review = true
            :: request[p] == ends -> holds[p] = false; wants_review = (MUTANT != 6)
            fi
        };
        if :: wants_review -> review() :: else fi;
        d_step { request[p] = none; wants_review = false; serves = false; p = 0; client = 0 }
    :: restarts > 0 -> restart()
    /* Marks that a former monitor has left */
    :: RESTARTS > 0 && adoption == 0 && marked[0] != 0 && !may_begin[0] ->
        if
        :: atomic { marked[0] != 0 && !may_begin[0] && (has_paths[1] || may_begin[1] && marked[1] == marked[0]) -> may_begin[0] = (MUTANT != 11); if :: MUTANT == 11 -> marked[0] = 0 :: else fi }
        :: atomic { marked[0] != 0 && !may_begin[0] && !(has_paths[1] || may_begin[1] && marked[1] == marked[0]) -> marked[0] = 0 }
        :: marked[0] == 0
        fi
    :: RESTARTS > 0 && adoption == 0 && marked[1] != 0 && !may_begin[1] ->
        if
        :: atomic { marked[1] != 0 && !may_begin[1] && (has_paths[0] || may_begin[0] && marked[1] == marked[0]) -> may_begin[1] = (MUTANT != 11); if :: MUTANT == 11 -> marked[1] = 0 :: else fi }
        :: atomic { marked[1] != 0 && !may_begin[1] && !(has_paths[0] || may_begin[0] && marked[1] == marked[0]) -> marked[1] = 0 }
        :: marked[1] == 0
        fi
    :: atomic { endings > 0 && adoption != 0 && !rests -> endings--; serves = true }; end_adoption(); serves = false
    :: again > 0 && (adoption == 0 || rests) && marked[0] == 0 && marked[1] == 0 && !has_paths[0] && !has_paths[1] && !gone(0) && !gone(1) ->
        d_step {
            again--; serves = true; rests = false;
            if
            :: adoption == 0 ->
                last++; adoption = last; is_given = false; has_sockets = true; q = 0;
                do
                :: q < PROCESSES ->
                    if :: holds[q] && !dead[q] && number[q] > dropped -> has_sockets = false :: else fi;
                    told[q] = false; q++
                :: else -> break
                od;
                q = 0;
                assert(has_sockets || RESTARTS > 0)
            :: else
            fi
        };
        marked[0] = adoption;
        marked[1] = adoption;
        if :: MUTANT != 8 -> review() :: else fi;
        serves = false
    od
}

proctype killer() {
    byte p;
    do
    :: atomic { deaths > 0 && p < PROCESSES -> if :: deaths--; dead[p] = true :: skip fi; p++ }
    :: else -> break
    od
}

init {
    byte p = 0;
    atomic {
        marked[0] = 1; marked[1] = 1;
        run monitor(); run killer();
        do :: p < 3 -> holds[p] = true; lives[p] = true; run holder(p); p++ :: else -> break od;
        do :: p < PROCESSES -> run forker(p); p++ :: else -> break od
    };
    timeout -> /* nothing goes on any more */
    assert(leaves_ring || gone(0) || gone(1) || rests || adoption == 0 && endings < ENDINGS || fails < FAILS ||
           restarts < RESTARTS && (again == 0 && !has_paths[0] && !has_paths[1] || has_paths[0] != has_paths[1] && (deaths < DEATHS || FORKS > 0)));
    assert((marked[0] != 0 || !may_begin[0]) && (marked[1] != 0 || !may_begin[1]))
}
