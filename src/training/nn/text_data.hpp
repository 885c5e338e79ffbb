// SPDX-License-Identifier: Apache-2.0
// Draws a microbatch's tokens from the training text. Which bytes depends on (seed, step, pipeline,
// microbatch) only, so that whoever runs the microbatch, and however often, sees the same tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "stage_module.hpp"

namespace holdfast::training::nn {

/// [sequences, context] row-major; target i of a sequence is its token i + 1.
struct Batch {
    std::vector<std::uint8_t> tokens;
    std::vector<std::uint8_t> targets;
};

/// Pre: text.size() > model.context.
Batch draw_batch(const ModelConfig& model, std::uint64_t seed, std::string_view text,
                 const MicrobatchKey& key);

}  // namespace holdfast::training::nn
