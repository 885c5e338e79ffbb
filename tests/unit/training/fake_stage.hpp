// SPDX-License-Identifier: Apache-2.0
// A stage whose numbers are hashes: any wrong input, order, iteration or count changes every later
// byte, and what a real stage would silently add wrong is an error here (each microbatch exactly
// once in a step's sums).
#pragma once

#include <map>

#include "bytes.hpp"
#include "stage_module.hpp"

namespace holdfast::training {

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    std::uint64_t x = a * 0x9E3779B97F4A7C15ULL + b + 0x632BE59BD9B4E019ULL;
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31U);
}

class FakeStage final : public StageModule {
  public:
    FakeStage(std::int32_t stage, std::int32_t stages, std::int32_t pipelines,
              std::int32_t microbatches, std::uint64_t seed)
        : stage_(stage),
          stages_(stages),
          microbatches_(microbatches),
          parameter_(mix(seed, static_cast<std::uint64_t>(stage))),
          counts_(static_cast<std::size_t>(pipelines) * static_cast<std::size_t>(microbatches), 0) {
    }

    Result<std::vector<float>> forward(const MicrobatchKey& key,
                                       std::span<const float> input) override {
        if (key.step != version_ || kept_.contains(key) || (stage_ == 0) != input.empty()) {
            return fail(Errc::internal, "forward {} at version {}", key.step, version_);
        }
        if (std::ssize(kept_) >= stages_ - stage_) {
            return fail(Errc::internal, "too many microbatches in flight");
        }
        kept_[key].x = hash_of(input, key);
        return stage_ + 1 == stages_ ? std::vector<float>{}
                                     : floats_of(mix(kept_[key].x, parameter_));
    }

    Result<std::vector<float>> backward_input(const MicrobatchKey& key,
                                              std::span<const float> output_gradient) override {
        const auto kept = kept_.find(key);
        if (kept == kept_.end() || kept->second.backward ||
            (stage_ + 1 == stages_) != output_gradient.empty()) {
            return fail(Errc::internal, "backward without forward");
        }
        kept->second.backward = true;
        kept->second.dy = mix(hash_of(output_gradient, key), kept->second.x);
        return stage_ == 0 ? std::vector<float>{} : floats_of(mix(kept->second.dy, parameter_));
    }

    Result<> backward_weight(const MicrobatchKey& key) override {
        const auto kept = kept_.find(key);
        if (kept == kept_.end() || !kept->second.backward) {
            return fail(Errc::internal, "weight gradient before input gradient");
        }
        sum_ += kept->second.dy;
        ++counts_.at(static_cast<std::size_t>(key.pipeline * microbatches_ + key.microbatch));
        kept_.erase(kept);
        return {};
    }

    Result<double> loss(const MicrobatchKey& key) const override {
        return static_cast<double>(mix(kept_.at(key).x, parameter_) >> 11U) * 0x1p-53;
    }

    std::vector<std::byte> gradient_sums() const override {
        Bytes out;
        put(out, sum_);
        for (const std::uint32_t count : counts_) {
            put(out, count);
        }
        return out;
    }

    Result<> add_gradient_sums(std::span<const std::byte> peer) override {
        ByteReader reader(peer);
        HOLD_TRY(const std::uint64_t sum, reader.take<std::uint64_t>());
        sum_ += sum;
        for (std::uint32_t& count : counts_) {
            HOLD_TRY(const std::uint32_t more, reader.take<std::uint32_t>());
            count += more;
        }
        return {};
    }

    void drop_iteration() override {
        kept_.clear();
        sum_ = 0;
        std::fill(counts_.begin(), counts_.end(), 0U);
    }

    Result<> optimizer_step() override {
        for (const std::uint32_t count : counts_) {
            if (count != 1) {
                return fail(Errc::internal, "a microbatch was counted {} times in step {}", count,
                            version_);
            }
        }
        undo_ = parameter_;
        has_undo_ = true;
        parameter_ = mix(parameter_, sum_);
        ++version_;
        drop_iteration();
        return {};
    }

    std::int64_t version() const override { return version_; }

    std::int64_t previous_version() const override { return has_undo_ ? version_ - 1 : -1; }

    Result<> roll_back() override {
        if (!has_undo_) {
            return fail(Errc::bad_state, "nothing to undo");
        }
        parameter_ = undo_;
        has_undo_ = false;
        --version_;
        return {};
    }

    std::vector<std::byte> save_state() const override {
        Bytes out;
        put(out, version_);
        put(out, parameter_);
        return out;
    }

    Result<> load_state(std::span<const std::byte> state) override {
        ByteReader reader(state);
        HOLD_TRY(version_, reader.take<std::int64_t>());
        HOLD_TRY(parameter_, reader.take<std::uint64_t>());
        has_undo_ = false;
        drop_iteration();
        return {};
    }

    std::uint64_t parameter_hash() const override {
        return mix(parameter_, static_cast<std::uint64_t>(version_));
    }

  private:
    struct Kept {
        std::uint64_t x = 0;
        std::uint64_t dy = 0;
        bool backward = false;
    };

    static std::uint64_t hash_of(std::span<const float> values, const MicrobatchKey& key) {
        std::uint64_t hash = mix(static_cast<std::uint64_t>(key.step),
                                 static_cast<std::uint64_t>(key.pipeline * 4096 + key.microbatch));
        for (const float value : values) {
            hash = mix(hash, static_cast<std::uint64_t>(value));
        }
        return hash;
    }

    static std::vector<float> floats_of(std::uint64_t hash) {  // whole numbers below 2^24: exact
        return {static_cast<float>(hash & 0xFFFFFFU),
                static_cast<float>((hash >> 24U) & 0xFFFFFFU)};
    }

    std::int32_t stage_;
    std::int32_t stages_;
    std::int32_t microbatches_;
    std::int64_t version_ = 0;
    std::uint64_t parameter_;
    std::uint64_t undo_ = 0;
    bool has_undo_ = false;
    std::uint64_t sum_ = 0;
    std::vector<std::uint32_t> counts_;
    std::map<MicrobatchKey, Kept> kept_;
};

}  // namespace holdfast::training
