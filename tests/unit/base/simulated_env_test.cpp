// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <holdfast/simulated_env.hpp>

namespace holdfast {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

TEST(SimulatedClock, MovesOnlyWhenTold) {
    SimulatedEnv world(1);
    Clock& clock = world.env().clock;
    EXPECT_EQ(clock.steady_us(), 0);
    EXPECT_EQ(utc_time(clock.wall_us()), "2026-01-01T00:00:00.000000Z");
    world.advance_us(5);
    clock.sleep_us(7);
    EXPECT_EQ(clock.steady_us(), 12);
    EXPECT_EQ(world.host("b").clock.steady_us(), 12);
}

TEST(SimulatedFiles, ACrashKeepsWhatWasSynced) {
    SimulatedEnv world(1);
    Files& files = world.env().files;
    ASSERT_TRUE(files.make_directories("/d", 0700));
    auto log = files.open_append("/d/log", 0600).value();
    ASSERT_TRUE(log->append("kept"));
    ASSERT_TRUE(log->sync());
    ASSERT_TRUE(log->append(" lost"));
    ASSERT_TRUE(files.write_file_atomic("/d/config", "v1", 0600));
    ASSERT_TRUE(files.remove("/d/config"));
    auto lock = files.lock_file("/d/lock").value();
    world.crash("localhost");
    EXPECT_EQ(files.read_file("/d/log", 100).value(), "kept");
    EXPECT_EQ(files.read_file("/d/config", 100).value(), "v1");  // the removal was not synced
    EXPECT_EQ(log->append("x").error().code, Errc::store_io);
    EXPECT_TRUE(files.lock_file("/d/lock"));
    lock.reset();
}

TEST(SimulatedFiles, EveryOperationCanFailOnceAndAtomicWritesStayAtomic) {
    for (const FileFault fault :
         {FileFault::io_error, FileFault::no_space, FileFault::short_write}) {
        for (std::uint64_t nth = 1; nth <= 4; ++nth) {
            SimulatedEnv world(1);
            Files& files = world.env().files;
            ASSERT_TRUE(files.make_directories("/d", 0700));
            world.fail_file_operation("localhost", nth, fault);
            int failures = 0;
            const auto note = [&](const Result<>& result) {
                if (!result) {
                    ++failures;
                    EXPECT_TRUE(result.error().injected);
                    EXPECT_EQ(result.error().code,
                              fault == FileFault::no_space ? Errc::store_full : Errc::store_io);
                }
            };
            auto log = files.open_append("/d/log", 0600);
            if (!log) {
                ++failures;
                log = files.open_append("/d/log", 0600);
            }
            if (log) {
                note((*log)->append("1234"));
                note((*log)->sync());
            }
            note(files.write_file_atomic("/d/config", "v1", 0600));
            EXPECT_EQ(failures, 1) << nth;
            const auto config = files.read_file("/d/config", 10);
            EXPECT_TRUE(!config || *config == "v1");
            const auto text = files.read_file("/d/log", 10);
            if (nth == 2 && fault == FileFault::short_write) {
                EXPECT_EQ(text.value(), "12");
            }
        }
    }
}

TEST(SimulatedFiles, ADiskGetsFullAndFreeAgain) {
    SimulatedEnv world(1);
    Files& files = world.env().files;
    world.set_disk_bytes("localhost", 10);
    ASSERT_TRUE(files.write_file_atomic("/a", "123456", 0600));
    EXPECT_EQ(files.free_bytes("/").value(), 4U);
    EXPECT_EQ(files.write_file_atomic("/b", "12345", 0600).error().code, Errc::store_full);
    EXPECT_FALSE(files.exists("/b"));
    ASSERT_TRUE(files.remove("/a"));
    EXPECT_TRUE(files.write_file_atomic("/b", "12345", 0600));
}

struct Pair {
    std::unique_ptr<Listener> listener;
    std::unique_ptr<Connection> client;
    std::unique_ptr<Connection> server;
};

Pair connect(SimulatedEnv& world) {
    Pair pair;
    pair.listener = world.host("b").network.listen("tcp:b:7000").value();
    pair.client = world.host("a").network.connect("tcp:b:7000", kSecondUs).value();
    pair.server = pair.listener->accept(0).value();
    return pair;
}

Result<std::string> read_now(Connection& connection, std::int64_t wait_us) {
    std::string text(64, '\0');
    HOLD_TRY(const std::size_t got,
             connection.read_some(std::as_writable_bytes(std::span(text)), wait_us));
    return text.substr(0, got);
}

TEST(SimulatedNetwork, BytesTakeTimeAndKeepTheirOrder) {
    SimulatedEnv world(3);
    world.set_network_faults({.delay_min_us = 100, .delay_max_us = 10'000, .drop = 0.3});
    Pair pair = connect(world);
    std::string sent;
    for (int number = 0; number < 200; ++number) {
        const std::string piece = std::to_string(number) + " ";
        sent += piece;
        ASSERT_TRUE(pair.client->write_all(bytes_of(piece), 0));
    }
    EXPECT_EQ(read_now(*pair.server, 0).error().code, Errc::timed_out);
    std::string got;
    while (got.size() < sent.size()) {
        got += read_now(*pair.server, kNoLimit).value();
    }
    EXPECT_EQ(got, sent);
    EXPECT_GE(world.env().clock.steady_us(), 200'000);  // some segment was sent again
    pair.client.reset();
    EXPECT_EQ(read_now(*pair.server, kSecondUs).value(), "");
}

TEST(SimulatedNetwork, AWaitEndsAtItsDeadline) {
    SimulatedEnv world(3);
    Pair pair = connect(world);
    const std::int64_t before = world.env().clock.steady_us();
    EXPECT_EQ(read_now(*pair.server, 1'234).error().code, Errc::timed_out);
    EXPECT_EQ(world.env().clock.steady_us(), before + 1'234);
}

TEST(SimulatedNetwork, HostsApartHearNothingUntilHealed) {
    SimulatedEnv world(3);
    Pair pair = connect(world);
    world.partition("a", "b");
    ASSERT_TRUE(pair.client->write_all(bytes_of("hello"), 0));
    EXPECT_EQ(read_now(*pair.server, 10 * kSecondUs).error().code, Errc::timed_out);
    EXPECT_EQ(world.host("a").network.connect("tcp:b:7000", 500).error().code, Errc::timed_out);
    world.heal("b", "a");
    EXPECT_EQ(read_now(*pair.server, kSecondUs).value(), "hello");
}

TEST(SimulatedNetwork, ACrashedHostIsSilentAndItsPortIsFree) {
    SimulatedEnv world(3);
    Pair pair = connect(world);
    world.crash("b");
    ASSERT_TRUE(pair.client->write_all(bytes_of("anybody?"), 0));
    EXPECT_EQ(read_now(*pair.client, 10 * kSecondUs).error().code, Errc::timed_out);
    EXPECT_EQ(read_now(*pair.server, 0).error().code, Errc::peer_lost);
    EXPECT_EQ(pair.listener->accept(0).error().code, Errc::cancelled);
    EXPECT_EQ(world.host("a").network.connect("tcp:b:7000", kSecondUs).error().code,
              Errc::unavailable);
    EXPECT_TRUE(world.host("b").network.listen("tcp:b:7000"));
}

TEST(SimulatedNetwork, AResetBreaksBothSides) {
    SimulatedEnv world(3);
    Pair pair = connect(world);
    world.set_network_faults({.reset = 1.0});
    ASSERT_TRUE(pair.client->write_all(bytes_of("x"), 0));
    EXPECT_EQ(read_now(*pair.server, kNoLimit).error().code, Errc::peer_lost);
    EXPECT_EQ(pair.client->write_all(bytes_of("x"), 0).error().code, Errc::peer_lost);
}

TEST(SimulatedNetwork, AddressesBelongToTheirHost) {
    SimulatedEnv world(3);
    auto listener = world.host("a").network.listen("tcp:127.0.0.1:0").value();
    EXPECT_EQ(listener->address(), "tcp:a:40000");
    EXPECT_EQ(world.host("a").network.listen("tcp:b:1").error().code, Errc::invalid_argument);
    EXPECT_EQ(world.host("a").network.listen("tcp:a:40000").error().code, Errc::conflict);
    EXPECT_EQ(world.host("a").network.listen("udp:a:1").error().code, Errc::invalid_argument);
    auto local = world.host("a").network.listen("unix:/run/x").value();
    EXPECT_TRUE(world.host("a").network.connect("unix:/run/x", kSecondUs));
    EXPECT_EQ(world.host("b").network.connect("unix:/run/x", kSecondUs).error().code,
              Errc::unavailable);
}

std::string run_of(std::uint64_t seed) {
    SimulatedEnv world(seed);
    world.set_network_faults({.delay_max_us = 5'000, .drop = 0.2, .reset = 0.02});
    Pair pair = connect(world);
    std::string story;
    for (int round = 0; round < 50; ++round) {
        const auto sent = pair.client->write_all(bytes_of(world.env().random.hex(4)), 0);
        const auto got = read_now(*pair.server, 3'000);
        story += fmt::format("{} {} {}\n", world.env().clock.steady_us(), sent.has_value(),
                             got ? *got : got.error().message);
    }
    return story;
}

TEST(SimulatedEnv, TheSameSeedTellsTheSameStory) {
    EXPECT_EQ(run_of(11), run_of(11));
    EXPECT_NE(run_of(11), run_of(12));
}

}  // namespace
}  // namespace holdfast
