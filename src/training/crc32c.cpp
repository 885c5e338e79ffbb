// SPDX-License-Identifier: Apache-2.0
#include "crc32c.hpp"

#include <array>
#include <cstring>

namespace holdfast::training {

namespace {

constexpr std::uint32_t kReversedPolynomial = 0x82F63B78U;

constexpr std::array<std::uint32_t, 256> make_table() {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t value = i;
        for (int bit = 0; bit < 8; ++bit) {
            value = (value & 1U) != 0 ? (value >> 1U) ^ kReversedPolynomial : value >> 1U;
        }
        table[i] = value;
    }
    return table;
}

constexpr std::array<std::uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::span<const std::byte> bytes) {
    std::uint64_t crc = 0xFFFFFFFFU;
    std::size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    auto low = static_cast<std::uint32_t>(crc);
    for (; at < bytes.size(); ++at) {
        low = __builtin_ia32_crc32qi(low, static_cast<unsigned char>(bytes[at]));
    }
    return ~low;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> bytes) {
    std::uint32_t crc = 0xFFFFFFFFU;
    for (const std::byte byte : bytes) {
        crc = kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xFFU] ^ (crc >> 8U);
    }
    return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
    static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
    if (has_instruction) {
        return crc32c_sse42(bytes);
    }
#endif
    return crc32c_portable(bytes);
}

}  // namespace holdfast::training
