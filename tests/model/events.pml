/* How threads that sleep for the completion queue of their process are woken, for the model checker spin:
   MaySleep of libsd/rdma/transport.hpp, arm(), * take_events() and progress() of libsd/rdma. * * THREADS
   threads each wait for MESSAGES messages of their own, one after the other; the device completes them in
   one queue. Each sleeps on the queue's * channel and on its own bell. Whoever makes progress takes all
   completions, and rings those that have armed. Between any two steps a thread may be away for * as long
   as it likes: so whoever takes the event may not come to what follows before everybody else sleeps.
   Checked: when nothing can go on any more, all has come. * * The device is opened at any time. A thread
   that goes to sleep before that is in an epoll set, and is not counted (MaySleep); who has opened the
   device adds * a connection to the set, and arms in its name (hand_over()). * * -DMUTANT=n breaks the
   protocol in one place; spin must find each of them. tests/model/check.py runs all.
 */
#ifndef THREADS
#define THREADS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

/* The device. */
bool queued[THREADS];    /* a completion that nobody has taken */
bool asked;              /* the queue is armed */
bool event;              /* the channel can be read */

/* The process. */
bool armed, polling, wanted;
bool all_are, some_are_not, opened; /* MaySleep; the device is there */
bool plain[THREADS];     /* asleep without having armed, as Epoll::sleepers says */
byte count;              /* MaySleep */
bool ring[THREADS];      /* a message that its thread has not read */
bool arm_word[THREADS];
bool bell[THREADS];
byte told[THREADS];

inline take_for(t) {
    if
    :: queued[t] -> queued[t] = false; ring[t] = true;
        if :: arm_word[t] -> arm_word[t] = false; bell[t] = true :: else fi
    :: else
    fi
}

inline progress() {
    if :: MUTANT == 5 :: else -> wanted = true fi;
    do
    :: atomic { !polling && (wanted || MUTANT == 5) -> polling = true; wanted = false };
        d_step { take_for(0); take_for(1);
#if THREADS > 2
            take_for(2)
#endif
        };
        polling = false;
        if :: MUTANT == 5 -> break :: else fi
    :: else -> break
    od
}

inline arm_queue() {
    if
    :: atomic { !armed -> armed = true }; asked = true
    :: else
    fi
}

/* As MaySleep::begins() does. */
inline begins() {
    counted = all_are;
    if
    :: !counted -> some_are_not = true;
        if :: MUTANT == 7 :: else -> counted = all_are fi
    :: else
    fi;
    if :: counted -> count++ :: else fi
}

proctype Thread(byte me) {
    bool taken, counted;

    do
    :: told[me] == MESSAGES -> break
    :: else ->
        if
        :: atomic { ring[me] -> ring[me] = false; told[me]++ }
        :: else ->
            if :: MUTANT == 2 -> counted = false :: else -> begins() fi;
            if
            :: atomic { !opened -> plain[me] = true }
            :: atomic { opened -> plain[me] = false };
                arm_queue();
                if :: MUTANT == 2 -> begins() :: else fi;
                arm_word[me] = true;
                if :: MUTANT == 4 :: else -> progress() fi
            fi;
            if
            :: ring[me]
            :: else ->
end_asleep:
                event || bell[me]
            fi;
            if :: counted -> count--; counted = false :: else fi;
            atomic { plain[me] = false; bell[me] = false };
            atomic { taken = event; event = false };
            if
            :: taken && MUTANT != 3 -> armed = false;
                if :: count > 0 && MUTANT != 1 -> arm_queue() :: else fi
            :: taken && MUTANT == 3 ->
                if :: atomic { count > 0 -> armed = true }; asked = true :: else -> armed = false fi
            :: else
            fi;
            progress()
        fi
    od
}

/* In the name of a thread that sleeps without having armed. */
inline hand_over(t) {
    if
    :: plain[t] -> arm_queue(); arm_word[t] = true; progress();
        if :: ring[t] -> bell[t] = true :: else fi
    :: else
    fi
}

active proctype Opener() {
    all_are = true;
    if :: some_are_not && MUTANT != 6 -> count++ :: else fi;
    opened = true;
    hand_over(0);
    hand_over(1);
#if THREADS > 2
    hand_over(2)
#endif
}

/* The next message of a thread, once it has read the last one. */
active proctype Device() {
    byte left[THREADS];
    opened;
    left[0] = MESSAGES;
    left[1] = MESSAGES;
#if THREADS > 2
    left[2] = MESSAGES;
#endif
    do
    :: atomic { left[0] > 0 && !queued[0] && !ring[0] -> left[0]--; queued[0] = true; event = event || asked; asked = false }
    :: atomic { left[1] > 0 && !queued[1] && !ring[1] -> left[1]--; queued[1] = true; event = event || asked; asked = false }
#if THREADS > 2
    :: atomic { left[2] > 0 && !queued[2] && !ring[2] -> left[2]--; queued[2] = true; event = event || asked; asked = false }
#endif
    :: left[0] == 0 && left[1] == 0
#if THREADS > 2
        && left[2] == 0
#endif
        -> break
    od
}

active proctype Judge() {
    byte i;
end:
    timeout -> for (i : 0 .. THREADS - 1) { assert(told[i] == MESSAGES) }
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
