// SPDX-License-Identifier: Apache-2.0
// What a worker is told, and the wire form of what it says.
#include "worker_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <holdfast/training_proto.hpp>

namespace holdfast::training {
namespace {

using testing::HasSubstr;

class WorkerConfigTest : public testing::Test {
  protected:
    Result<WorkerConfig> read() {
        return worker_config([&](const std::string& name) -> std::optional<std::string> {
            const auto found = variables_.find(name);
            return found == variables_.end() ? std::nullopt : std::optional(found->second);
        });
    }

    std::map<std::string, std::string> variables_{
        {"HOLDFAST_SERVER", "unix:/run/holdfast/hold.sock"},
        {"HOLDFAST_JOB", "1"},
        {"HOLDFAST_TASK", "2"},
        {"HOLDFAST_LEASE", "3"},
        {"HOLDFAST_WORKER", "1:2"},
        {"HOLDFAST_TRAINING",
         R"({"pipelines": 2, "stages": 3, "microbatches": 4, "model": "gpt-tiny", "steps": "9",
             "exact": true, "data": "/text", "seed": "7", "backend": "reference"})"},
        {"HOLDFAST_DATA_HOST", "127.0.0.1"},
        {"HOLDFAST_SECRET_FD", "3"}};
};

TEST_F(WorkerConfigTest, ReadsAll) {
    const WorkerConfig config = read().value();
    EXPECT_EQ(config.self, (WorkerName{1, 2}));
    EXPECT_EQ(config.lease, LeaseId(3));
    EXPECT_EQ(config.spec.steps, 9);
    EXPECT_EQ(config.spec.seed, 7U);
    EXPECT_TRUE(config.spec.exact);
    EXPECT_EQ(config.secret_fd, 3);
}

TEST_F(WorkerConfigTest, WhatIsMissingIsNamed) {
    const auto complete = variables_;
    for (const auto& [name, value] : complete) {
        variables_ = complete;
        variables_.erase(name);
        const auto config = read();
        ASSERT_FALSE(config) << name;
        EXPECT_EQ(config.error().where, name);
    }
}

TEST_F(WorkerConfigTest, WhatIsWrongIsNamed) {
    const auto complete = variables_;
    const auto refused = [&](const std::string& name, const std::string& value) {
        variables_ = complete;
        variables_[name] = value;
        const auto config = read();
        return config ? std::string("accepted") : config.error().describe();
    };
    EXPECT_THAT(refused("HOLDFAST_LEASE", "x"), HasSubstr("HOLDFAST_LEASE is `x`: not a number"));
    EXPECT_THAT(refused("HOLDFAST_LEASE", "-1"), HasSubstr("not a number"));
    EXPECT_THAT(refused("HOLDFAST_WORKER", "2:0"),
                HasSubstr("worker 2:0 is not in a job of 2 × 3"));
    EXPECT_THAT(refused("HOLDFAST_TRAINING", R"({"pipelines": 2, "bogus": 1})"),
                HasSubstr("bogus"));
    EXPECT_THAT(refused("HOLDFAST_TRAINING", "{"), HasSubstr("is no training spec"));
    EXPECT_THAT(
        refused("HOLDFAST_TRAINING",
                R"({"pipelines": 2, "stages": 3, "microbatches": 4, "steps": 1, "backend": "x"})"),
        HasSubstr("training backend `x` is unknown"));
}

TEST(ReadSecret, ReadsThePipeToItsEnd) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::pipe(ends), 0);
    ASSERT_EQ(::write(ends[1], "secret\n", 7), 7);
    ::close(ends[1]);
    EXPECT_EQ(read_secret(ends[0]).value().reveal(), "secret");
    EXPECT_EQ(read_secret(-1).error().where, "HOLDFAST_SECRET_FD");
}

template <typename T>
T there_and_back_report(const T& report) {
    return std::get<T>(from_proto(to_proto(WorkerReport{report})).value());
}

TEST(TrainingProto, ReportsRoundTrip) {
    WorkerHello hello;
    hello.lease = LeaseId(5);
    hello.worker = {1, 2};
    hello.epoch = 3;
    hello.version = 4;
    hello.previous_version = 3;
    hello.running = true;
    hello.data_address = "h:1";
    hello.data_hash = "abc";
    hello.pid = 9;
    const WorkerHello back = there_and_back_report(hello);
    EXPECT_EQ(back.worker, hello.worker);
    EXPECT_EQ(back.lease, hello.lease);
    EXPECT_EQ(back.previous_version, 3);
    EXPECT_TRUE(back.running);
    EXPECT_EQ(back.data_hash, "abc");
    const StepCommit commit{1, 2, {{0, 1, 0.1}, {1, 0, 0.2}}, 3, ~0ULL};
    EXPECT_EQ(there_and_back_report(commit).losses, commit.losses);
    EXPECT_EQ(there_and_back_report(commit).parameter_hash, ~0ULL);
    EXPECT_EQ(there_and_back_report(Stopped{1, -1, -1}).version, -1);
    EXPECT_EQ(there_and_back_report(PauseAnswer{1, 2, true, 3}).at_step, 2);
    EXPECT_EQ(there_and_back_report(Ready{1, 2}).version, 2);
    EXPECT_EQ(there_and_back_report(Suspect{1, {0, 1}, "w"}).why, "w");
    EXPECT_EQ(there_and_back_report(WorkerFailed{"w"}).why, "w");
    there_and_back_report(WorkerHeartbeat{});
}

template <typename T>
T there_and_back(const T& command) {
    return std::get<T>(from_proto(to_proto(CoordinatorCommand{command})).value());
}

TEST(TrainingProto, CommandsRoundTrip) {
    EpochPlan plan;
    plan.epoch = 3;
    plan.spec.model = "gpt-tiny";
    plan.live = {{{0, 1}, "h:1"}};
    plan.version = 4;
    plan.state_from_pipeline = 1;
    plan.cluster_key = std::string(32, 'k');
    const EpochPlan back = there_and_back(plan);
    EXPECT_EQ(back.spec, plan.spec);
    EXPECT_EQ(back.live[0].data_address, "h:1");
    EXPECT_EQ(back.state_from_pipeline, 1);
    EXPECT_EQ(back.cluster_key, plan.cluster_key);
    EXPECT_EQ(there_and_back(AbortEpoch{2}).epoch, 2);
    EXPECT_EQ(there_and_back(PauseAt{2, 3}).at_step, 3);
    EXPECT_EQ(there_and_back(Go{2}).epoch, 2);
    EXPECT_EQ(there_and_back(Finish{2}).version, 2);
    EXPECT_EQ(there_and_back(Fenced{"w"}).why, "w");
    EXPECT_EQ(there_and_back(CommitAck{2}).step, 2);
}

TEST(TrainingProto, NonsenseIsRefused) {
    EXPECT_EQ(from_proto(v1::WorkerMessage{}).error().code, Errc::wire_corrupt);
    EXPECT_EQ(from_proto(v1::CoordinatorMessage{}).error().code, Errc::wire_corrupt);
    v1::WorkerMessage hello;
    hello.mutable_hello()->set_pipeline(100'000);
    EXPECT_FALSE(from_proto(hello));
    hello.mutable_hello()->set_pipeline(0);
    hello.mutable_hello()->set_version(-2);
    EXPECT_FALSE(from_proto(hello));
    v1::CoordinatorMessage plan;
    plan.mutable_plan()->set_cluster_key("short");
    EXPECT_FALSE(from_proto(plan));
    v1::WorkerMessage long_text;
    long_text.mutable_failed()->set_why(std::string(1 << 20, 'x'));
    EXPECT_FALSE(from_proto(long_text));
}

}  // namespace
}  // namespace holdfast::training
