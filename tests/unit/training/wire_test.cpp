// SPDX-License-Identifier: Apache-2.0
// Frames and proofs. Random bytes are tests/fuzz/training_frames.
#include "wire.hpp"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "crc32c.hpp"
#include "crypto.hpp"

namespace holdfast::training {
namespace {

Bytes bytes_of(std::string_view text) {
    const auto raw = std::as_bytes(std::span(text.data(), text.size()));
    return {raw.begin(), raw.end()};
}

Frame sample() {
    Frame frame;
    frame.type = FrameType::gradient;
    frame.epoch = 7;
    frame.iteration = 1LL << 40;
    frame.source = {255, 63};
    frame.target = {0, 1};
    frame.op = {OpKind::backward, 3, 1023};
    frame.op_stage = 1;
    frame.payload = bytes_of("payload");
    return frame;
}

/// Recomputes the header's checksum after a change.
void reseal(Bytes& bytes) {
    const std::uint32_t crc = crc32c(ByteView(bytes).first(kHeaderBytes - 4));
    std::memcpy(bytes.data() + kHeaderBytes - 4, &crc, sizeof crc);
}

TEST(Crc32c, KnownValuesAndBothImplementations) {
    EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);  // the check value of the standard
    EXPECT_EQ(crc32c({}), 0U);
    std::mt19937_64 random(1);
    for (std::size_t size = 0; size < 200; ++size) {
        Bytes bytes(size);
        for (std::byte& byte : bytes) {
            byte = static_cast<std::byte>(random());
        }
        EXPECT_EQ(crc32c(bytes), crc32c_portable(bytes)) << size;
    }
}

TEST(Wire, AFrameArrivesWholeHoweverItIsCut) {
    Bytes bytes = encode(sample());
    Frame empty = sample();
    empty.payload.clear();
    put_bytes(bytes, encode(empty));
    for (std::size_t cut = 1; cut <= bytes.size(); ++cut) {
        FrameParser parser(1024);
        for (std::size_t at = 0; at < bytes.size(); at += cut) {
            ASSERT_TRUE(parser.feed(ByteView(bytes).subspan(at, std::min(cut, bytes.size() - at))));
        }
        EXPECT_EQ(parser.next(), sample());
        EXPECT_EQ(parser.next(), empty);
        EXPECT_EQ(parser.next(), std::nullopt);
    }
}

TEST(Wire, EveryChangedByteIsFound) {
    const Bytes good = encode(sample());
    for (std::size_t at = 0; at < good.size(); ++at) {
        for (const int flip : {0x01, 0x80, 0xFF}) {
            Bytes bad = good;
            bad[at] ^= static_cast<std::byte>(flip);
            FrameParser parser(1024);
            EXPECT_FALSE(parser.feed(bad)) << "byte " << at;
            EXPECT_EQ(parser.next(), std::nullopt);
        }
    }
}

TEST(Wire, ALengthIsCheckedBeforeItIsBelieved) {
    Bytes bytes = encode(sample());
    const std::uint64_t huge = ~std::uint64_t{0};
    std::memcpy(bytes.data() + 40, &huge, sizeof huge);
    reseal(bytes);
    FrameParser parser(1024);
    const auto fed = parser.feed(bytes);
    ASSERT_FALSE(fed);
    EXPECT_EQ(fed.error().code, Errc::too_large);
}

TEST(Wire, WellSealedNonsenseIsRefused) {
    struct Case {
        std::size_t at;
        std::uint16_t value;
    };

    for (const Case& each : {Case{4, 2}, Case{6, 0}, Case{6, 9}, Case{14, 0x8000}, Case{22, 0x8000},
                             Case{24, 256}, Case{26, 64}, Case{28, 256}, Case{32, 256},
                             Case{34, 64}, Case{36, 1024}, Case{38, 2}, Case{52, 1}}) {
        Bytes bytes = encode(sample());
        std::memcpy(bytes.data() + each.at, &each.value, sizeof each.value);
        reseal(bytes);
        FrameParser parser(1024);
        const auto fed = parser.feed(bytes);
        ASSERT_FALSE(fed) << "offset " << each.at;
        EXPECT_EQ(fed.error().code, Errc::wire_corrupt);
    }
}

TEST(Wire, ProofsDependOnEverything) {
    const Introduction base{3, {1, 2}, {0, 2}, std::string(32, 'a'), std::string(32, 'b')};
    const std::string key(32, 'k');
    std::set<std::string> proofs{dialler_proof(base, key), acceptor_proof(base, key),
                                 dialler_proof(base, std::string(32, 'x'))};
    for (int i = 0; i < 5; ++i) {
        Introduction other = base;
        other.epoch += i == 0 ? 1 : 0;
        other.dialler.pipeline += i == 1 ? 1 : 0;
        other.acceptor.stage += i == 2 ? 1 : 0;
        other.dialler_nonce[0] = i == 3 ? 'z' : 'a';
        other.acceptor_nonce[0] = i == 4 ? 'z' : 'b';
        proofs.insert(dialler_proof(other, key));
    }
    EXPECT_EQ(proofs.size(), 8U);
}

// RFC 4231, test case 2.
TEST(Crypto, KnownAnswers) {
    const std::string mac = hmac_sha256("Jefe", "what do ya want for nothing?");
    EXPECT_EQ(static_cast<unsigned char>(mac[0]), 0x5b);
    EXPECT_EQ(static_cast<unsigned char>(mac[31]), 0x43);
    EXPECT_EQ(sha256_hex("abc"),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_TRUE(equal_in_constant_time("ab", "ab"));
    EXPECT_FALSE(equal_in_constant_time("ab", "ac"));
    EXPECT_FALSE(equal_in_constant_time("ab", "abc"));
}

TEST(Bytes, ReaderStopsAtTheEnd) {
    Bytes bytes;
    put<std::uint64_t>(bytes, ~std::uint64_t{0});  // a length nothing can have
    ByteReader reader(bytes);
    const auto blob = reader.take_blob();
    ASSERT_FALSE(blob);
    EXPECT_EQ(blob.error().code, Errc::wire_corrupt);
}

}  // namespace
}  // namespace holdfast::training
