// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over microbatches.
//
// The problem: fp32 addition is not associative, so a microbatch that is re-routed to another
// worker changes the sum's last bits, and a run with a failure drifts from a run without. The idea:
// round each microbatch's gradient once to a multiple of 2^-44 and add integers, which is
// associative. Any order and any grouping gives the same bytes.
//
// Range: |gradient| of one microbatch at most 2^19 / (pipelines × microbatches), so that no sum of
// a whole iteration, in whatever order, can leave 64 bits: whether an overflow is reported does not
// depend on the grouping either. Resolution: 2^-44 ≈ 5.7e-14 absolute; Adam normalises gradients,
// whose useful size is above 1e-9.
//
// Mode `fast` adds fp32 instead: half of the bytes on the wire; the last bits depend on the order,
// so peers that add each other's sums stay equal only if all add them in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::training::nn {

class GradientSums {
  public:
    enum class Mode : std::uint8_t { fast, exact };

    /// `contributions` is the number of microbatches in a whole iteration. Pre: contributions ≥ 1.
    GradientSums(Mode mode, std::size_t size, std::int64_t contributions);

    /// Adds one microbatch's gradient. Errors, with nothing added: numeric_overflow for NaN,
    /// infinity or a value out of range; bad_state when the iteration is full already. Pre:
    /// gradient.size() == size.
    Result<> add(std::span<const float> gradient);

    /// Adds a peer's sums. Errors, with nothing added: wire_corrupt for bytes that are not sums of
    /// this shape or hold values no such number of microbatches can have; bad_state when more
    /// microbatches than the iteration has result.
    Result<> add_bytes(std::span<const std::byte> peer);

    /// Header (what, how many microbatches, how many values), then the values, little endian.
    [[nodiscard]] std::vector<std::byte> bytes() const;

    /// Writes sum / contributions. Errors: numeric_overflow when a value is not finite or its
    /// square is not (`fast` only; `out` is then unspecified).
    Result<> mean(std::span<float> out) const;

    /// Microbatches added so far, those of peers included.
    [[nodiscard]] std::int64_t count() const { return count_; }

    void clear();

  private:
    [[nodiscard]] std::size_t size() const;

    Mode mode_;
    std::int64_t contributions_;
    std::int64_t limit_;  ///< of one microbatch's value, in units of 2^-44
    float largest_;       ///< the same as a gradient
    std::int64_t count_ = 0;
    std::vector<std::int64_t> exact_;
    std::vector<float> fast_;
};

}  // namespace holdfast::training::nn
