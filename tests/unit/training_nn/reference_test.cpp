// SPDX-License-Identifier: Apache-2.0
// The reference backend's gradients against differences of its own loss.
#include <cmath>

#include <gtest/gtest.h>

#include "harness.hpp"
#include "nn/stage_layout.hpp"
#include "nn/stage_state.hpp"
#include "nn/torch_stage.hpp"

namespace holdfast::training {

Result<std::unique_ptr<StageModule>> make_stage_under_test(StageOptions options) {
    return make_reference_stage(std::move(options));
}

namespace {

double loss_at(StageModule& stage, const StageOptions& options, const nn::AdamState& state) {
    expect_ok(stage.load_state(nn::encode_state(options, state)));
    expect_value(stage.forward({}, {}));
    const double loss = expect_value(stage.loss({}));
    stage.drop_iteration();
    return loss;
}

TEST(Reference, GradientOfEveryParameterAgreesWithDifferencesOfTheLoss) {
    StageOptions options = tiny_options();
    options.exact = false;
    Cluster cluster(options);
    for (std::int64_t step = 0; step < 5; ++step) {
        cluster.step(step);  // away from the start, where biases are zero and norms one
    }
    StageModule& stage = cluster.at(0, 0);
    const nn::StageLayout layout = nn::make_layout(options);
    const nn::AdamState state =
        expect_value(nn::decode_state(options, layout.size, stage.save_state()));
    cluster.accumulate(0);
    const std::vector<float> gradient = fast_values(stage.gradient_sums());
    ASSERT_EQ(gradient.size(), layout.size);
    for (const nn::Parameter& parameter : layout.parameters) {
        double squares = 0;
        for (std::size_t i = 0; i < parameter.size(); ++i) {
            const auto slope = static_cast<double>(gradient[parameter.offset + i]);
            squares += slope * slope;
        }
        const double norm = std::sqrt(squares);
        ASSERT_GT(norm, 1e-4) << parameter.name;
        // Along the gradient the loss's slope is the gradient's length.
        constexpr double kStep = 0.01;
        const auto moved = [&](double by) {
            nn::AdamState there = state;
            for (std::size_t i = parameter.offset; i < parameter.offset + parameter.size(); ++i) {
                there.parameters[i] +=
                    static_cast<float>(by * static_cast<double>(gradient[i]) / norm);
            }
            return loss_at(stage, options, there);
        };
        const double difference = (moved(kStep) - moved(-kStep)) / (2 * kStep);
        EXPECT_NEAR(difference, norm, 0.01 * norm) << parameter.name;
    }
}

TEST(Reference, InputGradientAgreesWithDifferencesOfTheLoss) {
    StageOptions options = tiny_options();
    options.stages = 2;
    Cluster cluster(options);
    cluster.step(0);
    StageModule& last = cluster.at(1, 0);
    std::vector<float> x = expect_value(cluster.at(0, 0).forward({}, {}));
    expect_value(last.forward({}, x));
    const std::vector<float> slope = expect_value(last.backward_input({}, {}));
    double squares = 0;
    for (const float value : slope) {
        squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double norm = std::sqrt(squares);
    constexpr double kStep = 0.01;
    const auto moved = [&](double by) {
        last.drop_iteration();
        std::vector<float> there = x;
        for (std::size_t i = 0; i < there.size(); ++i) {
            there[i] += static_cast<float>(by * static_cast<double>(slope[i]) / norm);
        }
        expect_value(last.forward({}, there));
        return expect_value(last.loss({}));
    };
    EXPECT_NEAR((moved(kStep) - moved(-kStep)) / (2 * kStep), norm, 0.01 * norm);
}

TEST(Reference, InitialParametersAreTheSameOnEveryMachine) {
    // Only integer arithmetic and correctly rounded operations: these words may never change.
    StageOptions options = tiny_options();
    EXPECT_EQ(make_or_die(options)->parameter_hash(), 1300726533603588838U);
    options.seed = 8;
    EXPECT_EQ(make_or_die(options)->parameter_hash(), 2234436132939419603U);
}

}  // namespace
}  // namespace holdfast::training
