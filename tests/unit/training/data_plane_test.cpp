// SPDX-License-Identifier: Apache-2.0
// Real sockets on loopback, polled from one thread: who gets in, and what its end looks like to the
// other.
#include "data_plane.hpp"

#include <gtest/gtest.h>

namespace holdfast::training {
namespace {

constexpr std::int64_t kTurnUs = 2'000;
constexpr int kTurnsMax = 2'000;

std::string key(char letter) {
    return std::string(32, letter);
}

struct End {
    std::unique_ptr<DataPlane> plane;
    std::vector<WorkerEvent> events;

    explicit End(WorkerName self) {
        DataPlaneOptions options;
        options.self = self;
        options.host = "127.0.0.1";
        options.handshake_us = 300'000;
        plane = DataPlane::listen(options, real_env()).value();
    }

    void turn() {
        for (WorkerEvent& event : plane->poll(kTurnUs)) {
            events.push_back(std::move(event));
        }
    }

    template <typename T>
    std::vector<T> all() const {
        std::vector<T> found;
        for (const WorkerEvent& event : events) {
            if (const T* each = std::get_if<T>(&event)) {
                found.push_back(*each);
            }
        }
        return found;
    }
};

class DataPlaneTest : public testing::Test {
  protected:
    template <typename Predicate>
    bool turn_until(Predicate predicate) {
        for (int i = 0; i < kTurnsMax && !predicate(); ++i) {
            low_.turn();
            high_.turn();
        }
        return predicate();
    }

    void turns(int count) {
        for (int i = 0; i < count; ++i) {
            low_.turn();
            high_.turn();
        }
    }

    void open(End& end, WorkerName peer, const End& other, std::int64_t epoch, char letter) {
        end.plane->open_epoch({epoch, key(letter), {{peer, other.plane->address()}}});
    }

    void open_both(std::int64_t epoch) {
        open(low_, kHigh, high_, epoch, 'k');
        open(high_, kLow, low_, epoch, 'k');
        ASSERT_TRUE(turn_until(
            [&] { return !low_.all<PeerUp>().empty() && !high_.all<PeerUp>().empty(); }));
    }

    static Frame frame(WorkerName from, WorkerName to, std::int64_t epoch, std::size_t size) {
        Frame frame;
        frame.epoch = epoch;
        frame.source = from;
        frame.target = to;
        frame.payload.resize(size, std::byte{42});
        return frame;
    }

    static constexpr WorkerName kLow{0, 0};
    static constexpr WorkerName kHigh{0, 1};
    End low_{kLow};
    End high_{kHigh};
};

TEST_F(DataPlaneTest, FramesPassBothWaysAlsoLargeOnes) {
    open_both(1);
    EXPECT_EQ(low_.all<PeerUp>()[0].peer, kHigh);
    low_.plane->send(frame(kLow, kHigh, 1, 0));
    low_.plane->send(frame(kLow, kHigh, 1, 30 << 20));
    high_.plane->send(frame(kHigh, kLow, 1, 5 << 20));
    ASSERT_TRUE(turn_until([&] {
        return high_.all<FrameReceived>().size() == 2 && low_.all<FrameReceived>().size() == 1;
    }));
    EXPECT_EQ(high_.all<FrameReceived>()[1].frame, frame(kLow, kHigh, 1, 30 << 20));
}

TEST_F(DataPlaneTest, WhoeverIsFirstWaitsForTheOther) {
    open(high_, kLow, low_, 5, 'k');  // dials a worker that has no epoch yet
    turns(20);
    EXPECT_TRUE(high_.all<PeerUp>().empty());
    open(low_, kHigh, high_, 5, 'k');
    EXPECT_TRUE(turn_until([&] { return !high_.all<PeerUp>().empty(); }));
}

TEST_F(DataPlaneTest, AnotherKeyDoesNotOpen) {
    open(low_, kHigh, high_, 1, 'a');
    open(high_, kLow, low_, 1, 'b');
    turns(100);
    EXPECT_TRUE(low_.all<PeerUp>().empty());
    EXPECT_TRUE(high_.all<PeerUp>().empty());
}

TEST_F(DataPlaneTest, AnOldEpochDoesNotOpen) {
    open(low_, kHigh, high_, 2, 'k');
    open(high_, kLow, low_, 1, 'k');
    turns(100);
    EXPECT_TRUE(low_.all<PeerUp>().empty());
    EXPECT_TRUE(high_.all<PeerUp>().empty());
}

TEST_F(DataPlaneTest, TheEndOfOneIsToldToTheOther) {
    open_both(1);
    high_.plane->close_epoch();
    ASSERT_TRUE(turn_until([&] { return !low_.all<PeerDown>().empty(); }));
    EXPECT_EQ(low_.all<PeerDown>()[0].peer, kHigh);
    EXPECT_EQ(low_.all<PeerDown>()[0].epoch, 1);
    EXPECT_TRUE(high_.all<PeerDown>().empty()) << "its own doing";
}

TEST_F(DataPlaneTest, ANewEpochIsANewConnection) {
    open_both(1);
    low_.events.clear();
    high_.events.clear();
    open_both(2);
    low_.plane->send(frame(kLow, kHigh, 1, 8));  // late: of the old epoch
    low_.plane->send(frame(kLow, kHigh, 2, 9));
    ASSERT_TRUE(turn_until([&] { return !high_.all<FrameReceived>().empty(); }));
    EXPECT_EQ(high_.all<FrameReceived>()[0].frame.payload.size(), 9U);
}

TEST_F(DataPlaneTest, AFrameInAnothersNameEndsTheConnection) {
    open_both(1);
    low_.plane->send(frame({1, 1}, kHigh, 1, 8));
    ASSERT_TRUE(turn_until([&] { return !high_.all<PeerDown>().empty(); }));
    EXPECT_TRUE(high_.all<FrameReceived>().empty());
}

TEST_F(DataPlaneTest, StrangersAreHungUpOn) {
    auto talker = real_env().network.connect("tcp:" + low_.plane->address(), kSecondUs).value();
    const std::string noise(4096, 'x');
    ASSERT_TRUE(talker->write_all(std::as_bytes(std::span(noise)), kSecondUs));
    auto silent = real_env().network.connect("tcp:" + low_.plane->address(), kSecondUs).value();
    turns(250);  // beyond the time for introductions
    std::byte byte{};
    for (auto* connection : {talker.get(), silent.get()}) {
        bool ended = false;
        for (int i = 0; i < 1000 && !ended; ++i) {  // the challenge comes first
            const auto got = connection->read_some(std::span(&byte, 1), kSecondUs);
            ended = !got || *got == 0;
        }
        EXPECT_TRUE(ended);
    }
}

TEST_F(DataPlaneTest, AHostThatIsNotHereIsRefused) {
    DataPlaneOptions options;
    options.host = "192.0.2.1";
    const auto plane = DataPlane::listen(options, real_env());
    ASSERT_FALSE(plane);
    EXPECT_EQ(plane.error().where, "HOLDFAST_DATA_HOST");
}

}  // namespace
}  // namespace holdfast::training
