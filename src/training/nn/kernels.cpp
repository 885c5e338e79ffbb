// SPDX-License-Identifier: Apache-2.0
#include "nn/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace holdfast::training::nn {
namespace {

/// c[r, :] += Σ_k a(r, k) · b[k, :], with a(r, k) = a[r · a_row + k · a_column]: every product of a
/// linear layer is one of these. Four k at a time, so that c's row is read and written a quarter as
/// often; the order of additions is fixed.
struct ProductShape {
    std::size_t rows = 0;
    std::size_t depth = 0;
    std::size_t columns = 0;
    std::size_t a_row = 0;
    std::size_t a_column = 0;
};

void add_product(const ProductShape& shape, const float* a, const float* b, float* c) {
    const std::size_t columns = shape.columns;
    for (std::size_t row = 0; row < shape.rows; ++row) {
        const float* factors = a + row * shape.a_row;
        float* __restrict out = c + row * columns;
        std::size_t k = 0;
        for (; k + 4 <= shape.depth; k += 4) {
            const float f0 = factors[k * shape.a_column];
            const float f1 = factors[(k + 1) * shape.a_column];
            const float f2 = factors[(k + 2) * shape.a_column];
            const float f3 = factors[(k + 3) * shape.a_column];
            const float* b0 = b + k * columns;
            const float* b1 = b0 + columns;
            const float* b2 = b1 + columns;
            const float* b3 = b2 + columns;
            for (std::size_t i = 0; i < columns; ++i) {
                out[i] = (((out[i] + f0 * b0[i]) + f1 * b1[i]) + f2 * b2[i]) + f3 * b3[i];
            }
        }
        for (; k < shape.depth; ++k) {
            const float factor = factors[k * shape.a_column];
            for (std::size_t i = 0; i < columns; ++i) {
                out[i] += factor * b[k * columns + i];
            }
        }
    }
}

/// One head of one sequence: its rows in the arrays of attention.
struct Head {
    std::size_t first_row = 0;  ///< of the sequence
    std::size_t column = 0;     ///< of the head in [.., width]
    std::size_t weights = 0;    ///< offset in the attention weights
    std::size_t size = 0;       ///< width of a head
    float scale = 0;
};

Head head_at(const AttentionShape& shape, std::size_t sequence, std::size_t index) {
    const std::size_t size = shape.width / shape.heads;
    return {.first_row = sequence * shape.context,
            .column = index * size,
            .weights = (sequence * shape.heads + index) * shape.context * shape.context,
            .size = size,
            .scale = 1.0F / std::sqrt(static_cast<float>(size))};
}

float dot(const float* a, const float* b, std::size_t size) {
    float sum = 0;
    for (std::size_t i = 0; i < size; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

void head_forward(const AttentionShape& shape, const Head& head, Floats qkv, FloatsOut weights,
                  FloatsOut y) {
    const std::size_t stride = 3 * shape.width;
    for (std::size_t i = 0; i < shape.context; ++i) {
        const float* query = &qkv[(head.first_row + i) * stride + head.column];
        float* row = &weights[head.weights + i * shape.context];
        float largest = -INFINITY;
        for (std::size_t j = 0; j <= i; ++j) {
            const float* key = &qkv[(head.first_row + j) * stride + shape.width + head.column];
            row[j] = dot(query, key, head.size) * head.scale;
            largest = std::max(largest, row[j]);
        }
        float sum = 0;
        for (std::size_t j = 0; j <= i; ++j) {
            row[j] = std::exp(row[j] - largest);
            sum += row[j];
        }
        float* out = &y[(head.first_row + i) * shape.width + head.column];
        std::fill_n(out, head.size, 0.0F);
        for (std::size_t j = 0; j <= i; ++j) {
            row[j] /= sum;
            const float* value =
                &qkv[(head.first_row + j) * stride + 2 * shape.width + head.column];
            for (std::size_t d = 0; d < head.size; ++d) {
                out[d] += row[j] * value[d];
            }
        }
        std::fill_n(row + i + 1, shape.context - i - 1, 0.0F);
    }
}

void head_backward(const AttentionShape& shape, const Head& head, Floats qkv, Floats weights,
                   Floats dy, FloatsOut dqkv) {
    const std::size_t stride = 3 * shape.width;
    std::vector<float> dweights(shape.context);
    for (std::size_t i = 0; i < shape.context; ++i) {
        const std::size_t query = (head.first_row + i) * stride + head.column;
        const float* row = &weights[head.weights + i * shape.context];
        const float* dout = &dy[(head.first_row + i) * shape.width + head.column];
        float weighted = 0;
        for (std::size_t j = 0; j <= i; ++j) {
            const std::size_t value = (head.first_row + j) * stride + 2 * shape.width + head.column;
            dweights[j] = dot(dout, &qkv[value], head.size);
            weighted += row[j] * dweights[j];
            for (std::size_t d = 0; d < head.size; ++d) {
                dqkv[value + d] += row[j] * dout[d];
            }
        }
        for (std::size_t j = 0; j <= i; ++j) {
            const std::size_t key = (head.first_row + j) * stride + shape.width + head.column;
            const float dscore = row[j] * (dweights[j] - weighted) * head.scale;
            for (std::size_t d = 0; d < head.size; ++d) {
                dqkv[query + d] += dscore * qkv[key + d];
                dqkv[key + d] += dscore * qkv[query + d];
            }
        }
    }
}

}  // namespace

void linear_forward(const LinearShape& shape, Floats x, Floats weight, Floats bias, FloatsOut y) {
    // weightᵀ, so that the inner loop runs over outputs, which are independent sums.
    std::vector<float> transposed(shape.inputs * shape.outputs);
    for (std::size_t o = 0; o < shape.outputs; ++o) {
        for (std::size_t i = 0; i < shape.inputs; ++i) {
            transposed[i * shape.outputs + o] = weight[o * shape.inputs + i];
        }
    }
    for (std::size_t row = 0; row < shape.rows; ++row) {
        std::copy_n(bias.data(), shape.outputs, &y[row * shape.outputs]);
    }
    add_product({.rows = shape.rows,
                 .depth = shape.inputs,
                 .columns = shape.outputs,
                 .a_row = shape.inputs,
                 .a_column = 1},
                x.data(), transposed.data(), y.data());
}

void linear_backward_input(const LinearShape& shape, Floats dy, Floats weight, FloatsOut dx) {
    std::fill(dx.begin(), dx.end(), 0.0F);
    add_product({.rows = shape.rows,
                 .depth = shape.outputs,
                 .columns = shape.inputs,
                 .a_row = shape.outputs,
                 .a_column = 1},
                dy.data(), weight.data(), dx.data());
}

void linear_backward_weight(const LinearShape& shape, Floats x, Floats dy, FloatsOut dweight,
                            FloatsOut dbias) {
    std::fill(dweight.begin(), dweight.end(), 0.0F);
    add_product({.rows = shape.outputs,
                 .depth = shape.rows,
                 .columns = shape.inputs,
                 .a_row = 1,
                 .a_column = shape.outputs},
                dy.data(), x.data(), dweight.data());
    std::fill(dbias.begin(), dbias.end(), 0.0F);
    for (std::size_t row = 0; row < shape.rows; ++row) {
        for (std::size_t o = 0; o < shape.outputs; ++o) {
            dbias[o] += dy[row * shape.outputs + o];
        }
    }
}

void norm_forward(std::size_t width, Floats x, Floats weight, Floats bias, FloatsOut y,
                  NormKept& kept) {
    constexpr double kEpsilon = 1e-5;  // as libtorch's default
    const std::size_t rows = x.size() / width;
    kept.mean.resize(rows);
    kept.inverse.resize(rows);
    for (std::size_t row = 0; row < rows; ++row) {
        const Floats in = x.subspan(row * width, width);
        double sum = 0;
        for (const float value : in) {
            sum += static_cast<double>(value);
        }
        const double mean = sum / static_cast<double>(width);
        double squares = 0;
        for (const float value : in) {
            const double from_mean = static_cast<double>(value) - mean;
            squares += from_mean * from_mean;
        }
        const double variance = squares / static_cast<double>(width);
        kept.mean[row] = static_cast<float>(mean);
        kept.inverse[row] = static_cast<float>(1 / std::sqrt(variance + kEpsilon));
        for (std::size_t i = 0; i < width; ++i) {
            const float normal = (in[i] - kept.mean[row]) * kept.inverse[row];
            y[row * width + i] = normal * weight[i] + bias[i];
        }
    }
}

void norm_backward(std::size_t width, Floats x, Floats weight, const NormKept& kept, Floats dy,
                   FloatsOut dx, FloatsOut dweight, FloatsOut dbias) {
    std::fill(dweight.begin(), dweight.end(), 0.0F);
    std::fill(dbias.begin(), dbias.end(), 0.0F);
    const auto count = static_cast<float>(width);
    for (std::size_t row = 0; row < kept.mean.size(); ++row) {
        const Floats in = x.subspan(row * width, width);
        const Floats slope = dy.subspan(row * width, width);
        const float mean = kept.mean[row];
        const float inverse = kept.inverse[row];
        float sum = 0;
        float weighted = 0;
        for (std::size_t i = 0; i < width; ++i) {
            const float normal = (in[i] - mean) * inverse;
            const float scaled = slope[i] * weight[i];
            sum += scaled;
            weighted += scaled * normal;
            dweight[i] += slope[i] * normal;
            dbias[i] += slope[i];
        }
        for (std::size_t i = 0; i < width; ++i) {
            const float normal = (in[i] - mean) * inverse;
            dx[row * width + i] =
                inverse * (slope[i] * weight[i] - sum / count - normal * (weighted / count));
        }
    }
}

void gelu_forward(Floats x, FloatsOut y) {
    constexpr auto kInverseRoot2 = static_cast<float>(1 / std::numbers::sqrt2);
    for (std::size_t i = 0; i < x.size(); ++i) {
        y[i] = 0.5F * x[i] * (1 + std::erf(x[i] * kInverseRoot2));
    }
}

void gelu_backward(Floats x, Floats dy, FloatsOut dx) {
    constexpr auto kInverseRoot2 = static_cast<float>(1 / std::numbers::sqrt2);
    constexpr auto kDensity = static_cast<float>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const float below = 0.5F * (1 + std::erf(x[i] * kInverseRoot2));
        const float density = kDensity * std::exp(-0.5F * x[i] * x[i]);
        dx[i] = dy[i] * (below + x[i] * density);
    }
}

void attention_forward(const AttentionShape& shape, Floats qkv, FloatsOut weights, FloatsOut y) {
    for (std::size_t sequence = 0; sequence < shape.sequences; ++sequence) {
        for (std::size_t head = 0; head < shape.heads; ++head) {
            head_forward(shape, head_at(shape, sequence, head), qkv, weights, y);
        }
    }
}

void attention_backward(const AttentionShape& shape, Floats qkv, Floats weights, Floats dy,
                        FloatsOut dqkv) {
    std::fill(dqkv.begin(), dqkv.end(), 0.0F);
    for (std::size_t sequence = 0; sequence < shape.sequences; ++sequence) {
        for (std::size_t head = 0; head < shape.heads; ++head) {
            head_backward(shape, head_at(shape, sequence, head), qkv, weights, dy, dqkv);
        }
    }
}

double cross_entropy(std::size_t classes, Floats logits, std::span<const std::uint8_t> targets,
                     FloatsOut dlogits) {
    const auto rows = static_cast<double>(targets.size());
    double loss = 0;
    for (std::size_t row = 0; row < targets.size(); ++row) {
        const Floats in = logits.subspan(row * classes, classes);
        const float largest = *std::max_element(in.begin(), in.end());
        double sum = 0;
        for (const float value : in) {
            sum += std::exp(static_cast<double>(value) - static_cast<double>(largest));
        }
        const double log_sum = static_cast<double>(largest) + std::log(sum);
        loss += log_sum - static_cast<double>(in[targets[row]]);
        for (std::size_t i = 0; i < classes; ++i) {
            const double share = std::exp(static_cast<double>(in[i]) - log_sum);
            dlogits[row * classes + i] =
                static_cast<float>((share - (i == targets[row] ? 1 : 0)) / rows);
        }
    }
    return loss / rows;
}

}  // namespace holdfast::training::nn
