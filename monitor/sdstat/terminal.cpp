// A terminal, by the sequences that all of them have understood since the VT100.
#include "monitor/sdstat/terminal.hpp"
#include "monitor/sdstat/text.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace sd::stat {

namespace {

volatile std::sig_atomic_t asked_to_end = 0, asked_to_stop = 0;

void note_signal(int number) {
    if (number == SIGTSTP) {
        asked_to_stop = 1;
    } else if (number != SIGWINCH) {
        asked_to_end = 1;
    }
}

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};

winsize size_now() {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
        size.ws_col = 80;
        size.ws_row = 24;
    }
    return size;
}

} // namespace

bool Terminal::is_there() {
    const char *name = getenv("TERM");
    return isatty(STDOUT_FILENO) != 0 && name != nullptr && *name != '\0' && strcmp(name, "dumb") != 0;
}

Terminal::Terminal() {
    struct sigaction action {};
    action.sa_handler = note_signal; // without SA_RESTART: poll returns
    for (const int number : kSignals) {
        sigaction(number, &action, nullptr);
    }
    enter();
}

Terminal::~Terminal() { leave(); }

void Terminal::enter() {
    has_keys_ = isatty(STDIN_FILENO) != 0 && tcgetattr(STDIN_FILENO, &former_) == 0;
    if (has_keys_) {
        termios raw = former_;
        raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    put("\033[?1049h\033[?25l");
}

/// Whatever becomes of the output.
void Terminal::leave() {
    constexpr std::string_view text = "\033[?25h\033[?1049l";
    [[maybe_unused]] const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (has_keys_) {
        tcsetattr(STDIN_FILENO, TCSADRAIN, &former_);
    }
}

size_t Terminal::width() const { return size_now().ws_col; }
size_t Terminal::height() const { return size_now().ws_row; }

void Terminal::show(const std::vector<std::string> &lines) {
    std::string text = "\033[H";
    for (size_t i = 0; i < lines.size(); ++i) {
        text += lines[i] + "\033[K";
        text += i + 1 < lines.size() ? "\r\n" : "";
    }
    put(text + "\033[J");
}

Terminal::Event Terminal::wait(double seconds, char *key) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int timeout = static_cast<int>(std::ceil(std::clamp(seconds, 0.0, 1e6) * 1000));
    const int ready = asked_to_end != 0 ? 0 : poll(&input, has_keys_ ? 1 : 0, timeout);
    if (asked_to_stop != 0) {
        asked_to_stop = 0;
        leave();
        raise(SIGSTOP);
        enter();
        return Event::resized;
    }
    if (asked_to_end != 0) {
        return Event::end;
    }
    if (ready < 0) {
        return errno == EINTR ? Event::resized : Event::end;
    }
    if (ready == 0) {
        return Event::timeout;
    }
    return read(STDIN_FILENO, key, 1) == 1 ? Event::key : Event::end;
}

} // namespace sd::stat
