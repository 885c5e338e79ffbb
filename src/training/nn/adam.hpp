// SPDX-License-Identifier: Apache-2.0
// Adam (Kingma and Ba, arXiv 1412.6980) with bias correction on flat fp32 arrays, written here so
// that both backends and every peer compute the same bytes, and so that one step can be undone: a
// step writes into a second set of arrays and swaps, hence undoing is swapping back. Costs three
// arrays more; copies nothing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::training::nn {

/// Parameters, both moments, and the number of steps in them.
struct AdamState {
    std::vector<float> parameters;
    std::vector<float> first;   ///< moving mean of the gradient
    std::vector<float> second;  ///< moving mean of its square
    std::int64_t version = 0;
};

class Adam {
  public:
    Adam(double learning_rate, std::vector<float> parameters);

    /// The state before stays reachable until the next step. Pre: gradient is finite, of the
    /// parameters' size.
    void step(std::span<const float> gradient);
    /// Errors: bad_state when there is no step to undo.
    Result<> undo();
    /// Takes the state over and forgets the previous one. Pre: the three arrays have the
    /// parameters' size.
    void replace(AdamState state);

    [[nodiscard]] const AdamState& state() const { return states_[current_]; }

    /// The version that undo() reaches, or -1.
    [[nodiscard]] std::int64_t previous_version() const;

  private:
    double learning_rate_;
    std::array<AdamState, 2> states_;
    std::size_t current_ = 0;
    bool can_undo_ = false;
};

}  // namespace holdfast::training::nn
