// Comparing traces, and showing them side by side.
#include "tests/differential/compare.hpp"
#include "tests/differential/channel.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

namespace sd::differential {

namespace {

std::string line(const Trace &trace, size_t index) {
    return index < trace.size() ? trace[index].text : "(nothing)";
}

// Traces name ports "port1", "port2" in the order of their appearance. Ports that are equal in the kernel's
// trace have to be equal in ours; that ours may give a number again at once is in LIMITS.md, "the
// client's port number".
class PortNames {
  public:
    bool alike(const std::string &kernel, const std::string &ours) {
        size_t k = 0, o = 0;
        for (;;) {
            const size_t kernel_port = kernel.find("port", k), ours_port = ours.find("port", o);
            if (kernel.substr(k, kernel_port - k) != ours.substr(o, ours_port - o) ||
                (kernel_port == std::string::npos) != (ours_port == std::string::npos)) {
                return false;
            }
            if (kernel_port == std::string::npos) {
                return true;
            }
            const std::string left = number_at(kernel, k = kernel_port + 4),
                              right = number_at(ours, o = ours_port + 4);
            if (names_.try_emplace(left, right).first->second != right) {
                return false;
            }
            k += left.size();
            o += right.size();
        }
    }

  private:
    static std::string number_at(const std::string &text, size_t at) {
        return text.substr(at, std::min(text.find_first_not_of("0123456789", at), text.size()) - at);
    }
    std::map<std::string, std::string> names_; ///< of the kernel's trace to ours
};

std::vector<std::string> of_step(const Trace &trace, int step) {
    std::vector<std::string> texts;
    for (const Line &entry : trace) {
        if (entry.step == step) {
            texts.push_back(entry.text);
        }
    }
    return texts;
}

const Step *step_of(const Sequence &sequence, const Line &line) {
    const auto step = std::ranges::find(sequence.steps, line.step, &Step::id);
    return step == sequence.steps.end() ? nullptr : &*step;
}

/// A connection that was filled is not drained: its actor is blocked or gone, or has something else under the
/// number, or somebody else has read of it. How much goes in and comes out from here on is the business of
/// each side's buffers.
bool left_full(const Sequence &sequence, const Line &line) {
    const Step *step = step_of(sequence, line);
    if (step == nullptr || step->op != Op::drain) {
        return false;
    }
    return std::none_of(std::begin(kNothingLeft), std::end(kNothingLeft),
                        [&](const char *text) { return line.text.find(text) != std::string::npos; });
}

/// A read while a connection is full, of less than was asked for: how much lies in the receiver's buffer is
/// the business of each side.
bool read_of_full(const Sequence &sequence, const Line &kernel, const Line &ours) {
    const Step *step = step_of(sequence, kernel);
    if (step == nullptr || step->op != Op::recv || ours.step != kernel.step) {
        return false;
    }
    const std::span before(sequence.steps.data(), step);
    const bool is_full = std::ranges::any_of(before, [&](const Step &filled) {
        return (filled.op == Op::fill || filled.op == Op::huge) && !is_drained(before, filled.id);
    });
    const long of_kernel = atol(kernel.text.c_str()), of_ours = atol(ours.text.c_str());
    return is_full && of_kernel > 0 && of_ours > 0 && std::min(of_kernel, of_ours) < step->arguments[1];
}

} // namespace

std::optional<Difference> compare(const Sequence &sequence, const Trace &kernel, const Trace &ours) {
    PortNames ports;
    for (size_t i = 0; i < std::max(kernel.size(), ours.size()); ++i) {
        if (i >= kernel.size() || i >= ours.size() || kernel[i].step != ours[i].step ||
            !ports.alike(kernel[i].text, ours[i].text)) {
            if (i < kernel.size() && i < ours.size() && read_of_full(sequence, kernel[i], ours[i])) {
                return std::nullopt;
            }
            const int step = i < kernel.size() ? kernel[i].step : ours[i].step;
            return Difference{step, line(kernel, i), line(ours, i)};
        }
        if (left_full(sequence, kernel[i])) {
            return std::nullopt;
        }
    }
    return std::nullopt;
}

std::string report(const Sequence &sequence, const Trace &kernel, const Trace &ours) {
    std::ostringstream out;
    out << "seed " << sequence.seed << ", " << sequence.roots << " actors at the beginning";
    for (int i = 0; i < sequence.roots; ++i) {
        if ((sequence.plain >> i & 1) != 0) {
            out << ", actor " << i << " always without libsd";
        }
    }
    out << "\n";
    const auto show = [&](int id) {
        const std::vector<std::string> expected = of_step(kernel, id), got = of_step(ours, id);
        for (size_t i = 0; i < std::max(expected.size(), got.size()); ++i) {
            const std::string left = i < expected.size() ? expected[i] : "(nothing)",
                              right = i < got.size() ? got[i] : "(nothing)";
            if (left == right) {
                out << "        " << left << "\n";
            } else {
                out << "  !     kernel: " << left << "\n  !     libsd:  " << right << "\n";
            }
        }
    };
    for (const Step &step : sequence.steps) {
        out << "  " << step.id << (step.id < 10 ? "  " : " ") << "actor " << step.actor << ": "
            << text_of(step) << "\n";
        show(step.id);
    }
    return out.str();
}

} // namespace sd::differential
