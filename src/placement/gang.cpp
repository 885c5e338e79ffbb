// SPDX-License-Identifier: Apache-2.0
#include "gang.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace holdfast::placement {

namespace {

constexpr std::size_t kNowhere = GangPlacement::kNowhere;

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::int64_t workers_of(const NodeView& node, JobId job) {
    return std::count_if(node.workers.begin(), node.workers.end(),
                         [&](const NodeView::Worker& worker) { return worker.job == job; });
}

/// The nodes that may take tasks, and what each still can take.
struct Room {
    std::vector<std::size_t> node;    ///< index into the cluster's nodes
    std::vector<std::int64_t> slots;  ///< left
};

Room room_for(const std::vector<NodeView>& nodes, const PendingJob& job) {
    Room room;
    for (std::size_t at = 0; at < nodes.size(); ++at) {
        if (const std::int64_t slots = slots_on(job, nodes[at], false); slots > 0) {
            room.node.push_back(at);
            room.slots.push_back(slots);
        }
    }
    return room;
}

/// One gang being placed. Nodes are named by their place in `room`.
class Search {
  public:
    Search(const std::vector<NodeView>& nodes, const PendingJob& job, const Policy& policy,
           Meter& meter)
        : nodes_(nodes),
          job_(job),
          policy_(policy),
          meter_(meter),
          room_(room_for(nodes, job)),
          at_(job.tasks.size(), kNowhere) {
        meter_.spend(static_cast<std::int64_t>(nodes.size()));
        read_stages();
    }

    GangPlacement run() {
        if (!stages_.empty()) {
            first_fit(true);
            complete_apart();
        }
        first_fit(false);
        GangPlacement answer;
        answer.node_of.assign(at_.size(), kNowhere);
        for (std::size_t task = 0; task < at_.size(); ++task) {
            if (at_[task] != kNowhere) {
                answer.node_of[task] = room_.node[at_[task]];
                ++answer.placed;
            }
        }
        answer.warnings = shared_nodes();
        answer.out_of_budget = meter_.spent();
        return answer;
    }

  private:
    /// Numbers the stages among the tasks and notes where the job has workers of them already.
    void read_stages() {
        stage_of_.assign(job_.tasks.size(), kNowhere);
        for (std::size_t task = 0; task < job_.tasks.size(); ++task) {
            if (job_.tasks[task].pipeline < 0) {
                continue;
            }
            const auto number = stages_.size();
            stage_of_[task] = stages_.emplace(job_.tasks[task].stage, number).first->second;
        }
        holder_.assign(stages_.size(), std::vector<std::size_t>(room_.node.size(), kNowhere));
        if (stages_.empty()) {
            return;
        }
        for (std::size_t at = 0; at < room_.node.size(); ++at) {
            for (const NodeView::Worker& worker : nodes_[room_.node[at]].workers) {
                const auto stage = stages_.find(worker.stage);
                if (worker.job == job_.id && stage != stages_.end()) {
                    holder_[stage->second][at] = kForeign;
                }
            }
        }
    }

    [[nodiscard]] bool may_take(std::size_t at, std::size_t task, bool apart) const {
        if (room_.slots[at] <= 0) {
            return false;
        }
        return !apart || holder_[stage_of_[task]][at] == kNowhere;
    }

    void put(std::size_t task, std::size_t at) {
        at_[task] = at;
        --room_.slots[at];
        if (stage_of_[task] != kNowhere && holder_[stage_of_[task]][at] == kNowhere) {
            holder_[stage_of_[task]][at] = task;
        }
    }

    /// Gives each task that has no node the first that takes it, or the one with the best score.
    void first_fit(bool apart) {
        std::size_t first = 0;  // nodes before it are full: without scores the walk need not repeat
        for (std::size_t task = 0; task < at_.size() && !meter_.spent(); ++task) {
            if (at_[task] != kNowhere || (apart && stage_of_[task] == kNowhere)) {
                continue;
            }
            while (first < room_.slots.size() && room_.slots[first] <= 0) {
                ++first;
            }
            if (const auto at = choose(task, first, apart)) {
                put(task, *at);
            } else if (!apart) {
                return;  // alike: what this task does not find, the next does not either
            }
        }
    }

    std::optional<std::size_t> choose(std::size_t task, std::size_t first, bool apart) {
        std::optional<std::size_t> best;
        double best_score = 0;
        for (std::size_t at = first; at < room_.node.size(); ++at) {
            if (!meter_.spend(1)) {
                return std::nullopt;
            }
            if (!may_take(at, task, apart)) {
                continue;
            }
            if (!policy_.score) {
                return at;
            }
            const double score = policy_.score(job_, job_.tasks[task], nodes_[room_.node[at]]);
            if (!best || score > best_score) {
                best = at;
                best_score = score;
            }
        }
        return best;
    }

    /// Moves workers about until every worker that first-fit left over has a node apart from its
    /// peers, or none can have one any more.
    void complete_apart() {
        std::set<std::size_t> hopeless;  // stages whose search failed: a later one fails too
        for (std::size_t task = 0; task < at_.size() && !meter_.spent(); ++task) {
            const std::size_t stage = stage_of_[task];
            if (at_[task] == kNowhere && stage != kNowhere && !hopeless.contains(stage) &&
                !augment(task)) {
                hopeless.insert(stage);
            }
        }
    }

    struct Step {
        std::size_t task = kNowhere;  ///< who would come to the node
        std::size_t from = kNowhere;  ///< the node it would leave; kNowhere: it has none
    };

    /// Breadth-first over nodes: `task` comes to a node; if that is full, one of its workers must
    /// go on to another. At the first node with a free slot, all on the way move.
    bool augment(std::size_t task) {
        std::vector<Step> reached(room_.node.size());
        std::vector<std::size_t> queue;
        std::vector<bool> expanded(holder_.size(), false);  // a second time reaches nothing new
        const auto reach_from = [&](std::size_t mover, std::size_t from) {
            if (expanded[stage_of_[mover]]) {
                return true;
            }
            expanded[stage_of_[mover]] = true;
            for (std::size_t at = 0; at < room_.node.size(); ++at) {
                if (reached[at].task == kNowhere && holder_[stage_of_[mover]][at] == kNowhere) {
                    reached[at] = {mover, from};
                    queue.push_back(at);
                }
            }
            return meter_.spend(static_cast<std::int64_t>(room_.node.size()));
        };
        if (!reach_from(task, kNowhere)) {
            return false;
        }
        for (std::size_t head = 0; head < queue.size(); ++head) {
            const std::size_t at = queue[head];
            if (room_.slots[at] > 0) {
                move_along(reached, at);
                return true;
            }
            for (std::size_t stage = 0; stage < holder_.size(); ++stage) {
                const std::size_t mover = holder_[stage][at];
                if (mover != kNowhere && mover != kForeign && !reach_from(mover, at)) {
                    return false;
                }
            }
        }
        return false;
    }

    void move_along(const std::vector<Step>& reached, std::size_t end) {
        --room_.slots[end];
        for (std::size_t at = end; at != kNowhere;) {
            const Step step = reached[at];
            const std::size_t stage = stage_of_[step.task];
            if (step.from != kNowhere) {
                holder_[stage][step.from] = kNowhere;
            }
            holder_[stage][at] = step.task;
            at_[step.task] = at;
            at = step.from;
        }
    }

    /// A warning per stage whose workers share a node in this placement.
    [[nodiscard]] std::vector<std::string> shared_nodes() const {
        std::map<std::pair<std::int32_t, std::size_t>, std::set<std::int32_t>> pipelines;
        for (std::size_t task = 0; task < at_.size(); ++task) {
            if (at_[task] == kNowhere || stage_of_[task] == kNowhere) {
                continue;
            }
            const std::size_t node = room_.node[at_[task]];
            const PendingTask& worker = job_.tasks[task];
            auto& sharing = pipelines[{worker.stage, node}];
            sharing.insert(worker.pipeline);
            for (const NodeView::Worker& other : nodes_[node].workers) {
                if (other.job == job_.id && other.stage == worker.stage) {
                    sharing.insert(other.pipeline);
                }
            }
        }
        std::vector<std::string> warnings;
        for (const auto& [key, sharing] : pipelines) {
            if (sharing.size() > 1) {
                warnings.push_back(
                    fmt::format("stage {}: the workers of pipelines {} share node {}, for the free "
                                "nodes cannot "
                                "keep them apart; if {} fails, the training loses them together",
                                key.first, fmt::join(sharing, ", "), nodes_[key.second].name,
                                nodes_[key.second].name));
            }
        }
        return warnings;
    }

    static constexpr std::size_t kForeign = kNowhere - 1;  ///< a worker that is not to be moved

    const std::vector<NodeView>& nodes_;
    const PendingJob& job_;
    const Policy& policy_;
    Meter& meter_;
    Room room_;
    std::vector<std::size_t> at_;                   ///< per task
    std::map<std::int32_t, std::size_t> stages_;    ///< stage → number
    std::vector<std::size_t> stage_of_;             ///< per task: number, or kNowhere
    std::vector<std::vector<std::size_t>> holder_;  ///< [stage number][node] → task
};

}  // namespace

std::int64_t tasks_that_fit(const Capacity& room, const Capacity& per_task) {
    std::int64_t most = std::numeric_limits<std::int32_t>::max();
    const auto limit = [&](std::int64_t have, std::int64_t want) {
        if (want > 0) {
            most = std::min(most, std::max<std::int64_t>(have, 0) / want);
        }
    };
    limit(room.cpus, per_task.cpus);
    limit(room.memory_bytes, per_task.memory_bytes);
    limit(room.gpus, per_task.gpus);
    return most;
}

Bar bar_of(const PendingJob& job, const NodeView& node) {
    if (node.pool != job.pool) {
        return Bar::pool;
    }
    if (!job.nodes.empty() && !contains(job.nodes, node.name)) {
        return Bar::not_listed;
    }
    if (contains(job.exclude_nodes, node.name)) {
        return Bar::excluded;
    }
    if (job.per_task.gpus > 0 && !job.per_task.gpu_type.empty() &&
        node.total.gpu_type != job.per_task.gpu_type) {
        return Bar::gpu_type;
    }
    if (tasks_that_fit(node.total, job.per_task) == 0) {
        return Bar::too_small;
    }
    return node.schedulable ? Bar::none : Bar::state;
}

std::int64_t slots_on(const PendingJob& job, const NodeView& node, bool idle) {
    const Bar bar = bar_of(job, node);
    if (bar != Bar::none && !(idle && bar == Bar::state)) {
        return 0;
    }
    std::int64_t slots = tasks_that_fit(idle ? node.total : node.free, job.per_task);
    if (job.tasks_per_node > 0) {
        const std::int64_t taken = job.repair ? workers_of(node, job.id) : 0;
        slots = std::min(slots, std::max<std::int64_t>(job.tasks_per_node - taken, 0));
    }
    return std::min(slots, static_cast<std::int64_t>(job.tasks.size()));
}

GangPlacement place_gang(const std::vector<NodeView>& nodes, const PendingJob& job,
                         const Policy& policy, Meter& meter) {
    return Search(nodes, job, policy, meter).run();
}

}  // namespace holdfast::placement
