// SPDX-License-Identifier: Apache-2.0
// The flags that say what a job is: shared by `submit` and `run`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <holdfast/result.hpp>

#include "flags.hpp"
#include "job_request.hpp"

namespace holdfast::cli {

inline constexpr std::int64_t kRetryDefaultS = 10;
inline constexpr std::int64_t kRetryMaxS = 86'400;

struct JobFlags {
    std::optional<std::string> name, nodes, tasks, tasks_per_node, cpus, gpus, gpus_per_node,
        gpus_per_task, memory, memory_per_cpu, time_limit, array, pool, workdir, nodelist, exclude,
        priority, recovery, user;
    std::vector<std::string> env;
    std::int64_t retry_for_s = kRetryDefaultS;
};

void declare_job_flags(Flags& flags, JobFlags& job);

/// What the flags say; `where` of each field is its flag. Errors: as set_field.
Result<JobRequest> request_from(const JobFlags& job);

}  // namespace holdfast::cli
