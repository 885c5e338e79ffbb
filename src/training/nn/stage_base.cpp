// SPDX-License-Identifier: Apache-2.0
#include "nn/stage_base.hpp"

#include <utility>

#include "nn/stage_state.hpp"

namespace holdfast::training::nn {
namespace {

std::vector<float> initial_parameters(const StageLayout& layout, std::uint64_t seed) {
    std::vector<float> flat(layout.size);
    initialise(layout, seed, flat);
    return flat;
}

std::string describe(const StageOptions& options, const MicrobatchKey& key) {
    return fmt::format("stage {}, step {}, pipeline {}, microbatch {}", options.stage, key.step,
                       key.pipeline, key.microbatch);
}

}  // namespace

StageBase::StageBase(StageOptions options)
    : options_(std::move(options)),
      layout_(make_layout(options_)),
      adam_(options_.model.learning_rate, initial_parameters(layout_, options_.seed)),
      sums_(options_.exact ? GradientSums::Mode::exact : GradientSums::Mode::fast, layout_.size,
            std::int64_t{options_.pipelines} * options_.microbatches),
      mean_(layout_.size) {}

Result<> StageBase::add_gradient_sums(std::span<const std::byte> peer) {
    return sums_.add_bytes(peer);
}

void StageBase::drop_iteration() {
    sums_.clear();
    drop_kept();
}

Result<> StageBase::optimizer_step() {
    const std::int64_t expected = std::int64_t{options_.pipelines} * options_.microbatches;
    if (kept() != 0) {
        return fail(Errc::bad_state, "optimizer step of stage {}: {} microbatches are under way",
                    options_.stage, kept());
    }
    if (sums_.count() != expected) {
        return fail(
            Errc::bad_state,
            "optimizer step of stage {}: the sums hold {} of the iteration's {} microbatches",
            options_.stage, sums_.count(), expected);
    }
    HOLD_TRY(sums_.mean(mean_));
    adam_.step(mean_);
    sums_.clear();
    bind_parameters();
    return {};
}

Result<> StageBase::roll_back() {
    HOLD_TRY(adam_.undo());
    drop_iteration();
    bind_parameters();
    return {};
}

std::vector<std::byte> StageBase::save_state() const {
    return encode_state(options_, adam_.state());
}

Result<> StageBase::load_state(std::span<const std::byte> state) {
    HOLD_TRY(AdamState loaded, decode_state(options_, layout_.size, state));
    adam_.replace(std::move(loaded));
    drop_iteration();
    bind_parameters();
    return {};
}

std::uint64_t StageBase::parameter_hash() const {
    return hash_bytes(std::as_bytes(parameters()));
}

std::size_t StageBase::activation_size() const {
    const ModelConfig& model = options_.model;
    return static_cast<std::size_t>(model.sequences * model.context * model.width);
}

Batch StageBase::draw(const MicrobatchKey& key) const {
    return draw_batch(options_.model, options_.seed, options_.text, key);
}

Result<> StageBase::check_forward(const MicrobatchKey& key, std::span<const float> input,
                                  bool is_kept) const {
    if (key.step < 0 || key.pipeline < 0 || key.pipeline >= options_.pipelines ||
        key.microbatch < 0 || key.microbatch >= options_.microbatches) {
        return fail(Errc::invalid_argument,
                    "forward of {}: the job has {} pipelines of {} microbatches",
                    describe(options_, key), options_.pipelines, options_.microbatches);
    }
    const std::size_t expected = layout_.first ? 0 : activation_size();
    if (input.size() != expected) {
        return fail(Errc::invalid_argument, "forward of {}: its input has {} values, expected {}",
                    describe(options_, key), input.size(), expected);
    }
    if (is_kept) {
        return fail(Errc::bad_state, "forward of {}: it is under way already",
                    describe(options_, key));
    }
    // Keys of one iteration cannot be more than this; keys of iterations that nobody dropped could.
    const auto most = static_cast<std::size_t>(options_.pipelines) *
                      static_cast<std::size_t>(options_.microbatches);
    if (kept() >= most) {
        return fail(Errc::bad_state, "forward of {}: {} microbatches are under way already",
                    describe(options_, key), kept());
    }
    return {};
}

Result<> StageBase::check_backward(std::span<const float> output_gradient) const {
    const std::size_t expected = layout_.last ? 0 : activation_size();
    if (output_gradient.size() != expected) {
        return fail(Errc::invalid_argument,
                    "backward of stage {}: the output's gradient has {} values, expected {}",
                    options_.stage, output_gradient.size(), expected);
    }
    return {};
}

Error StageBase::wrong_phase(const char* call, const MicrobatchKey& key, const char* needed) const {
    return make_error(Errc::bad_state, "{} of {}: {}", call, describe(options_, key), needed);
}

void StageBase::add_embedding_gradient(const Batch& batch, std::span<const float> dembedding,
                                       std::span<float> gradient) const {
    // On the host for every device: the order of additions to a token that occurs twice must be
    // fixed.
    const auto width = static_cast<std::size_t>(options_.model.width);
    const auto context = static_cast<std::size_t>(options_.model.context);
    for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
        const std::span<const float> slope = dembedding.subspan(row * width, width);
        float* token = &gradient[layout_.token + batch.tokens[row] * width];
        float* position = &gradient[layout_.position + (row % context) * width];
        for (std::size_t i = 0; i < width; ++i) {
            token[i] += slope[i];
            position[i] += slope[i];
        }
    }
}

Result<> StageBase::add_gradient(const MicrobatchKey& key, std::span<const float> gradient) {
    if (auto added = sums_.add(gradient); !added) {
        return fail(std::move(added).error().within(describe(options_, key)));
    }
    return {};
}

}  // namespace holdfast::training::nn
