// SPDX-License-Identifier: Apache-2.0
// The libtorch backend against the reference, and its split backward against libtorch's own.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "harness.hpp"
#include "nn/torch_stage.hpp"

namespace holdfast::training {

Result<std::unique_ptr<StageModule>> make_stage_under_test(StageOptions options) {
    return make_torch_stage(std::move(options));
}

namespace {

StageOptions compared_options() {
    StageOptions options = tiny_options();
    options.stages = 3;
    options.exact = false;
    return options;
}

/// Relative to the largest magnitude: single small values carry the rounding of their large terms.
void expect_close(const std::vector<float>& left, const std::vector<float>& right,
                  const std::string& what) {
    ASSERT_EQ(left.size(), right.size()) << what;
    double largest = 0;
    double apart = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
        const auto a = static_cast<double>(left[i]);
        const auto b = static_cast<double>(right[i]);
        largest = std::max(largest, std::fabs(b));
        apart = std::max(apart, std::fabs(a - b));
    }
    EXPECT_LE(apart, 1e-4 * largest) << what;
}

TEST(Torch, AgreesWithTheReferenceForwardAndBackward) {
    const StageOptions options = compared_options();
    Cluster reference(options, &make_reference_stage);
    Cluster torch(options, &make_torch_stage);
    for (std::int64_t step = 0; step < 3; ++step) {
        reference.step(step);
    }
    for (std::int32_t stage = 0; stage < 3; ++stage) {
        expect_ok(torch.at(stage, 0).load_state(reference.at(stage, 0).save_state()));
    }
    const MicrobatchKey key{.step = 9, .pipeline = 0, .microbatch = 0};
    std::vector<float> left;
    std::vector<float> right;
    for (std::int32_t stage = 0; stage < 3; ++stage) {
        left = expect_value(torch.at(stage, 0).forward(key, left));
        right = expect_value(reference.at(stage, 0).forward(key, right));
        expect_close(left, right, fmt::format("output of stage {}", stage));
    }
    EXPECT_NEAR(expect_value(torch.at(2, 0).loss(key)), expect_value(reference.at(2, 0).loss(key)),
                1e-5);
    for (std::int32_t stage = 3; stage-- > 0;) {
        left = expect_value(torch.at(stage, 0).backward_input(key, left));
        right = expect_value(reference.at(stage, 0).backward_input(key, right));
        expect_close(left, right, fmt::format("input gradient of stage {}", stage));
        expect_ok(torch.at(stage, 0).backward_weight(key));
        expect_ok(reference.at(stage, 0).backward_weight(key));
    }
    for (std::int32_t stage = 0; stage < 3; ++stage) {
        StageOptions own = options;
        own.stage = stage;
        const auto mine = fast_values(torch.at(stage, 0).gradient_sums());
        const auto theirs = fast_values(reference.at(stage, 0).gradient_sums());
        for (const nn::Parameter& parameter : nn::make_layout(own).parameters) {
            const auto part = [&](const std::vector<float>& all) {
                return std::vector<float>(&all[parameter.offset],
                                          &all[parameter.offset] + parameter.size());
            };
            expect_close(part(mine), part(theirs), parameter.name);
        }
    }
}

TEST(Torch, SplitBackwardGivesTheBytesOfTheWhole) {
    const StageOptions options = compared_options();
    Cluster split(options, &make_torch_stage);
    Cluster coupled(options, &make_coupled_torch_stage);
    for (std::int64_t step = 0; step < 3; ++step) {
        EXPECT_EQ(split.accumulate(step), coupled.accumulate(step));
        for (std::int32_t stage = 0; stage < 3; ++stage) {
            EXPECT_EQ(split.at(stage, 0).gradient_sums(), coupled.at(stage, 0).gradient_sums())
                << "stage " << stage << ", step " << step;
        }
        split.reduce_and_step();
        coupled.reduce_and_step();
    }
    EXPECT_EQ(split.states(), coupled.states());
}

}  // namespace
}  // namespace holdfast::training
