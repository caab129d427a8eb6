// A difference counts when it shows again, with patience, and the kernel agrees with itself.
#include "tests/differential/judge.hpp"

#include "tests/differential/shrink.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace sd::differential {

namespace {

/// A sequence that is waited for again and again is shortened no further than this allows.
constexpr std::chrono::seconds kShrinking{60};

} // namespace

Judge::Judge(const Setting &setting, bool self_check) : setting_(setting), self_check_(self_check) {}

// A side whose host or monitor died is made anew for the next sequence.
Trace Judge::run(std::unique_ptr<Side> &side, bool accelerated, const Sequence &sequence, bool patient) {
    try {
        if (!side) {
            side = std::make_unique<Side>(setting_, accelerated);
        }
        return side->run(sequence, patient);
    } catch (const std::runtime_error &error) {
        joined_ += side && accelerated ? side->joined() : 0;
        side.reset();
        return {{-1, std::string("the side broke down: ") + error.what()}};
    }
}

bool Judge::differs(const Sequence &sequence, bool patient) {
    const Trace kernel = run(kernel_, false, sequence, patient);
    return compare(sequence, kernel, run(ours_, !self_check_, sequence, patient)).has_value();
}

Verdict Judge::judge(const Sequence &sequence) {
    {
        const Trace kernel = run(kernel_, false, sequence, false),
                    ours = run(ours_, !self_check_, sequence, false);
        const auto difference = compare(sequence, kernel, ours);
        if (!difference) {
            return Verdict::same;
        }
        first_impression_ = "step " + std::to_string(difference->step) + ": kernel: " + difference->kernel +
                            ", libsd: " + difference->ours;
    }
    for (int i = 0; i < 2; ++i) {
        const Trace once = run(kernel_, false, sequence, true);
        if (compare(sequence, once, run(kernel_, false, sequence, true))) {
            return Verdict::undecided;
        }
        if (!compare(sequence, once, run(ours_, !self_check_, sequence, true))) {
            return Verdict::unsteady;
        }
    }
    return Verdict::different;
}

Sequence Judge::shortest(const Sequence &sequence, int budget) {
    Sequence result = sequence;
    const auto end = std::chrono::steady_clock::now() + kShrinking;
    const auto fails = [&](const std::vector<Step> &steps) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        // Without the step that empties a connection, the one that filled it would be followed by amounts
        // that are not compared.
        for (const Step &step : steps) {
            if ((step.op == Op::fill || step.op == Op::huge) && is_drained(sequence.steps, step.id) &&
                !is_drained(steps, step.id)) {
                return false;
            }
        }
        Sequence shorter = sequence;
        shorter.steps = steps;
        return differs(shorter, false) && differs(shorter, true);
    };
    result.steps = shrink(sequence.steps, fails, budget);
    return result;
}

std::string Judge::explain(const Sequence &sequence) {
    const Trace kernel = run(kernel_, false, sequence, true);
    return report(sequence, kernel, run(ours_, !self_check_, sequence, true));
}

} // namespace sd::differential
