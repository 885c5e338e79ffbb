// SPDX-License-Identifier: Apache-2.0
// Where each parameter of a stage lies in the stage's one flat fp32 array. Optimizer, gradient
// sums, state transfer and hash work on the flat array and know no tensors; the two backends find
// their tensors here.
//
// The first stage has the embeddings before its blocks, the last the final norm and the
// language-model head after them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <holdfast/result.hpp>

#include "stage_module.hpp"

namespace holdfast::training::nn {

/// One parameter tensor, [rows, columns] row-major at `offset`; vectors have one row.
struct Parameter {
    std::string name;  ///< "block 3 up weight"; part of the key of its initial values
    std::size_t offset = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    double deviation = 0;  ///< of the initial values around `centre`
    double centre = 0;
    std::uint64_t key = 0;  ///< of the initial values; the same for every cut of the model

    [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(rows * columns); }
};

/// y = x · weightᵀ + bias, weight [outputs, inputs].
struct LinearSlots {
    std::size_t weight = 0;  ///< offset
    std::size_t bias = 0;    ///< offset
    std::int64_t inputs = 0;
    std::int64_t outputs = 0;
};

struct NormSlots {
    std::size_t weight = 0;
    std::size_t bias = 0;
};

/// x += projection(attention(qkv(norm1(x)))); x += down(gelu(up(norm2(x)))).
struct BlockSlots {
    NormSlots norm1;
    LinearSlots qkv;
    LinearSlots projection;
    NormSlots norm2;
    LinearSlots up;
    LinearSlots down;
};

struct StageLayout {
    bool first = false;
    bool last = false;
    std::size_t token = 0;     ///< [vocabulary, width]; first stage only
    std::size_t position = 0;  ///< [context, width]; first stage only
    std::vector<BlockSlots> blocks;
    NormSlots final_norm;  ///< last stage only
    LinearSlots head;      ///< last stage only
    std::vector<Parameter> parameters;
    std::size_t size = 0;  ///< of the flat array
};

/// The blocks of a stage: [first, first + count).
struct BlockRange {
    std::int64_t first = 0;
    std::int64_t count = 0;
    auto operator<=>(const BlockRange&) const = default;
};

/// Cuts `layers` evenly; what remains goes to the last stage but one, then to those before it, one
/// each: the last stage has the head's work already. Pre: 0 ≤ stage < stages ≤ layers.
BlockRange block_range(std::int64_t layers, std::int32_t stages, std::int32_t stage);

/// Everything a stage needs to hold before it can be laid out. Errors: invalid_argument, naming the
/// field.
Result<> check_options(const StageOptions& options);

/// Pre: check_options passed.
StageLayout make_layout(const StageOptions& options);

/// Writes the initial values. They depend on the seed and the parameter's place in the whole model
/// only. Pre: flat.size() == layout.size.
void initialise(const StageLayout& layout, std::uint64_t seed, std::span<float> flat);

}  // namespace holdfast::training::nn
