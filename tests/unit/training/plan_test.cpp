// SPDX-License-Identifier: Apache-2.0
// The planner against worked examples with proven optima, exhaustively on small shapes, and on
// random larger ones.
#include <random>

#include <gtest/gtest.h>

#include <holdfast/training.hpp>

namespace holdfast::training {
namespace {

std::string order_text(const Plan& plan, WorkerName worker) {
    std::string text;
    for (const Op& op : plan.ops.at(worker)) {
        text += op.kind == OpKind::forward ? 'F' : 'B';
        text += std::to_string(op.microbatch);
        text += ' ';
    }
    return text;
}

std::int64_t busiest(const Plan& plan) {
    std::size_t most = 0;
    for (const auto& [worker, ops] : plan.ops) {
        most = std::max(most, ops.size() / 2);
    }
    return static_cast<std::int64_t>(most);
}

TEST(Plan, WithoutFailuresIsClassic1F1B) {
    const Plan plan = make_plan({3, 4, 6}, {}).value();
    EXPECT_EQ(plan.makespan, 27);  // (M + P - 1) × 3
    for (std::int32_t d = 0; d < 3; ++d) {
        EXPECT_EQ(order_text(plan, {d, 0}), "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5 ");
        EXPECT_EQ(order_text(plan, {d, 1}), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5 ");
        EXPECT_EQ(order_text(plan, {d, 2}), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5 ");
        EXPECT_EQ(order_text(plan, {d, 3}), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 ");
    }
    EXPECT_TRUE(validate(plan));
}

// 36 is the proven optimum with coupled backward and at most P - s microbatches in flight,
// whichever stage fails.
TEST(Plan, OneFailureReachesTheOptimum) {
    for (std::int32_t stage = 0; stage < 4; ++stage) {
        const Plan plan = make_plan({3, 4, 6}, {{1, stage}}).value();
        EXPECT_EQ(plan.makespan, 36) << "stage " << stage;
        EXPECT_EQ(busiest(plan), 9);
        ASSERT_TRUE(validate(plan));
        EXPECT_EQ(plan.live.size(), 11U);
    }
}

TEST(Plan, RoundRobinOverPeersIsEven) {
    const Plan plan = make_plan({4, 2, 3}, {{0, 1}, {2, 1}}).value();
    EXPECT_EQ(plan.route(0, 0, 1), 1);
    EXPECT_EQ(plan.route(0, 1, 1), 3);
    EXPECT_EQ(plan.route(0, 2, 1), 1);
    EXPECT_EQ(plan.route(2, 0, 1), 3);  // goes on where pipeline 0's round robin stopped
    EXPECT_EQ(plan.route(2, 1, 1), 1);
    EXPECT_EQ(plan.route(2, 2, 1), 3);
    EXPECT_EQ(plan.route(1, 2, 1), 1);
    EXPECT_EQ(plan.route(2, 2, 0), 2);
}

TEST(Plan, AStageWithoutWorkersIsAnError) {
    const auto plan = make_plan({2, 3, 4}, {{0, 1}, {1, 1}});
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Errc::bad_state);
    EXPECT_EQ(plan.error().message, "plan for 2 dead workers: stage 1 has no live worker");
}

TEST(Plan, BadShapesAreNamed) {
    EXPECT_EQ(make_plan({0, 1, 1}, {}).error().where, "training.pipelines");
    EXPECT_EQ(make_plan({1, 65, 1}, {}).error().where, "training.stages");
    EXPECT_EQ(make_plan({1, 1, -1}, {}).error().where, "training.microbatches");
    EXPECT_EQ(make_plan({256, 64, 1024}, {}).error().where, "training");
    EXPECT_EQ(make_plan({2, 2, 2}, {{2, 0}}).error().code, Errc::invalid_argument);
}

TEST(Plan, WorkerNames) {
    EXPECT_EQ(to_string({1, 2}), "1:2");
    EXPECT_EQ(parse_worker("3:0").value(), (WorkerName{3, 0}));
    for (const char* bad :
         {"", "1", ":", "1:", ":1", "a:1", "1:2:3", "-1:0", "256:0", "0:64", "1: 2"}) {
        EXPECT_EQ(parse_worker(bad).error().code, Errc::invalid_argument) << bad;
    }
}

void check_plan(Shape shape, const std::set<WorkerName>& dead) {
    const auto plan = make_plan(shape, dead);
    ASSERT_TRUE(plan);
    const auto valid = validate(*plan);
    ASSERT_TRUE(valid) << valid.error().message;
    // Fill to the busiest stage, its work, and the drain: nothing can be shorter than the work
    // alone.
    ASSERT_GE(plan->makespan, busiest(*plan) * 3);
}

/// Every way to lose up to `left` workers, from worker number `from` on, that leaves each stage
/// one.
void check_failures(Shape shape, std::set<WorkerName>& dead, std::int32_t from, int left,
                    int& plans) {
    for (std::int32_t s = 0; s < shape.stages; ++s) {
        std::int32_t gone = 0;
        for (const WorkerName& worker : dead) {
            gone += worker.stage == s ? 1 : 0;
        }
        if (gone == shape.pipelines) {
            return;
        }
    }
    check_plan(shape, dead);
    ++plans;
    for (std::int32_t i = from; left > 0 && i < shape.pipelines * shape.stages; ++i) {
        const WorkerName worker{i / shape.stages, i % shape.stages};
        dead.insert(worker);
        check_failures(shape, dead, i + 1, left - 1, plans);
        dead.erase(worker);
    }
}

TEST(Plan, ExhaustiveSmallShapesAndFailures) {
    int plans = 0;
    for (std::int32_t d = 1; d <= 4; ++d) {
        for (std::int32_t p = 1; p <= 4; ++p) {
            for (const std::int32_t m : {1, 2, 3, 5, 8}) {
                std::set<WorkerName> dead;
                const int failures = d * p > 12 ? 2 : 3;
                check_failures({d, p, m}, dead, 0, failures, plans);
                ASSERT_FALSE(HasFatalFailure());
            }
        }
    }
    EXPECT_GT(plans, 4000);
}

TEST(Plan, RandomLargerShapes) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 200; ++round) {
        const Shape shape{static_cast<std::int32_t>(2 + random() % 7),
                          static_cast<std::int32_t>(1 + random() % 8),
                          static_cast<std::int32_t>(1 + random() % 24)};
        std::set<WorkerName> dead;
        for (std::int32_t s = 0; s < shape.stages; ++s) {
            const auto keep =
                static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(shape.pipelines));
            for (std::int32_t d = 0; d < shape.pipelines; ++d) {
                if (d != keep && random() % 4 == 0) {
                    dead.insert({d, s});
                }
            }
        }
        check_plan(shape, dead);
        ASSERT_FALSE(HasFatalFailure());
    }
}

TEST(Plan, TheSameEverywhere) {
    const Plan a = make_plan({4, 4, 8}, {{0, 1}, {2, 3}}).value();
    const Plan b = make_plan({4, 4, 8}, {{2, 3}, {0, 1}}).value();
    EXPECT_EQ(a.ops, b.ops);
    EXPECT_EQ(a.routes, b.routes);
}

TEST(Plan, ValidateFindsBrokenPlans) {
    const Plan good = make_plan({2, 3, 4}, {{0, 1}}).value();
    Plan twice = good;
    twice.ops[{0, 0}].push_back(twice.ops[{0, 0}].back());
    EXPECT_FALSE(validate(twice));
    Plan missing = good;
    missing.ops[{0, 0}].pop_back();
    EXPECT_FALSE(validate(missing));
    Plan stranger = good;
    std::swap(stranger.ops[{0, 0}], stranger.ops[{1, 0}]);
    EXPECT_FALSE(validate(stranger));
    Plan hungry =
        make_plan({1, 2, 4}, {}).value();  // all forwards first: more than P - s in flight
    std::stable_sort(hungry.ops[{0, 0}].begin(), hungry.ops[{0, 0}].end(),
                     [](const Op& a, const Op& b) { return a.kind < b.kind; });
    EXPECT_FALSE(validate(hungry));
    Plan stuck = make_plan({1, 2, 2}, {}).value();  // the two stages want opposite orders
    stuck.ops[{0, 1}] = {{OpKind::forward, 0, 1},
                         {OpKind::backward, 0, 1},
                         {OpKind::forward, 0, 0},
                         {OpKind::backward, 0, 0}};
    stuck.ops[{0, 0}] = {{OpKind::forward, 0, 0},
                         {OpKind::backward, 0, 0},
                         {OpKind::forward, 0, 1},
                         {OpKind::backward, 0, 1}};
    const auto deadlock = validate(stuck);
    ASSERT_FALSE(deadlock);
    EXPECT_EQ(deadlock.error().message, "plan: the workers' orders deadlock");
}

}  // namespace
}  // namespace holdfast::training
