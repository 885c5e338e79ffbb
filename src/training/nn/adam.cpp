// SPDX-License-Identifier: Apache-2.0
#include "nn/adam.hpp"

#include <cmath>
#include <utility>

namespace holdfast::training::nn {
namespace {

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 =
    0.99;  // shorter memory than the usual 0.999: runs here have hundreds of steps
constexpr float kEpsilon = 1e-8F;

/// By squaring: std::pow's last bit differs between C libraries.
double power(double base, std::int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 != 0) {
            result *= base;
        }
        base *= base;
    }
    return result;
}

}  // namespace

Adam::Adam(double learning_rate, std::vector<float> parameters) : learning_rate_(learning_rate) {
    const std::size_t size = parameters.size();
    replace(AdamState{.parameters = std::move(parameters),
                      .first = std::vector<float>(size),
                      .second = std::vector<float>(size),
                      .version = 0});
}

void Adam::step(std::span<const float> gradient) {
    const AdamState& before = states_[current_];
    AdamState& after = states_[1 - current_];
    const std::size_t size = before.parameters.size();
    HOLD_CHECK(gradient.size() == size, "one gradient for each parameter");
    after.version = before.version + 1;
    const auto correction1 = static_cast<float>(1 / (1 - power(kBeta1, after.version)));
    const auto correction2 = static_cast<float>(1 / (1 - power(kBeta2, after.version)));
    const auto rate = static_cast<float>(learning_rate_);
    constexpr auto kKeep1 = static_cast<float>(kBeta1);
    constexpr auto kTake1 = static_cast<float>(1 - kBeta1);
    constexpr auto kKeep2 = static_cast<float>(kBeta2);
    constexpr auto kTake2 = static_cast<float>(1 - kBeta2);
    for (std::size_t i = 0; i < size; ++i) {
        const float slope = gradient[i];
        const float first = kKeep1 * before.first[i] + kTake1 * slope;
        const float second = kKeep2 * before.second[i] + kTake2 * (slope * slope);
        after.first[i] = first;
        after.second[i] = second;
        after.parameters[i] =
            before.parameters[i] -
            rate * (first * correction1) / (std::sqrt(second * correction2) + kEpsilon);
    }
    current_ = 1 - current_;
    can_undo_ = true;
}

Result<> Adam::undo() {
    if (!can_undo_) {
        return fail(Errc::bad_state, "undo an optimizer step: version {} has none before it here",
                    state().version);
    }
    current_ = 1 - current_;
    can_undo_ = false;
    return {};
}

void Adam::replace(AdamState state) {
    const std::size_t size = state.parameters.size();
    HOLD_CHECK(state.first.size() == size && state.second.size() == size,
               "moments of the parameters' size");
    states_[current_] = std::move(state);
    AdamState& other = states_[1 - current_];
    other.parameters.resize(size);
    other.first.resize(size);
    other.second.resize(size);
    can_undo_ = false;
}

std::int64_t Adam::previous_version() const {
    return can_undo_ ? states_[1 - current_].version : -1;
}

}  // namespace holdfast::training::nn
