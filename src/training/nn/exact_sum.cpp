// SPDX-License-Identifier: Apache-2.0
#include "nn/exact_sum.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

static_assert(std::endian::native == std::endian::little, "sums travel in little endian");

namespace holdfast::training::nn {
namespace {

constexpr double kScale = 17592186044416.0;                // 2^44
constexpr std::uint64_t kExactMagic = 0x31305458454d5553;  // "SUMEXT01"
constexpr std::uint64_t kFastMagic = 0x31305453464d5553;   // "SUMFST01"

// Below this, gradient · 2^44 is below 2^51: see add_rounded.
constexpr float kSmall = 127.0F;

// Adam squares the gradient; above this the square is no fp32 number.
constexpr float kFastLargest = 1e18F;

struct Header {
    std::uint64_t magic = 0;
    std::int64_t count = 0;
    std::uint64_t size = 0;
};

/// Compares the bits of |value|, which order as the numbers do and put NaN last: the loop has no
/// branch.
bool all_within(std::span<const float> values, float largest) {
    const auto limit = std::bit_cast<std::uint32_t>(largest);
    std::uint32_t beyond = 0;
    for (const float value : values) {
        beyond |=
            static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & 0x7fffffffU) > limit);
    }
    return beyond == 0;
}

bool all_within(std::span<const std::int64_t> values, std::int64_t limit) {
    bool within = true;
    for (const std::int64_t value : values) {
        within &= value <= limit && value >= -limit;
    }
    return within;
}

/// sum += round(gradient · 2^44), halves to even. `small`: every |gradient| < kSmall.
void add_rounded(std::span<const float> gradient, bool small, std::span<std::int64_t> sum) {
    if (!small) {
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            sum[i] += std::llrint(static_cast<double>(gradient[i]) * kScale);
        }
        return;
    }
    // Adding 1.5 · 2^52 leaves no bits below one, so the addition rounds, and the integer is in the
    // low bits. The same result as llrint for magnitudes below 2^51, in a loop that vectorises:
    // three times as fast.
    constexpr double kRound = 6755399441055744.0;
    constexpr auto kBits = std::bit_cast<std::int64_t>(kRound);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double rounded = static_cast<double>(gradient[i]) * kScale + kRound;
        sum[i] += std::bit_cast<std::int64_t>(rounded) - kBits;
    }
}

/// Names the first value at fault. Slow; only on the way to an error.
Error out_of_range(std::span<const float> values, float largest) {
    std::size_t at = 0;
    while (at + 1 < values.size() && std::fabs(values[at]) <= largest) {
        ++at;
    }
    const char* what = "is out of range";
    if (std::isnan(values[at])) {
        what = "is not a number";
    } else if (std::isinf(values[at])) {
        what = "is infinite";
    }
    return make_error(Errc::numeric_overflow,
                      "add gradients: value {} of {} {}: {}, allowed are magnitudes up to {}", at,
                      values.size(), what, values[at], largest)
        .advise("the loss has diverged: lower learning_rate");
}

template <typename Value>
void append(std::vector<std::byte>& out, std::span<const Value> values) {
    const auto bytes = std::as_bytes(values);
    out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

GradientSums::GradientSums(Mode mode, std::size_t size, std::int64_t contributions)
    : mode_(mode),
      contributions_(contributions),
      limit_(std::numeric_limits<std::int64_t>::max() / contributions),
      largest_(kFastLargest) {
    HOLD_CHECK(contributions >= 1, "an iteration has a microbatch");
    if (mode == Mode::exact) {
        exact_.resize(size);
        // The next fp32 number below, so that rounding up to fp32 here cannot put the limit above
        // 64 bits.
        largest_ = std::nextafter(static_cast<float>(static_cast<double>(limit_) / kScale), 0.0F);
    } else {
        fast_.resize(size);
    }
}

std::size_t GradientSums::size() const {
    return mode_ == Mode::exact ? exact_.size() : fast_.size();
}

Result<> GradientSums::add(std::span<const float> gradient) {
    HOLD_CHECK(gradient.size() == size(), "one value for each parameter");
    if (count_ >= contributions_) {
        return fail(Errc::bad_state,
                    "add gradients: all {} microbatches of the iteration were added",
                    contributions_);
    }
    if (!all_within(gradient, largest_)) {
        return fail(out_of_range(gradient, largest_));
    }
    if (mode_ == Mode::exact) {
        add_rounded(gradient, all_within(gradient, kSmall), exact_);
    } else {
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            fast_[i] += gradient[i];
        }
    }
    ++count_;
    return {};
}

Result<> GradientSums::add_bytes(std::span<const std::byte> peer) {
    const bool exact = mode_ == Mode::exact;
    const std::size_t value_size = exact ? sizeof(std::int64_t) : sizeof(float);
    const std::size_t expected = sizeof(Header) + size() * value_size;
    if (peer.size() != expected) {
        return fail(Errc::wire_corrupt, "add a peer's gradient sums: {} bytes, expected {}",
                    peer.size(), expected);
    }
    Header header;
    std::memcpy(&header, peer.data(), sizeof header);
    if (header.magic != (exact ? kExactMagic : kFastMagic) || header.size != size() ||
        header.count < 0 || header.count > contributions_) {
        return fail(Errc::wire_corrupt, "add a peer's gradient sums: its header is not of {} sums",
                    exact ? "exact" : "fast");
    }
    if (count_ + header.count > contributions_) {
        return fail(Errc::bad_state,
                    "add a peer's gradient sums: {} microbatches here and {} there, but the "
                    "iteration has {}: one was counted twice",
                    count_, header.count, contributions_);
    }
    const std::byte* values = peer.data() + sizeof header;
    if (exact) {
        std::vector<std::int64_t> theirs(size());
        std::memcpy(theirs.data(), values, theirs.size() * value_size);
        if (!all_within(theirs, limit_ * header.count)) {
            return fail(Errc::wire_corrupt,
                        "add a peer's gradient sums: a value is larger than {} microbatches allow",
                        header.count);
        }
        for (std::size_t i = 0; i < theirs.size(); ++i) {
            exact_[i] += theirs[i];
        }
    } else {
        std::vector<float> theirs(size());
        std::memcpy(theirs.data(), values, theirs.size() * value_size);
        for (std::size_t i = 0; i < theirs.size(); ++i) {
            fast_[i] += theirs[i];
        }
    }
    count_ += header.count;
    return {};
}

std::vector<std::byte> GradientSums::bytes() const {
    const Header header{
        .magic = mode_ == Mode::exact ? kExactMagic : kFastMagic, .count = count_, .size = size()};
    std::vector<std::byte> out;
    out.reserve(sizeof header + size() * sizeof(std::int64_t));
    append(out, std::span(&header, 1));
    append(out, std::span<const std::int64_t>(exact_));
    append(out, std::span<const float>(fast_));
    return out;
}

Result<> GradientSums::mean(std::span<float> out) const {
    HOLD_CHECK(out.size() == size(), "one value for each parameter");
    const auto divisor = static_cast<double>(contributions_);
    if (mode_ == Mode::exact) {
        for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = static_cast<float>(static_cast<double>(exact_[i]) / kScale / divisor);
        }
        return {};
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(static_cast<double>(fast_[i]) / divisor);
    }
    if (!all_within(out, kFastLargest)) {
        return fail(out_of_range(out, kFastLargest));
    }
    return {};
}

void GradientSums::clear() {
    count_ = 0;
    std::fill(exact_.begin(), exact_.end(), 0);
    std::fill(fast_.begin(), fast_.end(), 0.0F);
}

}  // namespace holdfast::training::nn
