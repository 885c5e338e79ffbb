// SPDX-License-Identifier: Apache-2.0
// What a user asks for, before it is the API's JobSpec.
//
// A job file, a script's #SBATCH lines and the command line all fill the same fields, the later
// source over the earlier; then one function checks them together and maps them to the API. The
// fields' names are the job file's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <holdfast/result.hpp>

#include "holdfast.pb.h"
#include "text.hpp"

namespace holdfast::cli {

/// One argument of an execve is limited to 128 KiB by Linux, and a job's text becomes one.
inline constexpr std::size_t kRunBytesMax = 120 << 10;
inline constexpr std::int64_t kTasksMax = 65'536;
inline constexpr const char* kDefaultTrainingData = "/usr/share/common-licenses/GPL-3";

struct TrainingRequest {
    std::optional<std::int64_t> pipelines, stages, microbatches, steps, seed;
    std::optional<std::string> model, data, backend;
    std::optional<bool> exact;
};

struct JobRequest {
    std::optional<std::string> name, run, workdir, pool, recovery;
    std::map<std::string, std::string> env;
    std::optional<std::int64_t> nodes, tasks, tasks_per_node, cpus_per_task;
    std::optional<Gpus> gpus, gpus_per_node, gpus_per_task;  ///< `gpus`: of the whole job
    std::optional<std::int64_t> memory, memory_per_task, memory_per_cpu;  ///< memory: per node
    std::optional<std::int64_t> time_limit_s;
    std::optional<ArraySpec> array;
    std::optional<std::int64_t> priority;
    std::optional<std::vector<std::string>> nodelist, exclude;
    bool hold = false;
    bool wait = false;
    std::optional<TrainingRequest> training;
    std::map<std::string, std::string> where;  ///< field → file:line:column or flag

    [[nodiscard]] std::string place(const std::string& field) const;
};

/// Sets a field from text, as every source does.
/// Errors: invalid_argument, unsupported, too_large; `where` is given.
Result<> set_field(JobRequest& request, const std::string& field, std::string_view text,
                   const std::string& where);

/// "KEY=VALUE".
Result<> set_env(JobRequest& request, std::string_view text, const std::string& where);

/// The later request's fields over the earlier one's.
JobRequest merged(JobRequest earlier, const JobRequest& later);

/// Checks the fields together and maps them.
/// Errors: invalid_argument, unsupported, too_large.
Result<v1::JobSpec> to_spec(const JobRequest& request);

}  // namespace holdfast::cli
