// SPDX-License-Identifier: Apache-2.0
/// Which deltas a call yields, exactly.
#include "fixture.hpp"

namespace holdfast::store {
namespace {

using testing::ElementsAre;

class DeltaTest : public testing::Test {
  protected:
    DeltaTest() : store_(open_in_memory()) {
        subscription_ = store_->subscribe({}, [this](const std::vector<Delta>& deltas) {
            for (const Delta& delta : deltas) {
                seen_.push_back(text_of(delta));
                all_.push_back(delta);
            }
        });
    }

    /// Runs statements as one call; the deltas are in seen_.
    Result<> run(const std::vector<std::string>& statements) {
        seen_.clear();
        return store_->call({.procedure = "test"}, [&](Tx& tx) -> Result<> {
            for (const std::string& sql : statements) {
                (void)tx.exec(sql);  // failing statements are part of the cases
            }
            return {};
        });
    }

    std::unique_ptr<Store> store_;
    std::vector<std::string> seen_;
    std::vector<Delta> all_;
    Subscription subscription_;
};

TEST_F(DeltaTest, InsertUpdateDelete) {
    ASSERT_TRUE(run({"INSERT INTO item(id, name, size, data) VALUES (1, 'a', 2, x'00ff')",
                     "UPDATE item SET size = 2.5", "DELETE FROM item"}));
    EXPECT_THAT(
        seen_,
        ElementsAre(
            R"(insert item 1 - {"id":1,"name":"a","size":2.0,"data":{"hex":"00ff"}})",
            R"(update item 1 {"id":1,"name":"a","size":2.0,"data":{"hex":"00ff"}} {"id":1,"name":"a","size":2.5,"data":{"hex":"00ff"}})",
            R"(delete item 1 {"id":1,"name":"a","size":2.5,"data":{"hex":"00ff"}} -)"));
    EXPECT_EQ(all_[0].txn, all_[2].txn);
    EXPECT_EQ(all_[0].seq + 2, all_[2].seq);
    EXPECT_EQ(all_[1].row().real("size"), 2.5);
    EXPECT_EQ(all_[2].row().text("name"), "a");
}

TEST_F(DeltaTest, ReplaceShowsItsHiddenDeletes) {
    ASSERT_TRUE(run({"INSERT INTO item(id, name) VALUES (1, 'a'), (2, 'b')"}));
    ASSERT_TRUE(run({"REPLACE INTO item(id, name) VALUES (2, 'a')"}));
    EXPECT_THAT(seen_,
                ElementsAre(R"(delete item 2 {"id":2,"name":"b","size":null,"data":null} -)",
                            R"(delete item 1 {"id":1,"name":"a","size":null,"data":null} -)",
                            R"(insert item 2 - {"id":2,"name":"a","size":null,"data":null})"));
    EXPECT_EQ(tables_replayed(*store_), tables_now(*store_));
}

TEST_F(DeltaTest, UpsertIsOneUpdate) {
    ASSERT_TRUE(run({"INSERT INTO tally VALUES ('x', 1)"}));
    ASSERT_TRUE(run(
        {"INSERT INTO tally VALUES ('x', 5) ON CONFLICT (name) DO UPDATE SET parts = parts + 5"}));
    EXPECT_THAT(seen_,
                ElementsAre(R"(update tally x {"name":"x","parts":1} {"name":"x","parts":6})"));
}

TEST_F(DeltaTest, CascadesAndTriggersAreSeen) {
    ASSERT_TRUE(run({"INSERT INTO item(id, name) VALUES (1, 'a')",
                     "INSERT INTO part VALUES (1, 1, 'x'), (1, 2, 'y')"}));
    ASSERT_EQ(seen_.size(), 5U);  // item, 2 parts, 2 counts by the trigger
    EXPECT_EQ(seen_[1], R"(insert part [1,1] - {"item":1,"no":1,"what":"x"})");
    EXPECT_EQ(seen_[2], R"(update tally all {"name":"all","parts":0} {"name":"all","parts":1})");
    ASSERT_TRUE(run({"DELETE FROM item WHERE id = 1"}));
    EXPECT_THAT(seen_, ElementsAre(R"(delete item 1 {"id":1,"name":"a","size":null,"data":null} -)",
                                   R"(delete part [1,1] {"item":1,"no":1,"what":"x"} -)",
                                   R"(delete part [1,2] {"item":1,"no":2,"what":"y"} -)"));
}

TEST_F(DeltaTest, AChangedKeyCarriesItsRowsAlong) {
    ASSERT_TRUE(
        run({"INSERT INTO item(id, name) VALUES (1, 'a')", "INSERT INTO part VALUES (1, 1, 'x')"}));
    ASSERT_TRUE(run({"UPDATE item SET id = 9 WHERE id = 1"}));
    EXPECT_EQ(tables_replayed(*store_), tables_now(*store_));
    ASSERT_GE(seen_.size(), 2U);
    EXPECT_EQ(
        seen_[0],
        R"(update item 9 {"id":1,"name":"a","size":null,"data":null} {"id":9,"name":"a","size":null,"data":null})");
}

TEST_F(DeltaTest, DeleteOfAllRowsIsSeenRowByRow) {
    ASSERT_TRUE(run({"INSERT INTO pulse VALUES (1, 1), (2, 2)"}));
    ASSERT_TRUE(run({"DELETE FROM pulse"}));
    EXPECT_THAT(seen_, ElementsAre(R"(delete pulse 1 {"node":1,"at_us":1} -)",
                                   R"(delete pulse 2 {"node":2,"at_us":2} -)"));
}

TEST_F(DeltaTest, AFailedStatementYieldsNothing) {
    ASSERT_TRUE(run({"INSERT INTO item(id, name) VALUES (1, 'a')"}));
    ASSERT_TRUE(
        run({"INSERT INTO item(id, name) VALUES (2, 'b'), (3, 'c'), (4, 'a')",
             "UPDATE item SET id = id + 1, size = -1", "INSERT INTO tally VALUES ('x', 1)"}));
    EXPECT_THAT(seen_, ElementsAre(R"(insert tally x - {"name":"x","parts":1})"));
    EXPECT_EQ(tables_replayed(*store_), tables_now(*store_));
}

TEST_F(DeltaTest, OrFailLeavesNoHalfEither) {
    ASSERT_TRUE(run({"INSERT INTO item(id, name) VALUES (1, 'a')"}));
    ASSERT_TRUE(run({"INSERT OR FAIL INTO item(id, name) VALUES (2, 'b'), (3, 'a')",
                     "UPDATE or  fail item SET name = 'z'"}));
    EXPECT_EQ(number(*store_, "SELECT count(*) FROM item"), 1);
    EXPECT_EQ(tables_replayed(*store_), tables_now(*store_));
}

TEST_F(DeltaTest, OrIgnoreSkipsARow) {
    ASSERT_TRUE(run({"INSERT INTO item(id, name) VALUES (1, 'a')"}));
    ASSERT_TRUE(run({"INSERT OR IGNORE INTO item(id, name) VALUES (2, 'a'), (3, 'c')"}));
    EXPECT_THAT(seen_,
                ElementsAre(R"(insert item 3 - {"id":3,"name":"c","size":null,"data":null})"));
}

TEST_F(DeltaTest, OrRollbackEndsTheCallAndNothingStays) {
    ASSERT_TRUE(run({"INSERT INTO item(id, name) VALUES (1, 'a')"}));
    const auto done = run({"INSERT INTO tally VALUES ('x', 1)",
                           "INSERT OR ROLLBACK INTO item(id, name) VALUES (2, 'b'), (3, 'a')"});
    EXPECT_FALSE(done);
    EXPECT_TRUE(seen_.empty());
    ASSERT_TRUE(run({"INSERT INTO item(id, name) VALUES (5, 'e')"}));
    EXPECT_EQ(tables_replayed(*store_), tables_now(*store_));
}

TEST_F(DeltaTest, AFailedCallYieldsNothing) {
    const auto done = store_->call({.procedure = "test"}, [](Tx& tx) -> Result<> {
        HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES (1, 'a')"));
        return fail(Errc::failed, "no");
    });
    EXPECT_FALSE(done);
    EXPECT_TRUE(seen_.empty());
}

TEST_F(DeltaTest, AnUnchangedUpdateIsStillADelta) {
    ASSERT_TRUE(run({"INSERT INTO pulse VALUES (1, 1)"}));
    ASSERT_TRUE(run({"UPDATE pulse SET at_us = 1"}));
    EXPECT_THAT(seen_, ElementsAre(R"(update pulse 1 {"node":1,"at_us":1} {"node":1,"at_us":1})"));
}

TEST_F(DeltaTest, SecretsAreHiddenFromSubscribers) {
    ASSERT_TRUE(run({"INSERT INTO token VALUES ('s3cret', 'ann', 'n')"}));
    EXPECT_THAT(seen_,
                ElementsAre(R"(insert token *** - {"hash":"***","owner":"ann","note":"n"})"));
}

TEST_F(DeltaTest, SubscribersGetTheTablesTheyAskedFor) {
    std::vector<std::string> got;
    auto chosen = store_->subscribe({"tally", "pulse"}, [&](const std::vector<Delta>& deltas) {
        for (const Delta& delta : deltas) {
            got.push_back(delta.table);
        }
    });
    ASSERT_TRUE(run({"INSERT INTO item(id, name) VALUES (1, 'a')",
                     "INSERT INTO part VALUES (1, 1, 'x')", "INSERT INTO pulse VALUES (1, 1)"}));
    EXPECT_THAT(got, ElementsAre("tally", "pulse"));
    chosen.cancel();
    ASSERT_TRUE(run({"INSERT INTO pulse VALUES (2, 1)"}));
    EXPECT_EQ(got.size(), 2U);
}

TEST_F(DeltaTest, AHandlerMayCallTheStoreAndOrderHolds) {
    std::vector<std::int64_t> order;
    auto echo = store_->subscribe({"pulse"}, [&](const std::vector<Delta>& deltas) {
        for (const Delta& delta : deltas) {
            order.push_back(delta.seq);
            if (delta.op == Op::insert && delta.row().integer("node") < 5) {
                must(*store_, "INSERT INTO pulse VALUES ($1, 0)", delta.row().integer("node") + 1);
            }
        }
    });
    ASSERT_TRUE(run({"INSERT INTO pulse VALUES (1, 0)"}));
    EXPECT_EQ(order.size(), 5U);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(DeltaTest, TextThatIsNotUtf8IsNotLost) {
    seen_.clear();
    const auto done = store_->call({.procedure = "test"}, [](Tx& tx) {
        return tx.exec("INSERT INTO tally VALUES ($1, 1)", std::string("\xff\n\x01 é", 6));
    });
    ASSERT_TRUE(done);
    EXPECT_THAT(
        seen_,
        ElementsAre(
            R"(insert tally {"hex":"ff0a0120c3a9"} - {"name":{"hex":"ff0a0120c3a9"},"parts":1})"));
}

}  // namespace
}  // namespace holdfast::store
