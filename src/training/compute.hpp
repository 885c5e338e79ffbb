// SPDX-License-Identifier: Apache-2.0
// Between the worker's state machine and the numbers: tasks go in one at a time, results come out.
// In hold-train a thread of its own runs them, so that a long matrix product delays no message; in
// tests they run in place.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "bytes.hpp"
#include "stage_module.hpp"

namespace holdfast::training {

enum class ComputeKind {
    build,           ///< the stage from its seed: version 0
    forward,         ///< input: activation; output: activation, or the loss at the last stage
    backward_input,  ///< input: output gradient; output: input gradient
    backward_weight,
    sums,  ///< output: gradient sums
    step,  ///< inputs: every peer's sums in pipeline order; adds them and makes the optimizer step
    drop,  ///< abandon the iteration
    roll_back,
    save,  ///< output: state; undo: the state one step before, if there is one
    load,  ///< input: state
};

struct ComputeTask {
    std::int64_t id = 0;
    ComputeKind kind = ComputeKind::drop;
    MicrobatchKey key;
    Bytes input;
    std::vector<Bytes> inputs;
};

struct ComputeResult {
    std::int64_t id = 0;
    ComputeKind kind = ComputeKind::drop;
    MicrobatchKey key;
    std::optional<Error> error;
    Bytes output;
    Bytes undo;
    double loss = 0;
    std::int64_t version = -1;  ///< after the task
    std::int64_t previous_version = -1;
    std::int64_t undo_version = -1;
    std::uint64_t parameter_hash = 0;  ///< after a step
};

using StageFactory = std::function<Result<std::unique_ptr<StageModule>>()>;

/// Runs tasks on one stage. One thread at a time.
class StageRunner {
  public:
    StageRunner(StageFactory factory, bool last_stage)
        : factory_(std::move(factory)), last_stage_(last_stage) {}

    ComputeResult run(const ComputeTask& task);

  private:
    Result<> perform(const ComputeTask& task, ComputeResult& result);
    Result<> forward(const ComputeTask& task, ComputeResult& result);
    Result<> step(const ComputeTask& task, ComputeResult& result);
    Result<> save(ComputeResult& result);

    StageFactory factory_;
    const bool last_stage_;
    std::unique_ptr<StageModule> module_;
};

}  // namespace holdfast::training
