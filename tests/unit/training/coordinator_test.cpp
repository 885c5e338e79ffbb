// SPDX-License-Identifier: Apache-2.0
// The coordinator alone, told what happens: what it stores and says, and what it ignores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <holdfast/training.hpp>

namespace holdfast::training {
namespace {

using testing::HasSubstr;

/// A coordinator of 2 × 2 workers, M = 1, with every worker on stream 10 × pipeline + stage + 1.
class CoordinatorTest : public testing::Test {
  protected:
    static TrainingSpec spec() {
        TrainingSpec spec;
        spec.pipelines = 2;
        spec.stages = 2;
        spec.microbatches = 1;
        spec.model = "gpt-tiny";
        spec.steps = 100;
        return spec;
    }

    static CoordinatorOptions options() {
        CoordinatorOptions options;
        options.key_seed = "0123456789abcdef";
        return options;
    }

    static std::map<WorkerName, LeaseId> leases() {
        return {
            {{0, 0}, LeaseId(1)}, {{0, 1}, LeaseId(2)}, {{1, 0}, LeaseId(3)}, {{1, 1}, LeaseId(4)}};
    }

    static StreamId stream_of(WorkerName worker) { return worker.pipeline * 10 + worker.stage + 1; }

    static WorkerHello hello(WorkerName worker, std::int64_t lease) {
        WorkerHello hello;
        hello.worker = worker;
        hello.lease = LeaseId(lease);
        hello.data_hash = "same";
        hello.data_address = "host:" + to_string(worker);
        return hello;
    }

    CoordinatorEffects attach(StreamId stream, const WorkerHello& hello) {
        return coordinator_.handle(Attached{stream, hello}, now_);
    }

    CoordinatorEffects say(WorkerName worker, const WorkerReport& report) {
        return coordinator_.handle(Reported{stream_of(worker), report}, now_);
    }

    CoordinatorEffects attach_all() {
        CoordinatorEffects effects;
        for (const auto& [worker, lease] : leases()) {
            effects = attach(stream_of(worker), hello(worker, lease.value));
        }
        return effects;
    }

    CoordinatorEffects run_all(std::int64_t epoch, std::int64_t version,
                               std::set<WorkerName> live) {
        CoordinatorEffects effects;
        for (const WorkerName& worker : live) {
            effects = say(worker, Ready{epoch, version});
        }
        return effects;
    }

    void begin() {
        attach_all();
        run_all(1, 0, {{0, 0}, {0, 1}, {1, 0}, {1, 1}});
        ASSERT_EQ(coordinator_.phase(), "running");
    }

    static StepCommit commit(WorkerName worker, std::int64_t epoch, std::int64_t step) {
        StepCommit commit;
        commit.epoch = epoch;
        commit.step = step;
        commit.step_us = 10 + worker.pipeline;
        commit.parameter_hash = static_cast<std::uint64_t>(step * 10 + worker.stage);
        if (worker.stage == 1) {
            commit.losses = {{1, 0, 3.0}, {0, 0, 2.0}};
        }
        return commit;
    }

    template <typename T>
    static std::vector<T> all(const CoordinatorEffects& effects) {
        std::vector<T> found;
        for (const CoordinatorEffect& effect : effects) {
            if (const T* each = std::get_if<T>(&effect)) {
                found.push_back(*each);
            }
        }
        return found;
    }

    /// Commands of one kind, by worker.
    template <typename T>
    static std::map<WorkerName, T> sent(const CoordinatorEffects& effects) {
        std::map<WorkerName, T> found;
        for (const SendCommand& send : all<SendCommand>(effects)) {
            if (const T* command = std::get_if<T>(&send.command)) {
                found[send.worker] = *command;
            }
        }
        return found;
    }

    Coordinator coordinator_ = Coordinator::start(spec(), leases(), options()).value();
    std::int64_t now_ = 1'000'000;
};

TEST_F(CoordinatorTest, FirstEpochNeedsAllWorkersAndGoNeedsAllReady) {
    attach(1, hello({0, 0}, 1));
    EXPECT_EQ(coordinator_.phase(), "waiting for workers: 1 of 4 are here");
    const CoordinatorEffects effects = attach_all();
    const auto began = all<EpochBegan>(effects);
    ASSERT_EQ(began.size(), 1U);
    EXPECT_EQ(began[0].epoch, 1);
    EXPECT_EQ(began[0].version, 0);
    EXPECT_EQ(began[0].live.size(), 4U);
    const auto plans = sent<EpochPlan>(effects);
    ASSERT_EQ(plans.size(), 4U);
    EXPECT_EQ((plans.at({1, 0}).cluster_key.size()), 32U);
    EXPECT_EQ((plans.at({1, 0}).state_from_pipeline), -1);
    EXPECT_EQ((plans.at({1, 0}).live[1].data_address), "host:0:1");
    EXPECT_TRUE(sent<Go>(run_all(1, 0, {{0, 0}, {0, 1}, {1, 0}})).empty());
    EXPECT_EQ(sent<Go>(run_all(1, 0, {{1, 1}})).size(), 4U);
    EXPECT_EQ(coordinator_.phase(), "running");
}

TEST_F(CoordinatorTest, AStepIsCommittedWhenEveryWorkerHasIt) {
    begin();
    EXPECT_TRUE(all<StepCommitted>(say({0, 0}, commit({0, 0}, 1, 0))).empty());
    EXPECT_TRUE(all<StepCommitted>(say({0, 1}, commit({0, 1}, 1, 0))).empty());
    EXPECT_TRUE(all<StepCommitted>(say({1, 0}, commit({1, 0}, 1, 0))).empty());
    const CoordinatorEffects effects = say({1, 1}, commit({1, 1}, 1, 0));
    const auto committed = all<StepCommitted>(effects);
    ASSERT_EQ(committed.size(), 1U);
    EXPECT_EQ(committed[0].step, 0);
    EXPECT_EQ(committed[0].loss, 2.5);
    EXPECT_TRUE(committed[0].has_loss);
    EXPECT_EQ(committed[0].step_us, 11);
    EXPECT_EQ(committed[0].parameter_hash, (std::map<std::int32_t, std::uint64_t>{{0, 0}, {1, 1}}));
    EXPECT_EQ(sent<CommitAck>(effects).size(), 4U);
    EXPECT_TRUE(all<StepCommitted>(say({1, 1}, commit({1, 1}, 1, 0))).empty()) << "repeated";
}

TEST_F(CoordinatorTest, ADeathStopsEverybodyAndTheStepIsRedone) {
    begin();
    const CoordinatorEffects effects = coordinator_.handle(Closed{stream_of({1, 1})}, now_);
    const auto died = all<WorkerDied>(effects);
    ASSERT_EQ(died.size(), 1U);
    EXPECT_EQ(died[0].lease, LeaseId(4));
    EXPECT_EQ(died[0].why, "its connection ended");
    EXPECT_EQ(sent<AbortEpoch>(effects).size(), 3U);
    say({0, 0}, Stopped{1, 5, 4});
    say({0, 0}, Stopped{1, 5, 4});
    say({0, 1}, Stopped{1, 4, 3});
    const CoordinatorEffects formed = say({1, 0}, Stopped{1, 4, 3});
    const auto began = all<EpochBegan>(formed);
    ASSERT_EQ(began.size(), 1U);
    EXPECT_EQ(began[0].version, 4) << "stage 1's only copy has 4, so stage 0 goes back";
    EXPECT_EQ(began[0].redone_iterations, 1);
    const auto plans = sent<EpochPlan>(formed);
    ASSERT_EQ(plans.size(), 3U);
    EXPECT_EQ((plans.at({0, 0}).state_from_pipeline), -1) << "it can undo";
    EXPECT_EQ(coordinator_.epoch(), 2);
}

TEST_F(CoordinatorTest, TheLargestReachableVersionIsTakenAndTheRestFetch) {
    begin();
    coordinator_.handle(Closed{stream_of({1, 1})}, now_);
    say({0, 0}, Stopped{1, 5, 4});
    say({0, 1}, Stopped{1, 5, 4});
    const CoordinatorEffects formed = say({1, 0}, Stopped{1, 4, 3});
    EXPECT_EQ(all<EpochBegan>(formed).at(0).version, 5);
    EXPECT_EQ((sent<EpochPlan>(formed).at({1, 0}).state_from_pipeline), 0);
}

TEST_F(CoordinatorTest, LateAndOldMessagesMeanNothing) {
    begin();
    EXPECT_TRUE(say({0, 0}, Ready{1, 0}).empty());
    EXPECT_TRUE(say({0, 0}, PauseAnswer{1, 9, true, 3}).empty());
    EXPECT_TRUE(say({0, 0}, Suspect{0, {1, 1}, "old epoch"}).empty());
    EXPECT_TRUE(say({0, 0}, Suspect{1, {0, 0}, "itself"}).empty());
    EXPECT_TRUE(say({0, 0}, Suspect{1, {7, 7}, "nobody"}).empty());
    EXPECT_TRUE(coordinator_.handle(Reported{999, Stopped{1, 1, 0}}, now_).empty());
    EXPECT_TRUE(coordinator_.handle(Closed{999}, now_).empty());
    EXPECT_TRUE(
        coordinator_.handle(WorkerLost{{0, 0}, LeaseId(99), "another lease"}, now_).empty());
    coordinator_.handle(Closed{stream_of({1, 1})}, now_);
    EXPECT_TRUE(say({0, 0}, Stopped{7, 5, 4}).empty()) << "of no epoch it was told";
    EXPECT_TRUE(all<StepCommitted>(say({0, 0}, commit({0, 0}, 9, 0))).empty());
}

TEST_F(CoordinatorTest, SilenceIsSuspectedThenDead) {
    begin();
    const auto beat = [&](std::int64_t until) {
        CoordinatorEffects effects;
        while (now_ < until) {
            now_ += 100'000;
            for (const WorkerName& worker :
                 {WorkerName{0, 0}, WorkerName{0, 1}, WorkerName{1, 0}}) {
                say(worker, WorkerHeartbeat{});
            }
            for (CoordinatorEffect& effect : coordinator_.tick(now_)) {
                effects.push_back(std::move(effect));
            }
        }
        return effects;
    };
    const CoordinatorEffects first = beat(now_ + 600'000);
    ASSERT_EQ(all<WorkerSuspected>(first).size(), 1U);
    EXPECT_TRUE(all<WorkerDied>(first).empty());
    const CoordinatorEffects second = beat(now_ + 1'000'000);
    ASSERT_EQ(all<WorkerDied>(second).size(), 1U);
    EXPECT_EQ(all<WorkerDied>(second)[0].why, "no heartbeat for 1500 ms");
    EXPECT_EQ(sent<Fenced>(second).size(), 1U) << "should it wake";
}

TEST_F(CoordinatorTest, ItsOwnAbsenceIsNotTheWorkersSilence) {
    begin();
    coordinator_.tick(now_);
    now_ += 60'000'000;  // stopped for a minute
    EXPECT_TRUE(coordinator_.tick(now_).empty());
}

TEST_F(CoordinatorTest, OfTwoThatSuspectEachOtherOneLives) {
    begin();
    coordinator_.tick(now_);
    EXPECT_EQ(all<WorkerSuspected>(say({0, 0}, Suspect{1, {0, 1}, "reset"})).size(), 1U);
    say({0, 1}, Suspect{1, {0, 0}, "reset"});
    std::vector<WorkerDied> died;
    for (int i = 0; i < 20; ++i) {
        now_ += 100'000;
        for (const auto& [worker, lease] : leases()) {
            say(worker, WorkerHeartbeat{});
        }
        for (const WorkerDied& each : all<WorkerDied>(coordinator_.tick(now_))) {
            died.push_back(each);
        }
    }
    ASSERT_EQ(died.size(), 1U);
    EXPECT_THAT(died[0].why, HasSubstr("reset"));
}

TEST_F(CoordinatorTest, AStuckWorkerThatHeartBeatsIsDeclaredDead) {
    begin();
    coordinator_.handle(Closed{stream_of({1, 1})}, now_);
    say({0, 0}, Stopped{1, 0, -1});
    say({0, 1}, Stopped{1, 0, -1});
    coordinator_.tick(now_);
    std::vector<WorkerDied> died;
    for (int i = 0; i < 610; ++i) {
        now_ += 100'000;
        for (const WorkerName& worker : {WorkerName{0, 0}, WorkerName{0, 1}, WorkerName{1, 0}}) {
            say(worker, WorkerHeartbeat{});
        }
        for (const WorkerDied& each : all<WorkerDied>(coordinator_.tick(now_))) {
            died.push_back(each);
        }
    }
    ASSERT_EQ(died.size(), 1U);
    EXPECT_EQ(died[0].worker, (WorkerName{1, 0}));
    EXPECT_EQ(died[0].why, "no answer for 60000 ms although it heart-beats");
}

TEST_F(CoordinatorTest, AReturnedWorkerJoinsAtABoundaryAndNothingIsRedone) {
    begin();
    coordinator_.handle(Closed{stream_of({1, 1})}, now_);
    say({0, 0}, Stopped{1, 0, -1});
    say({0, 1}, Stopped{1, 0, -1});
    say({1, 0}, Stopped{1, 0, -1});
    const std::set<WorkerName> live{{0, 0}, {0, 1}, {1, 0}};
    run_all(2, 0, live);
    for (const WorkerName& worker : live) {
        say(worker, commit(worker, 2, 0));
    }
    coordinator_.handle(LeaseGranted{{1, 1}, LeaseId(9)}, now_);
    CoordinatorEffects effects = attach(50, hello({1, 1}, 9));
    ASSERT_EQ(sent<PauseAt>(effects).size(), 3U);
    EXPECT_EQ((sent<PauseAt>(effects).at({0, 0}).at_step), 3)
        << "two above the highest known version";
    effects = say({0, 0}, PauseAnswer{2, 3, false, 4});
    EXPECT_EQ((sent<PauseAt>(effects).at({0, 1}).at_step), 8) << "a later one, with more room";
    for (const WorkerName& worker : live) {
        say(worker, PauseAnswer{2, 8, true, 4});
    }
    say({0, 0}, Stopped{2, 3, 2});  // of the boundary that was taken back
    say({0, 0}, Stopped{2, 8, 7});
    say({0, 1}, Stopped{2, 8, 7});
    effects = say({1, 0}, Stopped{2, 8, 7});
    const auto began = all<EpochBegan>(effects);
    ASSERT_EQ(began.size(), 1U);
    EXPECT_EQ(began[0].version, 8);
    EXPECT_EQ(began[0].redone_iterations, 0);
    EXPECT_EQ(began[0].live.size(), 4U);
    EXPECT_EQ(all<WorkerRejoined>(effects).at(0).lease, LeaseId(9));
    EXPECT_EQ((sent<EpochPlan>(effects).at({1, 1}).state_from_pipeline), 0);
}

TEST_F(CoordinatorTest, NobodyPausesForTheLastSteps) {
    begin();
    for (const auto& [worker, lease] : leases()) {
        for (std::int64_t step = 0; step < 98; ++step) {
            say(worker, commit(worker, 1, step));
        }
    }
    EXPECT_EQ(coordinator_.committed_steps(), 98);
    coordinator_.handle(LeaseGranted{{1, 1}, LeaseId(9)}, now_);  // the old one dies
    for (const WorkerName& worker : {WorkerName{0, 0}, WorkerName{0, 1}, WorkerName{1, 0}}) {
        say(worker, Stopped{1, 98, 97});
    }
    run_all(2, 98, {{0, 0}, {0, 1}, {1, 0}});
    EXPECT_TRUE(sent<PauseAt>(attach(50, hello({1, 1}, 9))).empty());
    CoordinatorEffects effects;
    for (const WorkerName& worker : {WorkerName{0, 0}, WorkerName{0, 1}, WorkerName{1, 0}}) {
        say(worker, commit(worker, 2, 98));
        effects = say(worker, commit(worker, 2, 99));
    }
    EXPECT_EQ(all<JobFinished>(effects).size(), 1U);
    EXPECT_EQ(sent<Finish>(effects).size(), 4U) << "also to the one that came too late";
    EXPECT_TRUE(coordinator_.ended());
}

TEST_F(CoordinatorTest, OldLeasesAreFenced) {
    begin();
    coordinator_.handle(Closed{stream_of({1, 1})}, now_);
    CoordinatorEffects effects = attach(50, hello({1, 1}, 4));
    EXPECT_EQ((sent<Fenced>(effects).at({1, 1}).why), "lease 4 no longer holds");
    EXPECT_EQ(all<CloseStream>(effects).size(), 1U);
    effects = attach(51, hello({5, 5}, 77));
    EXPECT_EQ((sent<Fenced>(effects).at({5, 5}).why), "this job has no such worker");
}

TEST_F(CoordinatorTest, AnotherTextFailsTheJob) {
    attach(1, hello({0, 0}, 1));
    WorkerHello other = hello({0, 1}, 2);
    other.data_hash = "other";
    const CoordinatorEffects effects = attach(2, other);
    ASSERT_EQ(all<JobFailed>(effects).size(), 1U);
    EXPECT_THAT(all<JobFailed>(effects)[0].why, HasSubstr("worker 0:1 has another training text"));
    EXPECT_TRUE(coordinator_.ended());
}

TEST_F(CoordinatorTest, BeforeTheFirstStepAStageWithoutWorkersWaits) {
    begin();
    coordinator_.handle(Closed{stream_of({0, 1})}, now_);
    coordinator_.handle(Closed{stream_of({1, 1})}, now_);
    say({0, 0}, Stopped{1, 0, -1});
    say({1, 0}, Stopped{1, 0, -1});
    EXPECT_EQ(coordinator_.phase(), "stalled: waiting for a worker of stage 1");
    coordinator_.handle(LeaseGranted{{1, 1}, LeaseId(9)}, now_);
    attach(50, hello({1, 1}, 9));
    say({0, 0}, Stopped{1, 0, -1});
    const CoordinatorEffects effects = say({1, 0}, Stopped{1, 0, -1});
    ASSERT_EQ(all<EpochBegan>(effects).size(), 1U);
    EXPECT_EQ(all<EpochBegan>(effects)[0].version, 0);
}

TEST_F(CoordinatorTest, LaterAStageWithoutWorkersIsTheEnd) {
    begin();
    for (const auto& [worker, lease] : leases()) {
        say(worker, commit(worker, 1, 0));
    }
    coordinator_.handle(Closed{stream_of({0, 1})}, now_);
    coordinator_.handle(Closed{stream_of({1, 1})}, now_);
    say({0, 0}, Stopped{1, 1, 0});
    const CoordinatorEffects effects = say({1, 0}, Stopped{1, 1, 0});
    ASSERT_EQ(all<JobFailed>(effects).size(), 1U);
    EXPECT_EQ(
        all<JobFailed>(effects)[0].why,
        "all copies of stage 1's parameters are lost after step 1 and no checkpoint exists yet "
        "(worker 1:1: its connection ended)");
    EXPECT_EQ(sent<Fenced>(effects).size(), 2U);
}

TEST_F(CoordinatorTest, PeersThatDifferFailTheJob) {
    begin();
    say({0, 0}, commit({0, 0}, 1, 0));
    StepCommit other = commit({1, 0}, 1, 0);
    other.parameter_hash += 1;
    const auto failed = all<JobFailed>(say({1, 0}, other));
    ASSERT_EQ(failed.size(), 1U);
    EXPECT_EQ(failed[0].why, "after step 0 the parameters of worker 1:0 differ from its peers'");
}

TEST_F(CoordinatorTest, ACommitWithoutAllLossesIsAFault) {
    begin();
    StepCommit wrong = commit({0, 1}, 1, 0);
    wrong.losses[1] = wrong.losses[0];
    const auto died = all<WorkerDied>(say({0, 1}, wrong));
    ASSERT_EQ(died.size(), 1U);
    EXPECT_EQ(died[0].why, "it sent a step commit without all losses");
}

TEST_F(CoordinatorTest, CancelFencesAll) {
    begin();
    const CoordinatorEffects effects = coordinator_.handle(CancelTraining{"user"}, now_);
    EXPECT_EQ(sent<Fenced>(effects).size(), 4U);
    EXPECT_EQ(coordinator_.phase(), "cancelled: user");
    EXPECT_EQ((sent<Fenced>(attach(60, hello({0, 0}, 1))).at({0, 0}).why), "cancelled: user");
}

CoordinatorRows rows_of(const std::map<WorkerName, LeaseId>& leases, std::int64_t epoch) {
    CoordinatorRows rows;
    rows.epoch = epoch;
    for (const auto& [worker, lease] : leases) {
        rows.workers[worker] = {lease, true};
    }
    return rows;
}

TEST_F(CoordinatorTest, AfterARestartARunningEpochGoesOn) {
    coordinator_ = Coordinator::restore(spec(), rows_of(leases(), 3), options()).value();
    EXPECT_EQ(coordinator_.phase(), "waiting for workers to attach again");
    CoordinatorEffects effects;
    for (const auto& [worker, lease] : leases()) {
        WorkerHello back = hello(worker, lease.value);
        back.epoch = 3;
        back.version = 7;
        back.running = true;
        effects = attach(stream_of(worker), back);
    }
    EXPECT_EQ(coordinator_.phase(), "running");
    EXPECT_TRUE(all<EpochBegan>(effects).empty());
    EXPECT_TRUE(all<StepCommitted>(effects).empty()) << "the reports are still to come";
    for (std::int64_t step = 0; step < 7; ++step) {
        for (const auto& [worker, lease] : leases()) {
            say(worker, commit(worker, 3, step));
        }
    }
    EXPECT_EQ(coordinator_.committed_steps(), 7);
}

TEST_F(CoordinatorTest, AWorkerThatComesBackToAFinishedJobIsSentHome) {
    CoordinatorRows rows = rows_of(leases(), 3);
    rows.committed_steps = spec().steps;
    rows.finished = true;
    coordinator_ = Coordinator::restore(spec(), rows, options()).value();
    EXPECT_TRUE(coordinator_.ended());
    const CoordinatorEffects effects = attach(60, hello({1, 1}, 9));
    EXPECT_EQ(sent<Finish>(effects).at({1, 1}).version, spec().steps);
    EXPECT_TRUE(all<JobFinished>(effects).empty());
}

TEST_F(CoordinatorTest, AfterARestartTheMissingAreDeclaredDead) {
    CoordinatorRows rows = rows_of(leases(), 3);
    rows.committed_steps = 7;
    coordinator_ = Coordinator::restore(spec(), rows, options()).value();
    coordinator_.tick(now_);
    const std::set<WorkerName> back{{0, 0}, {0, 1}, {1, 0}};
    for (const WorkerName& worker : back) {
        WorkerHello again = hello(worker, leases().at(worker).value);
        again.epoch = 3;
        again.version = 8;
        again.previous_version = 7;
        again.running = true;
        attach(stream_of(worker), again);
    }
    std::vector<WorkerDied> died;
    CoordinatorEffects last;
    for (int i = 0; i < 101 && died.empty(); ++i) {
        now_ += 100'000;
        for (const WorkerName& worker : back) {
            say(worker, WorkerHeartbeat{});
        }
        last = coordinator_.tick(now_);
        died = all<WorkerDied>(last);
    }
    ASSERT_EQ(died.size(), 1U);
    EXPECT_EQ(died[0].worker, (WorkerName{1, 1}));
    EXPECT_EQ(sent<AbortEpoch>(last).at({0, 0}).epoch, 3);
}

TEST_F(CoordinatorTest, AfterARestartAnInterruptedEpochIsStopped) {
    CoordinatorRows rows = rows_of(leases(), 3);
    rows.workers[{1, 1}] = {};
    rows.interrupted = true;
    coordinator_ = Coordinator::restore(spec(), rows, options()).value();
    CoordinatorEffects effects;
    for (const WorkerName& worker : {WorkerName{0, 0}, WorkerName{0, 1}, WorkerName{1, 0}}) {
        WorkerHello again = hello(worker, leases().at(worker).value);
        again.epoch = 3;
        again.version = 8;
        again.running = true;
        effects = attach(stream_of(worker), again);
    }
    EXPECT_EQ(sent<AbortEpoch>(effects).size(), 3U);
    EXPECT_EQ(coordinator_.phase(), "recovering");
}

TEST_F(CoordinatorTest, BadStartsAreRefused) {
    CoordinatorOptions short_key;
    short_key.key_seed = "short";
    EXPECT_EQ(Coordinator::start(spec(), leases(), short_key).error().code, Errc::invalid_argument);
    TrainingSpec no_steps = spec();
    no_steps.steps = 0;
    EXPECT_EQ(Coordinator::start(no_steps, leases(), options()).error().where, "training.steps");
    auto missing = leases();
    missing.erase({1, 1});
    EXPECT_THAT(Coordinator::start(spec(), missing, options()).error().message, HasSubstr("1:1"));
    auto more = leases();
    more[{2, 0}] = LeaseId(8);
    EXPECT_EQ(Coordinator::start(spec(), more, options()).error().code, Errc::invalid_argument);
}

}  // namespace
}  // namespace holdfast::training
