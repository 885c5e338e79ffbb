// SPDX-License-Identifier: Apache-2.0
// Waiting for jobs: shared by `wait`, `submit --wait` and `run`.
#pragma once

#include <cstdint>
#include <vector>

#include <holdfast/result.hpp>

#include "verb.hpp"

namespace holdfast::cli {

/// While a server is away, jobs go on: a waiting client stays this long.
inline constexpr std::int64_t kServerAwayUs = 300 * kSecondUs;

/// Waits for each; `timeout_us` is for all together (kNoLimit: none).
Result<v1::ListJobsResponse> wait_for_all(Session& session, const std::vector<std::int64_t>& ids,
                                          std::int64_t timeout_us);

/// 0 if all completed, else 1.
int status_of(const v1::ListJobsResponse& jobs);

/// "job-42 completed", "job-42 failed: reason" on lines of their own.
std::string ends_text(const v1::ListJobsResponse& jobs);

}  // namespace holdfast::cli
