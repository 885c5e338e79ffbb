// SPDX-License-Identifier: Apache-2.0
// Builds without libtorch say so when asked for its backend.
#include <gtest/gtest.h>

#include "harness.hpp"
#include "nn/torch_stage.hpp"

namespace holdfast::training {
namespace {

TEST(TorchAbsent, BackendIsRefusedWithWhatToDo) {
    const auto stage = make_torch_stage(tiny_options());
    expect_error(stage, Errc::unsupported, "no libtorch backend");
    EXPECT_NE(stage.error().hint.find("HOLDFAST_WITH_TORCH"), std::string::npos);
}

}  // namespace
}  // namespace holdfast::training
