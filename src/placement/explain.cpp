// SPDX-License-Identifier: Apache-2.0
/// Why a job waits. The checks run in the order in which a person would ask: is there a pool, are
/// the nodes there, is one of them large enough, are they enough together, do they take tasks, and
/// only then: what is free. The first group that fails ends the questions, for what follows would
/// repeat it.
#include "explain.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include <holdfast/env.hpp>

#include "gang.hpp"

namespace holdfast::placement {

namespace {

/// Names in a text are cut after this many.
constexpr std::size_t kNamesMax = 4;

struct Dimension {
    std::string_view name;
    std::int64_t Capacity::* amount;
};

constexpr std::array kDimensions = {
    Dimension{"gpus", &Capacity::gpus},
    Dimension{"cpus", &Capacity::cpus},
    Dimension{"memory", &Capacity::memory_bytes},
};

/// "4", or "16 GiB".
std::string bare(const Dimension& dimension, std::int64_t amount) {
    if (dimension.amount == &Capacity::memory_bytes) {
        return human_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(amount, 0)));
    }
    return fmt::format("{}", amount);
}

/// "1 gpu", "4 gpus", "16 GiB of memory".
std::string with_unit(const Dimension& dimension, std::int64_t amount) {
    if (dimension.amount == &Capacity::memory_bytes) {
        return bare(dimension, amount) + " of memory";
    }
    const std::string_view unit =
        amount == 1 ? dimension.name.substr(0, dimension.name.size() - 1) : dimension.name;
    return fmt::format("{} {}", amount, unit);
}

std::string task_words(std::size_t count) {
    return count == 1 ? "1 task" : fmt::format("{} tasks", count);
}

/// "2 gpus, 8 cpus and 16 GiB of memory"
std::string request_words(const Capacity& per_task) {
    std::vector<std::string> parts;
    for (const Dimension& dimension : kDimensions) {
        if (per_task.*dimension.amount > 0) {
            parts.push_back(with_unit(dimension, per_task.*dimension.amount));
        }
    }
    if (parts.empty()) {
        return "nothing";
    }
    const std::string last = parts.back();
    parts.pop_back();
    return parts.empty() ? last : fmt::format("{} and {}", fmt::join(parts, ", "), last);
}

std::string shortened(const std::vector<std::string>& names) {
    if (names.size() <= kNamesMax) {
        return fmt::format("{}", fmt::join(names, ", "));
    }
    return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kNamesMax, ", "),
                       names.size() - kNamesMax);
}

/// Capped, so that sums over nodes and products with tasks cannot overflow.
std::int64_t times(std::int64_t amount, std::size_t count) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(amount, static_cast<std::int64_t>(count), &product)) {
        return std::numeric_limits<std::int64_t>::max();
    }
    return product;
}

class Explanation {
  public:
    Explanation(const std::vector<NodeView>& nodes,
                const std::vector<ClusterView::ArrayLoad>& arrays, const PendingJob& job)
        : nodes_(nodes), arrays_(arrays), job_(job) {}

    Waiting run() {
        if (pool_is_there() && nodes_are_there() && gpu_type_is_there() && size_is_there() &&
            gang_fits_idle()) {
            check_array();
            check_room();
        }
        if (!findings_.empty() && !usable_.empty() && !missing_.empty()) {
            add_missing();
        }
        Waiting answer;
        answer.job = job_.id;
        answer.reason = sentence();
        answer.findings = std::move(findings_);
        if (answer.findings.empty()) {
            answer.warnings = warnings_if_placed();
        }
        return answer;
    }

  private:
    void add(std::string constraint, std::string text, std::string fix, bool never) {
        findings_.push_back({std::move(constraint), std::move(text), std::move(fix), never});
    }

    bool pool_is_there() {
        std::set<std::string> pools;
        for (const NodeView& node : nodes_) {
            if (node.pool == job_.pool) {
                usable_.push_back(&node);
            } else {
                pools.insert(node.pool);
            }
        }
        if (!usable_.empty()) {
            return true;
        }
        add("pool", fmt::format("pool '{}' has no nodes", job_.pool),
            pools.empty() ? fmt::format("add a node to pool '{}'", job_.pool)
                          : fmt::format("add a node to pool '{}', or choose another pool: {}",
                                        job_.pool, fmt::join(pools, ", ")),
            true);
        return false;
    }

    bool nodes_are_there() {
        if (!job_.nodes.empty()) {
            std::vector<std::string> missing = job_.nodes;
            std::erase_if(missing, [&](const std::string& name) {
                return std::any_of(usable_.begin(), usable_.end(),
                                   [&](const NodeView* node) { return node->name == name; });
            });
            keep([](Bar bar) { return bar != Bar::not_listed; });
            missing_ = std::move(missing);
            if (usable_.empty()) {
                add_missing();
                return false;
            }
        }
        keep([](Bar bar) { return bar != Bar::excluded; });
        if (usable_.empty()) {
            add("exclude_nodes", "excludes every node that it could run on",
                "shorten exclude_nodes", true);
        }
        return !usable_.empty();
    }

    /// A finding only where the job does not fit without the missing nodes.
    void add_missing() {
        add("nodes",
            fmt::format("asks for {} {}, which pool '{}' does not have",
                        missing_.size() == 1 ? "node" : "nodes", shortened(missing_), job_.pool),
            "name nodes of the pool (`hold nodes`), or none", usable_.empty());
    }

    bool gpu_type_is_there() {
        std::map<std::string, std::int64_t> types;
        for (const NodeView* node : usable_) {
            if (node->total.gpus > 0) {
                auto& count =
                    types[node->total.gpu_type.empty() ? "no named type" : node->total.gpu_type];
                count += node->total.gpus;
            }
        }
        keep([](Bar bar) { return bar != Bar::gpu_type; });
        if (!usable_.empty()) {
            return true;
        }
        std::vector<std::string> present;
        for (const auto& [type, count] : types) {
            present.push_back(fmt::format("{} of {}", count, type));
        }
        add("gpu_type",
            fmt::format("wants gpus of type {}; its nodes have {}", job_.per_task.gpu_type,
                        present.empty() ? "no gpus" : shortened(present)),
            "ask for a type that is there, or for any", true);
        return false;
    }

    bool size_is_there() {
        const std::vector<const NodeView*> before = usable_;
        keep([](Bar bar) { return bar != Bar::too_small; });
        if (!usable_.empty()) {
            return true;
        }
        for (const Dimension& dimension : kDimensions) {
            const NodeView* largest = *std::max_element(
                before.begin(), before.end(), [&](const NodeView* a, const NodeView* b) {
                    return a->total.*dimension.amount < b->total.*dimension.amount;
                });
            const std::int64_t want = job_.per_task.*dimension.amount;
            const std::int64_t most = largest->total.*dimension.amount;
            if (want <= most) {
                continue;
            }
            add(std::string(dimension.name),
                fmt::format("wants {} per task; the largest node ({}) has {}",
                            with_unit(dimension, want), largest->name, bare(dimension, most)),
                most > 0 ? fmt::format("ask for at most {} per task, or add a node with {}",
                                       with_unit(dimension, most), bare(dimension, want))
                         : fmt::format("add a node with {}", with_unit(dimension, want)),
                true);
        }
        if (findings_.empty() || !findings_.back().never) {
            add("per_task",
                fmt::format("wants {} on one node per task; each of these some node has, but none "
                            "has them together",
                            request_words(job_.per_task)),
                "ask for less per task, or add a node that has them together", true);
        }
        return false;
    }

    /// Would the gang fit if nothing else ran, on every node that is there, whatever its state?
    bool gang_fits_idle() {
        if (job_.repair) {
            return true;
        }
        std::int64_t slots = 0;
        for (const NodeView* node : usable_) {
            slots += slots_on(job_, *node, true);
        }
        if (slots >= static_cast<std::int64_t>(job_.tasks.size())) {
            return true;
        }
        add("gang",
            fmt::format(
                "needs {} together, each with {}{}; the {} that can take them hold {} even "
                "when idle",
                task_words(job_.tasks.size()), request_words(job_.per_task), per_node_words(),
                usable_.size() == 1 ? "node" : fmt::format("{} nodes", usable_.size()), slots),
            fmt::format("ask for at most {}, or add nodes",
                        task_words(static_cast<std::size_t>(slots))),
            true);
        return false;
    }

    [[nodiscard]] std::string per_node_words() const {
        return job_.tasks_per_node > 0
                   ? fmt::format(" and at most {} on a node", job_.tasks_per_node)
                   : "";
    }

    void check_array() {
        for (const ClusterView::ArrayLoad& load : arrays_) {
            if (job_.array != 0 && load.array == job_.array && job_.array_at_once > 0 &&
                load.running >= job_.array_at_once) {
                add("array limit",
                    fmt::format("{} elements of array {} run, its limit is {}", load.running,
                                job_.array, job_.array_at_once),
                    "wait for one to end, or submit with a higher limit", false);
            }
        }
    }

    void check_room() {
        std::vector<std::string> closed;
        std::int64_t slots = 0;
        std::vector<const NodeView*> open;
        for (const NodeView* node : usable_) {
            if (node->schedulable) {
                open.push_back(node);
                slots += slots_on(job_, *node, false);
            } else {
                closed.push_back(
                    fmt::format("{} {}", node->name, node->state.empty() ? "closed" : node->state));
            }
        }
        const std::int64_t wanted = job_.repair ? 1 : static_cast<std::int64_t>(job_.tasks.size());
        if (slots >= wanted) {
            return;
        }
        if (!open.empty()) {
            check_totals(open, slots);
        }
        if (!closed.empty()) {
            add("node state",
                open.empty() ? fmt::format("every node that could run it takes no tasks ({})",
                                           shortened(closed))
                             : fmt::format("{} of {} nodes that could run it take no tasks ({})",
                                           closed.size(), usable_.size(), shortened(closed)),
                "bring the nodes back: `hold node undrain NAME`, or start their agents", false);
        }
    }

    /// What is short in all, or else what is there but cut into pieces too small.
    void check_totals(const std::vector<const NodeView*>& open, std::int64_t slots) {
        const std::size_t count = job_.repair ? 1 : job_.tasks.size();
        const std::size_t before = findings_.size();
        for (const Dimension& dimension : kDimensions) {
            const std::int64_t need = times(job_.per_task.*dimension.amount, count);
            std::int64_t free = 0;
            std::int64_t total = 0;
            for (const NodeView* node : open) {
                free += std::max<std::int64_t>(node->free.*dimension.amount, 0);
                total += node->total.*dimension.amount;
            }
            if (need > free) {
                add(std::string(dimension.name),
                    fmt::format("needs {} in all, {} of {} are free{}", with_unit(dimension, need),
                                bare(dimension, free), bare(dimension, total),
                                held_words(dimension, open)),
                    "wait for these to end, or ask for less", false);
            }
        }
        if (findings_.size() > before) {
            return;
        }
        std::vector<std::string> places;
        for (const NodeView* node : open) {
            if (const std::int64_t here = slots_on(job_, *node, false); here > 0) {
                places.push_back(fmt::format("{} on {}", here, node->name));
            }
        }
        add("gang",
            fmt::format("{} needs {} on one node{}; there is room for {} now{}",
                        count == 1 ? "a task" : fmt::format("each of {} tasks", count),
                        request_words(job_.per_task), per_node_words(), slots,
                        places.empty() ? "" : fmt::format(" ({})", shortened(places))),
            "wait until a node is freer, or ask for smaller tasks", false);
    }

    /// " (2 held by job-7, 1 by job-9)"
    [[nodiscard]] static std::string held_words(const Dimension& dimension,
                                                const std::vector<const NodeView*>& open) {
        std::map<JobId, std::int64_t> held;
        for (const NodeView* node : open) {
            for (const NodeView::Holder& holder : node->holders) {
                held[holder.job] += holder.held.*dimension.amount;
            }
        }
        std::vector<std::pair<JobId, std::int64_t>> largest(held.begin(), held.end());
        std::erase_if(largest, [](const auto& entry) { return entry.second <= 0; });
        std::stable_sort(largest.begin(), largest.end(),
                         [](const auto& a, const auto& b) { return a.second > b.second; });
        std::vector<std::string> words;
        for (const auto& [job, amount] : largest) {
            words.push_back(fmt::format("{}{} by {}", bare(dimension, amount),
                                        words.empty() ? " held" : "", job.label()));
        }
        return words.empty() ? "" : fmt::format(" ({})", shortened(words));
    }

    template <typename Keep>
    void keep(Keep wanted) {
        std::erase_if(usable_, [&](const NodeView* node) { return !wanted(bar_of(job_, *node)); });
    }

    [[nodiscard]] std::string sentence() const {
        std::vector<std::string> hopeless;
        std::vector<std::string> all;
        for (const Finding& finding : findings_) {
            all.push_back(finding.text);
            if (finding.never) {
                hopeless.push_back(finding.text);
            }
        }
        if (!hopeless.empty()) {
            return fmt::format("no node can ever run it as the cluster is: {}",
                               fmt::join(hopeless, "; "));
        }
        return all.empty() ? "fits now: the next round places it"
                           : fmt::format("{}", fmt::join(all, "; "));
    }

    [[nodiscard]] std::vector<std::string> warnings_if_placed() const {
        Meter meter{Budget{}};
        return place_gang(nodes_, job_, Policy{}, meter).warnings;
    }

    const std::vector<NodeView>& nodes_;
    const std::vector<ClusterView::ArrayLoad>& arrays_;
    const PendingJob& job_;
    std::vector<const NodeView*> usable_;  ///< nodes that passed the checks so far
    std::vector<std::string> missing_;     ///< named by the job, not in the pool
    std::vector<Finding> findings_;
};

}  // namespace

Waiting explain_on(const std::vector<NodeView>& nodes,
                   const std::vector<ClusterView::ArrayLoad>& arrays, const PendingJob& job) {
    return Explanation(nodes, arrays, job).run();
}

Waiting explain(const ClusterView& cluster, const PendingJob& job) {
    return explain_on(cluster.nodes, cluster.arrays, job);
}

}  // namespace holdfast::placement
