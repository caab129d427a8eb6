/* How one direction of a connection changes between the kernel's socket and the ring, for the model
   checker spin: the steps of libsd/vfs/paths/moves.hpp, * and who sleeps meanwhile (wait_stream() of
   libsd/vfs/readiness/stream_readiness.cpp). * * A sender sends BYTES bytes, each with a call of its own,
   and ends. With each it makes the next step of a move or does not; up to MOVES moves are begun. * It may
   be killed DEATHS times at any step, whereupon another process goes on with what it had shared. While no
   call is under way the ring may become * small, which leaves a record behind that is no data, CHANGES
   times. The socket delivers at some time. Both paths have room for ROOM bytes; a sender * without room
   sleeps, and so does a receiver that has nothing. Each call of the receiver takes one byte, or all that
   there is. * Checked: bytes arrive once and in order, the end comes behind all of them, and when nothing
   can go on any more, it has come. * * The receiver may stop between two records STOPS times, for what it
   has not read to come by the socket ("Giving back what was not read"). Its word `back` * is the only one
   that both ends change, by compare-and-swap. * * What is done with a token is one step where the other
   end sees nothing of what is between. The order of memory is arming.pml's. * * -DMUTANT=n breaks the
   protocol in one place; spin must find each of them. tests/model/check.py runs all.
 */
#ifndef BYTES
#define BYTES 4
#endif
#ifndef MOVES
#define MOVES 2
#endif
#ifndef CHANGES
#define CHANGES 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef ROOM
#define ROOM 1
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define CHANGE 200
#define FIN 201

/* Words are number << 2 | step. */
#define NONE 0
#define ASKED 1
#define RING 2
#define KERNEL 3
#define UNFINISHED 128
/* `back`, of which 0 means that the ring is read. What is given back is counted in bytes of the socket,
   behind `base`; ALL: the ring has no more. */
#define STOPPED 1
#define CLAIMED 2
#define GIVEN 16
#define ALL 8
#define step_of(w) (w & 3)
#define number_of(w) ((w & 127) >> 2)
#define word(n, s) ((n) << 2 | (s))

/* Shared: the words of the slot, what only the sender's family and only the receiver know, and the paths. */
byte offer, from, taken, tx, rx;
byte sent, received;
chan net = [ROOM + 1] of { byte };              /* on the way to the receiver's socket */
chan inbox = [ROOM + 1] of { byte };
byte written, arrived;                          /* bytes of the socket, without FIN */
chan ring = [ROOM + CHANGES] of { byte };
byte tail, head, consumed, in_ring;             /* positions, changes counted; data in the ring */
bool stopped;                                   /* of rx */
byte back, base, noted;
bool shut, ended;
bool rx_arm, tx_arm, rx_bell, tx_bell;
bool calling, finished;                         /* the sender is inside a call; has ended */

#define tell(arm, bell) if :: arm -> arm = false; bell = true :: else fi
#define socket_has_room (len(net) + len(inbox) < ROOM)
#define ring_has_room (in_ring < ROOM)
#define has_room (step_of(tx) == RING && ring_has_room || step_of(tx) != RING && socket_has_room)

/* The process is killed. */
#define died() atomic { deaths > 0 -> deaths--; goto next_owner }

/* take_step() */
inline take_step(to, position) {
    d_step { next = to; tx = next | UNFINISHED; if :: MUTANT == 7 -> offer = next :: else fi };
    if :: died() :: skip fi;
    d_step { from = position };
    if :: died() :: skip fi;
    d_step { offer = next };
    if :: died() :: skip fi;
    d_step { tx = next; next = 0 }
}

#define in_socket (MUTANT == 12 -> noted : written - base)
/* give_back(): what lies in the ring, of which the first byte is `sent - in_ring`, as far as the socket
   has room. */
inline give() {
    do
    :: atomic { in_socket < in_ring && socket_has_room -> net!(sent - in_ring + in_socket); written++ };
        if :: died() :: skip fi;
        d_step { noted++ }
    :: atomic { !(in_socket < in_ring && socket_has_room) -> break }
    od;
    if :: died() :: skip fi;
    atomic {
    back = GIVEN + in_socket + (in_socket == in_ring -> ALL : 0);
    gives_all = in_socket == in_ring;
    telling = true };
    if :: died() :: skip fi;
    if
    :: gives_all -> take_step(word(number_of(tx) + 1, KERNEL), tail)
    :: else
    fi
}
#define gave_all (back >= GIVEN && (back & ALL) && in_ring == (back & 7))
/* The receiver may still have to read the socket up to where the ring begins: what is given back follows
   that. */
#define has_agreed (taken == tx || taken == word(number_of(tx), ASKED))
#define may_leave_ring (back == 0 || back == STOPPED || gave_all || MUTANT == 13)

proctype Sender() {
    byte deaths = DEATHS, next;
    bool telling, gives_all;

next_owner: /* sending_word() */
    skip;
    atomic {
    next = 0;
    telling = false;
    tell(rx_arm, rx_bell);                      /* the monitor, when one has died */
    if
    :: tx >= UNFINISHED && (offer == (tx & 127) || MUTANT == 8) -> tx = tx & 127
    :: tx >= UNFINISHED && !(offer == (tx & 127) || MUTANT == 8) ->
        if
        :: step_of(tx) == ASKED && number_of(tx) == 1 -> tx = NONE
        :: step_of(tx) == ASKED && number_of(tx) != 1 -> tx = word(number_of(tx) - 1, KERNEL)
        :: step_of(tx) == RING -> tx = word(number_of(tx), ASKED)
        :: step_of(tx) == KERNEL && (offer != word(number_of(tx), ASKED) || MUTANT == 10) -> tx = word(number_of(tx) - 1, RING)
        :: step_of(tx) == KERNEL && offer == word(number_of(tx), ASKED) && MUTANT != 10 -> tx = offer
        fi
    :: else
    fi };

send:
    if
    :: atomic { step_of(tx) == RING && has_agreed && back == CLAIMED -> calling = true };
        give();
        tell(rx_arm, rx_bell)
    :: else
    fi;
    atomic {
    calling = true;
    if
    :: sent == BYTES -> goto end_sending
    :: else
    fi };
    /* prepare_send() */
    if
    :: true
    :: atomic { step_of(tx) == RING && has_agreed && back == STOPPED -> base = written; noted = 0 };
        if :: died() :: skip fi;
        if
        :: atomic { back == STOPPED -> back = CLAIMED };
            if :: died() :: skip fi;
            give()
        :: else
        fi
    :: atomic { step_of(tx) == RING && (taken == tx || MUTANT == 5 || has_agreed && gave_all) && may_leave_ring };
        take_step(word(number_of(tx) + 1, KERNEL), tail);
        telling = true
    :: atomic { step_of(tx) == ASKED };
        if
        :: atomic { taken == tx || MUTANT == 4 };
            take_step(word(number_of(tx), RING), written);
            telling = true
        :: true;                                /* not, then */
            take_step(word(number_of(tx), KERNEL), 0);
            telling = true
        fi
    :: atomic { (step_of(tx) == NONE || step_of(tx) == KERNEL && taken == tx) && number_of(tx) < 2 * MOVES };
        take_step(word(number_of(tx) + 1, ASKED), 0)
    fi;
    /* write_some() or send_to_socket() */
    atomic {
    if
    :: step_of(tx) == RING && ring_has_room -> ring!sent; sent++; in_ring++; tail++; telling = true; calling = false
    :: step_of(tx) != RING && socket_has_room -> net!sent; sent++; written++; calling = false
    :: else
    fi };
    if :: died() :: skip fi;
    d_step {
    if
    :: telling && MUTANT != 3 -> tell(rx_arm, rx_bell)
    :: else
    fi;
    telling = false };
    if
    :: atomic { !calling -> goto send }
    :: else
    fi;

sleep: /* RoomWait */
    tx_arm = true;
    if
    :: atomic { has_room -> tx_arm = false; calling = false; goto send }
    :: else
    fi;
    atomic { calling = false };
end_asleep:
    if
    :: atomic { tx_bell -> tx_bell = false }
    :: atomic { step_of(tx) != RING && socket_has_room }
    fi;
    goto sleep;

end_sending: /* shutdown() */
    atomic {
    shut = true;
    if
    :: step_of(tx) == RING || MUTANT == 9
    :: else -> net!FIN
    fi };
    atomic { tell(rx_arm, rx_bell); calling = false; finished = true }
}

/* Rings that are idle: with the send token, by whoever is about to sleep. */
proctype Shrinker() {
    byte left = CHANGES;
end:
    do
    :: atomic { left > 0 && !calling && consumed == tail && tx < UNFINISHED && tx != NONE && len(ring) < ROOM + CHANGES &&
            (step_of(tx) != KERNEL || taken == tx || MUTANT == 2) ->
        ring!CHANGE; tail++; left-- }
    od
}

/* The kernel. */
active proctype Network() {
    byte b;
end:
    do
    :: atomic { net?b -> inbox!b; if :: b != FIN -> arrived++ :: else fi; b = 0 }
    od
}

#define at_ring_end (offer == word(number_of(rx) + 1, KERNEL) && head == from)
/* leads_to() */
#define ring_is_left (offer == word(number_of(rx) + 1, KERNEL) && (head == from || MUTANT != 1 && in_ring == 0 && head + len(ring) == from))
#define socket_is_left (step_of(rx) == ASKED && offer == word(number_of(rx), RING) && (arrived == from && len(inbox) == 0 || MUTANT == 6))
#define next_is_in_ring (!stopped && (step_of(rx) == RING && !ring_is_left || step_of(rx) != RING && socket_is_left))
#define all_is_home ((back & ALL) && offer == word(number_of(rx) + 1, KERNEL) && from == head + len(ring))
#define is_past_given (arrived == base + (back & 7) && len(inbox) == 0)
#define reads_on (stopped && (back == STOPPED || back >= GIVEN && (all_is_home || is_past_given)))
#define has_event (reads_on || next_is_in_ring && (in_ring > 0 || shut) || !next_is_in_ring && len(inbox) > 0)

inline take(b) {
    assert(b == received);
    received++
}

/* What has come by the socket is passed over in the ring, and all changes behind it where there is no
   more. */
inline pass_given() {
    d_step {
    b = back & 7;
    do
    :: b > 0 -> ring?next; head++; if :: next == CHANGE :: else -> b--; in_ring-- fi
    :: b == 0 && (back & ALL) && len(ring) > 0 && in_ring == 0 -> ring?next; head++
    :: else -> break
    od;
    next = 0; b = 0; consumed = head; back = 0; stopped = false
    };
    atomic { tell(tx_arm, tx_bell) }
}

proctype Receiver() {
    byte b, next, stops = STOPS;
    bool seen, all, any;

read:
    if :: all = true :: all = false fi;
    any = false;
    if
    :: atomic { stops > 0 && !stopped && (step_of(rx) == RING && offer == rx || step_of(rx) == ASKED && offer == word(number_of(rx), RING)) ->
        stops--; stopped = true };
        back = STOPPED
    :: true
    fi;
again:
    if
    :: stopped ->
        /* resume() */
        if
        :: atomic { back == STOPPED && MUTANT != 11 -> back = 0; stopped = false; goto again }
        :: back == STOPPED && MUTANT == 11 -> atomic { back = 0; stopped = false; goto again }
        :: atomic { back >= GIVEN && all_is_home -> pass_given(); rx = offer; taken = rx; goto again }
        :: atomic { back >= GIVEN && !all_is_home && is_past_given -> pass_given(); rx = word(number_of(rx), RING); taken = rx; goto again }
        :: else
        fi;
        goto socket
    :: !stopped && step_of(rx) == RING ->
        seen = shut;
        /* read_some() */
        do
        :: atomic { len(ring) > 0 ->
            ring?b; head++;
            if
            :: b == CHANGE
            :: else -> take(b); in_ring--; any = true
            fi;
            b = 0 };
            if
            :: any && !all -> break
            :: else
            fi
        :: atomic { len(ring) == 0 -> break }
        od;
        atomic { consumed = head; tell(tx_arm, tx_bell) };
        if
        :: atomic { any && !all -> goto read }
        :: else
        fi;
        if
        :: atomic { ring_is_left -> rx = offer; taken = rx; goto again }
        :: atomic { !ring_is_left && (any || !seen) }
        :: atomic { !ring_is_left && !any && seen -> goto over }
        fi
    :: else ->
        /* follow_sender() */
        if
        :: atomic { step_of(rx) != ASKED && offer == word(number_of(rx) + 1, ASKED) -> rx = offer; taken = rx }
        :: atomic { step_of(rx) == ASKED && offer == word(number_of(rx), KERNEL) -> rx = offer; taken = rx }
        :: atomic { step_of(rx) != ASKED && offer == word(number_of(rx) + 1, KERNEL) && MUTANT != 14 -> rx = offer; taken = rx }
        :: atomic { socket_is_left -> rx = offer; taken = rx; goto again }
        :: atomic { else -> /* no word of the sender's is left without an answer for good */
            assert(offer == rx || step_of(rx) == ASKED && offer == word(number_of(rx), RING)) }
        fi;
socket:
        if
        :: atomic { len(inbox) > 0 ->
            inbox?b;
            if
            :: b == FIN -> goto over
            :: else -> take(b); b = 0; any = true
            fi };
            if
            :: all -> goto again
            :: else -> goto read
            fi
        :: atomic { len(inbox) == 0 }
        fi;
        if
        :: atomic { socket_is_left -> rx = offer; taken = rx; goto again }
        :: else
        fi
    fi;
    if
    :: atomic { any -> goto read }
    :: else
    fi;

sleep: /* wait_stream() */
    rx_arm = true;
    if
    :: atomic { has_event -> rx_arm = false; goto read }
    :: else
    fi;
    if
    :: atomic { next_is_in_ring };
end_on_bell:
        atomic { rx_bell -> rx_bell = false }
    :: else ->
end_on_both:
        if
        :: atomic { rx_bell -> rx_bell = false }
        :: atomic { len(inbox) > 0 }
        fi
    fi;
    goto sleep;

over:
    assert(received == BYTES);
    ended = true
}

active proctype Judge() {
end:
    timeout -> assert(ended && finished)
}

init {
    atomic {
        run Sender();
        run Shrinker();
        run Receiver()
    }
}
