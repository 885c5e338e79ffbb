// SPDX-License-Identifier: Apache-2.0
// A stage's parameters and moments as bytes, for a worker that joins: magic and format, shape,
// version, the three arrays, and a 64-bit hash over all before it. Little endian. Only a stage of
// the same shape takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <holdfast/result.hpp>

#include "nn/adam.hpp"
#include "stage_module.hpp"

namespace holdfast::training::nn {

/// 64-bit hash of bytes; any change confined to one aligned 8-byte word changes it. Not
/// cryptographic.
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

std::vector<std::byte> encode_state(const StageOptions& options, const AdamState& state);

/// Errors: wire_corrupt, saying what differs. Pre: `size` is the number of parameters of options'
/// stage.
Result<AdamState> decode_state(const StageOptions& options, std::size_t size,
                               std::span<const std::byte> bytes);

}  // namespace holdfast::training::nn
