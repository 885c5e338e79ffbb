// SPDX-License-Identifier: Apache-2.0
// The reference backend's arithmetic: fp32, row-major, plain loops, each result computed in one
// fixed order. The oracle that the libtorch backend is tested against, and a backend without
// start-up cost for the runtime's own tests.
//
// Vectorising changes no result: the loops are written so that lanes are independent outputs, and
// the compiler may neither reassociate nor contract (-ffp-contract=off).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace holdfast::training::nn {

using Floats = std::span<const float>;
using FloatsOut = std::span<float>;

/// x [rows, inputs], y [rows, outputs], weight [outputs, inputs].
struct LinearShape {
    std::size_t rows = 0;
    std::size_t inputs = 0;
    std::size_t outputs = 0;
};

/// y = x · weightᵀ + bias.
void linear_forward(const LinearShape& shape, Floats x, Floats weight, Floats bias, FloatsOut y);
/// dx = dy · weight.
void linear_backward_input(const LinearShape& shape, Floats dy, Floats weight, FloatsOut dx);
/// dweight = dyᵀ · x; dbias = Σ dy.
void linear_backward_weight(const LinearShape& shape, Floats x, Floats dy, FloatsOut dweight,
                            FloatsOut dbias);

/// Rows of `width` values; mean and 1/deviation of each row are kept for backward.
struct NormKept {
    std::vector<float> mean;
    std::vector<float> inverse;
};

void norm_forward(std::size_t width, Floats x, Floats weight, Floats bias, FloatsOut y,
                  NormKept& kept);
/// Writes dx, dweight and dbias.
void norm_backward(std::size_t width, Floats x, Floats weight, const NormKept& kept, Floats dy,
                   FloatsOut dx, FloatsOut dweight, FloatsOut dbias);

/// x · Φ(x), Φ the normal distribution's function.
void gelu_forward(Floats x, FloatsOut y);
void gelu_backward(Floats x, Floats dy, FloatsOut dx);

struct AttentionShape {
    std::size_t sequences = 0;
    std::size_t context = 0;
    std::size_t heads = 0;
    std::size_t width = 0;
};

/// Causal self-attention. qkv [sequences · context, 3 · width]; y [sequences · context, width];
/// weights [sequences, heads, context, context], zero above the diagonal.
void attention_forward(const AttentionShape& shape, Floats qkv, FloatsOut weights, FloatsOut y);
void attention_backward(const AttentionShape& shape, Floats qkv, Floats weights, Floats dy,
                        FloatsOut dqkv);

/// Mean of -log softmax(logits)[target] over the rows; writes its gradient. logits [rows, classes].
double cross_entropy(std::size_t classes, Floats logits, std::span<const std::uint8_t> targets,
                     FloatsOut dlogits);

}  // namespace holdfast::training::nn
