// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), the checksum of frames: finds every burst of up to 32 bits and, with the
// processor's own instruction, costs less than copying.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace holdfast::training {

std::uint32_t crc32c(std::span<const std::byte> bytes);
/// The same without the processor's instruction; for tests and other processors.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes);

}  // namespace holdfast::training
