// SPDX-License-Identifier: Apache-2.0
// Goal: the small languages of the command line mean what Slurm's users expect, and refuse the
// rest. Method: tables of text and exact value or exact message.
#include "text.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace holdfast::cli {
namespace {

TEST(Text, TimeLimitsAreSlurms) {
    const std::vector<std::pair<std::string, std::int64_t>> cases = {
        {"30", 1800},
        {"1:30", 90},
        {"4:00:00", 14'400},
        {"2-12", 216'000},
        {"2-12:30", 217'800},
        {"2-00:00:00", 172'800},
        {"90s", 90},
        {"30m", 1800},
        {"4h", 14'400},
        {"2d", 172'800},
        {"2D", 172'800},
        {"unlimited", 0},
        {"INFINITE", 0},
        {"0", 0},
        {"3650-00:00:00", 315'360'000},
    };
    for (const auto& [text, seconds] : cases) {
        const auto parsed = parse_time_limit(text);
        ASSERT_TRUE(parsed.has_value()) << text << ": " << parsed.error().message;
        EXPECT_EQ(*parsed, seconds) << text;
    }
}

TEST(Text, OtherTimesAreRefused) {
    for (const std::string text :
         {"", "-", "1-", "-1", "1:2:3:4", "1-2:3:4:5", "soon", "3x", "1.5h", "h", ":", "1:", "+3",
          " 3", "99999999999999999999", "3651-00:00:00", "1--2"}) {
        EXPECT_FALSE(parse_time_limit(text).has_value()) << text;
    }
    EXPECT_EQ(parse_time_limit("soon").error().message, "`soon` is not a time");
}

TEST(Text, MemorySizes) {
    const std::vector<std::pair<std::string, std::int64_t>> cases = {
        {"1", std::int64_t{1} << 20},
        {"4096", std::int64_t{4096} << 20},
        {"1K", 1024},
        {"512M", std::int64_t{512} << 20},
        {"200G", std::int64_t{200} << 30},
        {"200GB", std::int64_t{200} << 30},
        {"200GiB", std::int64_t{200} << 30},
        {"1t", std::int64_t{1} << 40},
    };
    for (const auto& [text, bytes] : cases) {
        const auto parsed = parse_memory(text);
        ASSERT_TRUE(parsed.has_value()) << text << ": " << parsed.error().message;
        EXPECT_EQ(*parsed, bytes) << text;
    }
    for (const std::string text :
         {"", "G", "1.5G", "-1G", "1P", "1 G", "B", "1B", "99999T", "1GG"}) {
        EXPECT_FALSE(parse_memory(text).has_value()) << text;
    }
    EXPECT_EQ(parse_memory("0").error().code, Errc::unsupported);
}

TEST(Text, Gpus) {
    EXPECT_EQ(*parse_gpus("8"), (Gpus{.count = 8, .type = ""}));
    EXPECT_EQ(*parse_gpus("h100:8"), (Gpus{.count = 8, .type = "h100"}));
    EXPECT_EQ(*parse_gpus("H100:0"), (Gpus{.count = 0, .type = "h100"}));
    for (const std::string text :
         {"", ":", ":8", "h100:", "h100", "h 1:2", "8:h100", "-1", "1e3"}) {
        EXPECT_FALSE(parse_gpus(text).has_value()) << text;
    }
    EXPECT_EQ(parse_gpus("h100").error().describe(),
              "`h100` is not a number of GPUs; write 8, or TYPE:N such as h100:8");
}

TEST(Text, Arrays) {
    const auto list = parse_array("1,3,5-7");
    ASSERT_TRUE(list.has_value());
    EXPECT_EQ(list->indices, (std::vector<std::int32_t>{1, 3, 5, 6, 7}));
    EXPECT_EQ(list->at_once, 0);
    const auto limited = parse_array("0-9%4");
    ASSERT_TRUE(limited.has_value());
    EXPECT_EQ(limited->indices.size(), 10U);
    EXPECT_EQ(limited->at_once, 4);
    EXPECT_EQ(parse_array("0-15:4")->indices, (std::vector<std::int32_t>{0, 4, 8, 12}));
    EXPECT_EQ(parse_array("5,1")->indices, (std::vector<std::int32_t>{1, 5}));
    for (const std::string text : {"", "a", "3-1", "1,,2", "1-", "-1", "0-9%0", "0-9%", "0-9%x",
                                   "3:2", "0-9:0", "0-4000001", "1-2-3"}) {
        EXPECT_FALSE(parse_array(text).has_value()) << text;
    }
    EXPECT_EQ(parse_array("1,0-3").error().message, "array `1,0-3` names index 1 twice");
    EXPECT_EQ(parse_array("0-10000").error().message,
              "array `0-10000` has more than 10000 elements");
    EXPECT_EQ(parse_array("0-9%0").error().message,
              "array `0-9%0`: the limit after % is not a number from 1 to 10000");
}

TEST(Text, HostListsInBothDirections) {
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
        {{}, ""},
        {{"n1"}, "n1"},
        {{"n01", "n02", "n03"}, "n[01-03]"},
        {{"n01", "n02", "n12"}, "n[01-02,12]"},
        {{"n8", "n9", "n10"}, "n[8-10]"},
        {{"n08", "n09", "n10"}, "n[08-10]"},
        {{"a1", "b1"}, "a1,b1"},
        {{"rack1-n1-ib", "rack1-n2-ib"}, "rack1-n[1-2]-ib"},
        {{"head", "n1", "n2"}, "head,n[1-2]"},
        {{"n1", "n01"}, "n[01,1]"},
    };
    for (const auto& [names, text] : cases) {
        EXPECT_EQ(compress_hosts(names), text);
        if (!text.empty()) {
            const auto back = expand_hosts(text);
            ASSERT_TRUE(back.has_value()) << text;
            EXPECT_EQ(compress_hosts(*back), text);
            EXPECT_EQ(back->size(), names.size());
        }
    }
    EXPECT_EQ(compress_hosts({"n2", "n1", "n2"}), "n[1-2]");
}

TEST(Text, BadHostListsAreRefused) {
    for (const std::string text : {"", ",", "n[", "n[1", "n]1[", "n[2-1]", "n[a]", "n[1,]", "n 1",
                                   "n1,,n2", "n[1-2", "n[1]x[2]", "n[0000000000001]", "é1"}) {
        EXPECT_FALSE(expand_hosts(text).has_value()) << text;
    }
    EXPECT_EQ(expand_hosts("n[1-10001]").error().code, Errc::too_large);
}

TEST(Text, ElapsedTimesAreSqueues) {
    EXPECT_EQ(format_elapsed(-5), "0:00");
    EXPECT_EQ(format_elapsed(5'000'000), "0:05");
    EXPECT_EQ(format_elapsed(65'900'000), "1:05");
    EXPECT_EQ(format_elapsed(3'723'000'000), "1:02:03");
    EXPECT_EQ(format_elapsed(183'845'000'000), "2-03:04:05");
}

TEST(Text, SuggestionsAreNear) {
    const std::vector<std::string> words = {"jobs", "nodes", "submit", "cancel", "sql"};
    EXPECT_EQ(did_you_mean("jbos", words), "did you mean `jobs`?");
    EXPECT_EQ(did_you_mean("sumbit", words), "did you mean `submit`?");
    EXPECT_EQ(did_you_mean("Nodes", words), "did you mean `nodes`?");
    EXPECT_EQ(did_you_mean("elephant", words), "");
    EXPECT_EQ(did_you_mean("", words), "");
}

TEST(Text, ControlCharactersNeverReachATerminal) {
    EXPECT_EQ(printable("a\x1b[31mb\n"), "a\\x1b[31mb\\x0a");
    EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");
    EXPECT_EQ(printable("é→"), "é→");
    EXPECT_EQ(printable("\xff"), "\\xff");
    EXPECT_EQ(display_width("é→a"), 3U);
}

TEST(Text, Utf8IsCheckedStrictly) {
    EXPECT_TRUE(is_utf8("aé→🙂"));
    for (const std::string text :
         {"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xc3", "\xff"}) {
        EXPECT_FALSE(is_utf8(text));
    }
}

TEST(Text, ShellWords) {
    EXPECT_EQ(shell_quote("train.py"), "train.py");
    EXPECT_EQ(shell_quote(""), "''");
    EXPECT_EQ(shell_quote("it's $HOME"), "'it'\\''s $HOME'");
}

}  // namespace
}  // namespace holdfast::cli
