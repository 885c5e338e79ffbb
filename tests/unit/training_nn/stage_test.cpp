// SPDX-License-Identifier: Apache-2.0
// What both backends promise through the seam; compiled once for each.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "harness.hpp"

namespace holdfast::training {
namespace {

StageOptions parallel_options() {
    StageOptions options = tiny_options();
    options.stages = 3;
    options.pipelines = 2;
    options.microbatches = 3;
    return options;
}

TEST(Stage, EveryCutOfTheModelGivesTheSameLosses) {
    StageOptions options = tiny_options();
    options.microbatches = 2;
    std::vector<Cluster::Losses> whole;
    for (std::int32_t stages = 1; stages <= 4; ++stages) {
        options.stages = stages;
        Cluster cluster(options);
        for (std::int64_t step = 0; step < 3; ++step) {
            const Cluster::Losses losses = cluster.step(step);
            if (stages == 1) {
                whole.push_back(losses);
                continue;
            }
            EXPECT_EQ(losses, whole[static_cast<std::size_t>(step)])
                << stages << " stages, step " << step;
        }
    }
    EXPECT_NEAR(mean(whole[0]), std::log(256.0), 0.1);  // knows nothing yet
}

TEST(Stage, TwoOfTheSameAreTheSameBytes) {
    Cluster one(parallel_options());
    Cluster two(parallel_options());
    for (std::int64_t step = 0; step < 2; ++step) {
        EXPECT_EQ(one.step(step), two.step(step));
    }
    EXPECT_EQ(one.states(), two.states());
    for (std::int32_t stage = 0; stage < 3; ++stage) {
        EXPECT_EQ(one.at(stage, 0).parameter_hash(), one.at(stage, 1).parameter_hash());
        EXPECT_EQ(one.at(stage, 0).parameter_hash(), two.at(stage, 0).parameter_hash());
    }
    EXPECT_NE(one.at(0, 0).parameter_hash(), one.at(1, 0).parameter_hash());
}

TEST(Stage, ReroutedMicrobatchesInAnyOrderGiveTheSameBytes) {
    Cluster plain(parallel_options());
    Cluster failed(parallel_options());
    plain.step(0);
    failed.step(0);
    // Stage 1 of pipeline 0 and stage 2 of pipeline 1 die; their peers run their microbatches, last
    // first.
    failed.reversed = true;
    failed.route = [](std::int32_t stage, const MicrobatchKey& key) {
        return stage == 1 ? 1 : stage == 2 ? 0 : key.pipeline;
    };
    const Cluster::Losses expected = plain.step(1);
    const Cluster::Losses losses = failed.accumulate(1);
    failed.reduce_and_step({{1, 0}, {2, 1}});
    EXPECT_EQ(losses, expected);
    for (std::int32_t stage = 0; stage < 3; ++stage) {
        const std::int32_t live = stage == 1 ? 1 : 0;
        EXPECT_EQ(failed.at(stage, live).save_state(), plain.at(stage, live).save_state());
    }
}

TEST(Stage, RejoinedWorkerContinuesWithTheSameBytes) {
    Cluster plain(parallel_options());
    Cluster other(parallel_options());
    plain.step(0);
    plain.step(1);
    // A worker of `other` that has run nothing copies its peer's state and takes part from step 2
    // on.
    for (std::int32_t stage = 0; stage < 3; ++stage) {
        for (std::int32_t pipeline = 0; pipeline < 2; ++pipeline) {
            expect_ok(
                other.at(stage, pipeline).load_state(plain.at(stage, 1 - pipeline).save_state()));
            EXPECT_EQ(other.at(stage, pipeline).version(), 2);
            EXPECT_EQ(other.at(stage, pipeline).previous_version(), -1);
        }
    }
    EXPECT_EQ(other.step(2), plain.step(2));
    EXPECT_EQ(other.states(), plain.states());
}

TEST(Stage, RollBackThenRedoGivesTheSameBytes) {
    Cluster cluster(parallel_options());
    cluster.step(0);
    const auto before = cluster.states();
    const Cluster::Losses losses = cluster.step(1);
    const auto after = cluster.states();
    EXPECT_NE(before, after);
    for (std::int32_t stage = 0; stage < 3; ++stage) {
        for (std::int32_t pipeline = 0; pipeline < 2; ++pipeline) {
            StageModule& worker = cluster.at(stage, pipeline);
            EXPECT_EQ(worker.version(), 2);
            EXPECT_EQ(worker.previous_version(), 1);
            expect_ok(worker.roll_back());
            EXPECT_EQ(worker.version(), 1);
            EXPECT_EQ(worker.previous_version(), -1);
            expect_error(worker.roll_back(), Errc::bad_state, "version 1 has none");
        }
    }
    EXPECT_EQ(cluster.states(), before);
    EXPECT_EQ(cluster.step(1), losses);
    EXPECT_EQ(cluster.states(), after);
}

TEST(Stage, DroppedIterationLeavesNoTrace) {
    StageOptions options = tiny_options();
    options.microbatches = 2;
    Cluster plain(options);
    Cluster dropped(options);
    const MicrobatchKey first{.step = 0, .pipeline = 0, .microbatch = 0};
    const MicrobatchKey second{.step = 0, .pipeline = 0, .microbatch = 1};
    StageModule& stage = dropped.at(0, 0);
    const auto empty = stage.gradient_sums();
    expect_value(stage.forward(first, {}));
    expect_value(stage.backward_input(first, {}));
    expect_ok(stage.backward_weight(first));
    expect_value(stage.forward(second, {}));
    EXPECT_NE(stage.gradient_sums(), empty);
    stage.drop_iteration();
    EXPECT_EQ(stage.gradient_sums(), empty);
    expect_error(stage.loss(second), Errc::bad_state, "loss of stage 0, step 0");
    EXPECT_EQ(dropped.step(0), plain.step(0));
    EXPECT_EQ(dropped.states(), plain.states());
}

TEST(Stage, CorruptStateIsRefusedAndNothingIsChanged) {
    Cluster cluster(parallel_options());
    cluster.step(0);
    StageModule& stage = cluster.at(1, 0);
    const auto state = stage.save_state();
    auto bad = state;
    bad[bad.size() / 2] ^= std::byte{0x10};
    expect_error(stage.load_state(bad), Errc::wire_corrupt, "hash");
    bad = state;
    bad.resize(bad.size() / 2);
    expect_error(stage.load_state(bad), Errc::wire_corrupt, "bytes, expected");
    expect_error(stage.load_state({}), Errc::wire_corrupt, "too few");
    expect_error(stage.load_state(cluster.at(0, 0).save_state()), Errc::wire_corrupt,
                 "its stage is 0, this stage's is 1");
    EXPECT_EQ(stage.save_state(), state);
    EXPECT_EQ(stage.previous_version(), 0);  // still undoable
}

TEST(Stage, CallsOutOfOrderAreErrors) {
    StageOptions options = tiny_options();
    options.stages = 2;
    options.microbatches = 2;
    Cluster cluster(options);
    StageModule& first = cluster.at(0, 0);
    StageModule& last = cluster.at(1, 0);
    const MicrobatchKey key{};
    const std::vector<float> short_input(7);

    expect_error(first.backward_input(key, std::vector<float>(1024)), Errc::bad_state,
                 "backward_input of stage 0, step 0, pipeline 0, microbatch 0");
    expect_error(first.backward_weight(key), Errc::bad_state, "backward_weight of stage 0");
    expect_error(first.forward({0, 1, 0}, {}), Errc::invalid_argument, "1 pipelines of 2");
    expect_error(first.forward({0, 0, 2}, {}), Errc::invalid_argument, "1 pipelines of 2");
    expect_error(first.forward({-1, 0, 0}, {}), Errc::invalid_argument, "step -1");
    expect_error(first.forward(key, short_input), Errc::invalid_argument, "7 values, expected 0");
    expect_error(last.forward(key, short_input), Errc::invalid_argument, "7 values, expected 1024");

    const auto x = expect_value(first.forward(key, {}));
    EXPECT_EQ(x.size(), 1024U);
    expect_error(first.forward(key, {}), Errc::bad_state, "under way already");
    expect_error(first.backward_weight(key), Errc::bad_state, "backward_input has to come before");
    expect_error(first.backward_input(key, short_input), Errc::invalid_argument, "7 values");
    expect_error(first.loss(key), Errc::bad_state, "only the last stage");
    expect_error(first.optimizer_step(), Errc::bad_state, "1 microbatches are under way");
    expect_value(first.forward({0, 0, 1}, {}));
    expect_error(first.forward({1, 0, 0}, {}), Errc::bad_state, "2 microbatches are under way");

    EXPECT_TRUE(expect_value(last.forward(key, x)).empty());
    const auto dx = expect_value(last.backward_input(key, {}));
    EXPECT_EQ(dx.size(), 1024U);
    expect_error(last.backward_input(key, {}), Errc::bad_state, "forward has to come just before");
    EXPECT_GT(expect_value(last.loss(key)), 0);
    expect_ok(last.backward_weight(key));
    expect_error(last.loss(key), Errc::bad_state, "loss of stage 1");
    expect_error(last.optimizer_step(), Errc::bad_state, "1 of the iteration's 2 microbatches");
    EXPECT_TRUE(expect_value(first.backward_input(key, dx)).empty());
    expect_ok(first.backward_weight(key));
}

TEST(Stage, OverflowIsReportedAndAddsNothing) {
    StageOptions options = tiny_options();
    options.stages = 2;
    Cluster cluster(options);
    StageModule& first = cluster.at(0, 0);
    const auto empty = first.gradient_sums();
    for (const float slope : {std::nanf(""), std::numeric_limits<float>::infinity(), 1e12F}) {
        expect_value(first.forward({}, {}));
        expect_value(first.backward_input({}, std::vector<float>(1024, slope)));
        expect_error(first.backward_weight({}), Errc::numeric_overflow, "stage 0, step 0");
        EXPECT_EQ(first.gradient_sums(), empty);
        first.drop_iteration();
    }
    cluster.step(0);  // works again
    EXPECT_EQ(first.version(), 1);
}

TEST(Stage, BadOptionsAreRefused) {
    StageOptions options = tiny_options();
    options.text = "short";
    const auto stage = make_stage_under_test(options);
    expect_error(stage, Errc::invalid_argument, "the training text has 5 bytes");
}

TEST(Stage, FastSumsDifferFromExactByRoundingOnly) {
    StageOptions options = parallel_options();
    Cluster exact(options);
    options.exact = false;
    Cluster fast(options);
    for (std::int64_t step = 0; step < 3; ++step) {
        const double expected = mean(exact.step(step));
        EXPECT_NEAR(mean(fast.step(step)), expected, 1e-5 * expected);
    }
}

TEST(Stage, LossFalls) {
    StageOptions options = tiny_options();
    options.stages = 2;
    options.microbatches = 2;
    Cluster cluster(options);
    const double before = mean(cluster.step(0));
    double after = 0;
    for (std::int64_t step = 1; step <= 40; ++step) {
        after = mean(cluster.step(step));
    }
    EXPECT_GT(before, 5.4);
    EXPECT_LT(after, 3.0);
}

}  // namespace
}  // namespace holdfast::training
