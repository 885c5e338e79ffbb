// SPDX-License-Identifier: Apache-2.0
#include "cluster_view.hpp"

#include <charconv>
#include <map>

namespace holdfast::server {
namespace {

placement::Capacity capacity_of(const services::Resources& resources) {
    return {.cpus = resources.cpus,
            .memory_bytes = resources.memory_bytes,
            .gpus = resources.gpus,
            .gpu_type = resources.gpu_type};
}

/// "d:s"; placement only needs to tell workers of one stage apart, so a text of another form is
/// an ordinary task.
void read_worker(const std::string& worker, placement::PendingTask& task) {
    const auto colon = worker.find(':');
    if (colon == std::string::npos) {
        return;
    }
    const char* text = worker.data();
    std::from_chars(text, text + colon, task.pipeline);
    std::from_chars(text + colon + 1, text + worker.size(), task.stage);
}

void read_spec(const services::JobSpec& spec, placement::PendingJob& pending) {
    pending.per_task = capacity_of(spec.per_task);
    pending.nodes = spec.nodes;
    pending.exclude_nodes = spec.exclude_nodes;
    pending.tasks_per_node = spec.tasks_per_node;
    pending.array_at_once = spec.array_at_once;
}

}  // namespace

Result<placement::ClusterView> read_cluster(store::ReadTx& tx) {
    placement::ClusterView view;
    std::map<std::int64_t, std::size_t> index;
    HOLD_TRY(const auto nodes, services::list_nodes(tx));
    for (const services::NodeRow& node : nodes) {
        placement::NodeView out;
        out.id = node.id;
        out.name = node.name;
        out.pool = node.pool;
        out.state = node.state;
        out.schedulable = node.state == "up";
        out.total = capacity_of(node.capacity);
        out.free = out.total;
        out.free.cpus -= node.used.cpus;
        out.free.memory_bytes -= node.used.memory_bytes;
        out.free.gpus -= node.used.gpus;
        index[node.id.value] = view.nodes.size();
        view.nodes.push_back(std::move(out));
    }
    HOLD_TRY(const auto workers, services::placed_workers(tx));
    for (const services::PlacedWorker& worker : workers) {
        if (const auto at = index.find(worker.node.value); at != index.end()) {
            view.nodes[at->second].workers.push_back(
                {.job = worker.job, .pipeline = worker.pipeline, .stage = worker.stage});
        }
    }
    HOLD_TRY(const auto holdings, services::holdings(tx));
    for (const services::Holding& holding : holdings) {
        if (const auto at = index.find(holding.node.value); at != index.end()) {
            view.nodes[at->second].holders.push_back(
                {.job = holding.job, .held = capacity_of(holding.held)});
        }
    }
    HOLD_TRY(const auto loads, services::array_loads(tx));
    for (const services::ArrayLoad& load : loads) {
        view.arrays.push_back({.array = load.array, .running = load.running});
    }
    return view;
}

placement::PendingJob pending_of(const services::PlaceableJob& placeable) {
    const services::JobRow& job = placeable.job;
    placement::PendingJob pending;
    read_spec(job.spec, pending);
    pending.id = job.id;
    pending.name = job.name;
    pending.user = job.user;
    pending.pool = job.pool;
    pending.priority = job.priority;
    pending.submit_us = job.submit_us;
    pending.per_task = capacity_of(job.per_task);
    pending.repair = placeable.repair;
    pending.array = job.array_parent;
    for (const services::TaskRow& task : placeable.tasks) {
        placement::PendingTask out;
        out.id = task.id;
        out.rank = task.rank;
        read_worker(task.worker, out);
        pending.tasks.push_back(out);
    }
    return pending;
}

placement::PendingJob pending_of(const services::JobSpec& spec, const std::string& user) {
    placement::PendingJob pending;
    read_spec(spec, pending);
    pending.name = spec.name;
    pending.user = user;
    pending.pool = spec.pool;
    pending.priority = spec.priority;
    for (std::int32_t rank = 0; rank < spec.tasks; ++rank) {
        placement::PendingTask task;
        task.id = TaskId(rank + 1);
        task.rank = rank;
        if (spec.training) {
            task.pipeline = rank / spec.training->stages;
            task.stage = rank % spec.training->stages;
        }
        pending.tasks.push_back(task);
    }
    return pending;
}

}  // namespace holdfast::server
