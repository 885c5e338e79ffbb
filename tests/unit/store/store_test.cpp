// SPDX-License-Identifier: Apache-2.0
/// Calls, reads, errors and guards, on the file and in memory.
#include <unistd.h>

#include <holdfast/simulated_env.hpp>
#include <holdfast/store.hpp>

#include "fixture.hpp"

namespace holdfast::store {
namespace {

using testing::HasSubstr;

class StoreTest : public testing::TestWithParam<bool> {
  protected:
    StoreTest() : store_(GetParam() ? open_in_memory() : open_store(folder_.path())) {}

    TempFolder folder_;
    std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Both, StoreTest, testing::Values(false, true),
                         [](const auto& kind) { return kind.param ? "Memory" : "File"; });

TEST_P(StoreTest, ACallWritesAndAnswersTyped) {
    const Blob bytes = {std::byte{0}, std::byte{255}};
    const auto changed = store_->call({.procedure = "add"}, [&](Tx& tx) -> Result<std::int64_t> {
        HOLD_TRY(tx.exec("INSERT INTO item(name, id, size, data) VALUES ($2, $1, $3, $4)", JobId(7),
                         "seven", 2.5, bytes));
        HOLD_TRY(tx.exec("INSERT INTO item(id, name, size) VALUES ($1, $2, $3)", 8,
                         std::string("8"), std::nullopt));
        return tx.exec("UPDATE item SET size = $1", std::optional<double>(1.5));
    });
    EXPECT_EQ(changed.value(), 2);
    const auto row = store_->read([](ReadTx& tx) {
        return tx.query_one("SELECT id, name, size, data FROM item WHERE id = $1", 7);
    });
    ASSERT_TRUE(row.value().has_value());
    EXPECT_EQ((*row)->id<JobId>("id"), JobId(7));
    EXPECT_EQ((*row)->text("name"), "seven");
    EXPECT_EQ((*row)->real(2), 1.5);
    EXPECT_EQ((*row)->blob("data"), bytes);
    EXPECT_TRUE(ask(*store_, "SELECT data FROM item WHERE id = 8")[0].is_null(0));
}

TEST_P(StoreTest, AnErrorUndoesTheWholeCall) {
    const auto done = store_->call({.procedure = "add"}, [](Tx& tx) -> Result<> {
        HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES (1, 'one')"));
        return fail(Errc::no_capacity, "no room");
    });
    EXPECT_EQ(done.error().code, Errc::no_capacity);
    EXPECT_EQ(done.error().message, "no room");
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM item"), 0);
    const auto rows = ask(*store_,
                          "SELECT procedure, status, seq_first, seq_last FROM invocation "
                          "WHERE procedure = 'add'");
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].text("status"), "no_capacity");
    EXPECT_EQ(rows[0].integer("seq_first"), rows[0].integer("seq_last") + 1);
}

TEST_P(StoreTest, AnExceptionIsAnError) {
    const auto done = store_->call({.procedure = "bad"}, [](Tx& tx) -> Result<> {
        HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES (1, 'one')"));
        throw std::runtime_error("oops");
    });
    EXPECT_EQ(done.error().code, Errc::internal);
    EXPECT_EQ(done.error().message, "procedure bad: oops");
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM item"), 0);
    const auto read =
        store_->read([](ReadTx&) -> Result<> { throw std::runtime_error("also here"); });
    EXPECT_EQ(read.error().message, "read: also here");
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM item"), 0);
}

TEST_P(StoreTest, ConstraintsAreNamedAndTheCallMayGoOn) {
    const auto code = store_->call({.procedure = "add"}, [](Tx& tx) -> Result<std::string> {
        HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES (1, 'one')"));
        const auto second = tx.exec("INSERT INTO item(id, name) VALUES (2, 'two'), (3, 'one')");
        EXPECT_EQ(second.error().code, Errc::constraint);
        EXPECT_THAT(second.error().message, HasSubstr("UNIQUE constraint failed: item.name"));
        HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES (4, 'four')"));
        return "done";
    });
    EXPECT_EQ(code.value(), "done");
    EXPECT_EQ(number(*store_, "SELECT sum(id) FROM item"), 5);
}

TEST_P(StoreTest, ForeignKeysHold) {
    const auto done = store_->call({.procedure = "add"}, [](Tx& tx) {
        return tx.exec("INSERT INTO part(item, no, what) VALUES (99, 1, 'x')");
    });
    EXPECT_EQ(done.error().code, Errc::constraint);
}

TEST_P(StoreTest, NumbersHaveNoGapsWhenCallsFail) {
    const auto next = [&](bool succeed) {
        return store_->call({.procedure = "next"}, [&](Tx& tx) -> Result<std::int64_t> {
            HOLD_TRY(const std::int64_t id, tx.next_id("job"));
            if (!succeed) {
                return fail(Errc::failed, "no");
            }
            return id;
        });
    };
    EXPECT_EQ(next(true).value(), 1);
    EXPECT_FALSE(next(false));
    EXPECT_EQ(next(true).value(), 2);
    const auto other =
        store_->call({.procedure = "next"}, [](Tx& tx) { return tx.next_id("node"); });
    EXPECT_EQ(other.value(), 1);
}

TEST_P(StoreTest, AttemptsUndoOnlyThemselves) {
    const auto done = store_->call({.procedure = "add"}, [](Tx& tx) -> Result<> {
        HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES (1, 'one')"));
        const auto inner = tx.attempt([](Tx& nested) -> Result<int> {
            HOLD_TRY(nested.exec("INSERT INTO item(id, name) VALUES (2, 'two')"));
            HOLD_TRY(nested.attempt([](Tx& deep) {
                return deep.exec("INSERT INTO item(id, name) VALUES (3, 'three')");
            }));
            return fail(Errc::no_capacity, "no room");
        });
        EXPECT_EQ(inner.error().code, Errc::no_capacity);
        HOLD_TRY(tx.attempt([](Tx& nested) {
            return nested.exec("INSERT INTO item(id, name) VALUES (4, 'four')");
        }));
        return {};
    });
    EXPECT_TRUE(done);
    EXPECT_EQ(number(*store_, "SELECT sum(id) FROM item"), 5);
    EXPECT_EQ(tables_replayed(*store_), tables_now(*store_));
}

TEST_P(StoreTest, StatementsThatCouldHarmTheStoreAreRefused) {
    for (const std::string_view sql : {"BEGIN",
                                       "COMMIT",
                                       "ROLLBACK",
                                       "SAVEPOINT x",
                                       "PRAGMA synchronous = OFF",
                                       "ATTACH 'x' AS y",
                                       "CREATE TABLE t (a)",
                                       "DROP TABLE item",
                                       "ALTER TABLE item ADD COLUMN b",
                                       "CREATE TEMP TABLE t (a)",
                                       "VACUUM",
                                       "DELETE FROM change",
                                       "UPDATE invocation SET who = 'x'",
                                       "INSERT INTO idempotency VALUES ('a', 'b', 'c', x'', 0)",
                                       "UPDATE id_sequence SET last = 0",
                                       "DELETE FROM history_exempt",
                                       "DELETE FROM schema_migration",
                                       "INSERT INTO item(id, name) VALUES (random(), 'x')",
                                       "",
                                       "SELECT 1; SELECT 2",
                                       "SELEC 1",
                                       "SELECT * FROM nowhere",
                                       "SELECT \"no_column\""}) {
        const auto done = store_->call({.procedure = "harm"}, [&](Tx& tx) { return tx.exec(sql); });
        ASSERT_FALSE(done) << sql;
        EXPECT_EQ(done.error().code, Errc::invalid_argument) << sql << done.error().describe();
        const auto read = store_->read([&](ReadTx& tx) { return tx.query(sql); });
        EXPECT_FALSE(read) << sql;
    }
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM item"), 0);
}

TEST_P(StoreTest, ParametersAreCounted) {
    const auto few = store_->read([](ReadTx& tx) { return tx.query("SELECT $1, $2", 1); });
    EXPECT_EQ(few.error().message, "bind: the SQL has 2 parameters, 1 given");
    const auto gap = store_->read([](ReadTx& tx) { return tx.query("SELECT $1, $3", 1, 2); });
    EXPECT_EQ(gap.error().code, Errc::invalid_argument);
    const auto twice = store_->read([](ReadTx& tx) { return tx.query("SELECT $2, $1, $2", 1, 2); });
    EXPECT_EQ(twice.value()[0].integer(0), 2);
    EXPECT_EQ(twice.value()[0].integer(1), 1);
    EXPECT_EQ(twice.value()[0].integer(2), 2);
}

TEST_P(StoreTest, OneRowMeansOne) {
    const auto none =
        store_->read([](ReadTx& tx) { return tx.query_one("SELECT 1 WHERE $1 = 2", 1); });
    EXPECT_FALSE(none.value().has_value());
    const auto two =
        store_->read([](ReadTx& tx) { return tx.query_one("SELECT 1 UNION SELECT 2"); });
    EXPECT_EQ(two.error().code, Errc::internal);
}

TEST_P(StoreTest, ReturningIsAQueryThatWrites) {
    const auto rows = store_->call({.procedure = "add"}, [](Tx& tx) {
        return tx.query("INSERT INTO item(id, name) VALUES (5, 'five') RETURNING id, name");
    });
    EXPECT_EQ(rows.value().at(0).text("name"), "five");
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM change WHERE tbl = 'item'"), 1);
}

TEST_P(StoreTest, ReadsCannotWrite) {
    const auto done = store_->read(
        [](ReadTx& tx) { return tx.query("INSERT INTO item(id, name) VALUES (1, 'x')"); });
    if (GetParam()) {
        // In memory the reader is the writer: what it did is undone.
        EXPECT_EQ(number(*store_, "SELECT count(*) FROM item"), 0);
    } else {
        EXPECT_EQ(done.error().code, Errc::denied);
    }
}

TEST_P(StoreTest, TheSameKeyRunsOnce) {
    int runs = 0;
    const auto submit = [&](const std::string& who, const std::string& key,
                            const std::string& procedure) {
        return store_->call_once({.procedure = procedure, .who = who, .idempotency_key = key},
                                 [&](Tx& tx) -> Result<std::string> {
                                     ++runs;
                                     HOLD_TRY(const std::int64_t id, tx.next_id("item"));
                                     HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES ($1, $2)",
                                                      id, "n" + std::to_string(id)));
                                     return std::string("id \0 ", 5) + std::to_string(id);
                                 });
    };
    const std::string first = submit("ann", "k1", "submit").value();
    EXPECT_EQ(first, std::string("id \0 1", 6));
    EXPECT_EQ(submit("ann", "k1", "submit").value(), first);
    EXPECT_EQ(runs, 1);
    EXPECT_NE(submit("bob", "k1", "submit").value(), first);  // another caller's key is another key
    EXPECT_EQ(submit("ann", "k1", "cancel").error().code, Errc::conflict);
    EXPECT_EQ(submit("ann", "", "submit").value(), std::string("id \0 3", 6));
    EXPECT_EQ(submit("ann", "", "submit").value(), std::string("id \0 4", 6));
    EXPECT_EQ(submit("ann", std::string(257, 'k'), "submit").error().code, Errc::too_large);
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM item"), 4);
}

TEST_P(StoreTest, AFailedCallDoesNotUseUpItsKey) {
    bool succeed = false;
    const auto once = [&] {
        return store_->call_once({.procedure = "p", .who = "w", .idempotency_key = "k"},
                                 [&](Tx&) -> Result<std::string> {
                                     if (!succeed) {
                                         return fail(Errc::no_capacity, "later");
                                     }
                                     return "ok";
                                 });
    };
    EXPECT_EQ(once().error().code, Errc::no_capacity);
    succeed = true;
    EXPECT_EQ(once().value(), "ok");
    succeed = false;
    EXPECT_EQ(once().value(), "ok");
}

TEST_P(StoreTest, OldAnswersAreForgotten) {
    const auto once = [&](const std::string& answer) {
        return store_->call_once({.procedure = "p", .who = "w", .idempotency_key = "k"},
                                 [&](Tx&) -> Result<std::string> { return answer; });
    };
    EXPECT_EQ(once("a").value(), "a");
    EXPECT_EQ(store_->forget_answers_before(1).value(), 0);
    EXPECT_EQ(once("b").value(), "a");
    EXPECT_EQ(store_->forget_answers_before(INT64_MAX).value(), 1);
    EXPECT_EQ(once("c").value(), "c");
}

TEST_P(StoreTest, HistorySaysWhoWhatAndWhy) {
    const auto done = store_->call(
        {.procedure = "rename", .who = "ann", .cause = "request 9"},
        [](Tx& tx) { return tx.exec("INSERT INTO item(id, name, size) VALUES (1, 'a\"b', 3)"); });
    ASSERT_TRUE(done);
    must(*store_, "UPDATE item SET name = 'c' WHERE id = 1");
    must(*store_, "DELETE FROM item");
    const auto rows = ask(*store_,
                          "SELECT c.*, i.procedure, i.status FROM change c JOIN invocation i "
                          "USING (txn) WHERE tbl = 'item' ORDER BY seq");
    ASSERT_EQ(rows.size(), 3U);
    EXPECT_EQ(rows[0].text("who"), "ann");
    EXPECT_EQ(rows[0].text("cause"), "request 9");
    EXPECT_EQ(rows[0].text("procedure"), "rename");
    EXPECT_EQ(rows[0].text("status"), "ok");
    EXPECT_EQ(rows[0].text("key"), "1");
    EXPECT_EQ(rows[0].text("op"), "insert");
    EXPECT_TRUE(rows[0].is_null("before_json"));
    EXPECT_EQ(rows[0].text("after_json"), R"({"id":1,"name":"a\"b","size":3.0,"data":null})");
    EXPECT_EQ(rows[1].text("before_json"), rows[0].text("after_json"));
    EXPECT_EQ(rows[1].text("after_json"), R"({"id":1,"name":"c","size":3.0,"data":null})");
    EXPECT_EQ(rows[2].text("op"), "delete");
    EXPECT_EQ(rows[2].text("before_json"), rows[1].text("after_json"));
    EXPECT_TRUE(rows[2].is_null("after_json"));
}

TEST_P(StoreTest, ACallThatOnlyReadsLeavesNoTrace) {
    const std::int64_t before = number(*store_, "SELECT count(*) FROM invocation");
    const auto rows =
        store_->call({.procedure = "look"}, [](Tx& tx) { return tx.query("SELECT * FROM item"); });
    EXPECT_TRUE(rows);
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM invocation"), before);
}

TEST_P(StoreTest, ExemptTablesHaveNoHistory) {
    const std::int64_t before = number(*store_, "SELECT count(*) FROM invocation");
    must(*store_, "INSERT INTO pulse VALUES (1, 5)");
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM change WHERE tbl = 'pulse'"), 0);
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM invocation"), before);
}

TEST_P(StoreTest, SecretsAreNotInTheHistory) {
    must(*store_, "INSERT INTO token VALUES ('s3cret', 'ann', NULL)");
    const auto rows = ask(*store_, "SELECT key, after_json FROM change WHERE tbl = 'token'");
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].text("key"), "***");
    EXPECT_EQ(rows[0].text("after_json"), R"({"hash":"***","owner":"ann","note":null})");
    EXPECT_EQ(ask(*store_, "SELECT hash FROM token")[0].text(0), "s3cret");
}

TEST_P(StoreTest, ACallInsideACallIsRefused) {
    const auto done = store_->call({.procedure = "outer"}, [&](Tx&) -> Result<> {
        const auto inner = store_->call({.procedure = "inner"}, [](Tx&) -> Result<> { return {}; });
        EXPECT_EQ(inner.error().code, Errc::bad_state);
        return {};
    });
    EXPECT_TRUE(done);
}

TEST_P(StoreTest, TheCheckIsClean) {
    must(*store_, "INSERT INTO item(id, name) VALUES (1, 'one')");
    EXPECT_TRUE(store_->check());
}

TEST_P(StoreTest, ABackupOpensAsAStore) {
    must(*store_, "INSERT INTO item(id, name) VALUES (1, 'one')");
    TempFolder target;
    const std::string path = target.path() + "/" + std::string(Store::kDatabaseFile);
    ASSERT_TRUE(store_->backup(path));
    EXPECT_EQ(store_->backup(path).error().code, Errc::conflict);
    const auto copy = open_store(target.path());
    EXPECT_EQ(number(*copy, "SELECT id FROM item WHERE name = 'one'"), 1);
    EXPECT_TRUE(copy->check());
}

TEST(StoreInMemory, NoMoreThanAMillionRows) {
    const auto store = open_in_memory();
    const auto rows = store->read([](ReadTx& tx) {
        return tx.query(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT i FROM n");
    });
    EXPECT_EQ(rows.error().code, Errc::too_large);
}

TEST(StoreInMemory, ASimulatedClockGivesTheInstants) {
    SimulatedEnv world(5);
    const auto store = open_in_memory(&world.env());
    world.advance_us(1'000);
    const std::int64_t now_us = world.env().clock.wall_us();
    const auto seen = store->call({.procedure = "add"}, [&](Tx& tx) -> Result<std::int64_t> {
        HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES (1, 'one')"));
        world.advance_us(50);
        return tx.now_us();
    });
    EXPECT_EQ(seen.value(), now_us);
    const auto rows =
        ask(*store, "SELECT at_us, duration_us FROM invocation WHERE procedure = 'add'");
    EXPECT_EQ(rows[0].integer(0), now_us);
    EXPECT_EQ(rows[0].integer(1), 50);
}

std::string image_of(std::uint64_t seed) {
    SimulatedEnv world(seed);
    const auto store = open_in_memory(&world.env());
    for (int round = 0; round < 20; ++round) {
        const auto done = store->call({.procedure = "add"}, [](Tx& tx) {
            return tx.exec("INSERT INTO item(id, name) VALUES ($1, $2)",
                           static_cast<std::int64_t>(tx.random() >> 1),
                           "x" + std::to_string(tx.random()));
        });
        EXPECT_TRUE(done);
    }
    return store->image().value();
}

TEST(StoreInMemory, TheSameSeedGivesTheSameBytes) {
    EXPECT_EQ(image_of(3), image_of(3));
    EXPECT_NE(image_of(3), image_of(4));
}

TEST(StoreInMemory, AnImageIsARestart) {
    const auto first = open_in_memory();
    must(*first, "INSERT INTO item(id, name) VALUES (1, 'one')");
    auto second = Store::open(
        {.migrations = kTestMigrations, .in_memory = true, .image = first->image().value()});
    ASSERT_TRUE(second) << second.error().describe();
    must(**second, "INSERT INTO item(id, name) VALUES (2, 'two')");
    EXPECT_EQ(tables_replayed(**second), tables_now(**second));
    EXPECT_EQ(number(**second, "SELECT count(*) FROM item"), 2);
    EXPECT_EQ(number(*first, "SELECT count(*) FROM item"), 1);
}

TEST(StoreOnFile, ASecondServerIsRefusedAndToldWhoIsThere) {
    TempFolder folder;
    auto store = open_store(folder.path());
    const auto second = Store::open({.directory = folder.path(), .migrations = kTestMigrations});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Errc::store_locked);
    EXPECT_THAT(second.error().message, HasSubstr("process " + std::to_string(getpid())));
    store.reset();
    EXPECT_TRUE(Store::open({.directory = folder.path(), .migrations = kTestMigrations}));
}

TEST(StoreOnFile, NumbersGoOnAfterAReopen) {
    TempFolder folder;
    auto store = open_store(folder.path());
    must(*store, "INSERT INTO item(id, name) VALUES (1, 'one')");
    const StoreStats before = store->stats();
    store.reset();
    store = open_store(folder.path());
    EXPECT_EQ(store->stats().last_seq, before.last_seq);
    EXPECT_EQ(store->stats().last_txn, before.last_txn);
    must(*store, "INSERT INTO item(id, name) VALUES (2, 'two')");
    EXPECT_EQ(store->stats().last_seq, before.last_seq + 1);
    EXPECT_EQ(tables_replayed(*store), tables_now(*store));
}

TEST(StoreOnFile, AnotherProgramReadsWhileItIsOpen) {
    TempFolder folder;
    const auto store = open_store(folder.path());
    must(*store, "INSERT INTO item(id, name) VALUES (1, 'one')");
    sqlite3* other = nullptr;
    const std::string path = folder.path() + "/holdfast.db";
    ASSERT_EQ(sqlite3_open_v2(path.c_str(), &other, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
    sqlite3_stmt* statement = nullptr;
    ASSERT_EQ(sqlite3_prepare_v2(other, "SELECT name FROM item", -1, &statement, nullptr),
              SQLITE_OK);
    ASSERT_EQ(sqlite3_step(statement), SQLITE_ROW);
    must(*store, "INSERT INTO item(id, name) VALUES (2, 'two')");  // does not wait for the reader
    sqlite3_finalize(statement);
    sqlite3_close(other);
}

TEST(StoreOnFile, ForeignAndBrokenFilesAreRefused) {
    TempFolder folder;
    const std::string path = folder.path() + "/holdfast.db";
    Files& files = real_env().files;
    ASSERT_TRUE(files.write_file_atomic(path, std::string(8192, 'x'), 0600));
    const auto broken = Store::open({.directory = folder.path(), .migrations = kTestMigrations});
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.error().code, Errc::store_corrupt) << broken.error().describe();
    ASSERT_TRUE(files.remove(path));
    sqlite3* other = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &other), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(other, "CREATE TABLE mine (a)", nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(other);
    const auto foreign = Store::open({.directory = folder.path(), .migrations = kTestMigrations});
    EXPECT_EQ(foreign.error().code, Errc::conflict);
}

TEST(StoreOnFile, ADamagedPageIsFoundByTheCheck) {
    TempFolder folder;
    const std::string path = folder.path() + "/holdfast.db";
    {
        const auto store = open_store(folder.path());
        must(*store,
             "INSERT INTO item(id, name) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT "
             "i + 1 FROM n WHERE i < 500) SELECT i, 'a name long enough to fill pages ' || i "
             "FROM n");
    }
    std::string bytes = real_env().files.read_file(path, 100'000'000).value();
    for (std::size_t page = 20; page * 4096 + 4096 <= bytes.size(); page += 3) {
        bytes.replace(page * 4096 + 8, 64, 64, '\x5a');
    }
    ASSERT_TRUE(real_env().files.write_file_atomic(path, bytes, 0600));
    auto store = Store::open({.directory = folder.path(), .migrations = kTestMigrations});
    const auto found = store ? (*store)->check() : Result<>(fail(store.error()));
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, Errc::store_corrupt) << found.error().describe();
}

TEST(StoreOnFile, AnEndlessCallIsInterrupted) {
    TempFolder folder;
    auto store = std::move(*Store::open(
        {.directory = folder.path(), .migrations = kTestMigrations, .call_budget_us = 20'000}));
    const auto endless = store->call({.procedure = "endless"}, [](Tx& tx) {
        return tx.query(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT sum(i) FROM n");
    });
    EXPECT_EQ(endless.error().code, Errc::timed_out);
    const auto writing = store->call({.procedure = "endless"}, [](Tx& tx) {
        return tx.exec(
            "INSERT INTO item(id, name) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
            "SELECT i + 1 FROM n) SELECT i, 'x' || i FROM n");
    });
    EXPECT_EQ(writing.error().code, Errc::timed_out);
    EXPECT_EQ(number(*store, "SELECT count(*) FROM item"), 0);
    must(*store, "INSERT INTO item(id, name) VALUES (1, 'one')");
    EXPECT_EQ(tables_replayed(*store), tables_now(*store));
}

TEST(RowDeathTest, MisuseIsABug) {
    const auto store = open_in_memory();
    const Row row = ask(*store, "SELECT 1 AS a, 'x' AS b, NULL AS c")[0];
    EXPECT_EQ(row.integer_or("c", 9), 9);
    EXPECT_EQ(row.text_or("c", "none"), "none");
    EXPECT_TRUE(row.has("a"));
    EXPECT_FALSE(row.has("d"));
    EXPECT_EQ(row.real("a"), 1.0);
    EXPECT_DEATH((void)row.integer("b"), "type it holds");
    EXPECT_DEATH((void)row.text(0), "type it holds");
    EXPECT_DEATH((void)row.value(3), "column it has");
    EXPECT_DEATH((void)row.value("d"), "column d");
}

TEST(ShippedMigrations, ApplyToAnEmptyStore) {
    auto store = Store::open({.migrations = shipped_migrations(), .in_memory = true});
    ASSERT_TRUE(store) << store.error().describe();
    EXPECT_EQ((*store)->schema_version(), static_cast<int>(shipped_migrations().size()));
    EXPECT_TRUE((*store)->check());
}

}  // namespace
}  // namespace holdfast::store
