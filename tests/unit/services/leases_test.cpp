// SPDX-License-Identifier: Apache-2.0
/// Gangs, fencing, and how tasks end their jobs.
#include "world.hpp"

namespace holdfast::services {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Grant, GivesTheLowestFreeSlotsAndNumbersThatGrow) {
    World world;
    world.node("n1", 4);
    const JobId first = world.submit_one(command(2, 1));
    const auto a = world.granted(first, {"n1", "n1"});
    EXPECT_THAT(a[0].gpu_slots, ElementsAre(0));
    EXPECT_THAT(a[1].gpu_slots, ElementsAre(1));
    EXPECT_EQ(a[0].id, LeaseId(1));
    EXPECT_EQ(a[1].id, LeaseId(2));
    EXPECT_EQ(a[0].secret.size(), 64U);
    EXPECT_NE(a[0].secret, a[1].secret);
    EXPECT_EQ(world.states(first), "leased leased");
    EXPECT_EQ(world.job(first).state, "running");
    EXPECT_GT(world.job(first).start_us, 0);
    EXPECT_EQ(world.task(first).node, "n1");
    EXPECT_THAT(world.task(first, 1).gpu_slots, ElementsAre(1));

    ASSERT_TRUE(world.end(a[0], {.state = "failed", .exit_code = 3}));
    world.confirm_all("n1");
    const JobId second = world.submit_one(command(1, 3));
    const auto b = world.granted(second, {"n1"});
    EXPECT_THAT(b[0].gpu_slots, ElementsAre(0, 1, 2));
    EXPECT_EQ(b[0].id, LeaseId(3));
    EXPECT_EQ(world.find("n1").used.gpus, 3);
    EXPECT_RULES_HOLD(world);
}

TEST(Grant, IsAllOrNothing) {
    World world;
    world.node("n1", 2);
    world.node("n2", 1);
    const JobId id = world.submit_one(command(4, 1));
    const auto answer = world.grant(id, {"n1", "n1", "n2", "n2"});
    ASSERT_FALSE(answer.has_value());
    EXPECT_EQ(answer.error().code, Errc::no_capacity);
    EXPECT_THAT(answer.error().message, HasSubstr("node n2 has 7 cpus"));
    EXPECT_EQ(world.states(id), "pending pending pending pending");
    EXPECT_EQ(world.find("n1").used.gpus, 0);
    // A gang that is not whole is no gang.
    EXPECT_EQ(world.grant(id, {"n1", "n1", "n2"}).error().code, Errc::bad_state);
    EXPECT_EQ(world.grant(id, {}).error().code, Errc::bad_state);
    EXPECT_RULES_HOLD(world);
}

TEST(Grant, ChecksNodesAndJobs) {
    World world;
    world.node("n1", 1);
    world.must([](store::Tx& tx) { return create_pool(tx, "other", ""); });
    const JobId id = world.submit_one(command(1, 1));
    const TaskId task = world.task(id).id;
    const auto grant_on = [&](NodeId node) {
        return world.code([&](store::Tx& tx) { return grant_gang(tx, id, {{task, node}}); });
    };
    EXPECT_EQ(grant_on(NodeId(99)), Errc::not_found);
    world.must([](store::Tx& tx) { return set_node_state(tx, "n1", "cordoned", "", 0); });
    EXPECT_EQ(grant_on(NodeId(1)), Errc::no_capacity);
    world.must([](store::Tx& tx) { return set_node_state(tx, "n1", "up", "", 0); });
    EXPECT_EQ(
        world.code([&](store::Tx& tx) { return grant_gang(tx, JobId(99), {{task, NodeId(1)}}); }),
        Errc::not_found);
    JobSpec elsewhere = command();
    elsewhere.pool = "other";
    const JobId other = world.submit_one(elsewhere);
    EXPECT_EQ(world.grant(other, {"n1"}).error().code, Errc::no_capacity);
    // A task of another job.
    EXPECT_EQ(world.code([&](store::Tx& tx) { return grant_gang(tx, other, {{task, NodeId(1)}}); }),
              Errc::bad_state);
    JobSpec typed = command(1, 1);
    typed.per_task.gpu_type = "h100";
    EXPECT_EQ(world.grant(world.submit_one(typed), {"n1"}).error().code, Errc::no_capacity);
    world.granted(id, {"n1"});
    EXPECT_EQ(grant_on(NodeId(1)), Errc::bad_state);  // it runs already
}

TEST(Grant, KeepsTheArraysLimit) {
    World world;
    world.node("n1");
    JobSpec spec = command();
    spec.array = {0, 1, 2};
    spec.array_at_once = 2;
    const auto elements = world.submit_all(spec).elements;
    const auto first = world.granted(elements[0], {"n1"});
    world.granted(elements[1], {"n1"});
    const auto answer = world.grant(elements[2], {"n1"});
    EXPECT_EQ(answer.error().code, Errc::no_capacity);
    EXPECT_THAT(answer.error().message, HasSubstr("2 elements of array 1 run, its limit is 2"));
    const auto loads = world.must([](store::Tx& tx) { return array_loads(tx); });
    ASSERT_EQ(loads.size(), 1U);
    EXPECT_EQ(loads[0].array, 1);
    EXPECT_EQ(loads[0].running, 2);
    ASSERT_TRUE(world.end(first[0], {.state = "completed"}));
    world.granted(elements[2], {"n1"});
    EXPECT_RULES_HOLD(world);
}

TEST(Tasks, StartAndCompleteEndTheJob) {
    World world;
    world.node("n1", 2);
    const JobId id = world.submit_one(command(2, 1));
    const auto leases = world.granted(id, {"n1", "n1"});
    world.start(leases[0], 41);
    EXPECT_EQ(world.task(id).state, "running");
    EXPECT_EQ(world.task(id).pid, 41);
    const std::int64_t since = world.task(id).start_us;
    world.sim().advance_us(1000);
    world.start(leases[0], 42);  // a repeat changes nothing
    EXPECT_EQ(world.task(id).pid, 41);
    EXPECT_EQ(world.task(id).start_us, since);
    ASSERT_TRUE(world.end(leases[0], {.state = "completed"}));
    EXPECT_EQ(world.job(id).state, "running");
    EXPECT_EQ(world.states(id), "completed leased");
    EXPECT_EQ(world.find("n1").used.gpus, 1);
    ASSERT_TRUE(world.end(leases[1], {.state = "completed"}));  // it may end before it was started
    EXPECT_EQ(world.job(id).state, "completed");
    EXPECT_EQ(world.job(id).exit_code, 0);
    EXPECT_EQ(world.find("n1").used.gpus, 0);
    ASSERT_TRUE(world.end(leases[1], {.state = "completed"}));  // and be reported again
    EXPECT_RULES_HOLD(world);
}

TEST(Tasks, AFailureEndsTheGang) {
    World world;
    world.node("n1", 3);

    const struct {
        TaskEnd end;
        const char* state;
        std::int32_t exit_code;
        const char* reason;
    } cases[] = {
        {{"failed", 3, 0, ""}, "failed", 3, "task 1 failed"},
        {{"failed", 0, 9, "killed"}, "failed", 137, "task 1 failed: killed"},
        {{"timeout", 0, 15, ""}, "timeout", 143, "task 1 timeout"},
        {{"cancelled", 0, 0, "drained"}, "cancelled", 1, "task 1 cancelled: drained"},
    };

    for (const auto& each : cases) {
        const JobId id = world.submit_one(command(3, 1));
        const auto leases = world.granted(id, {"n1", "n1", "n1"});
        world.start(leases[1]);
        ASSERT_TRUE(world.end(leases[0], {.state = "completed"}));
        ASSERT_TRUE(world.end(leases[1], each.end));
        EXPECT_EQ(world.job(id).state, each.state);
        EXPECT_EQ(world.job(id).exit_code, each.exit_code);
        EXPECT_EQ(world.job(id).reason, each.reason);
        EXPECT_EQ(world.states(id), std::string("completed ") + each.end.state + " cancelled");
        EXPECT_EQ(world.revoked("n1").size(), 1U);
        EXPECT_RULES_HOLD(world);
        world.confirm_all("n1");
    }
}

TEST(Tasks, RefuseEndsThatMakeNoSense) {
    World world;
    world.node("n1");
    const auto leases = world.granted(world.submit_one(command()), {"n1"});
    EXPECT_EQ(world.end(leases[0], {.state = "lost"}).error().code, Errc::invalid_argument);
    EXPECT_EQ(world.end(leases[0], {.state = "completed", .exit_code = 1}).error().code,
              Errc::invalid_argument);
    EXPECT_EQ(world.code([](store::Tx& tx) {
        return task_ended(tx, TaskId(99), LeaseId(1), {.state = "completed"});
    }),
              Errc::not_found);
}

TEST(Fencing, AnOldNumberOnlyConfirms) {
    World world;
    world.node("n1", 1);
    world.node("n2", 1);
    const JobId id = world.submit_one(command(1, 1));
    const LeaseRow old = world.granted(id, {"n1"}).at(0);
    world.start(old);
    world.down("n1");
    EXPECT_EQ(world.job(id).state, "pending");
    EXPECT_EQ(world.job(id).restarts, 1);
    const LeaseRow fresh = world.granted(id, {"n2"}).at(0);
    EXPECT_GT(fresh.id, old.id);
    // n1 comes back and still runs the old one.
    world.node("n1", 1);
    EXPECT_EQ(world.find("n1").used.gpus, 1);
    EXPECT_EQ(world.code([&](store::Tx& tx) { return task_started(tx, old.task, old.id, 7); }),
              Errc::stale_lease);
    EXPECT_EQ(world.code([&](store::Tx& tx) { return check_lease(tx, old.task, old.id); }),
              Errc::stale_lease);
    ASSERT_TRUE(world.end(old, {.state = "completed"}));
    EXPECT_EQ(world.task(id).state, "leased");  // the new lease is untouched
    EXPECT_EQ(world.find("n1").used.gpus, 0);
    ASSERT_TRUE(world.end(old, {.state = "completed"}));  // a repeat is acknowledged
    // Numbers that never were this task's.
    EXPECT_EQ(world.code([&](store::Tx& tx) {
        return task_ended(tx, old.task, LeaseId(99), {.state = "completed"});
    }),
              Errc::stale_lease);
    EXPECT_EQ(world.code([&](store::Tx& tx) {
        return task_ended(tx, old.task, LeaseId(0), {.state = "completed"});
    }),
              Errc::stale_lease);
    const LeaseRow held =
        world.must([&](store::Tx& tx) { return check_lease(tx, fresh.task, fresh.id); });
    EXPECT_EQ(held.secret, fresh.secret);
    EXPECT_EQ(held.node, world.find("n2").id);
    EXPECT_RULES_HOLD(world);
}

TEST(Fencing, AnotherTasksNumberConfirmsNothing) {
    World world;
    world.node("n1", 2);
    const JobId a = world.submit_one(command(1, 1));
    const JobId b = world.submit_one(command(1, 1));
    const LeaseRow of_a = world.granted(a, {"n1"}).at(0);
    const LeaseRow of_b = world.granted(b, {"n1"}).at(0);
    world.must([&](store::Tx& tx) { return cancel(tx, a, ""); });
    EXPECT_EQ(world.code([&](store::Tx& tx) {
        return task_ended(tx, of_b.task, of_a.id, {.state = "completed"});
    }),
              Errc::stale_lease);
    EXPECT_EQ(world.revoked("n1").size(), 1U);
    EXPECT_EQ(world.task(b).state, "leased");
}

TEST(Leases, ListsOfANode) {
    World world;
    world.node("n1", 2);
    const JobId a = world.submit_one(command(1, 1));
    const JobId b = world.submit_one(command(1, 1));
    const LeaseRow of_a = world.granted(a, {"n1"}).at(0);
    const LeaseRow of_b = world.granted(b, {"n1"}).at(0);
    world.must([&](store::Tx& tx) { return cancel(tx, a, ""); });
    const NodeId node = world.find("n1").id;
    const auto held = world.must([&](store::Tx& tx) { return leases_of_node(tx, node); });
    ASSERT_EQ(held.size(), 1U);
    EXPECT_EQ(held[0].id, of_b.id);
    EXPECT_EQ(held[0].secret, of_b.secret);
    EXPECT_THAT(held[0].gpu_slots, ElementsAre(1));
    const auto gone = world.revoked("n1");
    ASSERT_EQ(gone.size(), 1U);
    EXPECT_EQ(gone[0].id, of_a.id);
    EXPECT_EQ(gone[0].task, of_a.task);
    EXPECT_THAT(gone[0].gpu_slots, ElementsAre(0));
    const auto holdings_now = world.must([](store::Tx& tx) { return holdings(tx); });
    ASSERT_EQ(holdings_now.size(), 2U);
    EXPECT_EQ(holdings_now[0].job, a);
    EXPECT_EQ(holdings_now[0].revoked, 1);
    EXPECT_EQ(holdings_now[1].held.gpus, 1);
    EXPECT_EQ(holdings_now[1].revoked, 0);
    EXPECT_THAT(world.must([](store::Tx& tx) { return placed_workers(tx); }), IsEmpty());
}

TEST(Leases, LostOnesFreeTheirSlotsAtOnce) {
    World world;
    world.node("n1", 1);
    const JobId id = world.submit_one(command(1, 1));
    const LeaseRow lease = world.granted(id, {"n1"}).at(0);
    const auto lose = [&](const LeaseRow& which) {
        world.must([&](store::Tx& tx) {
            return lease_lost(tx, which.task, which.id, "the agent does not know it");
        });
    };
    lose(lease);
    EXPECT_EQ(world.job(id).state, "pending");
    EXPECT_EQ(world.find("n1").used.gpus, 0);
    EXPECT_THAT(world.revoked("n1"), IsEmpty());
    const LeaseRow again = world.granted(id, {"n1"}).at(0);
    lose(lease);  // late: changes nothing
    EXPECT_EQ(world.task(id).lease, again.id);
    EXPECT_RULES_HOLD(world);
}

TEST(Recovery, RequeueTakesTheWholeGangBack) {
    World world;
    world.node("n1", 1);
    world.node("n2", 2);
    const JobId id = world.submit_one(command(3, 1));
    const auto leases = world.granted(id, {"n1", "n2", "n2"});
    world.start(leases[0]);
    ASSERT_TRUE(world.end(leases[1], {.state = "completed"}));
    world.down("n1");
    EXPECT_EQ(world.job(id).state, "pending");
    EXPECT_EQ(world.job(id).restarts, 1);
    EXPECT_EQ(world.job(id).start_us, 0);
    EXPECT_EQ(world.job(id).reason, "queued again: node n1: silent");
    EXPECT_EQ(world.states(id), "pending pending pending");
    EXPECT_EQ(world.task(id).node, "");
    EXPECT_EQ(world.revoked("n1").size(), 1U);
    EXPECT_EQ(world.revoked("n2").size(), 1U);
    EXPECT_RULES_HOLD(world);
}

TEST(Recovery, NoneEndsTheJob) {
    World world;
    world.node("n1", 1);
    world.node("n2", 1);
    JobSpec spec = command(2, 1);
    spec.recovery = "none";
    const JobId id = world.submit_one(spec);
    world.granted(id, {"n1", "n2"});
    world.down("n1");
    EXPECT_EQ(world.job(id).state, "node_fail");
    EXPECT_EQ(world.job(id).reason, "node n1: silent");
    EXPECT_EQ(world.states(id), "lost cancelled");
    EXPECT_RULES_HOLD(world);
}

TEST(Recovery, RestartsAreBounded) {
    World world;
    const JobId id = world.submit_one(command());
    for (int count = 0; count < 101; ++count) {
        world.node("n1");
        world.granted(id, {"n1"});
        world.down("n1");
        world.confirm_all("n1");
    }
    EXPECT_EQ(world.job(id).state, "node_fail");
    EXPECT_EQ(world.job(id).reason, "node n1: silent, after 100 restarts");
}

}  // namespace
}  // namespace holdfast::services
