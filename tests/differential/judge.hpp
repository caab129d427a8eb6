// Runs a sequence on both sides and says whether libsd can be told from the kernel.
#pragma once

#include "tests/differential/compare.hpp"
#include "tests/differential/controller.hpp"

#include <memory>

namespace sd::differential {

enum class Verdict {
    same,
    different,
    unsteady, ///< differed once, but not when repeated with patience
    undecided ///< the kernel does not do the same twice
};

class Judge {
  public:
    /// With `self_check` neither side has libsd: shows what of a sequence the kernel leaves open.
    Judge(const Setting &setting, bool self_check);

    Verdict judge(const Sequence &sequence);
    /// The shortest sequence found, within a minute, that is still different.
    Sequence shortest(const Sequence &sequence, int budget);
    /// Both traces of a patient run, as text.
    std::string explain(const Sequence &sequence);
    /// What differed at first, for verdicts that found it no real difference.
    const std::string &first_impression() const { return first_impression_; }
    /// Ends of the kernel's connections that were joined in the runs so far.
    long joined() const { return joined_ + (ours_ ? ours_->joined() : 0); }

  private:
    bool differs(const Sequence &sequence, bool patient);
    Trace run(std::unique_ptr<Side> &side, bool accelerated, const Sequence &sequence, bool patient);

    Setting setting_;
    bool self_check_;
    std::string first_impression_;
    long joined_ = 0; ///< by sides that are gone
    std::unique_ptr<Side> kernel_, ours_;
};

} // namespace sd::differential
