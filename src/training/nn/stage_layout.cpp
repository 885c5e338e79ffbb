// SPDX-License-Identifier: Apache-2.0
#include "nn/stage_layout.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/keyed_random.hpp"

namespace holdfast::training::nn {
namespace {

// Limits keep every size computed below far from overflow and refuse a job that no machine could
// hold.
constexpr std::int64_t kLayersMax = 1024;
constexpr std::int64_t kWidthMax = 16384;
constexpr std::int64_t kContextMax = 65536;
constexpr std::int64_t kSequencesMax = 4096;
constexpr std::int64_t kVocabulary = 256;  // tokens are bytes
constexpr std::int64_t kMicrobatchesMax = 1 << 20;
constexpr std::size_t kTextMax = std::size_t{1} << 30U;
constexpr std::int64_t kParametersMax = std::int64_t{1} << 31U;

// GPT-2's initial values: deviation 0.02, the two layers that add to the residual smaller by
// √(2·layers).
constexpr double kDeviation = 0.02;

Result<> check_range(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most) {
        return fail(make_error(Errc::invalid_argument, "make stage: {} is {}, allowed are {} to {}",
                               field, value, least, most)
                        .at(field));
    }
    return {};
}

/// Lays parameters one after the other.
class Builder {
  public:
    explicit Builder(StageLayout& layout) : layout_(layout) {}

    std::size_t add(const std::string& name, std::int64_t rows, std::int64_t columns,
                    double deviation, double centre = 0) {
        Parameter parameter{.name = name,
                            .offset = layout_.size,
                            .rows = rows,
                            .columns = columns,
                            .deviation = deviation,
                            .centre = centre,
                            .key = 0};
        for (const char letter : name) {
            parameter.key = keyed_word({parameter.key, static_cast<unsigned char>(letter)});
        }
        layout_.size += parameter.size();
        layout_.parameters.push_back(std::move(parameter));
        return layout_.parameters.back().offset;
    }

    NormSlots norm(const std::string& name, std::int64_t width) {
        NormSlots slots;
        slots.weight = add(name + " weight", 1, width, 0, 1);
        slots.bias = add(name + " bias", 1, width, 0);
        return slots;
    }

    LinearSlots linear(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                       double deviation) {
        LinearSlots slots{.weight = 0, .bias = 0, .inputs = inputs, .outputs = outputs};
        slots.weight = add(name + " weight", outputs, inputs, deviation);
        slots.bias = add(name + " bias", 1, outputs, 0);
        return slots;
    }

  private:
    StageLayout& layout_;
};

}  // namespace

BlockRange block_range(std::int64_t layers, std::int32_t stages, std::int32_t stage) {
    const std::int64_t even = layers / stages;
    const std::int64_t extra = layers % stages;
    // Stages stages-1-extra … stages-2 hold one block more.
    const std::int64_t first_extra = stages - 1 - extra;
    const std::int64_t extras_before =
        stage <= first_extra ? 0 : std::min<std::int64_t>(stage - first_extra, extra);
    const bool has_extra = stage >= first_extra && stage < stages - 1;
    return {.first = stage * even + extras_before, .count = even + (has_extra ? 1 : 0)};
}

Result<> check_options(const StageOptions& options) {
    const ModelConfig& model = options.model;
    HOLD_TRY(check_range("layers", model.layers, 1, kLayersMax));
    HOLD_TRY(check_range("width", model.width, 1, kWidthMax));
    HOLD_TRY(check_range("heads", model.heads, 1, model.width));
    HOLD_TRY(check_range("context", model.context, 1, kContextMax));
    HOLD_TRY(check_range("vocabulary", model.vocabulary, kVocabulary, kVocabulary));
    HOLD_TRY(check_range("sequences", model.sequences, 1, kSequencesMax));
    HOLD_TRY(check_range("stages", options.stages, 1, model.layers));
    HOLD_TRY(check_range("stage", options.stage, 0, options.stages - 1));
    HOLD_TRY(check_range("pipelines", options.pipelines, 1, kMicrobatchesMax));
    HOLD_TRY(
        check_range("microbatches", options.microbatches, 1, kMicrobatchesMax / options.pipelines));
    if (model.width % model.heads != 0) {
        return fail(make_error(Errc::invalid_argument,
                               "make stage: width {} is not a multiple of heads {}", model.width,
                               model.heads)
                        .at("heads"));
    }
    if (!(model.learning_rate > 0) || model.learning_rate > 1) {
        return fail(make_error(Errc::invalid_argument,
                               "make stage: learning_rate is {}, allowed are numbers above 0 to 1",
                               model.learning_rate)
                        .at("learning_rate"));
    }
    const std::int64_t blocks = block_range(model.layers, options.stages, options.stage).count;
    const std::int64_t parameters = blocks * 12 * model.width * (model.width + 2);
    HOLD_TRY(check_range("parameters of the stage", parameters, 0, kParametersMax));
    if (options.stage != 0 && options.stage != options.stages - 1) {
        return {};  // draws nothing from the text
    }
    const auto least = static_cast<std::size_t>(model.context) + 1;
    if (options.text.size() < least || options.text.size() > kTextMax) {
        return fail(make_error(Errc::invalid_argument,
                               "make stage: the training text has {} bytes, allowed are {} to {}",
                               options.text.size(), least, kTextMax)
                        .at("text")
                        .advise("name a longer text file, or a model with a shorter context"));
    }
    return {};
}

StageLayout make_layout(const StageOptions& options) {
    const ModelConfig& model = options.model;
    const std::int64_t width = model.width;
    const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(model.layers));
    StageLayout layout;
    layout.first = options.stage == 0;
    layout.last = options.stage == options.stages - 1;
    Builder builder(layout);
    if (layout.first) {
        layout.token = builder.add("token embedding", model.vocabulary, width, kDeviation);
        layout.position = builder.add("position embedding", model.context, width, kDeviation);
    }
    const BlockRange range = block_range(model.layers, options.stages, options.stage);
    for (std::int64_t index = range.first; index < range.first + range.count; ++index) {
        const std::string block = fmt::format("block {} ", index);
        BlockSlots slots;
        slots.norm1 = builder.norm(block + "norm1", width);
        slots.qkv = builder.linear(block + "qkv", width, 3 * width, kDeviation);
        slots.projection = builder.linear(block + "projection", width, width, residual);
        slots.norm2 = builder.norm(block + "norm2", width);
        slots.up = builder.linear(block + "up", width, 4 * width, kDeviation);
        slots.down = builder.linear(block + "down", 4 * width, width, residual);
        layout.blocks.push_back(slots);
    }
    if (layout.last) {
        layout.final_norm = builder.norm("final norm", width);
        layout.head = builder.linear("head", width, model.vocabulary, kDeviation);
    }
    return layout;
}

void initialise(const StageLayout& layout, std::uint64_t seed, std::span<float> flat) {
    HOLD_CHECK(flat.size() == layout.size, "one value for each parameter");
    for (const Parameter& parameter : layout.parameters) {
        const std::span<float> values = flat.subspan(parameter.offset, parameter.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double normal =
                parameter.deviation == 0 ? 0 : keyed_normal(keyed_word({seed, parameter.key, i}));
            values[i] = static_cast<float>(parameter.centre + parameter.deviation * normal);
        }
    }
}

}  // namespace holdfast::training::nn
