// Ends a test case early and has it counted as skipped: what it needs is not there.
#pragma once

namespace sd::test {

void note_skip(const char *reason);

} // namespace sd::test

#define SKIP_TEST(reason)                                                                                    \
    do {                                                                                                     \
        ::sd::test::note_skip(reason);                                                                       \
        return;                                                                                              \
    } while (false)
