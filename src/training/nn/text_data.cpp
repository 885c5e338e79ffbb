// SPDX-License-Identifier: Apache-2.0
#include "nn/text_data.hpp"

#include <holdfast/result.hpp>

#include "nn/keyed_random.hpp"

namespace holdfast::training::nn {

Batch draw_batch(const ModelConfig& model, std::uint64_t seed, std::string_view text,
                 const MicrobatchKey& key) {
    const auto context = static_cast<std::size_t>(model.context);
    const auto sequences = static_cast<std::size_t>(model.sequences);
    HOLD_CHECK(text.size() > context, "a sequence and its last target fit into the text");
    Batch batch;
    batch.tokens.reserve(sequences * context);
    batch.targets.reserve(sequences * context);
    constexpr std::uint64_t kText =
        0x74657874;  // keeps these words apart from those of the parameters
    for (std::size_t sequence = 0; sequence < sequences; ++sequence) {
        const std::uint64_t word =
            keyed_word({seed, kText, static_cast<std::uint64_t>(key.step),
                        static_cast<std::uint64_t>(key.pipeline),
                        static_cast<std::uint64_t>(key.microbatch), sequence});
        const std::size_t start = keyed_below(word, text.size() - context);
        for (std::size_t i = start; i < start + context; ++i) {
            batch.tokens.push_back(static_cast<std::uint8_t>(text[i]));
            batch.targets.push_back(static_cast<std::uint8_t>(text[i + 1]));
        }
    }
    return batch;
}

}  // namespace holdfast::training::nn
