// SPDX-License-Identifier: Apache-2.0
#include "compute.hpp"

#include <cstring>

namespace holdfast::training {

namespace {

Result<std::vector<float>> floats_from(ByteView bytes) {
    if (bytes.size() % sizeof(float) != 0) {
        return fail(Errc::wire_corrupt, "tensor of {} bytes: not whole numbers", bytes.size());
    }
    std::vector<float> values(bytes.size() / sizeof(float));
    if (!values.empty()) {
        std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    return values;
}

Bytes bytes_from(const std::vector<float>& values) {
    const std::span<const std::byte> raw = std::as_bytes(std::span(values));
    return {raw.begin(), raw.end()};
}

}  // namespace

ComputeResult StageRunner::run(const ComputeTask& task) {
    ComputeResult result;
    result.id = task.id;
    result.kind = task.kind;
    result.key = task.key;
    if (auto done = perform(task, result); !done) {
        result.error = std::move(done).error();
    }
    if (module_) {
        result.version = module_->version();
        result.previous_version = module_->previous_version();
    }
    return result;
}

Result<> StageRunner::perform(const ComputeTask& task, ComputeResult& result) {
    if (task.kind == ComputeKind::build) {
        HOLD_TRY(module_, factory_());
        return {};
    }
    HOLD_CHECK(module_ != nullptr, "a stage is built before it is used");
    switch (task.kind) {
        case ComputeKind::build:
            break;
        case ComputeKind::forward:
            return forward(task, result);
        case ComputeKind::backward_input: {
            HOLD_TRY(const std::vector<float> gradient, floats_from(task.input));
            HOLD_TRY(const std::vector<float> output, module_->backward_input(task.key, gradient));
            result.output = bytes_from(output);
            return {};
        }
        case ComputeKind::backward_weight:
            return module_->backward_weight(task.key);
        case ComputeKind::sums:
            result.output = module_->gradient_sums();
            return {};
        case ComputeKind::step:
            return step(task, result);
        case ComputeKind::drop:
            module_->drop_iteration();
            return {};
        case ComputeKind::roll_back:
            return module_->roll_back();
        case ComputeKind::save:
            return save(result);
        case ComputeKind::load:
            return module_->load_state(task.input);
    }
    return {};
}

Result<> StageRunner::forward(const ComputeTask& task, ComputeResult& result) {
    HOLD_TRY(const std::vector<float> input, floats_from(task.input));
    HOLD_TRY(const std::vector<float> output, module_->forward(task.key, input));
    result.output = bytes_from(output);
    if (last_stage_) {
        HOLD_TRY(result.loss, module_->loss(task.key));
    }
    return {};
}

// Starting from nothing and adding in pipeline order, also one's own sums, gives every peer the
// same bytes whatever kind of sum it is.
Result<> StageRunner::step(const ComputeTask& task, ComputeResult& result) {
    module_->drop_iteration();
    for (const Bytes& sums : task.inputs) {
        HOLD_TRY(module_->add_gradient_sums(sums));
    }
    HOLD_TRY(module_->optimizer_step());
    result.parameter_hash = module_->parameter_hash();
    return {};
}

// A peer that copies this state may have to go one step back, should this worker die before all
// have reached it: so the step before goes along.
Result<> StageRunner::save(ComputeResult& result) {
    result.output = module_->save_state();
    if (module_->previous_version() < 0) {
        return {};
    }
    result.undo_version = module_->previous_version();
    HOLD_TRY(module_->roll_back());
    result.undo = module_->save_state();
    return module_->load_state(result.output);
}

}  // namespace holdfast::training
