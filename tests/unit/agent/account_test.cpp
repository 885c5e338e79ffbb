// SPDX-License-Identifier: Apache-2.0
#include "account.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

TEST(MayRunAs, NeverRoot) {
    for (const uid_t agent : {0U, 1000U}) {
        const auto answer = may_run_as(agent, 0, "root");
        ASSERT_FALSE(answer);
        EXPECT_EQ(answer.error().code, Errc::denied);
        EXPECT_EQ(answer.error().message, "run as root: jobs never run as root (uid 0)");
        EXPECT_EQ(answer.error().hint, "submit as an ordinary user; root passes --user NAME");
    }
}

TEST(MayRunAs, RootRunsAnyoneElse) {
    EXPECT_TRUE(may_run_as(0, 1000, "ada"));
    EXPECT_TRUE(may_run_as(0, 65534, "nobody"));
}

TEST(MayRunAs, OthersRunThemselvesOnly) {
    EXPECT_TRUE(may_run_as(1000, 1000, "ada"));
    const auto answer = may_run_as(1000, 1001, "bob");
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, Errc::denied);
    EXPECT_EQ(
        answer.error().message,
        "run as bob (uid 1001): this node's agent is not root (uid 1000) and can only run its "
        "own user's tasks");
}

TEST(AccountOf, UnknownNameSaysWhatToDo) {
    for (const char* const name : {"no-such-user-here", "4294900000"}) {
        const auto account = account_of(name);
        ASSERT_FALSE(account) << name;
        EXPECT_EQ(account.error().code, Errc::not_found);
        EXPECT_EQ(account.error().where, "user");
        EXPECT_FALSE(account.error().hint.empty());
    }
}

TEST(AccountOf, RootByNameAndNumber) {
    for (const char* const name : {"root", "0"}) {
        const auto account = account_of(name);
        ASSERT_FALSE(account) << name;
        EXPECT_EQ(account.error().code, Errc::denied);
    }
}

TEST(AccountOf, NobodyWhenRoot) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root";
    }
    const auto account = account_of("nobody");
    ASSERT_TRUE(account);
    EXPECT_EQ(account->uid, 65534U);
    EXPECT_EQ(account->name, "nobody");
    EXPECT_EQ(account_of("65534")->name, "nobody");
}

}  // namespace
}  // namespace holdfast::agent
