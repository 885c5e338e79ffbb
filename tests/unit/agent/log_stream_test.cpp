// SPDX-License-Identifier: Apache-2.0
#include "log_stream.hpp"

#include <random>

#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {

constexpr std::uint64_t kChunk = LogStream::kChunkBytes;
using Range = LogStream::Range;

/// Sends everything that may go now and returns it.
std::vector<Range> drain(LogStream& stream) {
    std::vector<Range> ranges;
    while (const auto range = stream.next()) {
        ranges.push_back(*range);
        stream.sent(*range, 0);
    }
    return ranges;
}

TEST(LogStream, NothingToSend) {
    LogStream stream;
    EXPECT_EQ(stream.next(), std::nullopt);
    EXPECT_TRUE(stream.all_stored());
}

TEST(LogStream, FirstChunkGoesAloneThenAWindow) {
    LogStream stream;
    stream.grow(10 * kChunk);
    EXPECT_EQ(drain(stream), (std::vector<Range>{{0, kChunk}}));
    stream.stored_below(kChunk, 0);
    EXPECT_EQ(
        drain(stream),
        (std::vector<Range>{
            {kChunk, kChunk}, {2 * kChunk, kChunk}, {3 * kChunk, kChunk}, {4 * kChunk, kChunk}}));
    stream.stored_below(2 * kChunk, 0);
    EXPECT_EQ(drain(stream), (std::vector<Range>{{5 * kChunk, kChunk}}));
    EXPECT_FALSE(stream.all_stored());
}

TEST(LogStream, ShortTail) {
    LogStream stream;
    stream.grow(5);
    EXPECT_EQ(drain(stream), (std::vector<Range>{{0, 5}}));
    stream.stored_below(5, 0);
    EXPECT_TRUE(stream.all_stored());
    stream.grow(7);
    EXPECT_FALSE(stream.all_stored());
    EXPECT_EQ(drain(stream), (std::vector<Range>{{5, 2}}));
}

TEST(LogStream, ServerHasMoreThanWeKnow) {
    LogStream stream;  // a new agent on an old task
    stream.grow(10 * kChunk);
    drain(stream);
    stream.stored_below(7 * kChunk, 0);
    EXPECT_EQ(stream.next(), (Range{7 * kChunk, kChunk}));
}

TEST(LogStream, ServerHasMoreThanTheFileIsClamped) {
    LogStream stream;
    stream.grow(100);
    drain(stream);
    stream.stored_below(5000, 0);
    EXPECT_TRUE(stream.all_stored());
    stream.grow(120);
    EXPECT_EQ(stream.next(), (Range{100, 20}));
}

TEST(LogStream, ServerLostSome) {
    LogStream stream;
    stream.grow(4 * kChunk);
    drain(stream);
    stream.stored_below(kChunk, 0);
    drain(stream);
    stream.stored_below(3 * kChunk, 0);
    stream.restart();
    drain(stream);
    stream.stored_below(kChunk, 0);
    EXPECT_EQ(stream.next(), (Range{kChunk, kChunk}));
}

TEST(LogStream, ResendsAfterSilence) {
    LogStream stream;
    stream.grow(100);
    stream.sent(*stream.next(), 1000);
    stream.expire(1000 + LogStream::kResendUs - 1);
    EXPECT_EQ(stream.next(), std::nullopt);
    stream.expire(1000 + LogStream::kResendUs);
    EXPECT_EQ(stream.next(), (Range{0, 100}));
}

/// Whatever is lost, repeated or cut off: in the end the server holds exactly the file, and never a
/// gap is accepted.
TEST(LogStream, RandomLossesEndInTheWholeFile) {
    for (unsigned seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        LogStream stream;
        const std::uint64_t size = random() % (20 * kChunk);
        std::uint64_t file = 0;
        std::uint64_t server = 0;
        std::int64_t now_us = 0;
        for (int step = 0; step < 100'000 && !(file == size && stream.all_stored()); ++step) {
            now_us += 100'000;
            file = std::min(size, file + random() % kChunk);
            stream.grow(file);
            stream.expire(now_us);
            if (random() % 50 == 0) {
                stream.restart();
            }
            while (const auto range = stream.next()) {
                stream.sent(*range, now_us);
                ASSERT_LE(range->bytes, kChunk);
                ASSERT_LE(range->offset + range->bytes, file);
                if (random() % 10 == 0) {
                    continue;  // lost
                }
                if (range->offset <= server) {
                    server = std::max(server, range->offset + range->bytes);
                    if (random() % 10 != 0) {
                        stream.stored_below(server, now_us);
                    }
                }
            }
        }
        ASSERT_EQ(server, size) << "seed " << seed;
        ASSERT_EQ(stream.stored(), size) << "seed " << seed;
    }
}

}  // namespace
}  // namespace holdfast::agent
