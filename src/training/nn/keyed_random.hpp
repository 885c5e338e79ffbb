// SPDX-License-Identifier: Apache-2.0
// Random numbers that depend on a key and on nothing else. A microbatch re-routed to another
// worker, or an iteration that is redone, must see the same numbers, so there is no generator state
// to carry: the number is a hash of its key. Only integer arithmetic and exact floating-point
// operations are used: the numbers are the same on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace holdfast::training::nn {

/// A bijection of 64-bit words that changes about half of the bits when one changes (splitmix64's
/// finaliser).
constexpr std::uint64_t mix64(std::uint64_t word) {
    word = (word ^ (word >> 30U)) * 0xbf58476d1ce4e5b9U;
    word = (word ^ (word >> 27U)) * 0x94d049bb133111ebU;
    return word ^ (word >> 31U);
}

/// The random word of a key; the order of the key's parts matters.
constexpr std::uint64_t keyed_word(std::initializer_list<std::uint64_t> key) {
    std::uint64_t word = 0x243f6a8885a308d3U;
    for (const std::uint64_t part : key) {
        word = mix64((word ^ part) + 0x9e3779b97f4a7c15U);
    }
    return word;
}

/// A number in [0, bound) from a random word. Pre: 0 < bound ≤ 2^32.
constexpr std::uint64_t keyed_below(std::uint64_t word, std::uint64_t bound) {
    return ((word >> 32U) * bound) >> 32U;
}

/// A nearly normal number (mean 0, variance 1, |x| < 3.5) from a random word: the sum of its four
/// 16-bit lanes. Box and Muller's transform would need a logarithm, whose last bit differs between
/// C libraries.
constexpr double keyed_normal(std::uint64_t word) {
    const std::uint64_t sum =
        (word & 0xffffU) + ((word >> 16U) & 0xffffU) + ((word >> 32U) & 0xffffU) + (word >> 48U);
    constexpr double kMean = 4 * 32767.5;
    constexpr double kDeviation = 37837.22722;  // 65536 · √(4/12)
    return (static_cast<double>(sum) - kMean) / kDeviation;
}

}  // namespace holdfast::training::nn
