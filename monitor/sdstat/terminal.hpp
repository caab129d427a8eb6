// A terminal that shows one screen and gives single keys, and is as it was afterwards.
#pragma once
#include <optional>
#include <string>
#include <termios.h>
#include <vector>

namespace sd::stat {

class Terminal {
  public:
    /// Is standard output a terminal that can move its cursor?
    static bool is_there();

    Terminal();
    ~Terminal();
    Terminal(const Terminal &) = delete;
    Terminal &operator=(const Terminal &) = delete;

    size_t width() const;
    size_t height() const;
    void show(const std::vector<std::string> &lines);
    enum class Event {
        key,     ///< *key was pressed
        timeout, ///< that much time is over
        resized, ///< the size is another one, or the program was stopped and goes on
        end,     ///< asked to end, by a signal or the end of the input
    };
    Event wait(double seconds, char *key);

  private:
    void enter();
    void leave();
    termios former_{};
    bool has_keys_ = false;
};

} // namespace sd::stat
