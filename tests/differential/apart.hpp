// Two network namespaces, near and far, joined by a cable: between them connections begin in the kernel, and
// a monitor with discovery joins their ends (docs/design/discovery.md).
#pragma once

#include <string>

namespace sd::differential {

/// Namespaces of this process's own; throws std::runtime_error where they cannot be made.
class Apart {
  public:
    Apart();
    ~Apart();
    Apart(const Apart &) = delete;
    Apart &operator=(const Apart &) = delete;

    /// The calling process goes there, 0 or 1; for what it will start. False: errno says why.
    bool enter(int place) const;

  private:
    int places_[2] = {-1, -1}, home_ = -1;
};

/// A control group for those whom a monitor may find; goes with this object, when they have ended.
class Group {
  public:
    Group();
    ~Group();
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;

    /// The calling process joins it.
    bool join() const;
    /// Below the top of the hierarchy, as a monitor's configuration names it.
    const std::string &name() const { return name_; }

  private:
    std::string top_, name_;
};

} // namespace sd::differential
