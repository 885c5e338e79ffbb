// SPDX-License-Identifier: Apache-2.0
/// Random sequences of everything that can happen, legal or not; after each step every rule holds.
#include <algorithm>
#include <random>

#include "world.hpp"

namespace holdfast::services {
namespace {

constexpr int kSeeds = 25;
constexpr int kSteps = 150;

class Actor {
  public:
    explicit Actor(std::uint32_t seed) : world_(seed), dice_(seed) {}

    void run() {
        for (int count = 0; count < kSteps && !testing::Test::HasFailure(); ++count) {
            SCOPED_TRACE(count);
            world_.sim().advance_us(100'000);
            act();
            check();
        }
        auto whole = world_.store().check();
        EXPECT_TRUE(whole.has_value()) << (whole ? "" : whole.error().message);
    }

    [[nodiscard]] int granted() const { return granted_; }

  private:
    std::int64_t upto(std::int64_t most) {
        return static_cast<std::int64_t>(dice_() % static_cast<std::uint32_t>(most + 1));
    }

    std::string node_name() { return "n" + std::to_string(1 + upto(3)); }

    void act() {
        switch (upto(13)) {
            case 0:
            case 1:
                return submit_something();
            case 2:
            case 3:
            case 4:
                return grant_something();
            case 5:
            case 6:
                return with_lease([&](const LeaseRow& lease) {
                    tolerate(
                        [&](store::Tx& tx) { return task_started(tx, lease.task, lease.id, 7); });
                });
            case 7:
            case 8:
                return with_lease([&](const LeaseRow& lease) { end_somehow(lease); });
            case 9:
                return with_job([&](JobId id) {
                    const auto what = upto(3);
                    tolerate([&](store::Tx& tx) {
                        return what == 0   ? cancel(tx, id, "by chance")
                               : what == 1 ? pause(tx, id)
                                           : resume(tx, id);
                    });
                });
            case 10:
                return with_node([&](const NodeRow& node) {
                    tolerate([&](store::Tx& tx) { return node_down(tx, node.id, "by chance"); });
                });
            case 11:
                return register_something();
            case 12:
                return confirm_something();
            default:
                return upto(1) == 0 ? operate() : train();
        }
    }

    template <typename F>
    void tolerate(F&& fn) {
        const auto answer = world_.call(std::forward<F>(fn));
        if (!answer) {  // refused is fine, broken is not
            EXPECT_NE(answer.error().code, Errc::internal) << answer.error().message;
            EXPECT_NE(answer.error().code, Errc::constraint) << answer.error().message;
            EXPECT_NE(answer.error().code, Errc::invalid_argument) << answer.error().message;
        }
    }

    template <typename F>
    void with_job(F&& fn) {
        const auto jobs = world_.must([](store::Tx& tx) { return list_jobs(tx, {.ended = true}); });
        if (!jobs.empty()) {
            fn(jobs[static_cast<std::size_t>(upto(static_cast<std::int64_t>(jobs.size()) - 1))].id);
        }
    }

    template <typename F>
    void with_node(F&& fn) {
        const auto nodes = world_.must([](store::Tx& tx) { return list_nodes(tx); });
        if (!nodes.empty()) {
            fn(nodes[static_cast<std::size_t>(upto(static_cast<std::int64_t>(nodes.size()) - 1))]);
        }
    }

    /// A lease that was granted some time; often one that still holds.
    template <typename F>
    void with_lease(F&& fn) {
        if (leases_.empty()) {
            return;
        }
        const auto last = static_cast<std::int64_t>(leases_.size()) - 1;
        const std::int64_t back = upto(2) == 0 ? upto(last) : upto(std::min<std::int64_t>(last, 4));
        fn(leases_[static_cast<std::size_t>(last - back)]);
    }

    void submit_something() {
        JobSpec spec = upto(2) == 0 ? training(1 + static_cast<std::int32_t>(upto(1)),
                                               1 + static_cast<std::int32_t>(upto(1)))
                                    : command(1 + static_cast<std::int32_t>(upto(2)), upto(2));
        if (!spec.training && upto(3) == 0) {
            spec.array = {0, 1, 2};
            spec.array_at_once = static_cast<std::int32_t>(upto(2));
        }
        if (upto(3) == 0) {
            spec.recovery = "none";
        }
        spec.hold = upto(9) == 0;
        world_.submit_all(spec);
    }

    void grant_something() {
        const auto jobs = world_.must([](store::Tx& tx) { return jobs_to_place(tx); });
        const auto nodes = world_.must([](store::Tx& tx) { return list_nodes(tx); });
        if (jobs.empty() || nodes.empty()) {
            return;
        }
        const PlaceableJob& job =
            jobs[static_cast<std::size_t>(upto(static_cast<std::int64_t>(jobs.size()) - 1))];
        std::vector<Assignment> gang;
        for (const TaskRow& task : job.tasks) {
            if (job.repair && upto(1) == 0) {
                continue;
            }
            gang.push_back(
                {task.id,
                 nodes[static_cast<std::size_t>(upto(static_cast<std::int64_t>(nodes.size()) - 1))]
                     .id});
        }
        const auto answer =
            world_.call([&](store::Tx& tx) { return grant_gang(tx, job.job.id, gang); });
        if (answer) {
            ++granted_;
            for (const LeaseRow& lease : *answer) {
                EXPECT_GT(lease.id, newest_) << "numbers grow";
                newest_ = lease.id;
                leases_.push_back(lease);
            }
        }
    }

    void end_somehow(const LeaseRow& lease) {
        static const TaskEnd kEnds[] = {{"completed", 0, 0, ""},
                                        {"completed", 0, 0, ""},
                                        {"failed", 1, 0, "by chance"},
                                        {"timeout", 0, 15, ""},
                                        {"cancelled", 0, 9, ""}};
        const TaskEnd& end = kEnds[upto(4)];
        tolerate([&](store::Tx& tx) {
            return upto(9) == 0 ? lease_lost(tx, lease.task, lease.id, "forgotten")
                                : task_ended(tx, lease.task, lease.id, end);
        });
    }

    void register_something() {
        NodeRegistration asked;
        asked.name = node_name();
        asked.instance = std::to_string(upto(1));
        asked.capacity = {.cpus = 4, .memory_bytes = 64 << 20, .gpus = 2 + upto(1), .gpu_type = {}};
        tolerate([&](store::Tx& tx) { return register_node(tx, asked, 2 * kSecondUs); });
    }

    void confirm_something() {
        with_node([&](const NodeRow& node) {
            const auto gone =
                world_.must([&](store::Tx& tx) { return revoked_of_node(tx, node.id); });
            for (const LeaseRow& lease : gone) {
                if (upto(2) != 0) {
                    tolerate([&](store::Tx& tx) { return confirm_revoked(tx, lease.id); });
                }
            }
        });
    }

    void operate() {
        static const char* const kStates[] = {"up", "up", "cordoned", "draining", "down"};
        const std::string name = node_name();
        const auto what = upto(6);
        tolerate([&](store::Tx& tx) -> Result<> {
            if (what == 5) {
                return remove_node(tx, name);
            }
            if (what == 6) {
                HOLD_TRY(announce_node(tx, name, ""));
                return {};
            }
            HOLD_TRY(set_node_state(tx, name, kStates[what], "", 0));
            return {};
        });
    }

    void train() {
        with_job([&](JobId id) {
            const auto found = world_.call([&](store::Tx& tx) { return find_training(tx, id); });
            if (!found) {
                return;
            }
            const auto workers = world_.must([&](store::Tx& tx) { return workers_of(tx, id); });
            std::vector<TrainingWorkerRow> live;
            for (const TrainingWorkerRow& worker : workers) {
                if (worker.state != "dead" && worker.lease.is_set()) {
                    live.push_back(worker);
                }
            }
            const auto what = upto(4);
            const TrainingWorkerRow& victim = workers[0];
            tolerate([&](store::Tx& tx) {
                switch (what) {
                    case 0:
                        return training_epoch(tx, id, found->epoch + 1, found->step, live, "k", 0);
                    case 1:
                        return training_step(tx, id, found->epoch, found->step, 1.0, 1);
                    case 2:
                        return training_state(tx, id, "finished", "");
                    case 3:
                        return training_state(tx, id, "stalled", "by chance");
                    default:
                        return worker_dead(tx, id, 0, 0, victim.lease, "by chance");
                }
            });
        });
    }

    void check() {
        ASSERT_THAT(broken_rules(world_), testing::IsEmpty());
        // Capacity with revoked leases included: every grant left room for them.
        for (const NodeRow& node : world_.must([](store::Tx& tx) { return list_nodes(tx); })) {
            ASSERT_LE(node.used.gpus, 3) << node.name;
            ASSERT_LE(node.used.cpus, 4) << node.name;
        }
    }

    World world_;
    std::mt19937 dice_;
    std::vector<LeaseRow> leases_;
    LeaseId newest_;
    int granted_ = 0;
};

TEST(RandomSequences, KeepEveryRule) {
    int granted = 0;
    for (std::uint32_t seed = 1; seed <= kSeeds && !HasFailure(); ++seed) {
        SCOPED_TRACE(seed);
        Actor actor(seed);
        actor.run();
        granted += actor.granted();
    }
    EXPECT_GT(granted, kSeeds * 5);  // the dice reached something
}

}  // namespace
}  // namespace holdfast::services
