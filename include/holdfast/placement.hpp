// SPDX-License-Identifier: Apache-2.0
/// Who runs where: the one place where order, rules and ranking meet. Pure: structs in, structs
/// out; no I/O, no threads, no clock. The live loop and the simulator call the same function.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <holdfast/ids.hpp>

namespace holdfast::placement {

struct Capacity {
    std::int64_t cpus = 0;
    std::int64_t memory_bytes = 0;
    std::int64_t gpus = 0;
    std::string gpu_type;
};

struct NodeView {
    NodeId id;
    std::string name;
    std::string pool;
    bool schedulable = true;  ///< up, neither cordoned nor draining
    std::string state;        ///< for explanations
    Capacity total;
    Capacity free;

    /// Training workers here, so that data-parallel peers (same job and stage) never share a node.
    struct Worker {
        JobId job;
        std::int32_t pipeline = 0;
        std::int32_t stage = 0;
    };

    std::vector<Worker> workers;

    /// Who holds what here, for explanations only; may be left empty.
    struct Holder {
        JobId job;
        Capacity held;
    };

    std::vector<Holder> holders = {};
};

struct ClusterView {
    std::vector<NodeView> nodes;  ///< in registration order: first-fit walks them so

    /// Running elements per array, for `array: 0-99%4`.
    struct ArrayLoad {
        std::int64_t array = 0;
        std::int32_t running = 0;
    };

    std::vector<ArrayLoad> arrays;
};

struct PendingTask {
    TaskId id;
    std::int32_t rank = 0;
    std::int32_t pipeline = -1;  ///< ≥ 0: a training worker
    std::int32_t stage = -1;
};

struct PendingJob {
    JobId id;
    std::string name;
    std::string user;
    std::string pool;
    std::int32_t priority = 0;
    std::int64_t submit_us = 0;
    Capacity per_task;
    std::vector<PendingTask> tasks;  ///< the gang: all or none
    /// A running training job that lost workers: each of its tasks may be placed alone.
    bool repair = false;
    std::vector<std::string> nodes;
    std::vector<std::string> exclude_nodes;
    std::int32_t tasks_per_node = 0;
    std::int64_t array = 0;
    std::int32_t array_at_once = 0;
};

/// Work allowed: units (node visits) and a stop flag. Deterministic: the same units give the same
/// answer.
struct Budget {
    std::int64_t units = 10'000'000;
    const std::atomic<bool>* stop = nullptr;
};

/// One constraint of a job that could not be met, with numbers.
struct Finding {
    std::string constraint;  ///< "gpus", "cpus", "memory", "pool", "nodes", "node state", "array
                             ///< limit", "gang", …
    std::string text;        ///< "wants 8 gpus on one node; the largest node has 4"
    std::string fix;         ///< "add a node with 8 gpus, or ask for 4"
    bool never = false;      ///< no node could ever satisfy it, even when idle
};

struct Placed {
    JobId job;

    struct At {
        TaskId task;
        NodeId node;
    };

    std::vector<At> tasks;
    std::vector<std::string> warnings;
};

struct Waiting {
    JobId job;
    std::string reason;  ///< one sentence with numbers
    std::vector<Finding> findings;
    std::vector<std::string> warnings;
};

struct Decision {
    std::vector<Placed> placed;
    std::vector<Waiting> waiting;
    bool out_of_budget = false;
};

/// What later issues fill: the order of jobs, the legal nodes of a task, and the score of a (task,
/// node).
struct Policy {
    /// Ranks pending jobs, best first. Default: priority, then submit time, then id (FIFO).
    std::function<std::vector<std::size_t>(const std::vector<PendingJob>&)> order;
    /// The score of a task on a legal node; the highest wins, ties by the nodes' order. Default:
    /// equal (first-fit).
    std::function<double(const PendingJob&, const PendingTask&, const NodeView&)> score;
};

/// The default policy: FIFO and first-fit. A job that does not fit does not hold up smaller ones
/// behind it unless they are of the same array (`Waiting.reason` says what it waits for).
Policy fifo_first_fit();

/// Places whole gangs, or says why not. Post: never more than a node's free capacity; data-parallel
/// peers of a stage on different nodes whenever that is possible, else placed together with a
/// warning. Cost: O(jobs × tasks × nodes) node visits, bounded by the budget.
Decision decide(const ClusterView& cluster, const std::vector<PendingJob>& pending,
                const Policy& policy, const Budget& budget);

/// Why this job waits, against the present cluster: every constraint that fails, with numbers and
/// fixes.
Waiting explain(const ClusterView& cluster, const PendingJob& job);

}  // namespace holdfast::placement
