// SPDX-License-Identifier: Apache-2.0
// Agents.Connect: leases, fencing, reconnection, death.
#include <set>

#include "fixture.hpp"

namespace holdfast::server::testing {
namespace {

using AgentsTest = ServerTest;

TEST_F(AgentsTest, AGangStartsWholeWithItsEnvironment) {
    FakeAgent one(*agents_, {.name = "n1", .cpus = 2, .gpus = 2});
    ASSERT_TRUE(one.registered());  // first-fit walks nodes in the order of their registration
    FakeAgent two(*agents_, {.name = "n2", .instance = "i2", .cpus = 2, .gpus = 2});
    ASSERT_TRUE(two.registered());
    v1::JobSpec spec = sleeper(4);
    spec.mutable_per_task()->set_cpus(1);
    spec.mutable_per_task()->set_gpus(1);
    (*spec.mutable_env())["LR"] = "3e-4";
    (*spec.mutable_env())["RANK"] = "nonsense";
    const std::int64_t id = submit(spec);
    std::map<std::string, v1::StartTask> by_rank;
    std::set<std::int64_t> leases;
    for (FakeAgent* agent : {&one, &one, &two, &two}) {
        const auto start = agent->next_start();
        ASSERT_TRUE(start);
        EXPECT_EQ(start->job(), id);
        EXPECT_EQ(start->user(), "nobody");
        EXPECT_EQ(start->run(), "sleep 1000");
        EXPECT_TRUE(start->secret().empty());
        leases.insert(start->lease());
        by_rank[start->env().at("RANK")] = *start;
    }
    ASSERT_EQ(by_rank.size(), 4U);
    EXPECT_EQ(leases.size(), 4U);
    const auto& last = by_rank.at("3").env();
    EXPECT_EQ(last.at("WORLD_SIZE"), "4");
    EXPECT_EQ(last.at("LOCAL_RANK"), "1");
    EXPECT_EQ(last.at("MASTER_ADDR"), "127.0.0.1");
    EXPECT_EQ(last.at("LR"), "3e-4");
    EXPECT_EQ(last.at("SLURM_JOB_ID"), std::to_string(id));
    EXPECT_EQ(last.at("SLURM_PROCID"), "3");
    EXPECT_EQ(last.at("SLURM_NTASKS"), "4");
    EXPECT_EQ(last.at("SLURM_NODEID"), "1");
    EXPECT_EQ(last.at("SLURM_JOB_NODELIST"), "n[1-2]");
    EXPECT_FALSE(last.contains("SLURM_ARRAY_TASK_ID"));
    EXPECT_NE(by_rank.at("0").env().at("CUDA_VISIBLE_DEVICES"),
              by_rank.at("1").env().at("CUDA_VISIBLE_DEVICES"));
    for (const auto& [rank, start] : by_rank) {
        FakeAgent& agent = start.env().at("SLURMD_NODENAME") == "n1" ? one : two;
        EXPECT_TRUE(agent.report(start, "running"));
    }
    EXPECT_EQ(job(id).state(), "running");
    for (const auto& [rank, start] : by_rank) {
        FakeAgent& agent = start.env().at("SLURMD_NODENAME") == "n1" ? one : two;
        EXPECT_TRUE(agent.report(start, "completed"));
    }
    EXPECT_EQ(job(id).state(), "completed");
    EXPECT_EQ(count("SELECT count(*) FROM lease"), 0);
    EXPECT_EQ(node("n1").free().cpus(), 2);
}

TEST_F(AgentsTest, CancellingStopsTasksAndTheirSlotsAreHeldUntilConfirmed) {
    FakeAgent agent(*agents_, {});
    ASSERT_TRUE(agent.registered());
    const std::int64_t id = submit(sleeper());
    const auto start = agent.next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(agent.report(*start, "running"));
    v1::CancelRequest request;
    request.set_job(id);
    v1::Job answer;
    Call call;
    ASSERT_TRUE(jobs_->Cancel(&call.context, request, &answer).ok());
    const auto stop = agent.next_stop();
    ASSERT_TRUE(stop);
    EXPECT_EQ(stop->lease(), start->lease());
    EXPECT_GT(stop->grace_ms(), 0);
    EXPECT_EQ(node("n1").free().cpus(), 3);
    EXPECT_TRUE(agent.report(*start, "cancelled"));
    EXPECT_EQ(node("n1").free().cpus(), 4);
    EXPECT_EQ(job(id).state(), "cancelled");
}

TEST_F(AgentsTest, StaleAndForeignReportsChangeNothing) {
    FakeAgent one(*agents_, {.name = "n1", .cpus = 1});
    ASSERT_TRUE(one.registered());
    const std::int64_t id = submit(sleeper());
    const auto start = one.next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(one.report(*start, "running"));
    FakeAgent two(*agents_, {.name = "n2", .instance = "i2", .cpus = 1});
    ASSERT_TRUE(two.registered());
    // Another node speaks about our lease: no word of it is believed, nor acknowledged.
    v1::AgentMessage lie;
    *lie.mutable_task() = FakeAgent::status_of(*start, "completed");
    v1::TaskStatus unknown = FakeAgent::status_of(*start, "completed");
    unknown.set_lease(start->lease() + 1000);
    EXPECT_TRUE(two.report(unknown));  // acknowledged, so that it is not said for ever
    EXPECT_EQ(job(id).state(), "running");
    v1::TaskStatus old = FakeAgent::status_of(*start, "running");
    old.set_lease(start->lease() + 1000);
    EXPECT_TRUE(one.report(old));
    EXPECT_EQ(job(id).state(), "running");
    EXPECT_TRUE(one.report(*start, "completed"));
    EXPECT_TRUE(one.report(*start, "completed"));  // a repeat is fine
    EXPECT_EQ(job(id).state(), "completed");
}

TEST_F(AgentsTest, ATaskWhoseProcessesAreLostIsQueuedAgain) {
    FakeAgent agent(*agents_, {});
    ASSERT_TRUE(agent.registered());
    const std::int64_t id = submit(sleeper());
    const auto first = agent.next_start();
    ASSERT_TRUE(first);
    ASSERT_TRUE(agent.report(*first, "running"));
    ASSERT_TRUE(agent.report(*first, "lost"));
    const auto second = agent.next_start();
    ASSERT_TRUE(second);
    EXPECT_EQ(second->task(), first->task());
    EXPECT_GT(second->lease(), first->lease());
    EXPECT_EQ(job(id).restarts(), 1);
    EXPECT_TRUE(agent.report(*first, "lost"));  // said again: nothing changes
    EXPECT_EQ(job(id).restarts(), 1);
}

TEST_F(AgentsTest, AReconnectingAgentKeepsItsTasks) {
    auto agent = std::make_unique<FakeAgent>(*agents_, FakeAgent::Setup{});
    ASSERT_TRUE(agent->registered());
    const std::int64_t running = submit(sleeper());
    const auto first = agent->next_start();
    ASSERT_TRUE(first);
    ASSERT_TRUE(agent->report(*first, "running"));
    const std::int64_t ended = submit(sleeper());
    const auto second = agent->next_start();
    ASSERT_TRUE(second);
    ASSERT_TRUE(agent->report(*second, "running"));
    agent->hang_up();
    const std::int64_t waiting = submit(sleeper());
    job_when(waiting, [](const v1::Job& found) { return found.state() == "running"; });
    // The server goes away, too; meanwhile one task ends.
    restart();
    FakeAgent again(*agents_, {.tasks = {FakeAgent::status_of(*first, "running"),
                                         FakeAgent::status_of(*second, "completed")}});
    const auto registered = again.registered();
    ASSERT_TRUE(registered);
    EXPECT_EQ(registered->epoch(), 2);
    const auto third = again.next_start();  // granted while it was away: it is told now
    ASSERT_TRUE(third);
    EXPECT_EQ(third->job(), waiting);
    EXPECT_EQ(job(running).state(), "running");
    EXPECT_EQ(job(running).tasks(0).lease(), first->lease());
    EXPECT_EQ(job(ended).state(), "completed");
    EXPECT_EQ(job(running).restarts(), 0);
}

TEST_F(AgentsTest, AnAgentThatComesBackEmptyHasLostItsTasks) {
    auto agent = std::make_unique<FakeAgent>(*agents_, FakeAgent::Setup{});
    ASSERT_TRUE(agent->registered());
    const std::int64_t id = submit(sleeper());
    const auto start = agent->next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(agent->report(*start, "running"));
    agent->hang_up();
    job_when(id, [](const v1::Job& found) { return found.state() == "running"; });
    FakeAgent again(*agents_, {.instance = "reborn"});
    ASSERT_TRUE(again.registered());
    const auto restarted = again.next_start();
    ASSERT_TRUE(restarted);
    EXPECT_EQ(restarted->job(), id);
    EXPECT_GT(restarted->lease(), start->lease());
    EXPECT_EQ(job(id).restarts(), 1);
    // The old process, if it still runs somewhere, is fenced.
    EXPECT_TRUE(again.report(FakeAgent::status_of(*start, "completed")));
    EXPECT_EQ(job(id).state(), "running");
}

TEST_F(AgentsTest, ALeaseThatAnAgentReportsButDoesNotHoldIsStopped) {
    FakeAgent agent(*agents_, {});
    ASSERT_TRUE(agent.registered());
    submit(sleeper());
    const auto start = agent.next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(agent.report(*start, "completed"));
    agent.hang_up();
    FakeAgent again(*agents_, {.tasks = {FakeAgent::status_of(*start, "running")}});
    ASSERT_TRUE(again.registered());
    const auto stop = again.next_stop();
    ASSERT_TRUE(stop);
    EXPECT_EQ(stop->lease(), start->lease());
    EXPECT_EQ(stop->grace_ms(), 0);
}

TEST_F(AgentsTest, TwoAgentsOfOneName) {
    FakeAgent first(*agents_, {});
    ASSERT_TRUE(first.registered());
    ASSERT_TRUE(first.heartbeat());
    FakeAgent second(*agents_, {.instance = "other"});
    const auto refusal = second.next([](const auto& message) { return message.has_refused(); });
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->refused().code(), "conflict");
    const auto status = second.wait_for_end();
    EXPECT_EQ(code_of(status, second.context()), "conflict");
    EXPECT_TRUE(first.heartbeat());
    // The same agent, back before we noticed that its link broke, takes its place.
    FakeAgent same(*agents_, {});
    EXPECT_TRUE(same.registered());
    first.wait_for_end();
    EXPECT_TRUE(same.heartbeat());
}

TEST_F(AgentsTest, ANodeTokenIsGoodForThatNodeOnly) {
    const std::string secret = token("n1", "node");
    const auto first_answer = [&](const std::string& name) {
        Conversation<v1::AgentMessage, v1::ServerMessage> stream([&](grpc::ClientContext* context) {
            context->AddMetadata("authorization", "Bearer " + secret);
            return agents_->Connect(context);
        });
        v1::AgentMessage message;
        message.mutable_registration()->set_name(name);
        message.mutable_registration()->set_instance("i");
        message.mutable_registration()->mutable_capacity()->set_cpus(1);
        stream.send(message);
        const auto answer = stream.next([](const auto&) { return true; });
        return !answer ? "nothing" : answer->has_registered() ? "ok" : answer->refused().code();
    };
    EXPECT_EQ(first_answer("n1"), "ok");
    EXPECT_EQ(first_answer("n2"), "denied");
}

TEST_F(AgentsTest, DrainLetsTasksFinishAndThenNothingStarts) {
    FakeAgent agent(*agents_, {});
    ASSERT_TRUE(agent.registered());
    submit(sleeper());
    const auto start = agent.next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(agent.report(*start, "running"));
    v1::NodeRequest request;
    request.set_name("n1");
    request.set_reason("new disk");
    v1::Node answer;
    Call call;
    ASSERT_TRUE(nodes_->Drain(&call.context, request, &answer).ok());
    EXPECT_EQ(answer.state(), "draining");
    const std::int64_t later = submit(sleeper());
    const v1::Job waiting =
        job_when(later, [](const v1::Job& found) { return !found.reason().empty(); });
    EXPECT_EQ(waiting.state(), "pending");
    ASSERT_TRUE(agent.report(*start, "completed"));
    EXPECT_EQ(node("n1").state(), "drained");
    Call undrain;
    ASSERT_TRUE(nodes_->Undrain(&undrain.context, request, &answer).ok());
    const auto next = agent.next_start();
    ASSERT_TRUE(next);
    EXPECT_EQ(next->job(), later);
}

TEST_F(AgentsTest, ARemovedNodesAgentIsShownOut) {
    FakeAgent agent(*agents_, {});
    ASSERT_TRUE(agent.registered());
    v1::NodeRequest request;
    request.set_name("n1");
    v1::Empty nothing;
    Call call;
    ASSERT_TRUE(nodes_->Remove(&call.context, request, &nothing).ok());
    agent.wait_for_end();
    FakeAgent again(*agents_, {});
    const auto refusal = again.next([](const auto& message) { return message.has_refused(); });
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->refused().code(), "bad_state");
    EXPECT_TRUE(node("n1").name().empty());
}

class SilentNodesTest : public ServerTest {
  protected:
    Options options() const override {
        Options options = ServerTest::options();
        options.heartbeat_interval_ms = 50;
        options.node_dead_ms = 1'000;
        return options;
    }
};

TEST_F(SilentNodesTest, ASilentNodeIsDownAndItsJobsAreQueuedAgain) {
    auto silent = std::make_unique<FakeAgent>(*agents_, FakeAgent::Setup{.name = "n1"});
    ASSERT_TRUE(silent->registered());
    const std::int64_t id = submit(sleeper());
    const auto start = silent->next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(silent->report(*start, "running"));
    const v1::Job queued = job_when(id, [](const v1::Job& found) { return found.restarts() == 1; });
    EXPECT_EQ(queued.state(), "pending");
    EXPECT_EQ(node("n1").state(), "down");
    // Its stream was ended, so that it registers anew; what it still runs is fenced.
    silent->wait_for_end();
    FakeAgent again(*agents_, {.name = "n1", .tasks = {FakeAgent::status_of(*start, "running")}});
    ASSERT_TRUE(again.registered());
    const auto stop = again.next_stop();
    ASSERT_TRUE(stop);
    EXPECT_EQ(stop->lease(), start->lease());
    EXPECT_EQ(node("n1").state(), "up");
}

TEST_F(SilentNodesTest, ARestartedServerGivesNodesTimeToComeBack) {
    auto agent = std::make_unique<FakeAgent>(*agents_, FakeAgent::Setup{});
    ASSERT_TRUE(agent->registered());
    const std::int64_t id = submit(sleeper());
    const auto start = agent->next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(agent->report(*start, "running"));
    stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(1'100));
    this->start();
    FakeAgent again(*agents_, {.tasks = {FakeAgent::status_of(*start, "running")}});
    ASSERT_TRUE(again.registered());
    EXPECT_EQ(job(id).restarts(), 0);
    EXPECT_EQ(job(id).state(), "running");
}

}  // namespace
}  // namespace holdfast::server::testing
