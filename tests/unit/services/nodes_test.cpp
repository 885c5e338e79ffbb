// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

namespace holdfast::services {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

NodeRegistration registration(const std::string& name, const std::string& instance = "1") {
    NodeRegistration asked;
    asked.name = name;
    asked.instance = instance;
    asked.address = "127.0.0.1";
    asked.version = "0.1.0";
    asked.capacity = {.cpus = 8, .memory_bytes = 64 << 20, .gpus = 2, .gpu_type = "h100"};
    return asked;
}

Result<NodeRow> renew(World& world, const NodeRegistration& asked,
                      std::int64_t dead_after_us = kDeadAfterUs) {
    return world.call([&](store::Tx& tx) { return register_node(tx, asked, dead_after_us); });
}

NodeRow wish(World& world, const std::string& state, std::int64_t deadline_us = 0) {
    return world.must(
        [&](store::Tx& tx) { return set_node_state(tx, "n1", state, "by hand", deadline_us); });
}

TEST(Nodes, RegisterMakesTheRowAndCountsEpochs) {
    World world;
    const NodeRow first = renew(world, registration("n1")).value();
    EXPECT_EQ(first.name, "n1");
    EXPECT_EQ(first.state, "up");
    EXPECT_EQ(first.epoch, 1);
    EXPECT_EQ(first.capacity.gpus, 2);
    EXPECT_EQ(first.capacity.gpu_type, "h100");
    EXPECT_EQ(first.address, "127.0.0.1");
    EXPECT_GT(first.registered_us, 0);
    EXPECT_EQ(first.heartbeat_us, first.registered_us);
    const NodeRow second = renew(world, registration("n1")).value();
    EXPECT_EQ(second.id, first.id);
    EXPECT_EQ(second.epoch, 2);
    EXPECT_EQ(world.must([](store::Tx& tx) { return list_nodes(tx); }).size(), 1U);
}

TEST(Nodes, TwoLiveAgentsCannotShareAName) {
    World world;
    ASSERT_TRUE(renew(world, registration("n1", "a")));
    world.sim().advance_us(kDeadAfterUs - 1000);
    const auto refused = renew(world, registration("n1", "b"));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Errc::conflict);
    EXPECT_THAT(refused.error().message, HasSubstr("4999 ms ago"));
    ASSERT_TRUE(renew(world, registration("n1", "b"), 0));  // the caller knows that a is gone
    world.sim().advance_us(kDeadAfterUs);
    EXPECT_EQ(renew(world, registration("n1", "c")).value().instance, "c");
    world.down("n1");
    EXPECT_EQ(renew(world, registration("n1", "d")).value().state, "up");
}

TEST(Nodes, RegistrationIsChecked) {
    World world;
    const auto refused = [&](const NodeRegistration& asked) {
        return renew(world, asked).error().code;
    };
    EXPECT_EQ(refused(registration("a b")), Errc::invalid_argument);
    EXPECT_EQ(refused(registration("")), Errc::invalid_argument);
    NodeRegistration asked = registration("n1");
    asked.pool = "nowhere";
    EXPECT_EQ(refused(asked), Errc::not_found);
    asked = registration("n1");
    asked.capacity.gpus = 1025;
    EXPECT_EQ(refused(asked), Errc::invalid_argument);
    asked.capacity.gpus = -1;
    EXPECT_EQ(refused(asked), Errc::invalid_argument);
}

TEST(Nodes, HeartbeatsMoveTheInstantOnly) {
    World world;
    const NodeRow node = world.node("n1");
    const std::int64_t changes = world.store().stats().last_seq;
    world.sim().advance_us(1000);
    world.must([&](store::Tx& tx) { return heartbeat(tx, node.id, 1.5, 1000); });
    EXPECT_EQ(world.find("n1").heartbeat_us, node.heartbeat_us + 1000);
    const auto rows = world.read([&](store::ReadTx& tx) {
        return tx.query("SELECT 1 FROM change WHERE seq > $1 AND tbl = 'node_heartbeat'", changes);
    });
    ASSERT_TRUE(rows.has_value()) << rows.error().message;
    EXPECT_TRUE(rows->empty());
    EXPECT_EQ(world.code([](store::Tx& tx) { return heartbeat(tx, NodeId(99), 0, 0); }),
              Errc::not_found);
}

TEST(Nodes, DrainEndsWhenTheLastLeaseIsGone) {
    World world;
    world.node("n1", 2);
    const JobId a = world.submit_one(command(1, 1));
    const JobId b = world.submit_one(command(1, 1));
    const auto of_a = world.granted(a, {"n1"});
    world.granted(b, {"n1"});
    EXPECT_EQ(wish(world, "draining", 77).state, "draining");
    EXPECT_EQ(world.find("n1").reason, "by hand");
    EXPECT_EQ(world.grant(world.submit_one(command()), {"n1"}).error().code, Errc::no_capacity);
    ASSERT_TRUE(world.end(of_a[0], {.state = "completed"}));
    EXPECT_EQ(world.find("n1").state, "draining");
    world.must([&](store::Tx& tx) { return cancel(tx, b, ""); });
    EXPECT_EQ(world.find("n1").state, "draining");  // not confirmed yet
    world.confirm_all("n1");
    EXPECT_EQ(world.find("n1").state, "drained");
    EXPECT_EQ(wish(world, "up").state, "up");
    EXPECT_EQ(wish(world, "drained").state, "drained");  // nothing runs: at once
    EXPECT_RULES_HOLD(world);
}

TEST(Nodes, ADrainsDeadlineEvicts) {
    World world;
    world.node("n1", 1);
    const JobId id = world.submit_one(command(1, 1));
    world.granted(id, {"n1"});
    const NodeId node = wish(world, "draining").id;
    world.must([&](store::Tx& tx) { return evict_node(tx, node, "n1 is drained"); });
    EXPECT_EQ(world.job(id).state, "pending");
    EXPECT_EQ(world.job(id).reason, "queued again: n1 is drained");
    EXPECT_EQ(world.find("n1").state, "draining");
    world.confirm_all("n1");
    EXPECT_EQ(world.find("n1").state, "drained");
}

TEST(Nodes, TheOperatorsWishSurvivesAnOutage) {
    World world;
    world.node("n1");
    EXPECT_EQ(wish(world, "cordoned").state, "cordoned");
    world.down("n1");
    EXPECT_EQ(world.find("n1").state, "down");
    EXPECT_EQ(world.node("n1").state, "cordoned");
    world.down("n1");
    EXPECT_EQ(wish(world, "draining").state, "down");
    world.down("n1");  // idempotent
    const NodeId id = world.find("n1").id;
    world.must([&](store::Tx& tx) { return node_up(tx, id); });
    EXPECT_EQ(world.find("n1").state, "drained");
    world.must([&](store::Tx& tx) { return node_up(tx, id); });
    EXPECT_EQ(world.find("n1").state, "drained");
    EXPECT_EQ(wish(world, "up").state, "up");
    EXPECT_EQ(wish(world, "down").state, "down");
    EXPECT_EQ(world.code([](store::Tx& tx) { return set_node_state(tx, "n1", "asleep", "", 0); }),
              Errc::invalid_argument);
    EXPECT_EQ(world.code([](store::Tx& tx) { return set_node_state(tx, "n9", "up", "", 0); }),
              Errc::not_found);
}

TEST(Nodes, RemoveAndBringBack) {
    World world;
    world.node("n1", 1);
    const JobId id = world.submit_one(command(1, 1));
    world.granted(id, {"n1"});
    const auto remove = [](store::Tx& tx) { return remove_node(tx, "n1"); };
    EXPECT_EQ(world.code(remove), Errc::bad_state);
    world.must([&](store::Tx& tx) { return cancel(tx, id, ""); });
    world.must(remove);
    EXPECT_EQ(world.must([](store::Tx& tx) { return list_nodes(tx); }).size(), 0U);
    EXPECT_EQ(world.must([](store::Tx& tx) { return list_nodes(tx, true); }).size(), 1U);
    EXPECT_EQ(world.find("n1").used.gpus, 0);
    EXPECT_EQ(renew(world, registration("n1")).error().code, Errc::bad_state);
    EXPECT_EQ(world.code([&](store::Tx& tx) { return node_down(tx, NodeId(1), ""); }),
              Errc::bad_state);
    const NodeRow back =
        world.must([](store::Tx& tx) { return announce_node(tx, "n1", "default"); });
    EXPECT_EQ(back.state, "down");
    EXPECT_EQ(renew(world, registration("n1")).value().state, "up");
    EXPECT_EQ(world.code([](store::Tx& tx) { return announce_node(tx, "n1", ""); }),
              Errc::conflict);
    world.must([](store::Tx& tx) { return announce_node(tx, "n2", ""); });
    world.must([](store::Tx& tx) { return announce_node(tx, "n2", ""); });
    EXPECT_EQ(world.find("n2").state, "down");
    EXPECT_RULES_HOLD(world);
}

TEST(Nodes, ASmallerNodeLosesWhatItCannotHold) {
    World world;
    world.node("n1", 3);
    const JobId a = world.submit_one(command(1, 1));
    const JobId b = world.submit_one(command(1, 2));
    world.granted(a, {"n1"});
    world.granted(b, {"n1"});
    EXPECT_EQ(world.node("n1", 2).state, "up");
    EXPECT_EQ(world.job(a).state, "running");
    EXPECT_EQ(world.job(b).state, "pending");
    EXPECT_EQ(world.revoked("n1").size(), 1U);
    EXPECT_RULES_HOLD(world);
    // Slot 1 is free, but the revoked lease still counts: no room until it is confirmed.
    const JobId c = world.submit_one(command(1, 1));
    EXPECT_EQ(world.grant(c, {"n1"}).error().code, Errc::no_capacity);
    world.confirm_all("n1");
    EXPECT_THAT(world.granted(c, {"n1"}).at(0).gpu_slots, ElementsAre(1));
}

TEST(Pools, CreateListDelete) {
    World world;
    const auto make = [](store::Tx& tx) { return create_pool(tx, "gpu", "big ones"); };
    const auto drop = [](store::Tx& tx) { return delete_pool(tx, "gpu"); };
    EXPECT_EQ(world.code(drop), Errc::not_found);
    world.must(make);
    EXPECT_EQ(world.code(make), Errc::conflict);
    EXPECT_EQ(world.code([](store::Tx& tx) { return create_pool(tx, "a/b", ""); }),
              Errc::invalid_argument);
    NodeRegistration asked = registration("n1");
    asked.pool = "gpu";
    ASSERT_TRUE(renew(world, asked));
    const auto pools = world.must([](store::Tx& tx) { return list_pools(tx); });
    ASSERT_EQ(pools.size(), 2U);
    EXPECT_EQ(pools[1].name, "gpu");
    EXPECT_EQ(pools[1].description, "big ones");
    EXPECT_EQ(pools[1].nodes, 1);
    EXPECT_EQ(world.code(drop), Errc::bad_state);
    world.must([](store::Tx& tx) { return remove_node(tx, "n1"); });
    JobSpec spec = command();
    spec.pool = "gpu";
    const JobId id = world.submit_one(spec);
    EXPECT_EQ(world.code(drop), Errc::bad_state);
    world.must([&](store::Tx& tx) { return cancel(tx, id, ""); });
    world.must(drop);
    EXPECT_EQ(world.job(id).pool, "gpu");
    EXPECT_EQ(world.code([](store::Tx& tx) { return delete_pool(tx, "default"); }),
              Errc::bad_state);
}

}  // namespace
}  // namespace holdfast::services
