// SPDX-License-Identifier: Apache-2.0
/// What this machine offers: cores, memory, GPUs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <holdfast/result.hpp>

namespace holdfast::agent {

struct Machine {
    std::int64_t cpus = 0;
    std::int64_t memory_bytes = 0;
    std::int64_t gpus = 0;
    std::string gpu_type;
};

/// Cores of this process's affinity mask, memory of /proc/meminfo, GPUs of the driver's management
/// library (libnvidia-ml, opened at run time; absent: none).
[[nodiscard]] Machine this_machine();

/// Bytes that could be used without swapping now; 0 if unknown.
[[nodiscard]] std::int64_t memory_available_bytes();
[[nodiscard]] double load_of_one_minute();

/// "MemTotal:  16384 kB" → 16777216; 0 if the field is not there.
[[nodiscard]] std::int64_t meminfo_field(std::string_view meminfo, std::string_view field);
/// The short name that people write: "NVIDIA A100-SXM4-80GB" → "a100", "NVIDIA GeForce RTX 4090" →
/// "rtx4090".
[[nodiscard]] std::string short_gpu_name(std::string_view product);
/// "4G" → 4 GiB, "512M", "1.5T", plain bytes. Errors: invalid_argument.
[[nodiscard]] Result<std::int64_t> bytes_from(const std::string& text);

}  // namespace holdfast::agent
