// Steps that set and read socket options, and ioctl.
#include "tests/differential/actor.hpp"
#include "tests/differential/option_list.hpp"

#include <cerrno>
#include <cstring>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/time.h>

namespace sd::differential {

namespace {

// `which`: 0..3 the values of the list, 4 a short length, 5 a bad pointer, 6 a long length
void set_option(int fd, const Option &option, int which, Observation &o) {
    const int value = option.values[which & 3];
    union {
        int number;
        timeval time;
        linger how;
        char text[64];
    } buffer{};
    socklen_t length = sizeof buffer.number;
    if (option.kind == OptionKind::time) {
        buffer.time = value < 0 ? timeval{-1, 0} : timeval{value / 1000000, value % 1000000 * 1000};
        if (value >= 1000000) {
            buffer.time = timeval{0, 2000000}; // out of its domain
        }
        length = sizeof buffer.time;
    } else if (option.kind == OptionKind::linger) {
        buffer.how = linger{value, (which & 3) == 3 ? 1 : 0};
        length = sizeof buffer.how;
    } else if (option.kind == OptionKind::text) {
        strcpy(buffer.text, (which & 1) != 0 ? "reno" : "no such thing");
        length = static_cast<socklen_t>(strlen(buffer.text));
    } else {
        buffer.number = value;
    }
    const void *where = &buffer;
    if (which == 4) {
        length = 1;
    } else if (which == 5) {
        where = forbidden_page();
    } else if (which == 6) {
        length = sizeof buffer;
    }
    o.result(setsockopt(fd, option.level, option.name, where, length));
}

// `variant`: 0 fits, 1 one byte, 2 ample, 3 a bad pointer, 4 a negative length
void get_option(int fd, const Option &option, int variant, Observation &o) {
    union {
        unsigned char bytes[256];
        int number;
        timeval time;
        linger how;
        tcp_info about;
    } buffer;
    memset(&buffer, 0, sizeof buffer);
    socklen_t length = option.kind == OptionKind::number ? sizeof(int) : sizeof buffer;
    void *where = &buffer;
    if (variant == 1) {
        length = 1;
    } else if (variant == 2) {
        length = 200;
    } else if (variant == 3) {
        where = forbidden_page();
    } else if (variant == 4) {
        length = static_cast<socklen_t>(-1);
    }
    const int r = getsockopt(fd, option.level, option.name, where, &length);
    o.result(r);
    if (r != 0 || variant >= 3) {
        return;
    }
    if (option.kind == OptionKind::tcp_info) {
        // The rest are measurements; and when a FIN is acknowledged is a matter of timers.
        const int state = buffer.about.tcpi_state;
        o.say(" state %d", state == TCP_FIN_WAIT1 ? TCP_FIN_WAIT2 : state);
        return;
    }
    o.say(" length %u", length);
    if (!option.compared) {
        return;
    }
    if (option.kind == OptionKind::text) {
        o.say(" %.*s", static_cast<int>(length), reinterpret_cast<char *>(buffer.bytes));
    } else if (option.kind == OptionKind::time && length == sizeof buffer.time) {
        o.say(" %ld.%06ld", static_cast<long>(buffer.time.tv_sec), static_cast<long>(buffer.time.tv_usec));
    } else if (option.kind == OptionKind::linger && length == sizeof buffer.how) {
        o.say(" on %d time %d", buffer.how.l_onoff, buffer.how.l_linger);
    } else if (option.name == SO_ERROR && option.level == SOL_SOCKET && buffer.number != 0) {
        o.say(" %s", strerrorname_np(buffer.number));
    } else {
        o.say(" %d", buffer.number);
    }
}

void control(int fd, int which, int value, Observation &o) {
    static constexpr unsigned long kRequests[] = {FIONREAD, FIONBIO,  SIOCATMARK, SIOCOUTQ, FIOCLEX,
                                                  FIONCLEX, FIOASYNC, 0x1234,     FIONREAD};
    int number = value;
    void *where = which == 8 ? forbidden_page() : &number;
    const int r = ioctl(fd, kRequests[which], where);
    o.result(r);
    // What SIOCOUTQ tells depends on when the kernel sends its acknowledgements.
    if (r == 0 && which != 3) {
        o.say(" %d", number);
    }
}

} // namespace

bool perform_options(Op op, int, Arguments a, Observation &o) {
    switch (op) {
    case Op::setsockopt:
        set_option(a[0], kOptions[a[1]], a[2], o);
        return true;
    case Op::getsockopt:
        get_option(a[0], kOptions[a[1]], a[2], o);
        return true;
    case Op::ioctl:
        control(a[0], a[1], a[2], o);
        return true;
    default:
        return false;
    }
}

} // namespace sd::differential
