// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

namespace holdfast::services {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Submit, WritesTheJobAndItsTasks) {
    World world;
    JobSpec spec = checked(command(3, 1)).value();
    spec.priority = 4;
    const JobId id = world.submit_one(spec);
    const JobRow job = world.job(id);
    EXPECT_EQ(job.id, JobId(1));
    EXPECT_EQ(job.name, "job");
    EXPECT_EQ(job.user, "ada");
    EXPECT_EQ(job.pool, "default");
    EXPECT_EQ(job.state, "pending");
    EXPECT_EQ(job.priority, 4);
    EXPECT_GT(job.submit_us, 0);
    EXPECT_EQ(job.start_us, 0);
    EXPECT_EQ(job.tasks, 3);
    EXPECT_EQ(job.per_task, spec.per_task);
    EXPECT_EQ(job.recovery, "requeue");
    EXPECT_EQ(job.array_parent, 0);
    EXPECT_EQ(job.spec, spec);
    const auto tasks = world.tasks(id);
    ASSERT_EQ(tasks.size(), 3U);
    for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(tasks[rank].rank, static_cast<std::int32_t>(rank));
        EXPECT_EQ(tasks[rank].state, "pending");
        EXPECT_FALSE(tasks[rank].lease.is_set());
        EXPECT_EQ(tasks[rank].worker, "");
    }
    EXPECT_RULES_HOLD(world);
}

TEST(Submit, AnArrayIsManyJobsWithOneSpec) {
    World world;
    JobSpec spec = command(2);
    spec.array = {3, 1, 7};
    spec.array_at_once = 2;
    const Submitted submitted = world.submit_all(spec);
    EXPECT_EQ(submitted.job, 1);
    EXPECT_THAT(submitted.elements, ElementsAre(JobId(2), JobId(3), JobId(4)));
    EXPECT_EQ(world.job(JobId(2)).array_parent, 1);
    EXPECT_EQ(world.job(JobId(2)).array_index, 3);
    EXPECT_EQ(world.job(JobId(4)).array_index, 7);
    EXPECT_THAT(world.job(JobId(3)).spec.array, IsEmpty());
    EXPECT_EQ(world.job(JobId(3)).spec.array_at_once, 2);
    EXPECT_EQ(world.tasks(JobId(4)).size(), 2U);
    EXPECT_THAT(world.must([](store::Tx& tx) { return jobs_named(tx, 1); }),
                ElementsAre(JobId(2), JobId(3), JobId(4)));
    EXPECT_THAT(world.must([](store::Tx& tx) { return jobs_named(tx, 3); }), ElementsAre(JobId(3)));
    EXPECT_EQ(world.code([](store::Tx& tx) { return jobs_named(tx, 99); }), Errc::not_found);
    EXPECT_EQ(world.code([](store::Tx& tx) { return jobs_named(tx, 0); }), Errc::not_found);
}

TEST(Submit, ATrainingJobHasARunAndItsWorkers) {
    World world;
    const JobId id = world.submit_one(training(2, 3));
    std::vector<std::string> names;
    for (const TaskRow& task : world.tasks(id)) {
        names.push_back(task.worker);
    }
    EXPECT_THAT(names, ElementsAre("0:0", "0:1", "0:2", "1:0", "1:1", "1:2"));
    const TrainingRunRow run = world.must([&](store::Tx& tx) { return find_training(tx, id); });
    EXPECT_EQ(run.state, "forming");
    EXPECT_EQ(run.epoch, 0);
    const auto workers = world.must([&](store::Tx& tx) { return workers_of(tx, id); });
    ASSERT_EQ(workers.size(), 6U);
    EXPECT_EQ(workers[5].pipeline, 1);
    EXPECT_EQ(workers[5].stage, 2);
    EXPECT_EQ(workers[5].state, "waiting");
}

TEST(Submit, NeedsAPoolAndAUser) {
    World world;
    JobSpec spec = checked(command()).value();
    EXPECT_EQ(world.code([&](store::Tx& tx) { return submit(tx, spec, ""); }),
              Errc::invalid_argument);
    spec.pool = "nowhere";
    EXPECT_EQ(world.code([&](store::Tx& tx) { return submit(tx, spec, "ada"); }), Errc::not_found);
}

TEST(Jobs, PauseResumeCancelFollowTheTable) {
    World world;
    world.node("n1");
    const auto pause_it = [](JobId id) { return [id](store::Tx& tx) { return pause(tx, id); }; };
    const auto resume_it = [](JobId id) { return [id](store::Tx& tx) { return resume(tx, id); }; };
    const auto cancel_it = [](JobId id) {
        return [id](store::Tx& tx) { return cancel(tx, id, "enough"); };
    };
    const JobId id = world.submit_one(command());
    EXPECT_EQ(world.code(resume_it(id)), Errc::bad_state);
    world.must(pause_it(id));
    EXPECT_EQ(world.job(id).state, "paused");
    EXPECT_EQ(world.job(id).reason, "held");
    EXPECT_EQ(world.code(pause_it(id)), Errc::bad_state);
    EXPECT_FALSE(world.grant(id, {"n1"}).has_value());
    world.must(resume_it(id));
    EXPECT_EQ(world.job(id).state, "pending");
    EXPECT_EQ(world.job(id).reason, "");
    world.granted(id, {"n1"});
    EXPECT_EQ(world.code(pause_it(id)), Errc::bad_state);
    EXPECT_EQ(world.code(resume_it(id)), Errc::bad_state);
    world.must(cancel_it(id));
    EXPECT_EQ(world.job(id).state, "cancelled");
    EXPECT_EQ(world.code(pause_it(id)), Errc::bad_state);
    EXPECT_EQ(world.code(resume_it(id)), Errc::bad_state);
    EXPECT_EQ(world.code(cancel_it(id)), Errc::bad_state);
    EXPECT_EQ(world.code(cancel_it(JobId(99))), Errc::not_found);

    JobSpec held = command();
    held.hold = true;
    const JobId other = world.submit_one(held);
    EXPECT_EQ(world.job(other).state, "paused");
    world.must(cancel_it(other));
    EXPECT_EQ(world.states(other), "cancelled");
    EXPECT_RULES_HOLD(world);
}

TEST(Jobs, CancelRevokesLeasesUntilTheAgentConfirms) {
    World world;
    world.node("n1", 2);
    const JobId id = world.submit_one(command(2, 1));
    const auto leases = world.granted(id, {"n1", "n1"});
    world.start(leases[0]);
    world.must([&](store::Tx& tx) { return cancel(tx, id, "enough"); });
    EXPECT_EQ(world.states(id), "cancelled cancelled");
    EXPECT_EQ(world.job(id).reason, "enough");
    EXPECT_GT(world.job(id).end_us, 0);
    EXPECT_EQ(world.revoked("n1").size(), 2U);
    EXPECT_EQ(world.find("n1").used.gpus, 2);  // not free yet
    EXPECT_EQ(world.find("n1").running_tasks, 0);
    ASSERT_TRUE(world.end(leases[0], {.state = "cancelled", .exit_code = 0, .signal = 15}));
    EXPECT_EQ(world.find("n1").used.gpus, 1);
    world.confirm_all("n1");
    EXPECT_EQ(world.find("n1").used.gpus, 0);
    EXPECT_RULES_HOLD(world);
}

TEST(Jobs, ListFiltersAndKeepsTheNewest) {
    World world;
    world.node("n1");
    for (int count = 0; count < 5; ++count) {
        world.submit_all(command(), count < 3 ? "ada" : "bob");
    }
    world.must([](store::Tx& tx) { return cancel(tx, JobId(1), ""); });
    world.granted(JobId(2), {"n1"});
    const auto ids = [&](const JobFilter& filter) {
        std::vector<std::int64_t> numbers;
        for (const JobRow& job : world.must([&](store::Tx& tx) { return list_jobs(tx, filter); })) {
            numbers.push_back(job.id.value);
        }
        return numbers;
    };
    EXPECT_THAT(ids({}), ElementsAre(2, 3, 4, 5));
    EXPECT_THAT(ids({.ended = true}), ElementsAre(1, 2, 3, 4, 5));
    EXPECT_THAT(ids({.states = {"cancelled", "running"}}), ElementsAre(1, 2));
    EXPECT_THAT(ids({.user = "bob"}), ElementsAre(4, 5));
    EXPECT_THAT(ids({.limit = 2}), ElementsAre(4, 5));
    EXPECT_EQ(world.code([](store::Tx& tx) { return list_jobs(tx, {.states = {"sleeping"}}); }),
              Errc::invalid_argument);
}

TEST(Jobs, ReasonIsWrittenOnlyWhenItChanges) {
    World world;
    const JobId id = world.submit_one(command());
    const auto set = [&] {
        world.must([&](store::Tx& tx) { return set_reason(tx, id, "no room", "peers share"); });
    };
    set();
    EXPECT_EQ(world.job(id).reason, "no room");
    EXPECT_EQ(world.job(id).warning, "peers share");
    const std::int64_t changes = world.store().stats().last_seq;
    set();
    EXPECT_EQ(world.store().stats().last_seq, changes);
    world.must([&](store::Tx& tx) { return cancel(tx, id, "enough"); });
    set();
    EXPECT_EQ(world.job(id).reason, "enough");
}

TEST(Jobs, WhatIsToBePlacedComesInFifoOrder) {
    World world;
    world.node("n1", 6);
    world.submit_one(command());
    JobSpec urgent = command();
    urgent.priority = 9;
    world.submit_one(urgent);
    const JobId trained = world.submit_one(training(2, 1));
    JobSpec held = command();
    held.hold = true;
    world.submit_one(held);
    const auto leases = world.granted(trained, {"n1", "n1"});
    const auto ids = [&] {
        std::vector<std::pair<std::int64_t, bool>> found;
        for (const PlaceableJob& job :
             world.must([](store::Tx& tx) { return jobs_to_place(tx); })) {
            found.emplace_back(job.job.id.value, job.repair);
        }
        return found;
    };
    EXPECT_THAT(ids(), ElementsAre(std::pair(2L, false), std::pair(1L, false)));
    world.must([&](store::Tx& tx) { return worker_dead(tx, trained, 1, 0, leases[1].id, "gone"); });
    EXPECT_THAT(ids(),
                ElementsAre(std::pair(2L, false), std::pair(1L, false), std::pair(3L, true)));
    const auto repair = world.must([](store::Tx& tx) { return jobs_to_place(tx); }).back();
    ASSERT_EQ(repair.tasks.size(), 1U);
    EXPECT_EQ(repair.tasks[0].worker, "1:0");
}

TEST(Views, CanBeRead) {
    World world;
    world.node("n1", 2);
    const JobId id = world.submit_one(training(2, 1));
    world.granted(id, {"n1", "n1"});
    auto answer = world.read([](store::ReadTx& tx) -> Result<std::string> {
        HOLD_TRY(const auto job, tx.query_one("SELECT * FROM v_job"));
        HOLD_TRY(const auto use, tx.query_one("SELECT * FROM v_node_use"));
        HOLD_TRY(const auto run, tx.query_one("SELECT * FROM v_training"));
        HOLD_TRY(const auto none, tx.query_one("SELECT * FROM v_recovery"));
        EXPECT_FALSE(none.has_value());
        return fmt::format("{} {} {} {} {} {}", job->text("state"), job->text("nodes"),
                           use->integer("gpus_free"), use->integer("tasks"), run->text("state"),
                           run->integer("workers"));
    });
    ASSERT_TRUE(answer.has_value()) << answer.error().message;
    EXPECT_EQ(*answer, "running n1 0 2 forming 2");
}

}  // namespace
}  // namespace holdfast::services
