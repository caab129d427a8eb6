// What is wrong with an installation, and what to type.
#pragma once
#include <string>
#include <vector>

namespace sd::ctl {

enum class Level { good, remark, wrong };

struct Diagnosis {
    Level level;
    std::string subject; ///< one word
    std::string text;
    std::string remedy; ///< what to type or change; empty: nothing
    std::string page;   ///< of the manual
};

/// Looks only; changes nothing.
std::vector<Diagnosis> examine();

} // namespace sd::ctl
