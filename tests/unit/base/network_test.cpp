// SPDX-License-Identifier: Apache-2.0
/// Streams of the machine: TCP over loopback and unix sockets.
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include <holdfast/env.hpp>

namespace holdfast {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

std::string read_text(Connection& connection, std::size_t bytes) {
    std::string text(bytes, '\0');
    const auto done = connection.read_all(std::as_writable_bytes(std::span(text)), 5 * kSecondUs);
    EXPECT_TRUE(done) << done.error().describe();
    return text;
}

class StreamTest : public testing::TestWithParam<bool> {
  protected:
    StreamTest() {
        std::string pattern = testing::TempDir() + "/holdfast_net_XXXXXX";
        folder_ = mkdtemp(pattern.data());
        const std::string address = GetParam() ? "unix:" + folder_ + "/s" : "tcp:127.0.0.1:0";
        listener_ = real_env().network.listen(address).value();
        client_ = real_env().network.connect(listener_->address(), 5 * kSecondUs).value();
        server_ = listener_->accept(5 * kSecondUs).value();
    }

    ~StreamTest() override {
        listener_.reset();
        std::filesystem::remove_all(folder_);
    }

    std::string folder_;
    std::unique_ptr<Listener> listener_;
    std::unique_ptr<Connection> client_;
    std::unique_ptr<Connection> server_;
};

TEST_P(StreamTest, BytesGoBothWaysAndEnd) {
    ASSERT_TRUE(client_->write_all(bytes_of("ping"), kSecondUs));
    EXPECT_EQ(read_text(*server_, 4), "ping");
    client_->shutdown_write();
    std::byte byte{};
    EXPECT_EQ(server_->read_some(std::span(&byte, 1), kSecondUs).value(), 0U);
    ASSERT_TRUE(server_->write_all(bytes_of("pong"), kSecondUs));
    EXPECT_EQ(read_text(*client_, 4), "pong");
}

TEST_P(StreamTest, WaitsHaveADeadline) {
    std::byte byte{};
    EXPECT_EQ(server_->read_some(std::span(&byte, 1), 0).error().code, Errc::timed_out);
    EXPECT_EQ(server_->read_some(std::span(&byte, 1), 2'000).error().code, Errc::timed_out);
    const std::string big(64U << 20, 'x');
    const auto written = client_->write_all(bytes_of(big), 20'000);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Errc::timed_out);
    EXPECT_TRUE(written.error().retryable);
}

TEST_P(StreamTest, BigMessagesArriveWhole) {
    std::string big(3'000'000, 'a');
    big[2'999'999] = 'z';
    std::thread writer([&] { EXPECT_TRUE(client_->write_all(bytes_of(big), 5 * kSecondUs)); });
    EXPECT_EQ(read_text(*server_, big.size()), big);
    writer.join();
}

TEST_P(StreamTest, CloseWakesAReader) {
    std::thread closer([&] {
        real_env().clock.sleep_us(5'000);
        server_->close();
    });
    std::byte byte{};
    EXPECT_EQ(server_->read_some(std::span(&byte, 1), kNoLimit).error().code, Errc::cancelled);
    closer.join();
    EXPECT_EQ(server_->write_all(bytes_of("x"), kSecondUs).error().code, Errc::cancelled);
}

TEST_P(StreamTest, APeerThatIsGoneIsNoticed) {
    server_.reset();
    std::byte byte{};
    EXPECT_EQ(client_->read_some(std::span(&byte, 1), kSecondUs).value(), 0U);
    Result<> written;
    for (int attempt = 0; written && attempt < 100; ++attempt) {
        written = client_->write_all(bytes_of("x"), kSecondUs);
    }
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Errc::peer_lost);
    std::array<std::byte, 4> more{};
    EXPECT_EQ(client_->read_all(more, kSecondUs).error().code, Errc::peer_lost);
}

TEST_P(StreamTest, CloseWakesAnAcceptor) {
    std::thread closer([&] {
        real_env().clock.sleep_us(5'000);
        listener_->close();
    });
    EXPECT_EQ(listener_->accept(kNoLimit).error().code, Errc::cancelled);
    closer.join();
    EXPECT_EQ(listener_->accept(0).error().code, Errc::cancelled);
}

INSTANTIATE_TEST_SUITE_P(Both, StreamTest, testing::Values(false, true),
                         [](const auto& kind) { return kind.param ? "Unix" : "Tcp"; });

TEST(RealNetwork, BadAddressesAreNamed) {
    Network& network = real_env().network;
    for (const std::string address :
         {"", "tcp:", "tcp:host", "tcp::1", "tcp:127.0.0.1:", "tcp:127.0.0.1:65536",
          "tcp:127.0.0.1:1x", "http://x", "unix:"}) {
        EXPECT_EQ(network.listen(address).error().code, Errc::invalid_argument) << address;
        EXPECT_EQ(network.connect(address, 0).error().code, Errc::invalid_argument) << address;
    }
    EXPECT_EQ(network.listen("unix:/" + std::string(200, 'x')).error().code,
              Errc::invalid_argument);
}

TEST(RealNetwork, NobodyListensOrTwoDo) {
    Network& network = real_env().network;
    auto listener = network.listen("tcp:127.0.0.1:0").value();
    const std::string address = listener->address();
    EXPECT_EQ(network.listen(address).error().code, Errc::conflict);
    listener.reset();
    const auto refused = network.connect(address, kSecondUs);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::unavailable);
    EXPECT_TRUE(refused.error().retryable);
}

TEST(RealNetwork, ADeadUnixSocketIsReplacedALiveOneIsNot) {
    std::string pattern = testing::TempDir() + "/holdfast_unix_XXXXXX";
    const std::string folder = mkdtemp(pattern.data());
    const std::string address = "unix:" + folder + "/s";
    Network& network = real_env().network;
    auto listener = network.listen(address).value();
    EXPECT_EQ(network.listen(address).error().code, Errc::conflict);
    std::filesystem::create_hard_link(folder + "/s", folder + "/kept");
    listener.reset();
    std::filesystem::rename(folder + "/kept", folder + "/s");  // as a killed process leaves it
    EXPECT_TRUE(network.listen(address));
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace holdfast
