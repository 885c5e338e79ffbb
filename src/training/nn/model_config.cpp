// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "stage_module.hpp"

namespace holdfast::training {
namespace {

struct NamedConfig {
    const char* name;
    ModelConfig config;
};

// gpt-tiny: tests, where an operation must take less than 2 ms even under a sanitizer.
// gpt-small: the demo; twelve microbatches through three stages and an optimizer step take about
// 0.2 s on two cores.
constexpr std::array kConfigs = {
    NamedConfig{.name = "gpt-tiny",
                .config = {.layers = 4,
                           .width = 32,
                           .heads = 2,
                           .context = 16,
                           .vocabulary = 256,
                           .sequences = 2,
                           .learning_rate = 3e-3}},
    NamedConfig{.name = "gpt-small",
                .config = {.layers = 6,
                           .width = 128,
                           .heads = 4,
                           .context = 64,
                           .vocabulary = 256,
                           .sequences = 2,
                           .learning_rate = 1e-3}},
};

}  // namespace

Result<ModelConfig> model_config(const std::string& name) {
    std::string known;
    for (const NamedConfig& entry : kConfigs) {
        if (name == entry.name) {
            return entry.config;
        }
        known += known.empty() ? "" : ", ";
        known += entry.name;
    }
    return fail(make_error(Errc::invalid_argument, "no model is named '{}'", name)
                    .at("model")
                    .advise(fmt::format("known models: {}", known)));
}

}  // namespace holdfast::training
