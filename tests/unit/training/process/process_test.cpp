// SPDX-License-Identifier: Apache-2.0
// Six worker processes with the reference backend on loopback: kill -9, SIGSTOP and a server
// restart leave no trace in the losses and parameters.
#include <csignal>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "cluster.hpp"

namespace holdfast::training {
namespace {

class Processes : public testing::Test {
  protected:
    void SetUp() override {
        folder_ = testing::TempDir() + "holdfast_training_" + std::to_string(::getpid()) + "_" +
                  testing::UnitTest::GetInstance()->current_test_info()->name();
        folder_.resize(std::min<std::size_t>(folder_.size(), 90));  // a socket's path is short
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
        std::ofstream text(folder_ + "/text");
        for (int i = 0; i < 2000; ++i) {
            text << "line " << i * 7919 % 1000 << " of a text to learn\n";
        }
    }

    void TearDown() override {
        if (!HasFailure()) {
            std::filesystem::remove_all(folder_);
        }
    }

    TrainingSpec spec(std::int64_t steps) const {
        return {.pipelines = 2,
                .stages = 3,
                .microbatches = 4,
                .model = "gpt-tiny",
                .steps = steps,
                .exact = true,
                .data = folder_ + "/text",
                .seed = 3,
                .backend = "reference"};
    }

    Cluster::Record undisturbed(std::int64_t steps) {
        Cluster cluster(spec(steps), folder_);
        cluster.start();
        EXPECT_TRUE(cluster.wait_finished()) << cluster.phase();
        EXPECT_EQ(WEXITSTATUS(cluster.exit_status(cluster.pid({0, 0}))), 0);
        return cluster.record();
    }

    static void expect_same(const Cluster::Record& a, const Cluster::Record& b) {
        EXPECT_EQ(a.losses, b.losses);  // bit for bit
        EXPECT_EQ(a.last_hash, b.last_hash);
        EXPECT_EQ(b.lost_losses, 0);
    }

    std::string folder_;
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kSteps = 90;  // a step takes many times longer there
#else
constexpr std::int64_t kSteps = 300;
#endif

TEST_F(Processes, KillHangReturnAndServerRestartLeaveNoTrace) {
    const Cluster::Record expected = undisturbed(kSteps);
    ASSERT_EQ(std::ssize(expected.losses), kSteps);
    EXPECT_LT(expected.losses.at(kSteps - 1), expected.losses.at(0));

    Cluster cluster(spec(kSteps), folder_);
    cluster.start();
    ASSERT_TRUE(cluster.wait_for_step(10)) << cluster.phase();
    cluster.signal({1, 1}, SIGKILL);
    ASSERT_TRUE(cluster.wait_for_deaths(1));
    const std::int64_t step = std::ssize(cluster.record().losses);
    ASSERT_TRUE(cluster.wait_for_step(step + 10)) << cluster.phase();  // goes on with five
    cluster.allow_returns();
    ASSERT_TRUE(cluster.wait_for_rejoined(1)) << cluster.phase();

    const pid_t hung = cluster.pid({0, 2});
    cluster.signal({0, 2}, SIGSTOP);
    ASSERT_TRUE(cluster.wait_for_deaths(2)) << cluster.phase();
    ASSERT_TRUE(cluster.wait_for_rejoined(2)) << cluster.phase();
    ::kill(hung, SIGCONT);  // wakes into a job that goes on without it
    EXPECT_EQ(WEXITSTATUS(cluster.exit_status(hung)), 3);

    ASSERT_TRUE(cluster.wait_for_step(std::ssize(cluster.record().losses) + 3)) << cluster.phase();

    const Cluster::Record before = cluster.record();
    ASSERT_FALSE(before.finished);
    cluster.stop_server();
    real_env().clock.sleep_us(300'000);  // they train on alone
    cluster.start_server();
    ASSERT_TRUE(cluster.wait_finished()) << cluster.phase();
    const Cluster::Record record = cluster.record();
    expect_same(expected, record);
    EXPECT_EQ(record.deaths.size(), 2U);
    EXPECT_EQ(record.epochs, before.epochs) << "a server restart is no change of membership";
    EXPECT_LE(record.redone, 2);
    EXPECT_EQ(WEXITSTATUS(cluster.exit_status(cluster.pid({1, 1}))), 0);
}

TEST_F(Processes, TerminateEndsAWorkerCleanly) {
    Cluster cluster(spec(100'000), folder_);
    cluster.start();
    ASSERT_TRUE(cluster.wait_for_step(5));
    const pid_t pid = cluster.pid({0, 1});
    cluster.signal({0, 1}, SIGTERM);
    EXPECT_EQ(WEXITSTATUS(cluster.exit_status(pid)), 143);
    ASSERT_TRUE(cluster.wait_for_deaths(1));
    EXPECT_EQ(cluster.record().deaths[0].why, "it gave up: it was told to terminate");
    const std::int64_t step = std::ssize(cluster.record().losses);
    EXPECT_TRUE(cluster.wait_for_step(step + 5)) << cluster.phase();
}

}  // namespace
}  // namespace holdfast::training
