// SPDX-License-Identifier: Apache-2.0
// What a worker is told by its agent, through environment variables (docs/users/environment.md) and
// one pipe.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <holdfast/log.hpp>
#include <holdfast/rpc.hpp>
#include <holdfast/training_messages.hpp>

namespace holdfast::training {

struct WorkerConfig {
    rpc::Endpoint server;   ///< HOLDFAST_SERVER, HOLDFAST_CA
    JobId job;              ///< HOLDFAST_JOB
    TaskId task;            ///< HOLDFAST_TASK
    LeaseId lease;          ///< HOLDFAST_LEASE
    WorkerName self;        ///< HOLDFAST_WORKER
    TrainingSpec spec;      ///< HOLDFAST_TRAINING, JSON of holdfast.v1.TrainingSpec
    std::string data_host;  ///< HOLDFAST_DATA_HOST
    int secret_fd = -1;     ///< HOLDFAST_SECRET_FD
};

using VariableLookup = std::function<std::optional<std::string>(const std::string&)>;

/// Errors: invalid_argument naming the variable that is missing or wrong.
Result<WorkerConfig> worker_config(const VariableLookup& variable);

/// Reads until the end of the pipe and closes it. Errors: invalid_argument for nothing or more than
/// 4 KiB.
Result<Secret> read_secret(int fd);

}  // namespace holdfast::training
