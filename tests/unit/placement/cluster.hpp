// SPDX-License-Identifier: Apache-2.0
/// Short ways to write down clusters and jobs.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <holdfast/placement.hpp>

namespace holdfast::placement {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

inline NodeView node(std::int64_t number, std::int64_t gpus, std::int64_t cpus = 64,
                     std::int64_t memory_bytes = 256 * kGiB) {
    NodeView view;
    view.id = NodeId(number);
    view.name = "n" + std::to_string(number);
    view.pool = "default";
    view.state = "up";
    view.total = {cpus, memory_bytes, gpus, gpus > 0 ? "h100" : ""};
    view.free = view.total;
    return view;
}

inline PendingJob job(std::int64_t number, std::size_t tasks, std::int64_t gpus,
                      std::int64_t cpus = 1, std::int64_t memory_bytes = 0) {
    PendingJob pending;
    pending.id = JobId(number);
    pending.name = "job";
    pending.user = "ada";
    pending.pool = "default";
    pending.submit_us = number;
    pending.per_task = {cpus, memory_bytes, gpus, ""};
    for (std::size_t rank = 0; rank < tasks; ++rank) {
        pending.tasks.push_back({TaskId(number * 1000 + static_cast<std::int64_t>(rank)),
                                 static_cast<std::int32_t>(rank), -1, -1});
    }
    return pending;
}

/// A whole training gang: rank = pipeline * stages + stage.
inline PendingJob training(std::int64_t number, std::int32_t pipelines, std::int32_t stages,
                           std::int64_t gpus = 1) {
    PendingJob pending = job(number, static_cast<std::size_t>(pipelines * stages), gpus);
    for (PendingTask& task : pending.tasks) {
        task.pipeline = task.rank / stages;
        task.stage = task.rank % stages;
    }
    return pending;
}

/// Task ranks per node number: {1: {0, 1}, 2: {2}}.
inline std::map<std::int64_t, std::vector<std::int32_t>> layout(const PendingJob& job,
                                                                const Placed& placed) {
    std::map<std::int64_t, std::vector<std::int32_t>> ranks;
    for (const Placed::At& at : placed.tasks) {
        for (const PendingTask& task : job.tasks) {
            if (task.id == at.task) {
                ranks[at.node.value].push_back(task.rank);
            }
        }
    }
    return ranks;
}

}  // namespace holdfast::placement
