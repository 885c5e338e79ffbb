// SPDX-License-Identifier: Apache-2.0
// A job file (YAML) or a batch script with #SBATCH lines, as a JobRequest.
//
// Unknown keys and directives are refused by name; those of parts that are not built yet are
// refused as unsupported. Nothing is ever ignored.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <holdfast/result.hpp>

#include "job_request.hpp"

namespace holdfast::cli {

/// Errors: invalid_argument, unsupported, too_large; `where` is file:line:column.
Result<JobRequest> read_job_file(std::string_view text, const std::string& file);

/// A script begins with `#!`; its #SBATCH lines stand before its first command, as in Slurm. The
/// script runs once per task, with its own interpreter and these arguments.
/// Errors: invalid_argument, unsupported, too_large; `where` is file:line.
Result<JobRequest> read_batch_script(std::string_view text, const std::string& file,
                                     const std::vector<std::string>& arguments);

[[nodiscard]] bool is_batch_script(std::string_view text);

/// What a script does that will not work here as under Slurm, as sentences for its author.
std::vector<std::string> script_warnings(std::string_view text);

/// Shell text that runs `script` with its #! interpreter and these arguments.
std::string script_as_run(std::string_view script, const std::vector<std::string>& arguments);

}  // namespace holdfast::cli
