// SPDX-License-Identifier: Apache-2.0
// A whole pipeline in one thread: D × P workers, any of which may run any microbatch of its stage,
// as after a failure.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/stage_layout.hpp"
#include "stage_module.hpp"

namespace holdfast::training {

/// The backend under test; each test program defines it.
Result<std::unique_ptr<StageModule>> make_stage_under_test(StageOptions options);

/// Text with structure to learn: a few words in an order that repeats.
inline std::string test_text() {
    const std::vector<std::string> words = {"stage ", "worker ", "holds ",  "a ",    "gradient ",
                                            "and ",   "sends ",  "it on. ", "Then ", "rests. "};
    std::string text;
    for (std::size_t i = 0; i < 600; ++i) {
        text += words[(i * 7 + i / 10) % words.size()];
    }
    return text;
}

inline StageOptions tiny_options() {
    StageOptions options;
    options.model = model_config("gpt-tiny").value();
    options.seed = 7;
    options.exact = true;
    options.text = test_text();
    return options;
}

inline std::unique_ptr<StageModule> make_or_die(
    StageOptions options, const decltype(&make_stage_under_test) make = &make_stage_under_test) {
    auto stage = make(std::move(options));
    EXPECT_TRUE(stage.has_value()) << (stage ? "" : stage.error().message);
    return std::move(stage).value();
}

template <typename Value>
Value expect_value(Result<Value> result) {
    EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
    return std::move(result).value();
}

inline void expect_ok(const Result<>& result) {
    EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
}

template <typename Value>
void expect_error(const Result<Value>& result, Errc code, const std::string& text) {
    ASSERT_FALSE(result.has_value()) << "no error, but expected: " << text;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
}

class Cluster {
  public:
    using Losses = std::map<MicrobatchKey, double>;

    explicit Cluster(const StageOptions& options,
                     const decltype(&make_stage_under_test) make = &make_stage_under_test)
        : options_(options) {
        for (std::int32_t stage = 0; stage < options.stages; ++stage) {
            std::vector<std::unique_ptr<StageModule>> peers;
            for (std::int32_t pipeline = 0; pipeline < options.pipelines; ++pipeline) {
                StageOptions own = options;
                own.stage = stage;
                peers.push_back(make_or_die(own, make));
            }
            stages_.push_back(std::move(peers));
        }
    }

    /// Which peer of the stage runs the microbatch; its own pipeline's unless set otherwise.
    std::function<std::int32_t(std::int32_t stage, const MicrobatchKey& key)> route =
        [](std::int32_t, const MicrobatchKey& key) { return key.pipeline; };
    /// Runs the microbatches, and their weight gradients, in the opposite order.
    bool reversed = false;

    StageModule& at(std::int32_t stage, std::int32_t pipeline) {
        return *stages_.at(static_cast<std::size_t>(stage)).at(static_cast<std::size_t>(pipeline));
    }

    /// Forward and backward of every microbatch; no sums are exchanged yet.
    Losses accumulate(std::int64_t step) {
        std::vector<MicrobatchKey> keys;
        for (std::int32_t pipeline = 0; pipeline < options_.pipelines; ++pipeline) {
            for (std::int32_t index = 0; index < options_.microbatches; ++index) {
                keys.push_back({.step = step, .pipeline = pipeline, .microbatch = index});
            }
        }
        if (reversed) {
            std::reverse(keys.begin(), keys.end());
        }
        Losses losses;
        for (const MicrobatchKey& key : keys) {
            losses[key] = forward_and_back(key);
        }
        for (const MicrobatchKey& key : keys) {
            for (std::int32_t stage = 0; stage < options_.stages; ++stage) {
                expect_ok(worker(stage, key).backward_weight(key));
            }
        }
        return losses;
    }

    /// All peers of each stage get the sum of all; the peers listed in `dead` have none and get
    /// none.
    void reduce_and_step(const std::vector<std::pair<std::int32_t, std::int32_t>>& dead = {}) {
        for (std::int32_t stage = 0; stage < options_.stages; ++stage) {
            std::vector<StageModule*> live;
            for (std::int32_t pipeline = 0; pipeline < options_.pipelines; ++pipeline) {
                if (std::find(dead.begin(), dead.end(), std::pair(stage, pipeline)) == dead.end()) {
                    live.push_back(&at(stage, pipeline));
                }
            }
            std::vector<std::vector<std::byte>> sums;
            for (const StageModule* peer : live) {
                sums.push_back(peer->gradient_sums());
            }
            for (std::size_t to = 0; to < live.size(); ++to) {
                for (std::size_t from = 0; from < live.size(); ++from) {
                    if (from != to) {
                        expect_ok(live[to]->add_gradient_sums(sums[from]));
                    }
                }
                expect_ok(live[to]->optimizer_step());
            }
        }
    }

    Losses step(std::int64_t number) {
        Losses losses = accumulate(number);
        reduce_and_step();
        return losses;
    }

    std::vector<std::vector<std::byte>> states() {
        std::vector<std::vector<std::byte>> all;
        for (std::int32_t stage = 0; stage < options_.stages; ++stage) {
            all.push_back(at(stage, 0).save_state());
        }
        return all;
    }

  private:
    StageModule& worker(std::int32_t stage, const MicrobatchKey& key) {
        return at(stage, route(stage, key));
    }

    double forward_and_back(const MicrobatchKey& key) {
        std::vector<float> x;
        for (std::int32_t stage = 0; stage < options_.stages; ++stage) {
            x = expect_value(worker(stage, key).forward(key, x));
        }
        const double loss = expect_value(worker(options_.stages - 1, key).loss(key));
        for (std::int32_t stage = options_.stages; stage-- > 0;) {
            x = expect_value(worker(stage, key).backward_input(key, x));
        }
        return loss;
    }

    StageOptions options_;
    std::vector<std::vector<std::unique_ptr<StageModule>>> stages_;
};

inline double mean(const Cluster::Losses& losses) {
    double sum = 0;
    for (const auto& [key, loss] : losses) {
        sum += loss;
    }
    return sum / static_cast<double>(losses.size());
}

/// The fp32 values of sums in `fast` mode: after the 24-byte header.
inline std::vector<float> fast_values(const std::vector<std::byte>& sums) {
    constexpr std::size_t kHeader = 24;
    std::vector<float> values((sums.size() - kHeader) / sizeof(float));
    std::memcpy(values.data(), sums.data() + kHeader, values.size() * sizeof(float));
    return values;
}

}  // namespace holdfast::training
