// SPDX-License-Identifier: Apache-2.0
// The parts below the backends: keyed random numbers, layout, text, sums, optimizer, state.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "harness.hpp"
#include "nn/adam.hpp"
#include "nn/exact_sum.hpp"
#include "nn/keyed_random.hpp"
#include "nn/stage_layout.hpp"
#include "nn/stage_state.hpp"
#include "nn/text_data.hpp"

namespace holdfast::training::nn {
namespace {

// --- keyed random numbers

TEST(KeyedRandom, DependsOnEveryPartOfTheKeyAndItsOrder) {
    EXPECT_EQ(keyed_word({1, 2, 3}), keyed_word({1, 2, 3}));
    EXPECT_NE(keyed_word({1, 2, 3}), keyed_word({1, 3, 2}));
    EXPECT_NE(keyed_word({1, 2}), keyed_word({1, 2, 0}));
    EXPECT_NE(keyed_word({0}), keyed_word({1}));
}

TEST(KeyedRandom, BelowStaysBelowAndReachesBothEnds) {
    EXPECT_EQ(keyed_below(0, 10), 0U);
    EXPECT_EQ(keyed_below(std::numeric_limits<std::uint64_t>::max(), 10), 9U);
    EXPECT_EQ(keyed_below(std::numeric_limits<std::uint64_t>::max(), 1), 0U);
}

TEST(KeyedRandom, NormalHasMeanZeroAndVarianceOne) {
    double sum = 0;
    double squares = 0;
    constexpr int kDraws = 100000;
    for (std::uint64_t i = 0; i < kDraws; ++i) {
        const double value = keyed_normal(keyed_word({42, i}));
        sum += value;
        squares += value * value;
    }
    EXPECT_NEAR(sum / kDraws, 0, 0.01);
    EXPECT_NEAR(squares / kDraws, 1, 0.02);
}

// --- layout

TEST(Layout, RemainderGoesToTheLastStageButOneFirst) {
    EXPECT_EQ(block_range(4, 3, 0), (BlockRange{0, 1}));
    EXPECT_EQ(block_range(4, 3, 1), (BlockRange{1, 2}));
    EXPECT_EQ(block_range(4, 3, 2), (BlockRange{3, 1}));
    EXPECT_EQ(block_range(6, 4, 1), (BlockRange{1, 2}));
    EXPECT_EQ(block_range(6, 4, 3), (BlockRange{5, 1}));
    EXPECT_EQ(block_range(5, 1, 0), (BlockRange{0, 5}));
}

TEST(Layout, EveryCutHoldsEveryBlockOnce) {
    for (std::int64_t layers = 1; layers <= 13; ++layers) {
        for (std::int32_t stages = 1; stages <= layers; ++stages) {
            std::int64_t next = 0;
            for (std::int32_t stage = 0; stage < stages; ++stage) {
                const BlockRange range = block_range(layers, stages, stage);
                EXPECT_EQ(range.first, next) << layers << " layers, " << stages << " stages";
                EXPECT_GE(range.count, layers / stages);
                EXPECT_LE(range.count, layers / stages + 1);
                next += range.count;
            }
            EXPECT_EQ(next, layers);
        }
    }
}

TEST(Layout, InitialValuesAreTheSameForEveryCut) {
    StageOptions whole = tiny_options();
    const StageLayout one = make_layout(whole);
    std::vector<float> all(one.size);
    initialise(one, whole.seed, all);
    std::size_t parameters = 0;
    for (std::int32_t stage = 0; stage < 3; ++stage) {
        StageOptions cut = whole;
        cut.stages = 3;
        cut.stage = stage;
        const StageLayout part = make_layout(cut);
        std::vector<float> values(part.size);
        initialise(part, cut.seed, values);
        for (const Parameter& parameter : part.parameters) {
            const auto same =
                std::find_if(one.parameters.begin(), one.parameters.end(),
                             [&](const Parameter& other) { return other.name == parameter.name; });
            ASSERT_NE(same, one.parameters.end()) << parameter.name;
            EXPECT_TRUE(std::equal(&values[parameter.offset],
                                   &values[parameter.offset] + parameter.size(),
                                   &all[same->offset]))
                << parameter.name;
            ++parameters;
        }
    }
    EXPECT_EQ(parameters, one.parameters.size());
    // vocabulary·width + context·width + 4·(12·width² + 13·width) + 2·width + vocabulary·(width +
    // 1)
    EXPECT_EQ(one.size, 8192U + 512U + 4U * (12288U + 416U) + 64U + 8448U);
}

TEST(Layout, EachBadOptionIsRefusedByName) {
    const auto expect_refused = [](const char* field, auto&& spoil) {
        StageOptions options = tiny_options();
        spoil(options);
        const Result<> checked = check_options(options);
        ASSERT_FALSE(checked.has_value()) << field;
        EXPECT_EQ(checked.error().code, Errc::invalid_argument);
        EXPECT_EQ(checked.error().where, field);
    };
    expect_ok(check_options(tiny_options()));
    expect_refused("layers", [](StageOptions& o) { o.model.layers = 0; });
    expect_refused("width", [](StageOptions& o) { o.model.width = 1 << 20; });
    expect_refused("heads", [](StageOptions& o) { o.model.heads = 3; });
    expect_refused("heads", [](StageOptions& o) { o.model.heads = 0; });
    expect_refused("context", [](StageOptions& o) { o.model.context = -1; });
    expect_refused("vocabulary", [](StageOptions& o) { o.model.vocabulary = 255; });
    expect_refused("sequences", [](StageOptions& o) { o.model.sequences = 0; });
    expect_refused("stages", [](StageOptions& o) { o.stages = 5; });
    expect_refused("stage", [](StageOptions& o) { o.stage = 1; });
    expect_refused("pipelines", [](StageOptions& o) { o.pipelines = 0; });
    expect_refused("microbatches", [](StageOptions& o) { o.microbatches = 0; });
    expect_refused("learning_rate", [](StageOptions& o) { o.model.learning_rate = NAN; });
    expect_refused("text", [](StageOptions& o) { o.text.resize(16); });
}

TEST(Layout, MiddleStagesNeedNoText) {
    StageOptions options = tiny_options();
    options.stages = 3;
    options.stage = 1;
    options.text.clear();
    expect_ok(check_options(options));
}

TEST(ModelConfigs, UnknownNameNamesTheKnown) {
    const auto config = model_config("gpt-huge");
    expect_error(config, Errc::invalid_argument, "'gpt-huge'");
    EXPECT_EQ(config.error().hint, "known models: gpt-tiny, gpt-small");
}

// --- text

TEST(TextData, IsKeyedBySeedStepPipelineAndMicrobatch) {
    const ModelConfig model = model_config("gpt-tiny").value();
    const std::string text = test_text();
    const MicrobatchKey key{.step = 3, .pipeline = 1, .microbatch = 2};
    const Batch batch = draw_batch(model, 1, text, key);
    EXPECT_EQ(draw_batch(model, 1, text, key).tokens, batch.tokens);
    EXPECT_NE(draw_batch(model, 2, text, key).tokens, batch.tokens);
    EXPECT_NE(draw_batch(model, 1, text, {4, 1, 2}).tokens, batch.tokens);
    EXPECT_NE(draw_batch(model, 1, text, {3, 0, 2}).tokens, batch.tokens);
    EXPECT_NE(draw_batch(model, 1, text, {3, 1, 1}).tokens, batch.tokens);
}

TEST(TextData, SequencesAreOfTheTextAndTargetsAreTheNextByte) {
    const ModelConfig model = model_config("gpt-tiny").value();
    const std::string text = test_text();
    for (std::int32_t microbatch = 0; microbatch < 50; ++microbatch) {
        const Batch batch = draw_batch(model, 1, text, {0, 0, microbatch});
        ASSERT_EQ(batch.tokens.size(), 32U);
        for (std::size_t sequence = 0; sequence < 2; ++sequence) {
            const auto* tokens = &batch.tokens[sequence * 16];
            const auto* targets = &batch.targets[sequence * 16];
            EXPECT_TRUE(std::equal(tokens + 1, tokens + 16, targets));
            std::string whole(tokens, tokens + 16);
            whole.push_back(static_cast<char>(targets[15]));
            EXPECT_NE(text.find(whole), std::string::npos);
        }
    }
}

TEST(TextData, ShortestTextIsDrawnWhole) {
    const ModelConfig model = model_config("gpt-tiny").value();
    const std::string text = "abcdefghijklmnopq";  // context + 1
    const Batch batch = draw_batch(model, 1, text, {});
    EXPECT_EQ(std::string(batch.tokens.begin(), batch.tokens.begin() + 16), "abcdefghijklmnop");
    EXPECT_EQ(batch.targets.at(31), 'q');
}

// --- sums

std::vector<std::vector<float>> random_gradients(std::size_t count, std::size_t size) {
    std::vector<std::vector<float>> gradients(count, std::vector<float>(size));
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t j = 0; j < size; ++j) {
            const double normal = keyed_normal(keyed_word({i, j}));
            gradients[i][j] =
                static_cast<float>(normal * std::exp2(static_cast<double>(j % 40) - 30));
        }
    }
    return gradients;
}

TEST(ExactSum, ValuesAreMultiplesOfTwoToTheMinus44) {
    GradientSums sums(GradientSums::Mode::exact, 3, 4);
    expect_ok(sums.add(std::vector<float>{1.0F, -0.5F, std::ldexp(1.0F, -46)}));
    const auto bytes = sums.bytes();
    ASSERT_EQ(bytes.size(), 24U + 3 * 8);
    std::array<std::int64_t, 3> values{};
    std::memcpy(values.data(), bytes.data() + 24, sizeof values);
    EXPECT_EQ(values[0], std::int64_t{1} << 44U);
    EXPECT_EQ(values[1], -(std::int64_t{1} << 43U));
    EXPECT_EQ(values[2], 0);
    std::vector<float> mean(3);
    expect_ok(sums.mean(mean));
    EXPECT_EQ(mean, (std::vector<float>{0.25F, -0.125F, 0.0F}));
}

TEST(ExactSum, RoundingDoesNotDependOnTheLargestValueBesideIt) {
    // One large value sends the whole gradient through the slower rounding.
    std::vector<float> gradient;
    for (std::uint64_t i = 0; i < 5000; ++i) {
        const int exponent = static_cast<int>(i % 56) - 50;
        gradient.push_back(static_cast<float>(std::ldexp(keyed_normal(keyed_word({i})), exponent)));
    }
    for (const double half : {0.5, 1.5, 2.5, -0.5, -1.5, -2.5}) {
        gradient.push_back(static_cast<float>(std::ldexp(half, -44)));
    }
    gradient.push_back(0.0F);
    GradientSums small(GradientSums::Mode::exact, gradient.size(), 1);
    expect_ok(small.add(gradient));
    gradient.back() = 1000.0F;
    GradientSums large(GradientSums::Mode::exact, gradient.size(), 1);
    expect_ok(large.add(gradient));
    auto expected = small.bytes();
    const auto got = large.bytes();
    const std::int64_t last = std::int64_t{1000} << 44U;
    std::memcpy(expected.data() + expected.size() - sizeof last, &last, sizeof last);
    EXPECT_EQ(got, expected);
}

TEST(ExactSum, EveryOrderAndGroupingGivesTheSameBytes) {
    const auto gradients = random_gradients(18, 200);
    GradientSums whole(GradientSums::Mode::exact, 200, 18);
    for (const auto& gradient : gradients) {
        expect_ok(whole.add(gradient));
    }
    std::mt19937 shuffler(1);
    for (std::size_t workers = 1; workers <= 5; ++workers) {
        std::vector<std::size_t> order(gradients.size());
        for (std::size_t i = 0; i < order.size(); ++i) {
            order[i] = i;
        }
        std::shuffle(order.begin(), order.end(), shuffler);
        std::vector<GradientSums> parts(workers, GradientSums(GradientSums::Mode::exact, 200, 18));
        for (std::size_t i = 0; i < order.size(); ++i) {
            expect_ok(parts[i * i % workers].add(gradients[order[i]]));
        }
        for (std::size_t i = 1; i < workers; ++i) {
            expect_ok(parts[0].add_bytes(parts[i].bytes()));
        }
        EXPECT_EQ(parts[0].bytes(), whole.bytes()) << workers << " workers";
    }
}

TEST(ExactSum, OverflowIsAnErrorAndChangesNothing) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const auto mode : {GradientSums::Mode::exact, GradientSums::Mode::fast}) {
        GradientSums sums(mode, 3, 2);
        expect_ok(sums.add(std::vector<float>{1, 2, 3}));
        const auto before = sums.bytes();
        const std::vector<float> none = {0, std::nanf(""), 0};
        expect_error(sums.add(none), Errc::numeric_overflow, "value 1 of 3 is not a number");
        expect_error(sums.add(std::vector<float>{0, 0, -kInfinity}), Errc::numeric_overflow,
                     "value 2 of 3 is infinite");
        expect_error(sums.add(std::vector<float>{1e19F, 0, 0}), Errc::numeric_overflow,
                     "value 0 of 3 is out of range");
        EXPECT_EQ(sums.bytes(), before);
    }
}

TEST(ExactSum, WholeIterationAtTheLimitFits) {
    // Two contributions: 2^63 / 2 / 2^44 = 2^18.
    const float most = std::nextafter(std::ldexp(1.0F, 18), 0.0F);
    for (const float sign : {1.0F, -1.0F}) {
        GradientSums sums(GradientSums::Mode::exact, 1, 2);
        expect_ok(sums.add(std::vector<float>{sign * most}));
        expect_ok(sums.add(std::vector<float>{sign * most}));
        std::vector<float> mean(1);
        expect_ok(sums.mean(mean));
        EXPECT_EQ(mean[0], sign * most);
    }
    GradientSums sums(GradientSums::Mode::exact, 1, 2);
    expect_error(sums.add(std::vector<float>{std::ldexp(1.0F, 18)}), Errc::numeric_overflow,
                 "out of range");
}

TEST(ExactSum, PeerBytesAreCheckedBeforeAnythingIsAdded) {
    const std::vector<float> ones(4, 1.0F);
    GradientSums sums(GradientSums::Mode::exact, 4, 3);
    expect_ok(sums.add(ones));
    GradientSums peer(GradientSums::Mode::exact, 4, 3);
    expect_ok(peer.add(ones));
    const auto good = peer.bytes();
    const auto before = sums.bytes();

    auto bad = good;
    bad.pop_back();
    expect_error(sums.add_bytes(bad), Errc::wire_corrupt, "55 bytes, expected 56");
    expect_error(sums.add_bytes({}), Errc::wire_corrupt, "0 bytes");
    bad = good;
    bad[0] ^= std::byte{1};
    expect_error(sums.add_bytes(bad), Errc::wire_corrupt, "header");
    bad = good;
    bad[15] = std::byte{0xff};  // a negative count
    expect_error(sums.add_bytes(bad), Errc::wire_corrupt, "header");
    bad = good;
    bad[24 + 7] = std::byte{0x7f};  // a value above 1/3 of the range
    expect_error(sums.add_bytes(bad), Errc::wire_corrupt, "larger than 1 microbatches allow");
    const GradientSums fast(GradientSums::Mode::fast, 8, 3);
    expect_error(sums.add_bytes(fast.bytes()), Errc::wire_corrupt, "header");
    EXPECT_EQ(sums.bytes(), before);

    expect_ok(sums.add_bytes(good));
    expect_ok(sums.add_bytes(good));
    expect_error(sums.add_bytes(good), Errc::bad_state, "counted twice");
    expect_error(sums.add(ones), Errc::bad_state, "all 3 microbatches");
    EXPECT_EQ(sums.count(), 3);
}

TEST(FastSum, OverflowOfTheSumIsFoundBeforeTheStep) {
    GradientSums sums(GradientSums::Mode::fast, 1, 1);
    GradientSums peer(GradientSums::Mode::fast, 1, 1);
    expect_ok(peer.add(std::vector<float>{1}));
    auto bytes = peer.bytes();
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(bytes.data() + 24, &infinity, sizeof infinity);
    expect_ok(sums.add_bytes(bytes));
    std::vector<float> mean(1);
    expect_error(sums.mean(mean), Errc::numeric_overflow, "is infinite");
}

// --- optimizer

TEST(AdamStep, FirstStepMovesByTheLearningRateAgainstTheSign) {
    Adam adam(0.5, {1.0F, 1.0F, 1.0F});
    adam.step(std::vector<float>{2.0F, -0.25F, 0.0F});
    EXPECT_NEAR(adam.state().parameters[0], 0.5, 1e-6);
    EXPECT_NEAR(adam.state().parameters[1], 1.5, 1e-6);
    EXPECT_EQ(adam.state().parameters[2], 1.0F);
    EXPECT_EQ(adam.state().version, 1);
}

TEST(AdamStep, FollowsTheFormulaInDoublePrecision) {
    Adam adam(0.01, {0.3F});
    double parameter = static_cast<double>(0.3F);
    double first = 0;
    double second = 0;
    for (int t = 1; t <= 50; ++t) {
        const auto slope = static_cast<float>(std::sin(t));
        adam.step(std::vector<float>{slope});
        const auto exact = static_cast<double>(slope);
        first = 0.9 * first + 0.1 * exact;
        second = 0.99 * second + 0.01 * exact * exact;
        parameter -= 0.01 * (first / (1 - std::pow(0.9, t))) /
                     (std::sqrt(second / (1 - std::pow(0.99, t))) + 1e-8);
    }
    EXPECT_NEAR(static_cast<double>(adam.state().parameters[0]), parameter, 1e-6);
}

TEST(AdamStep, UndoThenRedoGivesTheSameBytes) {
    Adam adam(0.01, {0.3F, -2.0F});
    expect_error(adam.undo(), Errc::bad_state, "version 0 has none");
    EXPECT_EQ(adam.previous_version(), -1);
    const std::vector<float> slope = {0.7F, 0.1F};
    adam.step(slope);
    const AdamState before = adam.state();
    adam.step(slope);
    const AdamState after = adam.state();
    EXPECT_EQ(adam.previous_version(), 1);
    expect_ok(adam.undo());
    EXPECT_EQ(adam.state().parameters, before.parameters);
    EXPECT_EQ(adam.state().first, before.first);
    EXPECT_EQ(adam.state().second, before.second);
    EXPECT_EQ(adam.state().version, 1);
    expect_error(adam.undo(), Errc::bad_state, "version 1 has none");
    adam.step(slope);
    EXPECT_EQ(adam.state().parameters, after.parameters);
    EXPECT_EQ(adam.state().version, 2);
}

// --- state

TEST(StageState, AnyTruncationAndAnyFlippedBitIsRefused) {
    const StageOptions options = tiny_options();
    const AdamState state{
        .parameters = {1, 2, 3}, .first = {4, 5, 6}, .second = {7, 8, 9}, .version = 11};
    const auto bytes = encode_state(options, state);
    const AdamState back = expect_value(decode_state(options, 3, bytes));
    EXPECT_EQ(back.parameters, state.parameters);
    EXPECT_EQ(back.first, state.first);
    EXPECT_EQ(back.second, state.second);
    EXPECT_EQ(back.version, 11);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        const auto cut = decode_state(options, 3, std::span(bytes).first(size));
        ASSERT_FALSE(cut.has_value()) << size;
        EXPECT_EQ(cut.error().code, Errc::wire_corrupt);
    }
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        auto flipped = bytes;
        flipped[bit / 8] ^= std::byte{1} << (bit % 8);
        const auto decoded = decode_state(options, 3, flipped);
        ASSERT_FALSE(decoded.has_value()) << bit;
        EXPECT_EQ(decoded.error().code, Errc::wire_corrupt);
    }
}

TEST(StageState, OtherShapesAreRefusedSayingWhatDiffers) {
    const AdamState state{.parameters = {1}, .first = {2}, .second = {3}, .version = 0};
    StageOptions options = tiny_options();
    const auto bytes = encode_state(options, state);
    options.model.width = 64;
    expect_error(decode_state(options, 1, bytes), Errc::wire_corrupt, "its width is 32, this");
    options = tiny_options();
    options.stages = 2;
    expect_error(decode_state(options, 1, bytes), Errc::wire_corrupt, "its stages is 1, this");
    expect_error(decode_state(tiny_options(), 2, bytes), Errc::wire_corrupt, "1 parameters");
}

}  // namespace
}  // namespace holdfast::training::nn
