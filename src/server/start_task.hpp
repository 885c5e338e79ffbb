// SPDX-License-Identifier: Apache-2.0
// The order to start a task, with its whole environment: PyTorch's and Slurm's names, so that
// scripts written for torchrun or sbatch find what they look for (docs/users/environment.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include <holdfast.pb.h>

#include <holdfast/result.hpp>
#include <holdfast/services.hpp>
#include <holdfast/store.hpp>

namespace holdfast::server {

/// Errors: not_found when the task or job is gone.
Result<v1::StartTask> start_task_for(store::ReadTx& tx, const services::LeaseRow& lease);

/// The environment of `task` among all `tasks` of its job. `addresses`: of nodes, by name.
std::map<std::string, std::string> task_environment(
    const services::JobRow& job, const services::TaskRow& task,
    const std::vector<services::TaskRow>& tasks,
    const std::map<std::string, std::string>& addresses);

/// {n01, n02, n03, x} → "n[01-03],x": Slurm's host list, in order of first appearance.
std::string host_list(const std::vector<std::string>& names);

}  // namespace holdfast::server
