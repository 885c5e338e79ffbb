// SPDX-License-Identifier: Apache-2.0
// Built instead of torch_stage.cpp with HOLDFAST_WITH_TORCH=OFF.
#include "nn/torch_stage.hpp"

namespace holdfast::training {

Result<std::unique_ptr<StageModule>> make_torch_stage(StageOptions /*options*/) {
    return fail(make_error(Errc::unsupported, "make stage: this build has no libtorch backend")
                    .at("backend")
                    .advise("use backend reference, or build with -DHOLDFAST_WITH_TORCH=ON"));
}

Result<std::unique_ptr<StageModule>> make_coupled_torch_stage(StageOptions options) {
    return make_torch_stage(std::move(options));
}

}  // namespace holdfast::training
