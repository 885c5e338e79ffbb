// SPDX-License-Identifier: Apache-2.0
/// One round: jobs in the policy's order, each gang onto what the ones before it left free.
///
/// Nodes only fill up during a round, so a job that did not fit tells that every later job of the
/// same shape does not fit either. A backlog of ten thousand alike jobs costs one look.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include <holdfast/placement.hpp>

#include "explain.hpp"
#include "gang.hpp"

namespace holdfast::placement {

namespace {

std::vector<std::size_t> fifo(const std::vector<PendingJob>& pending) {
    std::vector<std::size_t> order(pending.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const PendingJob& left = pending[a];
        const PendingJob& right = pending[b];
        if (left.priority != right.priority) {
            return left.priority > right.priority;
        }
        if (left.submit_us != right.submit_us) {
            return left.submit_us < right.submit_us;
        }
        return left.id < right.id;
    });
    return order;
}

/// Everything that decides whether a whole gang fits. (Which stage a worker is of does not: peers
/// that cannot be kept apart are placed together.)
struct Shape {
    std::string pool;
    std::int64_t cpus, memory_bytes, gpus;
    std::string gpu_type;
    std::size_t tasks;
    std::int32_t tasks_per_node;
    std::vector<std::string> nodes, exclude_nodes;
    auto operator<=>(const Shape&) const = default;
};

Shape shape_of(const PendingJob& job) {
    return {job.pool,
            job.per_task.cpus,
            job.per_task.memory_bytes,
            job.per_task.gpus,
            job.per_task.gpu_type,
            job.tasks.size(),
            job.tasks_per_node,
            job.nodes,
            job.exclude_nodes};
}

class Round {
  public:
    Round(const ClusterView& cluster, const std::vector<PendingJob>& pending, const Policy& policy,
          const Budget& budget)
        : nodes_(cluster.nodes),
          arrays_(cluster.arrays),
          pending_(pending),
          policy_(policy),
          meter_(budget) {}

    Decision run() {
        const std::vector<std::size_t> order =
            policy_.order ? policy_.order(pending_) : fifo(pending_);
        std::vector<bool> seen(pending_.size(), false);
        for (const std::size_t index : order) {
            if (index < pending_.size() && !seen[index]) {
                seen[index] = true;
                consider(pending_[index]);
            }
        }
        for (std::size_t index = 0; index < pending_.size(); ++index) {
            if (!seen[index]) {
                wait(pending_[index], "left out of this round by the policy");
            }
        }
        return std::move(decision_);
    }

  private:
    void consider(const PendingJob& job) {
        if (meter_.spent()) {
            decision_.out_of_budget = true;
            wait(job, "not looked at in this round: the work allowed for it ran out");
            return;
        }
        if (job.tasks.empty()) {
            wait(job, "has no task to place");
            return;
        }
        if (job.array != 0 && wait_for_array(job)) {
            return;
        }
        if (!job.repair) {
            if (const auto known = misfits_.find(shape_of(job)); known != misfits_.end()) {
                wait_again(job, known->second);
                return;
            }
        }
        place(job);
    }

    void place(const PendingJob& job) {
        const GangPlacement placement = place_gang(nodes_, job, policy_, meter_);
        if (placement.out_of_budget) {
            decision_.out_of_budget = true;
            wait(job, "not finished in this round: the work allowed for it ran out");
            return;
        }
        const bool whole = placement.placed == job.tasks.size();
        if (whole || (job.repair && placement.placed > 0)) {
            commit(job, placement);
        }
        if (whole) {
            return;
        }
        Waiting waiting = explain_now(job);
        if (job.repair && placement.placed > 0) {
            waiting.reason = fmt::format(
                "{} of {} lost workers are placed again; for the others "
                "there is no room",
                placement.placed, job.tasks.size());
        } else if (job.array != 0) {
            first_of_array_.emplace(job.array, job.id);
        }
        if (!job.repair) {
            misfits_[shape_of(job)] = {commits_, waiting};
        }
        decision_.waiting.push_back(std::move(waiting));
    }

    struct Misfit {
        std::int64_t commits = 0;  ///< when it was explained
        Waiting waiting;
    };

    void wait_again(const PendingJob& job, Misfit& known) {
        if (known.commits != commits_) {
            known = {commits_, explain_now(job)};
        }
        Waiting waiting = known.waiting;
        waiting.job = job.id;
        decision_.waiting.push_back(std::move(waiting));
    }

    Waiting explain_now(const PendingJob& job) {
        meter_.spend(static_cast<std::int64_t>(nodes_.size()));
        return explain_on(nodes_, arrays_, job);
    }

    void wait(const PendingJob& job, std::string reason) {
        decision_.waiting.push_back({job.id, std::move(reason), {}, {}});
    }

    /// True when the job must wait for its array: its limit, or an element that is ahead.
    bool wait_for_array(const PendingJob& job) {
        if (const auto ahead = first_of_array_.find(job.array); ahead != first_of_array_.end()) {
            wait(job, fmt::format("waits behind {} of its array", ahead->second.label()));
            return true;
        }
        if (job.array_at_once <= 0 || running_of(job.array) < job.array_at_once) {
            return false;
        }
        const std::string text = fmt::format("{} elements of array {} run, its limit is {}",
                                             running_of(job.array), job.array, job.array_at_once);
        decision_.waiting.push_back(
            {job.id,
             text,
             {{"array limit", text, "wait for one to end, or submit with a higher limit", false}},
             {}});
        return true;
    }

    [[nodiscard]] std::int32_t running_of(std::int64_t array) const {
        for (const ClusterView::ArrayLoad& load : arrays_) {
            if (load.array == array) {
                return load.running;
            }
        }
        return 0;
    }

    void commit(const PendingJob& job, const GangPlacement& placement) {
        Placed placed;
        placed.job = job.id;
        placed.warnings = placement.warnings;
        for (std::size_t task = 0; task < job.tasks.size(); ++task) {
            if (placement.node_of[task] == GangPlacement::kNowhere) {
                continue;
            }
            NodeView& node = nodes_[placement.node_of[task]];
            node.free.cpus -= job.per_task.cpus;
            node.free.memory_bytes -= job.per_task.memory_bytes;
            node.free.gpus -= job.per_task.gpus;
            hold(node, job);
            if (job.tasks[task].pipeline >= 0) {
                node.workers.push_back({job.id, job.tasks[task].pipeline, job.tasks[task].stage});
            }
            placed.tasks.push_back({job.tasks[task].id, node.id});
        }
        if (job.array != 0) {
            count_element(job.array);
        }
        ++commits_;
        decision_.placed.push_back(std::move(placed));
    }

    static void hold(NodeView& node, const PendingJob& job) {
        if (node.holders.empty() || node.holders.back().job != job.id) {
            node.holders.push_back({job.id, {}});
        }
        Capacity& held = node.holders.back().held;
        held.cpus += job.per_task.cpus;
        held.memory_bytes += job.per_task.memory_bytes;
        held.gpus += job.per_task.gpus;
    }

    void count_element(std::int64_t array) {
        for (ClusterView::ArrayLoad& load : arrays_) {
            if (load.array == array) {
                ++load.running;
                return;
            }
        }
        arrays_.push_back({array, 1});
    }

    std::vector<NodeView> nodes_;
    std::vector<ClusterView::ArrayLoad> arrays_;
    const std::vector<PendingJob>& pending_;
    const Policy& policy_;
    Meter meter_;
    std::map<Shape, Misfit> misfits_;
    std::map<std::int64_t, JobId> first_of_array_;  ///< the first element that did not fit
    std::int64_t commits_ = 0;
    Decision decision_;
};

}  // namespace

Policy fifo_first_fit() {
    return {fifo, nullptr};
}

Decision decide(const ClusterView& cluster, const std::vector<PendingJob>& pending,
                const Policy& policy, const Budget& budget) {
    return Round(cluster, pending, policy, budget).run();
}

}  // namespace holdfast::placement
