// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <set>

#include <gtest/gtest.h>

#include <holdfast/ids.hpp>
#include <holdfast/result.hpp>

namespace holdfast {
namespace {

Result<int> half(int number) {
    if (number % 2 != 0) {
        return fail(make_error(Errc::invalid_argument, "halve {}: it is odd", number)
                        .at("line 1")
                        .advise("give an even number"));
    }
    return number / 2;
}

Result<> check(int number) {
    HOLD_TRY(half(number));
    return {};
}

Result<int> quarter(int number) {
    HOLD_TRY(const int once, half(number));
    HOLD_TRY(check(once));
    HOLD_TRY(const int twice, half(once));
    return twice;
}

TEST(Result, TryPassesValuesAndErrorsOn) {
    EXPECT_EQ(quarter(12).value(), 3);
    const auto error = quarter(6).error();
    EXPECT_EQ(error.code, Errc::invalid_argument);
    EXPECT_EQ(error.message, "halve 3: it is odd");
    EXPECT_EQ(error.describe(), "halve 3: it is odd (at line 1); give an even number");
}

TEST(Result, TryMovesValuesThatCannotBeCopied) {
    const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
    const auto use = [&]() -> Result<int> {
        HOLD_TRY(const std::unique_ptr<int> owned, make());
        return *owned;
    };
    EXPECT_EQ(use().value(), 5);
}

TEST(Result, WithinPutsContextInFront) {
    Error error = half(1).error();
    EXPECT_EQ(std::move(error).within("start").message, "start: halve 1: it is odd");
}

TEST(Errc, NamesAreUniqueAndComeBack) {
    std::set<std::string_view> names;
#define HOLD_ERROR(name, number, exit_code, grpc_code) \
    EXPECT_TRUE(names.insert(#name).second);           \
    EXPECT_EQ(to_string(Errc::name), #name);           \
    EXPECT_EQ(errc_from(#name), Errc::name);           \
    EXPECT_EQ(exit_code_of(Errc::name), exit_code);    \
    EXPECT_EQ(grpc_code_of(Errc::name), grpc_code);
#include <holdfast/error_codes.def>
#undef HOLD_ERROR
    EXPECT_EQ(errc_from("no such name"), Errc::failed);
    EXPECT_EQ(to_string(static_cast<Errc>(7)), "failed");
}

TEST(Ids, AreLabelledAndNotInterchangeable) {
    EXPECT_EQ(JobId(42).label(), "job-42");
    EXPECT_FALSE(NodeId().is_set());
    EXPECT_LT(JobId(1), JobId(2));
    static_assert(!std::is_convertible_v<JobId, NodeId>);
    static_assert(!std::is_convertible_v<std::int64_t, JobId>);
}

TEST(CheckDeathTest, AFailedCheckEndsTheProcessAndSaysWhy) {
    EXPECT_DEATH(HOLD_CHECK(1 + 1 == 3, "sums are right"), "sums are right");
}

}  // namespace
}  // namespace holdfast
