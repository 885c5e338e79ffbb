// SPDX-License-Identifier: Apache-2.0
/// Training runs: deaths, returns, epochs, steps, ends.
#include <cmath>
#include <limits>

#include "world.hpp"

namespace holdfast::services {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Training : public testing::Test {
  protected:
    Training() {
        world_.node("n1", 2);
        world_.node("n2", 2);
        id_ = world_.submit_one(training(2, 2));
        leases_ = world_.granted(id_, {"n1", "n1", "n2", "n2"});
        for (const LeaseRow& lease : leases_) {
            world_.start(lease);
        }
    }

    Result<> epoch(std::int64_t number, std::int64_t step, const std::vector<int>& ranks,
                   std::int32_t redone = 0) {
        return world_.call([&](store::Tx& tx) -> Result<> {
            HOLD_TRY(const auto tasks, tasks_of(tx, id_));
            std::vector<TrainingWorkerRow> live;
            for (const int rank : ranks) {
                TrainingWorkerRow worker;
                worker.pipeline = rank / 2;
                worker.stage = rank % 2;
                worker.lease = tasks[static_cast<std::size_t>(rank)].lease;
                live.push_back(worker);
            }
            return training_epoch(tx, id_, number, step, live, "key", redone);
        });
    }

    Result<> step(std::int64_t number, std::int64_t index, double loss = 1.5) {
        return world_.call(
            [&](store::Tx& tx) { return training_step(tx, id_, number, index, loss, 1000); });
    }

    void dead(int rank, LeaseId lease, const std::string& why = "its socket closed") {
        world_.must(
            [&](store::Tx& tx) { return worker_dead(tx, id_, rank / 2, rank % 2, lease, why); });
    }

    Result<> state(const std::string& word, const std::string& why = "") {
        return world_.call([&](store::Tx& tx) { return training_state(tx, id_, word, why); });
    }

    TrainingRunRow run() {
        return world_.must([&](store::Tx& tx) { return find_training(tx, id_); });
    }

    TrainingWorkerRow worker(std::size_t rank) {
        return world_.must([&](store::Tx& tx) { return workers_of(tx, id_); }).at(rank);
    }

    World world_;
    JobId id_;
    std::vector<LeaseRow> leases_;
};

TEST_F(Training, EpochsBeginOneAfterAnother) {
    EXPECT_EQ(worker(0).state, "waiting");
    EXPECT_EQ(worker(0).node, "n1");
    EXPECT_EQ(worker(0).lease, leases_[0].id);
    EXPECT_EQ(epoch(2, 0, {0, 1, 2, 3}).error().code, Errc::stale_epoch);
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    EXPECT_EQ(run().epoch, 1);
    EXPECT_EQ(run().state, "running");
    EXPECT_EQ(run().cluster_key, "key");
    EXPECT_EQ(worker(3).state, "live");
    EXPECT_EQ(worker(3).epoch, 1);
    EXPECT_EQ(epoch(1, 0, {0, 1, 2, 3}).error().code, Errc::stale_epoch);
    EXPECT_THAT(world_.events(id_), ElementsAre("began"));
    EXPECT_RULES_HOLD(world_);
}

TEST_F(Training, AnEpochNeedsTheLeasesOfItsWorkers) {
    const auto begin = [&](const TrainingWorkerRow& live) {
        return world_.code(
            [&](store::Tx& tx) { return training_epoch(tx, id_, 1, 0, {live}, "key", 0); });
    };
    TrainingWorkerRow live;
    EXPECT_EQ(begin(live), Errc::stale_lease);
    live.lease = leases_[1].id;
    EXPECT_EQ(begin(live), Errc::stale_lease);
    live.pipeline = 7;
    EXPECT_EQ(begin(live), Errc::not_found);
}

TEST_F(Training, ADeadWorkerDoesNotStopTheJob) {
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    ASSERT_TRUE(step(1, 0));
    dead(3, leases_[3].id);
    EXPECT_EQ(world_.job(id_).state, "running");
    EXPECT_EQ(world_.states(id_), "running running running pending");
    EXPECT_EQ(worker(3).state, "dead");
    EXPECT_EQ(worker(3).why, "its socket closed");
    EXPECT_EQ(worker(3).node, "n2");
    EXPECT_EQ(run().state, "recovering");
    EXPECT_EQ(world_.revoked("n2").size(), 1U);
    dead(3, leases_[3].id);  // a repeat
    dead(3, LeaseId(99));    // a lease that is not its
    EXPECT_THAT(world_.events(id_), ElementsAre("began", "worker_dead 1:1"));
    EXPECT_RULES_HOLD(world_);

    ASSERT_TRUE(epoch(2, 1, {0, 1, 2}, 1));
    ASSERT_TRUE(step(2, 1));
    ASSERT_TRUE(step(2, 2));
    // The agent says that the process is gone; the worker is placed again and rejoins.
    ASSERT_TRUE(world_.end(leases_[3], {.state = "failed", .exit_code = 0, .signal = 9}));
    EXPECT_THAT(world_.revoked("n2"), IsEmpty());
    const auto again = world_.granted(id_, {"n2"});
    ASSERT_EQ(again.size(), 1U);
    EXPECT_EQ(again[0].task, leases_[3].task);
    EXPECT_GT(again[0].id, leases_[3].id);
    EXPECT_EQ(worker(3).state, "waiting");
    EXPECT_EQ(worker(3).lease, again[0].id);
    ASSERT_TRUE(epoch(3, 3, {0, 1, 2, 3}));
    ASSERT_TRUE(step(3, 3));
    EXPECT_EQ(worker(3).state, "live");
    EXPECT_EQ(worker(3).epoch, 3);
    EXPECT_EQ(worker(0).epoch, 1);
    EXPECT_THAT(world_.events(id_), ElementsAre("began", "worker_dead 1:1", "epoch", "first_step",
                                                "rejoined 1:1", "epoch", "first_step"));
    const auto recovery =
        world_.read([](store::ReadTx& tx) { return tx.query_one("SELECT * FROM v_recovery"); });
    ASSERT_TRUE(recovery.has_value()) << recovery.error().message;
    EXPECT_EQ((*recovery)->text("worker"), "1:1");
    EXPECT_EQ((*recovery)->integer("next_epoch"), 2);
    EXPECT_EQ((*recovery)->integer("redone"), 1);
    EXPECT_FALSE((*recovery)->is_null("resume_ms"));
    EXPECT_FALSE((*recovery)->is_null("rejoined_us"));
    EXPECT_RULES_HOLD(world_);
}

TEST_F(Training, ANodeTakesItsWorkersWithIt) {
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    world_.down("n2");
    EXPECT_EQ(world_.job(id_).state, "running");
    EXPECT_EQ(world_.job(id_).restarts, 0);
    EXPECT_EQ(world_.states(id_), "running running pending pending");
    EXPECT_THAT(world_.events(id_), ElementsAre("began", "worker_dead 1:0", "worker_dead 1:1"));
    const auto workers = world_.must([](store::Tx& tx) { return placed_workers(tx); });
    ASSERT_EQ(workers.size(), 2U);
    EXPECT_EQ(workers[1].pipeline, 0);
    EXPECT_EQ(workers[1].stage, 1);
    EXPECT_EQ(workers[1].job, id_);
    // One of the two may be placed alone.
    world_.node("n3", 1);
    EXPECT_EQ(world_.granted(id_, {"n3"}).size(), 1U);
    EXPECT_EQ(world_.states(id_), "running running leased pending");
    EXPECT_RULES_HOLD(world_);
}

TEST_F(Training, AWorkerThatKeepsFailingEndsTheJob) {
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    LeaseRow lease = leases_[3];
    for (int count = 1; count <= 4; ++count) {
        ASSERT_TRUE(world_.end(lease, {.state = "failed", .exit_code = 2, .reason = "no data"}));
        EXPECT_EQ(world_.states(id_), "running running running pending");
        EXPECT_EQ(worker(3).why, "its process ended with exit code 2: no data");
        lease = world_.granted(id_, {"n2"}).at(0);
    }
    // A step in between: the count begins anew.
    ASSERT_TRUE(step(1, 0));
    for (int count = 1; count <= 4; ++count) {
        ASSERT_TRUE(world_.end(lease, {.state = "failed", .exit_code = 2}));
        lease = world_.granted(id_, {"n2"}).at(0);
    }
    ASSERT_TRUE(world_.end(lease, {.state = "failed", .exit_code = 2}));
    EXPECT_EQ(world_.job(id_).state, "failed");
    EXPECT_EQ(world_.job(id_).exit_code, 2);
    EXPECT_THAT(world_.job(id_).reason,
                HasSubstr("worker 1:1: its process ended with exit code 2, 5 times at step 1"));
    EXPECT_EQ(run().state, "failed");
    EXPECT_RULES_HOLD(world_);
}

TEST_F(Training, AWorkerThatLeavesEarlyIsDead) {
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    ASSERT_TRUE(world_.end(leases_[0], {.state = "completed"}));
    EXPECT_EQ(world_.states(id_), "pending running running running");
    EXPECT_THAT(worker(0).why, HasSubstr("before the run had finished"));
}

TEST_F(Training, FinishesWithItsLastWorker) {
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    dead(3, leases_[3].id);
    ASSERT_TRUE(epoch(2, 0, {0, 1, 2}));
    ASSERT_TRUE(state("finished"));
    EXPECT_EQ(world_.job(id_).state, "running");
    EXPECT_EQ(world_.states(id_), "running running running cancelled");
    ASSERT_TRUE(world_.end(leases_[0], {.state = "completed"}));
    ASSERT_TRUE(world_.end(leases_[1], {.state = "completed"}));
    // The run is done, however the last worker goes.
    ASSERT_TRUE(world_.end(leases_[2], {.state = "failed", .exit_code = 1}));
    EXPECT_EQ(world_.job(id_).state, "completed");
    EXPECT_EQ(run().state, "finished");
    EXPECT_EQ(state("running").error().code, Errc::bad_state);
    ASSERT_TRUE(state("finished"));
    EXPECT_RULES_HOLD(world_);
}

TEST_F(Training, FinishesWithoutAnyWorker) {
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    world_.down("n1");
    world_.down("n2");
    ASSERT_TRUE(state("finished"));
    EXPECT_EQ(world_.job(id_).state, "completed");
    EXPECT_RULES_HOLD(world_);
}

TEST_F(Training, NodesLostAfterTheFinishCompleteIt) {
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    ASSERT_TRUE(state("finished"));
    world_.down("n1");
    EXPECT_RULES_HOLD(world_);
    world_.down("n2");
    EXPECT_EQ(world_.job(id_).state, "completed");
    EXPECT_RULES_HOLD(world_);
}

TEST_F(Training, FailsAndIsCancelled) {
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    ASSERT_TRUE(state("stalled", "stage 1 has no worker"));
    EXPECT_EQ(run().reason, "stage 1 has no worker");
    ASSERT_TRUE(state("stalled", "stage 0 has no worker"));
    EXPECT_EQ(run().reason, "stage 0 has no worker");
    EXPECT_EQ(state("sleeping").error().code, Errc::invalid_argument);
    ASSERT_TRUE(state("failed", "stage 1 is lost"));
    EXPECT_EQ(world_.job(id_).state, "failed");
    EXPECT_EQ(world_.job(id_).reason, "stage 1 is lost");
    EXPECT_THAT(world_.events(id_), ElementsAre("began", "stalled", "failed"));
    EXPECT_EQ(world_.revoked("n1").size(), 2U);
    EXPECT_EQ(epoch(2, 0, {}).error().code, Errc::bad_state);
    EXPECT_RULES_HOLD(world_);

    world_.confirm_all("n1");
    const JobId other = world_.submit_one(training(1, 2));
    world_.granted(other, {"n1", "n1"});
    world_.must([&](store::Tx& tx) { return cancel(tx, other, "enough"); });
    EXPECT_EQ(world_.must([&](store::Tx& tx) { return find_training(tx, other); }).state, "failed");
    EXPECT_RULES_HOLD(world_);
}

TEST_F(Training, StepsAreStoredOnceAndFenced) {
    EXPECT_EQ(step(1, 0).error().code, Errc::stale_epoch);
    ASSERT_TRUE(epoch(1, 0, {0, 1, 2, 3}));
    ASSERT_TRUE(step(1, 0, 2.5));
    ASSERT_TRUE(step(1, 0, 9.0));
    ASSERT_TRUE(step(1, 1, std::numeric_limits<double>::quiet_NaN()));
    EXPECT_EQ(run().step, 2);
    EXPECT_EQ(step(2, 2).error().code, Errc::stale_epoch);
    dead(3, leases_[3].id);
    // Step 2 was completed by all before the death, its report comes late.
    ASSERT_TRUE(epoch(2, 3, {0, 1, 2}));
    EXPECT_EQ(run().step, 3);
    ASSERT_TRUE(step(1, 2));
    EXPECT_EQ(step(1, 3).error().code, Errc::stale_epoch);
    ASSERT_TRUE(step(2, 3));
    const auto rows = world_.read([](store::ReadTx& tx) {
        return tx.query(
            "SELECT step || ' ' || epoch || ' ' || coalesce(loss, 'none') FROM "
            "training_step ORDER BY step");
    });
    std::vector<std::string> lines;
    for (const store::Row& row : rows.value()) {
        lines.push_back(row.text(0));
    }
    EXPECT_THAT(lines, ElementsAre("0 1 2.5", "1 1 none", "2 1 1.5", "3 2 1.5"));

    // Going back takes rows back.
    dead(2, leases_[2].id);
    ASSERT_TRUE(epoch(3, 1, {0, 1}));
    EXPECT_EQ(run().step, 1);
    const auto left = world_.read(
        [](store::ReadTx& tx) { return tx.query_one("SELECT count(*) FROM training_step"); });
    EXPECT_EQ((*left)->integer(0), 1);
}

TEST_F(Training, EventsAreNotRepeated) {
    const auto say = [&](std::int64_t number) {
        world_.must([&](store::Tx& tx) {
            return training_event(tx, id_, "rejoined", "1:1", "back", number, 3, 0);
        });
    };
    say(2);
    say(2);
    say(3);
    EXPECT_THAT(world_.events(id_), ElementsAre("rejoined 1:1", "rejoined 1:1"));
    EXPECT_EQ(world_.code([](store::Tx& tx) {
        return training_event(tx, JobId(99), "stalled", "", "", 0, 0, 0);
    }),
              Errc::not_found);
}

TEST_F(Training, RecoveryNoneEndsWithTheFirstLoss) {
    JobSpec spec = training(1, 1);
    spec.recovery = "none";
    world_.node("n3", 1);
    const JobId id = world_.submit_one(spec);
    world_.granted(id, {"n3"});
    world_.down("n3");
    EXPECT_EQ(world_.job(id).state, "node_fail");
    EXPECT_RULES_HOLD(world_);
}

}  // namespace
}  // namespace holdfast::services
