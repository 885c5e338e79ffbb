// SPDX-License-Identifier: Apache-2.0
// The libtorch backend without the split, for comparison. make_torch_stage itself is in
// stage_module.hpp.
#pragma once

#include <memory>

#include <holdfast/result.hpp>

#include "stage_module.hpp"

namespace holdfast::training {

/// As make_torch_stage, but backward_input runs libtorch's own whole backward and backward_weight
/// only adds its result: the tests compare bytes with the split, the benchmark compares time.
/// Errors: as make_torch_stage.
Result<std::unique_ptr<StageModule>> make_coupled_torch_stage(StageOptions options);

}  // namespace holdfast::training
