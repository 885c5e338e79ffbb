// SPDX-License-Identifier: Apache-2.0
/// decide() on clusters small enough to know the answer by heart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace holdfast::placement {
namespace {

using Layout = std::map<std::int64_t, std::vector<std::int32_t>>;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::int64_t> placed_jobs(const Decision& decision) {
    std::vector<std::int64_t> jobs;
    for (const Placed& placed : decision.placed) {
        jobs.push_back(placed.job.value);
    }
    return jobs;
}

std::vector<std::int64_t> waiting_jobs(const Decision& decision) {
    std::vector<std::int64_t> jobs;
    for (const Waiting& waiting : decision.waiting) {
        jobs.push_back(waiting.job.value);
    }
    return jobs;
}

Decision decide_fifo(const ClusterView& cluster, const std::vector<PendingJob>& pending,
                     const Budget& budget = {}) {
    return decide(cluster, pending, fifo_first_fit(), budget);
}

TEST(Decide, NothingPendingPlacesNothing) {
    const Decision decision = decide_fifo({{node(1, 4)}, {}}, {});
    EXPECT_THAT(decision.placed, IsEmpty());
    EXPECT_THAT(decision.waiting, IsEmpty());
    EXPECT_FALSE(decision.out_of_budget);
}

TEST(Decide, FirstFitFillsNodesInTheirOrder) {
    const PendingJob gang = job(1, 5, 1);
    const Decision decision = decide_fifo({{node(1, 2), node(2, 0), node(3, 4)}, {}}, {gang});
    ASSERT_EQ(decision.placed.size(), 1U);
    EXPECT_EQ(layout(gang, decision.placed[0]), (Layout{{1, {0, 1}}, {3, {2, 3, 4}}}));
    EXPECT_THAT(decision.placed[0].warnings, IsEmpty());
}

TEST(Decide, AGangIsPlacedWholeOrNotAtAll) {
    const ClusterView cluster{{node(1, 2), node(2, 2)}, {}};
    EXPECT_THAT(placed_jobs(decide_fifo(cluster, {job(1, 4, 1)})), ElementsAre(1));
    const Decision five = decide_fifo(cluster, {job(1, 5, 1)});
    EXPECT_THAT(five.placed, IsEmpty());
    EXPECT_THAT(waiting_jobs(five), ElementsAre(1));
    // Four free gpus, but two pieces of two: one task of three does not fit.
    EXPECT_THAT(decide_fifo(cluster, {job(1, 1, 3)}).placed, IsEmpty());
}

TEST(Decide, OrderIsPriorityThenSubmitTimeThenId) {
    std::vector<PendingJob> pending = {job(4, 1, 0), job(2, 1, 0), job(3, 1, 0), job(1, 1, 0)};
    pending[2].priority = 5;
    pending[3].submit_us = 4;  // as job 4
    const Decision decision = decide_fifo({{node(1, 0)}, {}}, pending);
    EXPECT_THAT(placed_jobs(decision), ElementsAre(3, 2, 1, 4));
}

TEST(Decide, AJobThatDoesNotFitDoesNotHoldUpSmallerOnes) {
    const Decision decision =
        decide_fifo({{node(1, 4)}, {}}, {job(1, 1, 3), job(2, 1, 2), job(3, 1, 1)});
    EXPECT_THAT(placed_jobs(decision), ElementsAre(1, 3));
    EXPECT_THAT(waiting_jobs(decision), ElementsAre(2));
    EXPECT_EQ(decision.waiting[0].reason, "needs 2 gpus in all, 1 of 4 are free (3 held by job-1)");
}

TEST(Decide, EveryDimensionCounts) {
    const ClusterView cluster{{node(1, 8, 8, 16 * kGiB)}, {}};
    EXPECT_EQ(decide_fifo(cluster, {job(1, 2, 1, 4, 8 * kGiB)}).placed.size(), 1U);
    EXPECT_EQ(decide_fifo(cluster, {job(1, 3, 1, 4, 0)}).placed.size(), 0U);
    EXPECT_EQ(decide_fifo(cluster, {job(1, 3, 1, 1, 8 * kGiB)}).placed.size(), 0U);
}

TEST(Decide, PoolListsTypeAndStateBarNodes) {
    ClusterView cluster{{node(1, 4), node(2, 4), node(3, 4), node(4, 4), node(5, 4)}, {}};
    cluster.nodes[0].pool = "other";
    cluster.nodes[1].schedulable = false;
    cluster.nodes[2].total.gpu_type = "a100";
    PendingJob one = job(1, 1, 1);
    one.per_task.gpu_type = "h100";
    one.exclude_nodes = {"n4"};
    const Decision decision = decide_fifo(cluster, {one});
    ASSERT_EQ(decision.placed.size(), 1U);
    EXPECT_EQ(layout(one, decision.placed[0]), (Layout{{5, {0}}}));
    one.nodes = {"n1", "n2", "n3", "n4"};
    EXPECT_THAT(decide_fifo(cluster, {one}).placed, IsEmpty());
}

TEST(Decide, TasksPerNodeSpreadsAGang) {
    PendingJob gang = job(1, 4, 0);
    gang.tasks_per_node = 2;
    const Decision decision = decide_fifo({{node(1, 0), node(2, 0), node(3, 0)}, {}}, {gang});
    ASSERT_EQ(decision.placed.size(), 1U);
    EXPECT_EQ(layout(gang, decision.placed[0]), (Layout{{1, {0, 1}}, {2, {2, 3}}}));
}

TEST(Decide, ArrayRunsAtMostItsLimit) {
    std::vector<PendingJob> elements;
    for (int index = 1; index <= 5; ++index) {
        elements.push_back(job(index, 1, 0));
        elements.back().array = 77;
        elements.back().array_at_once = 3;
    }
    const Decision decision = decide_fifo({{node(1, 0)}, {{77, 1}, {78, 9}}}, elements);
    EXPECT_THAT(placed_jobs(decision), ElementsAre(1, 2));
    EXPECT_THAT(waiting_jobs(decision), ElementsAre(3, 4, 5));
    EXPECT_EQ(decision.waiting[0].reason, "3 elements of array 77 run, its limit is 3");
}

TEST(Decide, LaterElementsWaitBehindOneThatDoesNotFit) {
    std::vector<PendingJob> pending = {job(1, 1, 4), job(2, 1, 4), job(3, 1, 1)};
    pending[0].array = pending[1].array = 9;
    const Decision decision = decide_fifo({{node(1, 3), node(2, 4, 0)}, {}}, pending);
    EXPECT_THAT(placed_jobs(decision), ElementsAre(3));
    EXPECT_EQ(decision.waiting[1].reason, "waits behind job-1 of its array");
}

TEST(Decide, PeersOfAStageAreKeptApart) {
    // The case of the issue: four nodes of 2, 2, 1 and 1 gpus, two pipelines of three stages.
    const PendingJob gang = training(1, 2, 3);
    const Decision decision =
        decide_fifo({{node(1, 2), node(2, 2), node(3, 1), node(4, 1)}, {}}, {gang});
    ASSERT_EQ(decision.placed.size(), 1U);
    EXPECT_THAT(decision.placed[0].warnings, IsEmpty());
    EXPECT_EQ(layout(gang, decision.placed[0]),
              (Layout{{1, {0, 1}}, {2, {2, 3}}, {3, {4}}, {4, {5}}}));
}

TEST(Decide, PeersAreKeptApartWhereFirstFitAloneWouldFail) {
    // 1:0 would take n1 first; then 1:1 has only n2, where its peer 0:1 is. So 1:0 must move on.
    ClusterView cluster{{node(1, 1), node(2, 2), node(3, 1)}, {}};
    cluster.nodes[1].free.gpus = 1;
    cluster.nodes[1].workers = {{JobId(1), 0, 1}};
    cluster.nodes[2].free.gpus = 0;
    cluster.nodes[2].workers = {{JobId(1), 0, 0}};
    PendingJob lost = training(1, 2, 2);
    lost.repair = true;
    lost.tasks.erase(lost.tasks.begin(), lost.tasks.begin() + 2);
    const Decision decision = decide_fifo(cluster, {lost});
    ASSERT_EQ(decision.placed.size(), 1U);
    EXPECT_EQ(layout(lost, decision.placed[0]), (Layout{{1, {3}}, {2, {2}}}));
    EXPECT_THAT(decision.placed[0].warnings, IsEmpty());
}

TEST(Decide, PeersShareANodeWithAWarningWhereNothingElseIsPossible) {
    const PendingJob gang = training(1, 2, 2);
    const Decision decision = decide_fifo({{node(1, 3), node(2, 1)}, {}}, {gang});
    ASSERT_EQ(decision.placed.size(), 1U);
    EXPECT_EQ(decision.placed[0].tasks.size(), 4U);
    ASSERT_EQ(decision.placed[0].warnings.size(), 1U);
    EXPECT_THAT(decision.placed[0].warnings[0],
                HasSubstr("the workers of pipelines 0, 1 share node n1"));
}

TEST(Decide, ARepairPlacesWhatItCanAndAvoidsPeers) {
    ClusterView cluster{{node(1, 4), node(2, 4), node(3, 4)}, {}};
    cluster.nodes[0].free.gpus = 1;
    cluster.nodes[0].workers = {{JobId(1), 0, 0}, {JobId(1), 0, 1}};
    cluster.nodes[1].free.gpus = 1;
    cluster.nodes[2].free.gpus = 0;
    PendingJob lost = training(1, 2, 2);
    lost.repair = true;
    lost.tasks.erase(lost.tasks.begin(), lost.tasks.begin() + 2);  // 1:0 and 1:1 are gone
    // n2 takes 1:0; only n1 is left for 1:1, with its peer 0:1.
    Decision decision = decide_fifo(cluster, {lost});
    ASSERT_EQ(decision.placed.size(), 1U);
    EXPECT_EQ(layout(lost, decision.placed[0]), (Layout{{1, {3}}, {2, {2}}}));
    EXPECT_EQ(decision.placed[0].warnings.size(), 1U);
    EXPECT_THAT(decision.waiting, IsEmpty());

    cluster.nodes[0].free.gpus = 0;
    decision = decide_fifo(cluster, {lost});
    ASSERT_EQ(decision.placed.size(), 1U);
    EXPECT_EQ(layout(lost, decision.placed[0]), (Layout{{2, {2}}}));
    ASSERT_EQ(decision.waiting.size(), 1U);
    EXPECT_THAT(decision.waiting[0].reason, HasSubstr("1 of 2 lost workers are placed again"));
}

TEST(Decide, ScoreChoosesTheNode) {
    Policy policy = fifo_first_fit();
    policy.score = [](const PendingJob&, const PendingTask&, const NodeView& view) {
        return static_cast<double>(view.id.value % 3);
    };
    const PendingJob one = job(1, 1, 1);
    const Decision decision =
        decide({{node(1, 1), node(2, 1), node(3, 1), node(5, 1)}, {}}, {one}, policy, {});
    EXPECT_EQ(layout(one, decision.placed.at(0)), (Layout{{2, {0}}}));
}

TEST(Decide, AnOrderMayLeaveJobsOutAndRepeatsAreIgnored) {
    Policy policy;
    policy.order = [](const std::vector<PendingJob>&) {
        return std::vector<std::size_t>{1, 1, 99};
    };
    const Decision decision = decide({{node(1, 0)}, {}}, {job(1, 1, 0), job(2, 1, 0)}, policy, {});
    EXPECT_THAT(placed_jobs(decision), ElementsAre(2));
    EXPECT_THAT(waiting_jobs(decision), ElementsAre(1));
}

TEST(Decide, BudgetEndsTheRoundAtTheSamePlaceEachTime) {
    std::vector<PendingJob> pending;
    for (int number = 1; number <= 20; ++number) {
        pending.push_back(job(number, 1, 0, number));  // shapes differ
    }
    const ClusterView cluster{{node(1, 0, 1000), node(2, 0, 1000)}, {}};
    const Decision first = decide_fifo(cluster, pending, {.units = 10});
    const Decision second = decide_fifo(cluster, pending, {.units = 10});
    EXPECT_TRUE(first.out_of_budget);
    EXPECT_THAT(placed_jobs(first), ElementsAre(1, 2, 3));
    EXPECT_EQ(placed_jobs(first), placed_jobs(second));
    EXPECT_EQ(first.waiting.size(), 17U);

    const std::atomic<bool> stop = true;
    const Decision stopped = decide_fifo(cluster, pending, {.stop = &stop});
    EXPECT_TRUE(stopped.out_of_budget);
    EXPECT_THAT(stopped.placed, IsEmpty());
}

TEST(Decide, ABacklogOfAlikeJobsCostsOneLook) {
    std::vector<PendingJob> pending;
    for (int number = 1; number <= 10'000; ++number) {
        pending.push_back(job(number, 1, 8));
    }
    ClusterView cluster;
    for (int number = 1; number <= 1000; ++number) {
        cluster.nodes.push_back(node(number, 8));
        cluster.nodes.back().free.gpus = number <= 10 ? 8 : 0;
    }
    const Decision decision = decide_fifo(cluster, pending, {.units = 50'000});
    EXPECT_FALSE(decision.out_of_budget);
    EXPECT_EQ(decision.placed.size(), 10U);
    EXPECT_EQ(decision.waiting.size(), 9990U);
}

}  // namespace
}  // namespace holdfast::placement
