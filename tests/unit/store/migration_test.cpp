// SPDX-License-Identifier: Apache-2.0
#include "fixture.hpp"
#include "migrations.hpp"

namespace holdfast::store {
namespace {

using testing::HasSubstr;

constexpr Migration kFirst{1, "one", "CREATE TABLE a (id INTEGER PRIMARY KEY, x TEXT) STRICT;"};
constexpr Migration kSecond{2, "two",
                            "ALTER TABLE a ADD COLUMN y INTEGER NOT NULL DEFAULT 7;"
                            "INSERT INTO a(id, x) VALUES (100, 'seed');"};

Result<std::unique_ptr<Store>> open_with(const TempFolder& folder,
                                         const std::vector<Migration>& migrations) {
    return Store::open({.directory = folder.path(), .migrations = migrations});
}

TEST(Migrations, AreAppliedOnceInOrder) {
    TempFolder folder;
    {
        auto store = open_with(folder, {kFirst});
        ASSERT_TRUE(store) << store.error().describe();
        EXPECT_EQ((*store)->schema_version(), 1);
        must(**store, "INSERT INTO a VALUES (1, 'old')");
    }
    for (int round = 0; round < 2; ++round) {
        auto store = open_with(folder, {kFirst, kSecond});
        ASSERT_TRUE(store) << store.error().describe();
        EXPECT_EQ((*store)->schema_version(), 2);
        EXPECT_EQ(number(**store, "SELECT count(*) FROM a"), 2);
        EXPECT_EQ(number(**store, "SELECT count(*) FROM schema_migration"), 3);
        // What a migration writes has its history, too.
        const auto seed = ask(**store,
                              "SELECT c.cause, procedure, after_json FROM change c JOIN "
                              "invocation USING (txn) WHERE key = '100'");
        ASSERT_EQ(seed.size(), 1U);
        EXPECT_EQ(seed[0].text(0), "migration 0002_two");
        EXPECT_EQ(seed[0].text(1), "migrate");
        EXPECT_EQ(seed[0].text(2), R"({"id":100,"x":"seed","y":7})");
    }
}

TEST(Migrations, RowsOlderThanAColumnShowItsDefault) {
    TempFolder folder;
    {
        auto store = open_with(folder, {kFirst});
        must(**store, "INSERT INTO a VALUES (1, 'old')");
    }
    auto store = open_with(folder, {kFirst, kSecond});
    must(**store, "UPDATE a SET x = 'new' WHERE id = 1");
    EXPECT_EQ(ask(**store, "SELECT before_json FROM change ORDER BY seq DESC LIMIT 1")[0].text(0),
              R"({"id":1,"x":"old","y":7})");
}

TEST(Migrations, ANewerStoreIsRefused) {
    TempFolder folder;
    ASSERT_TRUE(open_with(folder, {kFirst, kSecond}));
    const auto store = open_with(folder, {kFirst});
    ASSERT_FALSE(store);
    EXPECT_EQ(store.error().code, Errc::store_newer);
    EXPECT_EQ(store.error().message, "open store: its schema has version 2, this program knows 1");
}

TEST(Migrations, AnEditedScriptIsRefused) {
    TempFolder folder;
    ASSERT_TRUE(open_with(folder, {kFirst}));
    const auto store =
        open_with(folder, {{1, "one", "CREATE TABLE a (id INTEGER PRIMARY KEY) STRICT;"}});
    ASSERT_FALSE(store);
    EXPECT_EQ(store.error().code, Errc::conflict);
    EXPECT_THAT(store.error().message, HasSubstr("0001_one"));
}

TEST(Migrations, ABrokenScriptLeavesNothing) {
    TempFolder folder;
    const Migration broken{2, "broken",
                           "CREATE TABLE b (id INTEGER PRIMARY KEY); INSERT INTO a "
                           "VALUES (1, 'x'); INSERT INTO nowhere VALUES (1);"};
    const auto store = open_with(folder, {kFirst, broken});
    ASSERT_FALSE(store);
    EXPECT_THAT(store.error().message,
                HasSubstr("apply migration 0002_broken: run SQL script: no such table: nowhere"));
    auto fixed = open_with(folder, {kFirst, kSecond});
    ASSERT_TRUE(fixed) << fixed.error().describe();
    EXPECT_EQ(number(**fixed, "SELECT count(*) FROM sqlite_schema WHERE name = 'b'"), 0);
    EXPECT_EQ(number(**fixed, "SELECT count(*) FROM change"), 1);
}

TEST(Migrations, ScriptsKeepToTheRules) {
    const std::vector<std::pair<std::string_view, Errc>> cases = {
        {"COMMIT;", Errc::invalid_argument},
        {"PRAGMA foreign_keys = OFF;", Errc::invalid_argument},
        {"ATTACH 'x' AS y;", Errc::invalid_argument},
        {"DELETE FROM schema_migration;", Errc::invalid_argument},
        {"CREATE TABLE b (x TEXT) STRICT;", Errc::unsupported},
        {"CREATE TABLE b (id INTEGER PRIMARY KEY, d INTEGER AS (id * 2)) STRICT;",
         Errc::unsupported},
        {"CREATE TABLE b (id INTEGER PRIMARY KEY); CREATE TRIGGER t AFTER INSERT ON b BEGIN "
         "SELECT RAISE(FAIL, 'x'); END;",
         Errc::unsupported},
        {"CREATE TABLE b (id INTEGER PRIMARY KEY); INSERT INTO history_redacted VALUES ('b', "
         "'no');",
         Errc::invalid_argument},
    };
    for (const auto& [sql, code] : cases) {
        TempFolder folder;
        const auto store = open_with(folder, {{1, "bad", sql}});
        ASSERT_FALSE(store) << sql;
        EXPECT_EQ(store.error().code, code) << sql << ": " << store.error().describe();
    }
    TempFolder folder;
    const auto gap = open_with(folder, {{2, "two", "SELECT 1;"}});
    EXPECT_EQ(gap.error().message, "migrations: expected version 1, found 2 (two)");
}

TEST(Statements, ThatKeepHalfAreFound) {
    for (const std::string_view sql :
         {"INSERT OR FAIL INTO a VALUES (1)", "update or\n\tfail a set b = 1",
          "INSERT OR /* x */ FAIL INTO a", "INSERT OR --x\nFAIL INTO a", "RAISE(FAIL, 'x')",
          "raise ( fail , 'x')", "SELECT '--'; INSERT OR FAIL INTO a",
          "INSERT OR/*'*/FAIL INTO a"}) {
        EXPECT_TRUE(may_fail_halfway(sql)) << sql;
    }
    for (const std::string_view sql :
         {"", "INSERT INTO fail VALUES (1)", "SELECT 'or fail'", "-- or fail", "/* or fail",
          "INSERT OR FAILED", "SELECT \"or\" fail", "RAISE(ABORT, 'or fail')"}) {
        EXPECT_FALSE(may_fail_halfway(sql)) << sql;
    }
}

TEST(Migrations, ChecksumsAreFnv) {
    EXPECT_EQ(script_checksum(""), "cbf29ce484222325");
    EXPECT_EQ(script_checksum("a"), "af63dc4c8601ec8c");
}

}  // namespace
}  // namespace holdfast::store
