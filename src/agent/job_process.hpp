// SPDX-License-Identifier: Apache-2.0
/// The job's own process: from fork to exec.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "account.hpp"
#include "task_files.hpp"

namespace holdfast::agent {

inline constexpr int kStartFailed = 126;

/// The steps of the job's process between fork and exec, for the message of a failure.
enum class Step : int { descriptors, privileges, parent, workdir, exec };

struct StepFailure {
    Step step;
    int error;
};

/// What a person is told of it, and what to do.
[[nodiscard]] std::string why(const StepFailure& failure, const LaunchSpec& spec,
                              const std::string& workdir);

/// Everything that the job's process needs, made before the fork: after it only the kernel is
/// called.
struct JobStart {
    const Account& account;
    std::vector<std::string> arguments;
    std::vector<std::string> environment;
    std::string workdir;
    int program = -1;  ///< open executable, or -1 for /bin/sh
    int output = -1;
    int errors = -1;
    int status = -1;
    pid_t supervisor = 0;
    std::int64_t open_files = 0;  ///< see LaunchSpec
    bool has_secret = false;
};

/// Sorted `NAME=value`: the spec's own, then what every login has.
[[nodiscard]] std::vector<std::string> environment_of(const LaunchSpec& spec,
                                                      const Account& account);
/// For execve; valid as long as `texts`.
[[nodiscard]] std::vector<char*> pointers(std::vector<std::string>& texts);

/// In the child: gives up everything that is not the job's and becomes the job. A failure goes into
/// the status pipe as a StepFailure; the pipe's end without one means success.
[[noreturn]] void become_job(const JobStart& job, char* const* arguments, char* const* environment);

}  // namespace holdfast::agent
