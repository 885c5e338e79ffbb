// SPDX-License-Identifier: Apache-2.0
// Makes a process harmless before it touches anybody's SQL: no descriptors but 0, 1, 2, no new
// privileges, limits of memory and processor time, and a system call filter without programs,
// sockets and new processes.
#pragma once

#include <cstdint>

#include <holdfast/result.hpp>

namespace holdfast::server::sql {

struct Limits {
    std::uint64_t memory_bytes = 256 << 20;
    std::int64_t cpu_s = 6;
};

/// Errors: internal naming the step that the kernel refused.
Result<> enter_sandbox(const Limits& limits);

}  // namespace holdfast::server::sql
