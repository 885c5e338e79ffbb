// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <holdfast/env.hpp>
#include <holdfast/log.hpp>

namespace holdfast {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

/// Events go to a file of our own and never to the test's output.
class LogTest : public testing::Test {
  protected:
    LogTest() : path_(testing::TempDir() + "/holdfast_log_" + std::to_string(getpid())) {
        configure(LogFormat::json, Level::info);
    }

    ~LogTest() override {
        EXPECT_TRUE(configure_logging({}));
        std::filesystem::remove(path_);
    }

    void configure(LogFormat format, Level level) {
        EXPECT_TRUE(configure_logging(
            {.level = level, .format = format, .file = path_, .program = "test"}));
    }

    [[nodiscard]] std::vector<std::string> lines() const {
        std::vector<std::string> found;
        std::istringstream text(real_env().files.read_file(path_, 10'000'000).value());
        for (std::string line; std::getline(text, line);) {
            found.push_back(line);
        }
        return found;
    }

    std::string path_;
};

TEST_F(LogTest, AnEventIsOneJsonObject) {
    HOLD_EVENT(info, "placement_committed", {"job", JobId(42)}, {"node", "n1"}, {"ok", true},
               {"solve_us", std::uint64_t{7}}, {"share", 0.5}, {"left", -3},
               {"token", Secret("hunter2")});
    ASSERT_EQ(lines().size(), 1U);
    json event = json::parse(lines()[0]);
    EXPECT_EQ(event["time"].get<std::string>().size(), 27U);
    event.erase("time");
    EXPECT_EQ(event, json::parse(R"({"level":"info","event":"placement_committed","program":"test",
        "job":42,"node":"n1","ok":true,"solve_us":7,"share":0.5,"left":-3,"token":"***"})"));
}

TEST_F(LogTest, HostileTextStaysOneValidLine) {
    const std::string hostile = "a\"b\\c\n\r\x01\xff\xc3(\xed\xa0\x80 é \xf0\x9f\x99\x82";
    HOLD_EVENT(warn, "odd", {"text", hostile}, {"nan", std::numeric_limits<double>::quiet_NaN()});
    ASSERT_EQ(lines().size(), 1U);
    const json event = json::parse(lines()[0]);
    const std::string text = event["text"];
    EXPECT_THAT(text, HasSubstr("a\"b\\c\n\r\x01"));
    EXPECT_THAT(text, HasSubstr(" é \xf0\x9f\x99\x82"));
    EXPECT_TRUE(event["nan"].is_null());
}

TEST_F(LogTest, FieldsAndEventsAreCut) {
    const std::string big(100'000, 'x');
    HOLD_EVENT(info, "big", {"a", big}, {"b", big}, {"c", big}, {"d", big}, {"e", big}, {"f", big},
               {"g", big}, {"h", big}, {"i", big});
    ASSERT_EQ(lines().size(), 1U);
    EXPECT_LE(lines()[0].size(), 4096U);
    const json event = json::parse(lines()[0]);
    EXPECT_EQ(event["a"].get<std::string>(), std::string(512, 'x') + "…");
    EXPECT_EQ(event["truncated"], true);
    EXPECT_FALSE(event.contains("i"));
}

TEST_F(LogTest, LevelsAreKept) {
    int evaluated = 0;
    const auto count = [&] { return ++evaluated; };
    HOLD_EVENT(debug, "unseen", {"n", count()});
    EXPECT_EQ(evaluated, 0);
    set_log_level(Level::debug);
    HOLD_EVENT(debug, "seen", {"n", count()});
    EXPECT_EQ(evaluated, 1);
    EXPECT_EQ(lines().size(), 1U);
    EXPECT_EQ(level_from("warn").value(), Level::warn);
    EXPECT_EQ(level_from("loud").error().message,
              "log level loud: expected debug, info, warn, error or off");
}

TEST_F(LogTest, PeopleGetReadableLines) {
    configure(LogFormat::human, Level::info);
    HOLD_EVENT(info, "node_up", {"node", "n1"}, {"why", "it said so"}, {"cpus", 8});
    ASSERT_EQ(lines().size(), 1U);
    EXPECT_EQ(lines()[0].substr(13), "info  node_up node=n1 why=\"it said so\" cpus=8");
}

TEST_F(LogTest, AFloodOfOneNameIsHeldBackAndCounted) {
    for (int event = 0; event < 5'000; ++event) {
        HOLD_EVENT(info, "flood", {"n", event});
    }
    real_env().clock.sleep_us(kSecondUs);
    HOLD_EVENT(info, "flood", {"n", -1});
    const auto all = lines();
    std::uint64_t written = 0;
    std::uint64_t suppressed = 0;
    for (const std::string& line : all) {
        const json event = json::parse(line);
        written += event["event"] == "flood" ? 1 : 0;
        suppressed +=
            event["event"] == "events_suppressed" ? event["count"].get<std::uint64_t>() : 0;
    }
    EXPECT_GT(suppressed, 0U);
    EXPECT_EQ(written + suppressed, 5'001U);  // none is lost uncounted
    EXPECT_EQ(json::parse(all.back())["n"], -1);
}

TEST_F(LogTest, ErrorsAreRecordedForTests) {
    const std::uint64_t before = error_events_logged();
    const LogRecorder recorder;
    set_log_level(Level::off);
    HOLD_EVENT(error, "disk_failed", {"path", "/x"});
    HOLD_EVENT(info, "fine");
    EXPECT_EQ(error_events_logged(), before + 1);
    ASSERT_EQ(recorder.errors().size(), 1U);
    EXPECT_EQ(recorder.errors()[0].name, "disk_failed");
    EXPECT_EQ(recorder.events().size(), 2U);
    EXPECT_EQ(json::parse(recorder.errors()[0].json)["path"], "/x");
    EXPECT_TRUE(lines().empty());
}

TEST_F(LogTest, ManyThreadsWriteWholeLines) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([thread] {
            for (int event = 0; event < 40; ++event) {
                HOLD_EVENT(info, "from_thread", {"thread", thread}, {"n", event});
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    const auto all = lines();
    EXPECT_EQ(all.size(), 160U);
    for (const std::string& line : all) {
        EXPECT_EQ(json::parse(line)["event"], "from_thread");
    }
}

TEST(Log, AFileThatCannotBeOpenedIsAnError) {
    const auto done = configure_logging({.file = "/proc/no/such/file"});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, Errc::invalid_argument);
    EXPECT_THAT(done.error().message, HasSubstr("/proc/no/such/file"));
}

}  // namespace
}  // namespace holdfast
