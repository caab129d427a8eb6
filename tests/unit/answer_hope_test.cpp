// How long recv looks for an answer.
#include "libsd/queue/answer_hope.hpp"
#include <catch2/catch.hpp>

using sd::AnswerHope;

namespace {

/// Looks for an answer that comes after so many looks. The looks made for it.
unsigned look(AnswerHope &hope, unsigned comes_after) {
    hope.begin();
    const unsigned looks = hope.looks();
    if (comes_after > looks)
        hope.in_vain();
    return looks;
}

constexpr unsigned kNever = 1'000'000;

} // namespace

TEST_CASE("a peer that answers at once is looked for in full", "[answer_hope]") {
    AnswerHope hope;
    for (int i = 0; i < 100; ++i)
        CHECK(look(hope, 100) == AnswerHope::kWhole);
}

TEST_CASE("after a row of looks in vain most are short", "[answer_hope]") {
    AnswerHope hope;
    unsigned whole = 0;
    for (int i = 0; i < 1600; ++i)
        whole += look(hope, kNever) == AnswerHope::kWhole;
    CHECK(whole >= 1600 / AnswerHope::kEvery);
    CHECK(whole <= 1600 / AnswerHope::kEvery + AnswerHope::kRow);
}

TEST_CASE("a peer that begins to answer is soon looked for in full again", "[answer_hope]") {
    AnswerHope hope;
    for (int i = 0; i < 1000; ++i)
        (void)look(hope, kNever);
    unsigned shorts = 0;
    for (int i = 0; i < 100; ++i)
        shorts += look(hope, 100) != AnswerHope::kWhole;
    CHECK(shorts <= AnswerHope::kEvery + 1);
    CHECK(look(hope, 100) == AnswerHope::kWhole);
}

TEST_CASE("looks in vain that are not in a row cut nothing", "[answer_hope]") {
    AnswerHope hope;
    for (int i = 0; i < 100; ++i)
        CHECK(look(hope, i % 4 == 0 ? 100 : kNever) == AnswerHope::kWhole);
}
