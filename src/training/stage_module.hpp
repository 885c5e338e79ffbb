// SPDX-License-Identifier: Apache-2.0
// One stage of a pipeline: the part of the model that a worker holds. The seam between the training
// runtime (which knows schedules, peers and epochs and nothing of tensors) and the numeric backends
// (which know the reverse).
//
// Two backends: `torch` (libtorch; CUDA where libtorch has it) and `reference` (plain fp32 C++, the
// tests' oracle). Source: ReCycle (arXiv 2405.14009), decoupled back-propagation: backward is split
// into the gradient of the input (on the critical path) and the gradients of the weights (any time
// later).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::training {

/// Shape of a model; names in model_config(): gpt-tiny, gpt-small.
struct ModelConfig {
    std::int64_t layers =
        0;  ///< transformer blocks, cut evenly (remainder to the last-but-one stages first)
    std::int64_t width = 0;
    std::int64_t heads = 0;
    std::int64_t context = 0;       ///< tokens per sequence
    std::int64_t vocabulary = 256;  ///< bytes
    std::int64_t sequences = 0;     ///< per microbatch
    double learning_rate = 0;       ///< Adam
};

/// Errors: invalid_argument for an unknown name, naming the known ones.
Result<ModelConfig> model_config(const std::string& name);

/// Which microbatch: everything random in it is keyed by these, never by the worker that runs it.
struct MicrobatchKey {
    std::int64_t step = 0;
    std::int32_t pipeline = 0;    ///< the pipeline it belongs to, whoever runs it
    std::int32_t microbatch = 0;  ///< index in the pipeline
    auto operator<=>(const MicrobatchKey&) const = default;
};

struct StageOptions {
    ModelConfig model;
    std::int32_t stage = 0;
    std::int32_t stages = 1;
    std::int32_t pipelines = 1;  ///< gradients are means over pipelines × microbatches
    std::int32_t microbatches = 1;
    std::uint64_t seed = 1;  ///< initial parameters; the same on every data-parallel peer
    bool exact = false;      ///< order-independent sums
    std::string text;        ///< the training text's bytes (first and last stage draw from it)
};

/// One stage's parameters, optimizer state and gradient sums. Not thread-safe: one thread owns it.
///
/// Activations are fp32 [sequences, context, width], row-major, contiguous.
/// Gradient sums: with `exact`, each microbatch's gradient is rounded to int64 multiples of 2^-44
/// and added as integers, so any order and any grouping over workers gives the same bytes (overflow
/// is an error, never silent); without, fp32 sums. Sums travel as bytes between data-parallel
/// peers.
class StageModule {
  public:
    virtual ~StageModule() = default;

    /// Runs the stage forward and keeps what backward needs under `key`. First stage: `input` is
    /// empty (it draws its tokens from the text by key). Last stage: returns empty and keeps the
    /// loss.
    virtual Result<std::vector<float>> forward(const MicrobatchKey& key,
                                               std::span<const float> input) = 0;
    /// Gradient with respect to the stage's input. Last stage: `output_gradient` is empty. First
    /// stage: returns empty. The weight gradients' operands stay queued under `key` until
    /// backward_weight.
    virtual Result<std::vector<float>> backward_input(const MicrobatchKey& key,
                                                      std::span<const float> output_gradient) = 0;
    /// Adds this microbatch's weight gradients to the sums and frees everything under `key`.
    virtual Result<> backward_weight(const MicrobatchKey& key) = 0;
    /// Mean token loss of the microbatch; last stage only, from forward until backward_weight.
    virtual Result<double> loss(const MicrobatchKey& key) const = 0;

    /// The sums of this worker, as bytes (fixed size per stage), and adding a peer's.
    virtual std::vector<std::byte> gradient_sums() const = 0;
    virtual Result<> add_gradient_sums(std::span<const std::byte> peer) = 0;
    /// Drops sums and everything kept for microbatches: an iteration is abandoned.
    virtual void drop_iteration() = 0;

    /// Adam step with the present sums divided by pipelines × microbatches; clears them; version
    /// + 1. The state before it is kept until the next step, so that one step can be undone.
    virtual Result<> optimizer_step() = 0;
    /// Optimizer steps in the parameters; 0 at the start.
    virtual std::int64_t version() const = 0;
    /// The version that roll_back() reaches, or -1.
    virtual std::int64_t previous_version() const = 0;
    /// Undoes the last step. Errors: bad_state when there is none to undo.
    virtual Result<> roll_back() = 0;

    /// Parameters, moments and version as bytes; load makes this stage equal to the saver byte for
    /// byte.
    virtual std::vector<std::byte> save_state() const = 0;
    /// Errors: wire_corrupt for bytes of another shape; nothing is changed then.
    virtual Result<> load_state(std::span<const std::byte> state) = 0;
    /// 64-bit hash of the parameters.
    virtual std::uint64_t parameter_hash() const = 0;
};

Result<std::unique_ptr<StageModule>> make_reference_stage(StageOptions options);
/// Errors: unsupported when built without libtorch.
Result<std::unique_ptr<StageModule>> make_torch_stage(StageOptions options);

}  // namespace holdfast::training
