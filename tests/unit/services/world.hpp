// SPDX-License-Identifier: Apache-2.0
/// A store in memory with the shipped schema, short ways to fill it, and the invariants that hold
/// after every transaction.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <holdfast/services.hpp>
#include <holdfast/simulated_env.hpp>

namespace holdfast::services {

constexpr std::int64_t kDeadAfterUs = 5 * kSecondUs;

inline JobSpec command(std::int32_t tasks = 1, std::int64_t gpus = 0) {
    JobSpec spec;
    spec.name = "job";
    spec.run = "true";
    spec.tasks = tasks;
    spec.per_task = {.cpus = 1, .memory_bytes = 1 << 20, .gpus = gpus, .gpu_type = {}};
    return spec;
}

inline JobSpec training(std::int32_t pipelines, std::int32_t stages) {
    JobSpec spec;
    spec.name = "train";
    spec.tasks = 0;
    spec.training = TrainingSpec{};
    spec.training->pipelines = pipelines;
    spec.training->stages = stages;
    spec.training->microbatches = 4;
    spec.training->steps = 100;
    spec.training->data = "/usr/share/common-licenses/GPL-3";
    return spec;
}

class World {
  public:
    explicit World(std::uint64_t seed = 1) : sim_(seed) {
        sim_.advance_us(kSecondUs);
        store::StoreOptions options;
        options.in_memory = true;
        options.migrations = store::shipped_migrations();
        options.env = &sim_.env();
        auto opened = store::Store::open(options);
        HOLD_CHECK(opened.has_value(), opened ? "" : opened.error().describe());
        store_ = std::move(*opened);
    }

    store::Store& store() { return *store_; }

    SimulatedEnv& sim() { return sim_; }

    /// One transaction.
    template <typename F>
    auto call(F&& fn) -> std::invoke_result_t<F&, store::Tx&> {
        return store_->call({.procedure = "test", .who = "test"}, std::forward<F>(fn));
    }

    template <typename F>
    auto read(F&& fn) -> std::invoke_result_t<F&, store::ReadTx&> {
        return store_->read(std::forward<F>(fn));
    }

    /// The value, or the end of the test.
    template <typename F>
    auto must(F&& fn) {
        auto answer = call(std::forward<F>(fn));
        HOLD_CHECK(answer.has_value(), answer ? "" : answer.error().describe());
        if constexpr (!std::is_void_v<typename decltype(answer)::value_type>) {
            return std::move(*answer);
        }
    }

    /// Errc of a call that must fail.
    template <typename F>
    Errc code(F&& fn) {
        auto answer = call(std::forward<F>(fn));
        EXPECT_FALSE(answer.has_value());
        return answer ? Errc::internal : answer.error().code;
    }

    NodeRow node(const std::string& name, std::int64_t gpus = 0, std::int64_t cpus = 8,
                 const std::string& instance = "1") {
        return must([&](store::Tx& tx) {
            NodeRegistration asked;
            asked.name = name;
            asked.instance = instance;
            asked.capacity = {.cpus = cpus, .memory_bytes = 64 << 20, .gpus = gpus, .gpu_type = {}};
            return register_node(tx, asked, kDeadAfterUs);
        });
    }

    Submitted submit_all(const JobSpec& spec, const std::string& user = "ada") {
        return must([&](store::Tx& tx) -> Result<Submitted> {
            HOLD_TRY(const JobSpec full, checked(spec));
            return submit(tx, full, user);
        });
    }

    JobId submit_one(const JobSpec& spec) { return submit_all(spec).elements.at(0); }

    JobRow job(JobId id) {
        return must([&](store::Tx& tx) { return find_job(tx, id); });
    }

    std::vector<TaskRow> tasks(JobId id) {
        return must([&](store::Tx& tx) { return tasks_of(tx, id); });
    }

    TaskRow task(JobId id, std::size_t rank = 0) { return tasks(id).at(rank); }

    NodeRow find(const std::string& name) {
        return must([&](store::Tx& tx) { return find_node(tx, name); });
    }

    /// Grants the job's pending tasks on these nodes, in rank order.
    Result<std::vector<LeaseRow>> grant(JobId id, const std::vector<std::string>& nodes) {
        return call([&](store::Tx& tx) -> Result<std::vector<LeaseRow>> {
            HOLD_TRY(const auto all, tasks_of(tx, id));
            std::vector<Assignment> gang;
            for (const TaskRow& each : all) {
                if (each.state == "pending" && gang.size() < nodes.size()) {
                    HOLD_TRY(const NodeRow row, find_node(tx, nodes[gang.size()]));
                    gang.push_back({each.id, row.id});
                }
            }
            return grant_gang(tx, id, gang);
        });
    }

    std::vector<LeaseRow> granted(JobId id, const std::vector<std::string>& nodes) {
        auto answer = grant(id, nodes);
        HOLD_CHECK(answer.has_value(), answer ? "" : answer.error().describe());
        return std::move(*answer);
    }

    void start(const LeaseRow& lease, std::int64_t pid = 100) {
        must([&](store::Tx& tx) { return task_started(tx, lease.task, lease.id, pid); });
    }

    Result<> end(const LeaseRow& lease, const TaskEnd& how) {
        return call([&](store::Tx& tx) { return task_ended(tx, lease.task, lease.id, how); });
    }

    void down(const std::string& name, const std::string& why = "silent") {
        const NodeId id = find(name).id;
        must([&](store::Tx& tx) { return node_down(tx, id, why); });
    }

    /// The revoked leases of a node.
    std::vector<LeaseRow> revoked(const std::string& name) {
        const NodeId id = find(name).id;
        return must([&](store::Tx& tx) { return revoked_of_node(tx, id); });
    }

    void confirm_all(const std::string& name) {
        for (const LeaseRow& lease : revoked(name)) {
            must([&](store::Tx& tx) { return confirm_revoked(tx, lease.id); });
        }
    }

    std::vector<std::string> events(JobId id) {
        return must([&](store::Tx& tx) -> Result<std::vector<std::string>> {
            HOLD_TRY(const auto rows,
                     tx.query("SELECT kind || CASE WHEN worker = '' THEN '' ELSE ' "
                              "' || worker END FROM training_event WHERE job = $1 "
                              "ORDER BY seq",
                              id));
            std::vector<std::string> words;
            for (const store::Row& row : rows) {
                words.push_back(row.text(0));
            }
            return words;
        });
    }

    /// States of the tasks by rank: "leased pending".
    std::string states(JobId id) {
        std::string words;
        for (const TaskRow& each : tasks(id)) {
            words += (words.empty() ? "" : " ") + each.state;
        }
        return words;
    }

  private:
    SimulatedEnv sim_;
    std::unique_ptr<store::Store> store_;
};

/// What must hold after every transaction; each query names rows that break a rule.
struct Rule {
    const char* name;
    const char* sql;
};

inline constexpr Rule kRules[] = {
    {"leases of a node stay within its capacity",
     "SELECT n.name FROM node n JOIN lease l ON l.node = n.id GROUP BY n.id HAVING sum(l.cpus) > "
     "n.cpus OR sum(l.memory_bytes) > n.memory_bytes OR sum(l.gpus) > n.gpus"},
    {"a task is leased or running exactly when it holds a lease",
     "SELECT t.id FROM task t LEFT JOIN lease l ON l.task = t.id WHERE (t.state IN ('leased', "
     "'running')) != (l.id IS NOT NULL)"},
    {"task and lease name each other",
     "SELECT t.id FROM task t LEFT JOIN lease l ON l.task = t.id LEFT JOIN node n ON n.id = l.node "
     "WHERE t.lease != coalesce(l.id, 0) OR t.last_lease < t.lease OR (l.id IS NOT NULL AND (l.job "
     "!= t.job OR n.name != t.node))"},
    {"a number is held or revoked, never both",
     "SELECT l.id FROM lease l JOIN lease_revoked r ON r.id = l.id"},
    {"a waiting job has only pending tasks",
     "SELECT j.id FROM job j JOIN task t ON t.job = j.id WHERE j.state IN ('pending', 'paused') "
     "AND "
     "t.state != 'pending'"},
    {"a running gang is whole",
     "SELECT j.id FROM job j JOIN task t ON t.job = j.id WHERE j.state = 'running' AND j.recovery "
     "!= 'recycle' AND t.state NOT IN ('leased', 'running', 'completed')"},
    {"a running training job's tasks are placed, waiting, or done with the run",
     "SELECT j.id FROM job j JOIN task t ON t.job = j.id LEFT JOIN training_run r ON r.job = j.id "
     "WHERE j.state = 'running' AND j.recovery = 'recycle' AND t.state NOT IN ('leased', "
     "'running', 'pending') AND r.state != 'finished'"},
    {"an ended job has no task that is still to run, and no lease",
     "SELECT j.id FROM job j JOIN task t ON t.job = j.id WHERE j.state NOT IN ('pending', "
     "'paused', "
     "'running') AND (t.state IN ('pending', 'leased', 'running') OR j.end_us = 0)"},
    {"a job has as many tasks as it says",
     "SELECT j.id FROM job j WHERE j.tasks != (SELECT count(*) FROM task t WHERE t.job = j.id)"},
    {"an array runs within its limit",
     "SELECT a.id FROM job_array a JOIN job j ON j.array_parent = a.id AND j.state = 'running' "
     "WHERE "
     "a.at_once > 0 GROUP BY a.id HAVING count(*) > a.at_once"},
    {"a live worker holds the lease that its row names, until the run has finished",
     "SELECT w.job FROM training_worker w JOIN training_run r ON r.job = w.job LEFT JOIN lease l "
     "ON "
     "l.id = w.lease WHERE w.state = 'live' AND r.state NOT IN ('finished', 'failed') AND l.id IS "
     "NULL"},
    {"a dead worker of a running job waits to be placed again",
     "SELECT w.job FROM training_worker w JOIN job j ON j.id = w.job JOIN task t ON t.job = w.job "
     "AND t.worker = w.pipeline || ':' || w.stage JOIN training_run r ON r.job = j.id WHERE "
     "w.state "
     "= 'dead' AND j.state = 'running' AND r.state != 'finished' AND t.state != 'pending'"},
    {"an ended training job's run has ended",
     "SELECT r.job FROM training_run r JOIN job j ON j.id = r.job WHERE j.state NOT IN ('pending', "
     "'paused', 'running') AND r.state NOT IN ('finished', 'failed')"},
    {"a drained node holds nothing",
     "SELECT n.id FROM node n WHERE n.state = 'drained' AND (EXISTS (SELECT 1 FROM lease l WHERE "
     "l.node = n.id) OR EXISTS (SELECT 1 FROM lease_revoked l WHERE l.node = n.id))"},
    {"a node that is down or removed holds no lease",
     "SELECT l.id FROM lease l JOIN node n ON n.id = l.node WHERE n.state IN ('down', 'removed')"},
};

/// No gpu slot is held twice on a node, revoked leases included; a lease has exactly its gpus as
/// slots, and they exist.
inline Result<bool> slots_are_sound(store::ReadTx& tx) {
    HOLD_TRY(const auto nodes, list_nodes(tx, true));
    for (const NodeRow& node : nodes) {
        std::set<std::int32_t> taken;
        HOLD_TRY(auto leases, leases_of_node(tx, node.id));
        for (const LeaseRow& lease : leases) {
            for (const std::int32_t slot : lease.gpu_slots) {
                if (slot < 0 || slot >= node.capacity.gpus) {
                    return false;
                }
            }
        }
        HOLD_TRY(const auto revoked, revoked_of_node(tx, node.id));
        leases.insert(leases.end(), revoked.begin(), revoked.end());
        for (const LeaseRow& lease : leases) {
            if (static_cast<std::int64_t>(lease.gpu_slots.size()) != lease.resources.gpus) {
                return false;
            }
            for (const std::int32_t slot : lease.gpu_slots) {
                if (!taken.insert(slot).second) {
                    return false;
                }
            }
        }
    }
    return true;
}

/// The names of the rules that are broken now.
inline std::vector<std::string> broken_rules(World& world) {
    std::vector<std::string> broken;
    auto done = world.read([&](store::ReadTx& tx) -> Result<> {
        for (const Rule& rule : kRules) {
            HOLD_TRY(const auto rows, tx.query(rule.sql));
            if (!rows.empty()) {
                broken.emplace_back(rule.name);
            }
        }
        HOLD_TRY(const bool sound, slots_are_sound(tx));
        if (!sound) {
            broken.emplace_back("gpu slots are held once");
        }
        return {};
    });
    HOLD_CHECK(done.has_value(), done ? "" : done.error().describe());
    return broken;
}

#define EXPECT_RULES_HOLD(world) EXPECT_THAT(broken_rules(world), ::testing::IsEmpty())

}  // namespace holdfast::services
