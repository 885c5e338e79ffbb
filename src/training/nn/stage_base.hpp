// SPDX-License-Identifier: Apache-2.0
// What both backends share: parameters, optimizer, gradient sums, state, and the rules of the seam
// (which call is allowed when). A backend adds the tensors: forward, the two halves of backward,
// and what it keeps for each microbatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nn/adam.hpp"
#include "nn/exact_sum.hpp"
#include "nn/stage_layout.hpp"
#include "nn/text_data.hpp"
#include "stage_module.hpp"

namespace holdfast::training::nn {

/// How far a kept microbatch is.
enum class Phase : std::uint8_t { forward_done, backward_done };

class StageBase : public StageModule {
  public:
    [[nodiscard]] std::vector<std::byte> gradient_sums() const final { return sums_.bytes(); }

    Result<> add_gradient_sums(std::span<const std::byte> peer) final;
    void drop_iteration() final;
    /// Also bad_state while a microbatch is kept or some of the iteration's microbatches are not in
    /// the sums, and numeric_overflow for a mean gradient that is not finite. Nothing is changed
    /// then.
    Result<> optimizer_step() final;

    [[nodiscard]] std::int64_t version() const final { return adam_.state().version; }

    [[nodiscard]] std::int64_t previous_version() const final { return adam_.previous_version(); }

    /// Also drops the iteration: its sums belong to the parameters undone.
    Result<> roll_back() final;
    [[nodiscard]] std::vector<std::byte> save_state() const final;
    /// Also drops the iteration, and forgets the previous version.
    Result<> load_state(std::span<const std::byte> state) final;
    [[nodiscard]] std::uint64_t parameter_hash() const final;

  protected:
    /// Pre: check_options passed.
    explicit StageBase(StageOptions options);

    /// The parameters' array has moved or changed; called before any other work and never from the
    /// constructor.
    virtual void bind_parameters() = 0;
    /// Frees all that is kept for microbatches.
    virtual void drop_kept() = 0;
    [[nodiscard]] virtual std::size_t kept() const = 0;

    [[nodiscard]] const StageOptions& options() const { return options_; }

    [[nodiscard]] const StageLayout& layout() const { return layout_; }

    [[nodiscard]] std::span<const float> parameters() const { return adam_.state().parameters; }

    /// Of an activation: sequences × context × width.
    [[nodiscard]] std::size_t activation_size() const;
    [[nodiscard]] Batch draw(const MicrobatchKey& key) const;

    /// Errors: invalid_argument for a key outside the job's shape or an input of another size;
    /// bad_state when the key is kept already.
    Result<> check_forward(const MicrobatchKey& key, std::span<const float> input,
                           bool is_kept) const;
    /// Errors: invalid_argument for a gradient of another size.
    Result<> check_backward(std::span<const float> output_gradient) const;
    /// The error of a call for a key that is not kept, or not in the phase the call needs.
    [[nodiscard]] Error wrong_phase(const char* call, const MicrobatchKey& key,
                                    const char* needed) const;

    /// Adds the embeddings' gradient into the flat array, from the gradient of their sum. First
    /// stage only.
    void add_embedding_gradient(const Batch& batch, std::span<const float> dembedding,
                                std::span<float> gradient) const;
    /// One microbatch's gradient, whole. Errors: those of GradientSums::add, saying which
    /// microbatch.
    Result<> add_gradient(const MicrobatchKey& key, std::span<const float> gradient);

  private:
    StageOptions options_;
    StageLayout layout_;
    Adam adam_;
    GradientSums sums_;
    std::vector<float> mean_;
};

}  // namespace holdfast::training::nn
