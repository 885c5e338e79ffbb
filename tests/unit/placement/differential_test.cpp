// SPDX-License-Identifier: Apache-2.0
/// Random small clusters: what decide() says against exhaustive search, and the promises of its
/// header checked on every answer.
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "cluster.hpp"

namespace holdfast::placement {
namespace {

constexpr int kRounds = 4000;

/// A seeded source of small numbers, the same on every machine.
class Dice {
  public:
    explicit Dice(std::uint32_t seed) : source_(seed) {}

    std::int64_t upto(std::int64_t most) {
        return static_cast<std::int64_t>(source_() % static_cast<std::uint32_t>(most + 1));
    }

    bool chance(int percent) { return upto(99) < percent; }

  private:
    std::mt19937 source_;
};

bool legal(const PendingJob& job, const NodeView& node) {
    const auto named = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), node.name) != names.end();
    };
    return node.schedulable && node.pool == job.pool && (job.nodes.empty() || named(job.nodes)) &&
           !named(job.exclude_nodes) &&
           (job.per_task.gpus == 0 || job.per_task.gpu_type.empty() ||
            job.per_task.gpu_type == node.total.gpu_type);
}

/// Tries every assignment; `apart`: also keeps peers of a stage on different nodes.
bool possible(std::vector<NodeView> nodes, const PendingJob& job, bool apart) {
    std::vector<std::vector<PendingTask>> here(nodes.size());
    const std::function<bool(std::size_t)> place = [&](std::size_t task) {
        if (task == job.tasks.size()) {
            return true;
        }
        for (std::size_t at = 0; at < nodes.size(); ++at) {
            Capacity& free = nodes[at].free;
            const bool clash =
                std::any_of(here[at].begin(), here[at].end(),
                            [&](const PendingTask& other) {
                                return other.stage >= 0 && other.stage == job.tasks[task].stage;
                            }) ||
                std::any_of(nodes[at].workers.begin(), nodes[at].workers.end(),
                            [&](const NodeView::Worker& other) {
                                return other.job == job.id && other.stage == job.tasks[task].stage;
                            });
            if (!legal(job, nodes[at]) || free.cpus < job.per_task.cpus ||
                free.gpus < job.per_task.gpus || free.memory_bytes < job.per_task.memory_bytes ||
                (apart && clash) ||
                (job.tasks_per_node > 0 &&
                 here[at].size() >= static_cast<std::size_t>(job.tasks_per_node))) {
                continue;
            }
            free.cpus -= job.per_task.cpus;
            free.gpus -= job.per_task.gpus;
            free.memory_bytes -= job.per_task.memory_bytes;
            here[at].push_back(job.tasks[task]);
            const bool found = place(task + 1);
            here[at].pop_back();
            free.cpus += job.per_task.cpus;
            free.gpus += job.per_task.gpus;
            free.memory_bytes += job.per_task.memory_bytes;
            if (found) {
                return true;
            }
        }
        return false;
    };
    return place(0);
}

ClusterView random_cluster(Dice& dice) {
    ClusterView cluster;
    const std::int64_t count = 1 + dice.upto(3);
    for (std::int64_t number = 1; number <= count; ++number) {
        NodeView view = node(number, dice.upto(3), 1 + dice.upto(4), dice.upto(4));
        view.total.gpu_type = dice.chance(80) ? "h100" : "a100";
        view.schedulable = dice.chance(90);
        view.pool = dice.chance(90) ? "default" : "other";
        view.free = view.total;
        view.free.gpus -= dice.upto(view.total.gpus);
        view.free.cpus -= dice.upto(1);
        cluster.nodes.push_back(view);
    }
    return cluster;
}

PendingJob random_job(Dice& dice, std::int64_t number) {
    PendingJob pending;
    if (dice.chance(50)) {
        static constexpr std::pair<int, int> kShapes[] = {{1, 2}, {2, 1}, {2, 2}, {3, 1},
                                                          {4, 1}, {1, 4}, {5, 1}};
        const auto [pipelines, stages] = kShapes[dice.upto(6)];
        pending = training(number, pipelines, stages, dice.upto(1));
    } else {
        pending = job(number, static_cast<std::size_t>(1 + dice.upto(4)), dice.upto(2),
                      dice.upto(2), dice.upto(2));
    }
    pending.priority = static_cast<std::int32_t>(dice.upto(1));
    pending.tasks_per_node = dice.chance(20) ? static_cast<std::int32_t>(1 + dice.upto(1)) : 0;
    if (dice.chance(20)) {
        pending.per_task.gpu_type = "h100";
    }
    if (dice.chance(15)) {
        pending.nodes = {"n1", "n3"};
    }
    if (dice.chance(15)) {
        pending.exclude_nodes = {"n2"};
    }
    return pending;
}

bool shares(const PendingJob& pending, const Placed& placed) {
    for (const auto& [number, ranks] : layout(pending, placed)) {
        std::set<std::int32_t> stages;
        for (const std::int32_t rank : ranks) {
            const std::int32_t stage = pending.tasks[static_cast<std::size_t>(rank)].stage;
            if (stage >= 0 && !stages.insert(stage).second) {
                return true;
            }
        }
    }
    return false;
}

TEST(DecideAgainstBruteForce, OneJobIsPlacedIfAndOnlyIfThatIsPossible) {
    int placed_count = 0;
    int apart_count = 0;
    for (std::uint32_t seed = 1; seed <= kRounds; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        const ClusterView cluster = random_cluster(dice);
        const PendingJob pending = random_job(dice, 1);
        const Decision decision = decide(cluster, {pending}, fifo_first_fit(), {});
        const bool fits = possible(cluster.nodes, pending, false);
        ASSERT_EQ(decision.placed.size(), fits ? 1U : 0U);
        ASSERT_EQ(explain(cluster, pending).findings.empty(), fits);
        if (fits) {
            ++placed_count;
            const bool apart = possible(cluster.nodes, pending, true);
            apart_count += apart ? 1 : 0;
            ASSERT_EQ(!shares(pending, decision.placed[0]), apart);
            ASSERT_EQ(decision.placed[0].warnings.empty(), apart);
        } else {
            ASSERT_EQ(decision.waiting.size(), 1U);
            ASSERT_FALSE(decision.waiting[0].reason.empty());
            // "never" means: not even on the idle cluster with every node back.
            ClusterView idle = cluster;
            for (NodeView& view : idle.nodes) {
                view.free = view.total;
                view.schedulable = true;
            }
            bool never = false;
            for (const Finding& finding : decision.waiting[0].findings) {
                never = never || finding.never;
            }
            ASSERT_EQ(never, !possible(idle.nodes, pending, false));
        }
    }
    // The dice must not have made every case the same.
    EXPECT_GT(placed_count, kRounds / 5);
    EXPECT_LT(placed_count, kRounds * 4 / 5);
    EXPECT_GT(placed_count, apart_count + kRounds / 50);
}

TEST(DecideAgainstBruteForce, ManyJobsKeepOrderAndCapacity) {
    for (std::uint32_t seed = 1; seed <= kRounds / 4; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed * 7919);
        ClusterView cluster = random_cluster(dice);
        std::vector<PendingJob> pending;
        for (std::int64_t number = 1; number <= 6; ++number) {
            pending.push_back(random_job(dice, number));
        }
        const Decision decision = decide(cluster, pending, fifo_first_fit(), {});
        ASSERT_EQ(decision.placed.size() + decision.waiting.size(), pending.size());

        // Walk the jobs in FIFO order: each was placed exactly if it fitted into what was left.
        std::stable_sort(pending.begin(), pending.end(),
                         [](const auto& a, const auto& b) { return a.priority > b.priority; });
        std::size_t next = 0;
        for (const PendingJob& each : pending) {
            const bool fits = possible(cluster.nodes, each, false);
            const bool was_placed =
                next < decision.placed.size() && decision.placed[next].job == each.id;
            ASSERT_EQ(was_placed, fits) << each.id.label();
            if (!was_placed) {
                continue;
            }
            const Placed& placed = decision.placed[next++];
            ASSERT_EQ(placed.tasks.size(), each.tasks.size());
            for (const Placed::At& at : placed.tasks) {
                NodeView& view = cluster.nodes[static_cast<std::size_t>(at.node.value - 1)];
                ASSERT_TRUE(legal(each, view));
                view.free.cpus -= each.per_task.cpus;
                view.free.gpus -= each.per_task.gpus;
                view.free.memory_bytes -= each.per_task.memory_bytes;
                ASSERT_GE(view.free.cpus, 0);
                ASSERT_GE(view.free.gpus, 0);
                ASSERT_GE(view.free.memory_bytes, 0);
            }
        }
        ASSERT_EQ(next, decision.placed.size());
    }
}

TEST(DecideAgainstBruteForce, RepairsKeepApartWhenThatIsPossible) {
    int apart_count = 0;
    for (std::uint32_t seed = 1; seed <= kRounds; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed * 104729);
        const auto stages = static_cast<std::int32_t>(1 + dice.upto(2));
        PendingJob gang = training(1, 2 + static_cast<std::int32_t>(dice.upto(1)), stages);
        ClusterView cluster;
        for (std::int64_t number = 1; number <= 4; ++number) {
            cluster.nodes.push_back(node(number, dice.upto(2)));
        }
        // Some workers are alive, on nodes that have just enough beside the free gpus.
        gang.repair = true;
        std::erase_if(gang.tasks, [&](const PendingTask& worker) {
            if (dice.chance(40)) {
                return false;
            }
            NodeView& view = cluster.nodes[static_cast<std::size_t>(dice.upto(3))];
            view.workers.push_back({gang.id, worker.pipeline, worker.stage});
            ++view.total.gpus;
            return true;
        });
        if (gang.tasks.empty()) {
            continue;
        }
        const Decision decision = decide(cluster, {gang}, fifo_first_fit(), {});
        std::size_t slots = 0;
        for (const NodeView& view : cluster.nodes) {
            slots += static_cast<std::size_t>(view.free.gpus);
        }
        const std::size_t placed = decision.placed.empty() ? 0 : decision.placed[0].tasks.size();
        ASSERT_EQ(placed, std::min(slots, gang.tasks.size()));
        if (placed < gang.tasks.size()) {
            ASSERT_EQ(decision.waiting.size(), 1U);
            continue;
        }
        const bool apart = possible(cluster.nodes, gang, true);
        ASSERT_EQ(decision.placed[0].warnings.empty(), apart);
        apart_count += apart ? 1 : 0;
    }
    EXPECT_GT(apart_count, kRounds / 50);
}

TEST(DecideAgainstBruteForce, LargeTrainingGangsStayApartWhereTheSlotsAllow) {
    // D pipelines need D nodes per stage. With node slots drawn so that a perfect assignment exists
    // by construction (stages dealt to random nodes), decide() must find one.
    for (std::uint32_t seed = 1; seed <= 60; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed * 31);
        const auto pipelines = static_cast<std::int32_t>(2 + dice.upto(6));
        const auto stages = static_cast<std::int32_t>(2 + dice.upto(8));
        const std::int64_t nodes = pipelines + dice.upto(6);
        std::vector<std::int64_t> slots(static_cast<std::size_t>(nodes), 0);
        for (std::int32_t stage = 0; stage < stages; ++stage) {
            std::vector<std::size_t> all(slots.size());
            for (std::size_t at = 0; at < all.size(); ++at) {
                all[at] = at;
            }
            for (std::int32_t pipeline = 0; pipeline < pipelines; ++pipeline) {
                const auto pick =
                    static_cast<std::size_t>(dice.upto(static_cast<std::int64_t>(all.size()) - 1));
                ++slots[all[pick]];
                all.erase(all.begin() + static_cast<std::ptrdiff_t>(pick));
            }
        }
        ClusterView cluster;
        for (std::int64_t number = 1; number <= nodes; ++number) {
            cluster.nodes.push_back(node(number, slots[static_cast<std::size_t>(number - 1)]));
        }
        const PendingJob gang = training(1, pipelines, stages);
        const Decision decision = decide(cluster, {gang}, fifo_first_fit(), {});
        ASSERT_EQ(decision.placed.size(), 1U);
        ASSERT_TRUE(decision.placed[0].warnings.empty());
        ASSERT_FALSE(shares(gang, decision.placed[0]));
    }
}

}  // namespace
}  // namespace holdfast::placement
