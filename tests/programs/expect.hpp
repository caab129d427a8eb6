// What a behaviour must show under sdrun besides the same lines. Programs tell it, the runner looks at it.
#pragma once

namespace sdtest {

enum class Expect {
    accelerated,     ///< connections went through shared memory
    all_accelerated, ///< and no cause for a fallback was counted
    any,             ///< some or none, as suits
    untouched        ///< no connection was accelerated, and none fell back
};

/// As they stand in a program's list, in the order of Expect.
constexpr const char *kExpectWords[] = {"accelerated", "all_accelerated", "any", "untouched"};

} // namespace sdtest
