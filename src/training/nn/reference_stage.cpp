// SPDX-License-Identifier: Apache-2.0
// The reference backend: a pre-norm GPT stage written out by hand on the kernels of kernels.hpp.
// Backward is split as ReCycle wants it: backward_input computes what the stage before waits for
// and keeps every linear layer's (x, dy); backward_weight multiplies them, any time later. Small
// gradients (norms) are a by-product of the first half; they are kept too and counted in the
// second, so that a microbatch counts whole or not at all.
#include <map>
#include <memory>
#include <utility>

#include "nn/kernels.hpp"
#include "nn/stage_base.hpp"

namespace holdfast::training {
namespace nn {
namespace {

using Buffer = std::vector<float>;

struct NormGradient {
    Buffer weight;
    Buffer bias;
};

/// What one block keeps of one microbatch. Names are those of the values in the formulas of
/// BlockSlots.
struct BlockKept {
    Buffer in;
    NormKept norm1;
    Buffer normal1;
    Buffer qkv;
    Buffer weights;  ///< of attention
    Buffer attended;
    Buffer middle;
    NormKept norm2;
    Buffer normal2;
    Buffer wide;  ///< before the GELU
    Buffer active;
    // From backward_input on:
    Buffer dqkv;
    Buffer dprojection;  ///< gradient of the projection's output
    Buffer dwide;
    Buffer ddown;  ///< gradient of the block's output
    NormGradient norm1_gradient;
    NormGradient norm2_gradient;
};

struct Kept {
    Phase phase = Phase::forward_done;
    Batch batch;
    std::vector<BlockKept> blocks;
    Buffer dembedding;  ///< first stage, from backward_input on
    // Last stage:
    Buffer out;  ///< of the last block
    NormKept final_norm;
    Buffer normal;
    Buffer dlogits;
    NormGradient final_gradient;
    double loss = 0;
};

class ReferenceStage final : public StageBase {
  public:
    explicit ReferenceStage(StageOptions options) : StageBase(std::move(options)) {}

    Result<std::vector<float>> forward(const MicrobatchKey& key,
                                       std::span<const float> input) override;
    Result<std::vector<float>> backward_input(const MicrobatchKey& key,
                                              std::span<const float> output_gradient) override;
    Result<> backward_weight(const MicrobatchKey& key) override;
    [[nodiscard]] Result<double> loss(const MicrobatchKey& key) const override;

  private:
    void bind_parameters() override {}  // reads them where they are

    void drop_kept() override { kept_.clear(); }

    [[nodiscard]] std::size_t kept() const override { return kept_.size(); }

    [[nodiscard]] std::size_t width() const {
        return static_cast<std::size_t>(options().model.width);
    }

    [[nodiscard]] std::size_t rows() const { return activation_size() / width(); }

    [[nodiscard]] Floats at(std::size_t offset, std::size_t size) const {
        return parameters().subspan(offset, size);
    }

    [[nodiscard]] LinearShape shape(const LinearSlots& slots) const {
        return {.rows = rows(),
                .inputs = static_cast<std::size_t>(slots.inputs),
                .outputs = static_cast<std::size_t>(slots.outputs)};
    }

    [[nodiscard]] AttentionShape attention() const {
        const ModelConfig& model = options().model;
        return {.sequences = static_cast<std::size_t>(model.sequences),
                .context = static_cast<std::size_t>(model.context),
                .heads = static_cast<std::size_t>(model.heads),
                .width = width()};
    }

    [[nodiscard]] Buffer embed(const Batch& batch) const;
    [[nodiscard]] Buffer linear(const LinearSlots& slots, Floats x) const;
    [[nodiscard]] Buffer linear_back(const LinearSlots& slots, Floats dy) const;
    [[nodiscard]] Buffer norm(const NormSlots& slots, Floats x, NormKept& kept) const;
    [[nodiscard]] Buffer norm_back(const NormSlots& slots, Floats x, const NormKept& kept,
                                   Floats dy, NormGradient& gradient) const;
    [[nodiscard]] Buffer block_forward(const BlockSlots& slots, Buffer in, BlockKept& kept) const;
    [[nodiscard]] Buffer block_backward(const BlockSlots& slots, Buffer dout,
                                        BlockKept& kept) const;

    void linear_weight(const LinearSlots& slots, Floats x, Floats dy);
    void norm_weight(const NormSlots& slots, const NormGradient& gradient);

    std::map<MicrobatchKey, Kept> kept_;
    Buffer gradient_;  ///< one microbatch's, whole
};

void add_to(Buffer& sum, Floats more) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += more[i];
    }
}

Buffer ReferenceStage::embed(const Batch& batch) const {
    const auto context = static_cast<std::size_t>(options().model.context);
    Buffer out(activation_size());
    for (std::size_t row = 0; row < rows(); ++row) {
        const Floats token = at(layout().token + batch.tokens[row] * width(), width());
        const Floats position = at(layout().position + (row % context) * width(), width());
        for (std::size_t i = 0; i < width(); ++i) {
            out[row * width() + i] = token[i] + position[i];
        }
    }
    return out;
}

Buffer ReferenceStage::linear(const LinearSlots& slots, Floats x) const {
    const LinearShape size = shape(slots);
    Buffer y(size.rows * size.outputs);
    linear_forward(size, x, at(slots.weight, size.inputs * size.outputs),
                   at(slots.bias, size.outputs), y);
    return y;
}

Buffer ReferenceStage::linear_back(const LinearSlots& slots, Floats dy) const {
    const LinearShape size = shape(slots);
    Buffer dx(size.rows * size.inputs);
    linear_backward_input(size, dy, at(slots.weight, size.inputs * size.outputs), dx);
    return dx;
}

Buffer ReferenceStage::norm(const NormSlots& slots, Floats x, NormKept& kept) const {
    Buffer y(x.size());
    norm_forward(width(), x, at(slots.weight, width()), at(slots.bias, width()), y, kept);
    return y;
}

Buffer ReferenceStage::norm_back(const NormSlots& slots, Floats x, const NormKept& kept, Floats dy,
                                 NormGradient& gradient) const {
    Buffer dx(x.size());
    gradient.weight.resize(width());
    gradient.bias.resize(width());
    norm_backward(width(), x, at(slots.weight, width()), kept, dy, dx, gradient.weight,
                  gradient.bias);
    return dx;
}

Buffer ReferenceStage::block_forward(const BlockSlots& slots, Buffer in, BlockKept& kept) const {
    const AttentionShape heads = attention();
    kept.in = std::move(in);
    kept.normal1 = norm(slots.norm1, kept.in, kept.norm1);
    kept.qkv = linear(slots.qkv, kept.normal1);
    kept.weights.resize(heads.sequences * heads.heads * heads.context * heads.context);
    kept.attended.resize(kept.in.size());
    attention_forward(heads, kept.qkv, kept.weights, kept.attended);
    kept.middle = linear(slots.projection, kept.attended);
    add_to(kept.middle, kept.in);
    kept.normal2 = norm(slots.norm2, kept.middle, kept.norm2);
    kept.wide = linear(slots.up, kept.normal2);
    kept.active.resize(kept.wide.size());
    gelu_forward(kept.wide, kept.active);
    Buffer out = linear(slots.down, kept.active);
    add_to(out, kept.middle);
    return out;
}

Buffer ReferenceStage::block_backward(const BlockSlots& slots, Buffer dout, BlockKept& kept) const {
    kept.ddown = std::move(dout);
    const Buffer dactive = linear_back(slots.down, kept.ddown);
    kept.dwide.resize(dactive.size());
    gelu_backward(kept.wide, dactive, kept.dwide);
    const Buffer dnormal2 = linear_back(slots.up, kept.dwide);
    kept.dprojection =
        norm_back(slots.norm2, kept.middle, kept.norm2, dnormal2, kept.norm2_gradient);
    add_to(kept.dprojection, kept.ddown);
    const Buffer dattended = linear_back(slots.projection, kept.dprojection);
    kept.dqkv.resize(kept.qkv.size());
    attention_backward(attention(), kept.qkv, kept.weights, dattended, kept.dqkv);
    const Buffer dnormal1 = linear_back(slots.qkv, kept.dqkv);
    Buffer din = norm_back(slots.norm1, kept.in, kept.norm1, dnormal1, kept.norm1_gradient);
    add_to(din, kept.dprojection);
    return din;
}

Result<std::vector<float>> ReferenceStage::forward(const MicrobatchKey& key,
                                                   std::span<const float> input) {
    HOLD_TRY(check_forward(key, input, kept_.contains(key)));
    Kept kept;
    if (layout().first || layout().last) {
        kept.batch = draw(key);
    }
    Buffer x = layout().first ? embed(kept.batch) : Buffer(input.begin(), input.end());
    kept.blocks.resize(layout().blocks.size());
    for (std::size_t block = 0; block < kept.blocks.size(); ++block) {
        x = block_forward(layout().blocks[block], std::move(x), kept.blocks[block]);
    }
    if (layout().last) {
        kept.out = std::move(x);
        x = {};
        kept.normal = norm(layout().final_norm, kept.out, kept.final_norm);
        const Buffer logits = linear(layout().head, kept.normal);
        kept.dlogits.resize(logits.size());
        kept.loss = cross_entropy(static_cast<std::size_t>(options().model.vocabulary), logits,
                                  kept.batch.targets, kept.dlogits);
    }
    kept_.emplace(key, std::move(kept));
    return x;
}

Result<std::vector<float>> ReferenceStage::backward_input(const MicrobatchKey& key,
                                                          std::span<const float> output_gradient) {
    HOLD_TRY(check_backward(output_gradient));
    const auto found = kept_.find(key);
    if (found == kept_.end() || found->second.phase != Phase::forward_done) {
        return fail(wrong_phase("backward_input", key, "its forward has to come just before"));
    }
    Kept& kept = found->second;
    Buffer slope(output_gradient.begin(), output_gradient.end());
    if (layout().last) {
        const Buffer dnormal = linear_back(layout().head, kept.dlogits);
        slope =
            norm_back(layout().final_norm, kept.out, kept.final_norm, dnormal, kept.final_gradient);
    }
    for (std::size_t block = kept.blocks.size(); block-- > 0;) {
        slope = block_backward(layout().blocks[block], std::move(slope), kept.blocks[block]);
    }
    kept.phase = Phase::backward_done;
    if (layout().first) {
        kept.dembedding = std::move(slope);
        slope = {};
    }
    return slope;
}

void ReferenceStage::linear_weight(const LinearSlots& slots, Floats x, Floats dy) {
    const LinearShape size = shape(slots);
    const FloatsOut all(gradient_);
    linear_backward_weight(size, x, dy, all.subspan(slots.weight, size.inputs * size.outputs),
                           all.subspan(slots.bias, size.outputs));
}

void ReferenceStage::norm_weight(const NormSlots& slots, const NormGradient& gradient) {
    std::copy(gradient.weight.begin(), gradient.weight.end(), &gradient_[slots.weight]);
    std::copy(gradient.bias.begin(), gradient.bias.end(), &gradient_[slots.bias]);
}

Result<> ReferenceStage::backward_weight(const MicrobatchKey& key) {
    const auto found = kept_.find(key);
    if (found == kept_.end() || found->second.phase != Phase::backward_done) {
        return fail(wrong_phase("backward_weight", key, "its backward_input has to come before"));
    }
    const Kept& kept = found->second;
    gradient_.assign(layout().size, 0.0F);
    if (layout().first) {
        add_embedding_gradient(kept.batch, kept.dembedding, gradient_);
    }
    for (std::size_t block = 0; block < kept.blocks.size(); ++block) {
        const BlockSlots& slots = layout().blocks[block];
        const BlockKept& of = kept.blocks[block];
        norm_weight(slots.norm1, of.norm1_gradient);
        linear_weight(slots.qkv, of.normal1, of.dqkv);
        linear_weight(slots.projection, of.attended, of.dprojection);
        norm_weight(slots.norm2, of.norm2_gradient);
        linear_weight(slots.up, of.normal2, of.dwide);
        linear_weight(slots.down, of.active, of.ddown);
    }
    if (layout().last) {
        norm_weight(layout().final_norm, kept.final_gradient);
        linear_weight(layout().head, kept.normal, kept.dlogits);
    }
    HOLD_TRY(add_gradient(key, gradient_));
    kept_.erase(found);
    return {};
}

Result<double> ReferenceStage::loss(const MicrobatchKey& key) const {
    const auto found = kept_.find(key);
    if (!layout().last || found == kept_.end()) {
        return fail(wrong_phase("loss", key, "only the last stage has it, from forward on"));
    }
    return found->second.loss;
}

}  // namespace
}  // namespace nn

Result<std::unique_ptr<StageModule>> make_reference_stage(StageOptions options) {
    HOLD_TRY(nn::check_options(options));
    return std::make_unique<nn::ReferenceStage>(std::move(options));
}

}  // namespace holdfast::training
