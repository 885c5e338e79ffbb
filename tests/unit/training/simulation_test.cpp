// SPDX-License-Identifier: Apache-2.0
// Coordinator and workers together, under everything that can go wrong: whatever dies whenever, the
// losses and the parameters are those of an undisturbed run, byte for byte, and nobody waits for
// ever.
#include "simulation.hpp"

namespace holdfast::training {
namespace {

SimulationResult undisturbed(const SimulationOptions& like) {
    SimulationOptions options;
    options.shape = like.shape;
    options.steps = like.steps;
    options.seed = 1;
    return Simulation(options).run();
}

void expect_same_training(const SimulationResult& a, const SimulationResult& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.hashes.rbegin()->second, b.hashes.rbegin()->second);
}

TEST(Simulation, UndisturbedRunFinishes) {
    SimulationOptions options;
    const SimulationResult result = Simulation(options).run();
    ASSERT_TRUE(result.finished) << result.failure << result.stuck;
    EXPECT_EQ(result.losses.size(), 12U);
    EXPECT_EQ(result.epochs, 1);
    EXPECT_EQ(result.deaths, 0);
    EXPECT_EQ(result.redone, 0);
    EXPECT_EQ(result.hashes.at(11).size(), 3U);
}

TEST(Simulation, DelaysDoNotChangeTheTraining) {
    SimulationOptions a;
    SimulationOptions b;
    b.seed = 99;
    const SimulationResult first = Simulation(a).run();
    const SimulationResult second = Simulation(b).run();
    EXPECT_NE(first.trace, second.trace);
    expect_same_training(first, second);
}

class Disturbed : public testing::TestWithParam<int> {};

TEST_P(Disturbed, TrainsAsIfNothingHappened) {
    constexpr int kSeedsPerCase = 50;
    SimulationResult all;
    for (int i = 0; i < kSeedsPerCase; ++i) {
        const int seed = GetParam() * kSeedsPerCase + i;
        SimulationOptions options;
        options.seed = static_cast<std::uint64_t>(seed) + 1000;
        options.shape = seed % 3 == 0   ? Shape{2, 3, 3}
                        : seed % 3 == 1 ? Shape{3, 2, 4}
                                        : Shape{3, 3, 2};
        options.steps = 25;
        options.kills = seed % 5;
        options.freezes = (seed / 5) % 2;
        options.cuts = (seed / 10) % 2;
        options.server_crashes = (seed / 20) % 3;
        options.rejoin_percent = seed % 7 == 0 ? 0 : 85;
        const SimulationResult expected = undisturbed(options);
        const SimulationResult result = Simulation(options).run();
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", deaths " << result.deaths << ", restarts "
                     << result.restarts << ", epochs " << result.epochs);
        ASSERT_TRUE(result.finished) << result.failure << result.stuck;
        expect_same_training(expected, result);
        EXPECT_EQ(result.lost_losses, 0);
        EXPECT_LE(result.redone, result.deaths + result.restarts);
        if (HasFailure()) {
            return;
        }
        all.deaths += result.deaths;
        all.rejoined += result.rejoined;
        all.restarts += result.restarts;
        all.redone += result.redone;
    }
    // The seeds must really disturb.
    EXPECT_GT(all.deaths, kSeedsPerCase);
    EXPECT_GT(all.rejoined, kSeedsPerCase / 4);
    EXPECT_GT(all.redone, kSeedsPerCase / 2);
    EXPECT_GT(all.restarts, kSeedsPerCase / 4);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Disturbed, testing::Range(0, 8));

TEST(Simulation, DeathsDuringRecovery) {
    int deaths = 0;
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
        SimulationOptions options;
        options.seed = seed;
        options.shape = seed % 2 == 0 ? Shape{4, 2, 2} : Shape{3, 3, 1};
        options.steps = 15;
        options.kills = 4;
        options.kill_in_recovery_percent = 60;
        options.server_crashes = seed % 4 == 0 ? 1 : 0;
        options.disturb_within_us = 1'000'000;
        const SimulationResult expected = undisturbed(options);
        const SimulationResult result = Simulation(options).run();
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", deaths " << result.deaths);
        ASSERT_TRUE(result.finished) << result.failure << result.stuck;
        expect_same_training(expected, result);
        ASSERT_EQ(result.lost_losses, 0);
        ASSERT_LE(result.redone, result.deaths + result.restarts);
        deaths += result.deaths;
    }
    EXPECT_GT(deaths, 400);
}

TEST(Simulation, ASeedIsARun) {
    SimulationOptions options;
    options.seed = 4242;
    options.kills = 3;
    options.server_crashes = 1;
    options.steps = 25;
    const SimulationResult first = Simulation(options).run();
    const SimulationResult second = Simulation(options).run();
    EXPECT_EQ(first.trace, second.trace);
    EXPECT_EQ(first.took_us, second.took_us);
}

}  // namespace
}  // namespace holdfast::training
