// SPDX-License-Identifier: Apache-2.0
// Runs the rules on the repository itself, after showing for each rule a text that breaks it and
// one that doesn't: a rule that can never fire would be no rule.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rules.hpp"

namespace holdfast::tidy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Rule = void (*)(const std::string&, std::string_view, std::vector<Finding>&);

/// "line:rule" of each finding.
std::vector<std::string> run(Rule rule, const std::string& path, std::string_view text) {
    std::vector<Finding> found;
    rule(path, text, found);
    std::vector<std::string> short_form;
    for (const Finding& finding : found) {
        short_form.push_back(fmt::format("{}:{}", finding.line, finding.rule));
    }
    return short_form;
}

/// "file: text" of each finding.
std::vector<std::string> run(void (*rule)(const Tree&, std::vector<Finding>&), const Tree& tree) {
    std::vector<Finding> found;
    rule(tree, found);
    std::vector<std::string> short_form;
    for (const Finding& finding : found) {
        short_form.push_back(fmt::format("{}: {}", finding.file, finding.text));
    }
    return short_form;
}

TEST(Comments, AreBlankedAndLinesStay) {
    EXPECT_EQ(without_comments("a // b\nc /* d\ne */ f", false), "a     \nc     \n     f");
    EXPECT_EQ(without_comments("x = \"// no\"; // yes", false), "x = \"// no\";       ");
    EXPECT_EQ(without_comments("x = \"a\\\"b\"; y", true), "x = \"    \"; y");
    EXPECT_EQ(without_comments("R\"(a \" // b)\" + 'c'", true), "R             + ' '");
    EXPECT_EQ(without_comments("n = 1'000; // two", true), "n = 1'000;       ");
}

TEST(Layout, ColumnsCountCharacters) {
    const std::string exact(100, 'x');
    EXPECT_THAT(run(check_layout, "src/a.cpp", exact + "\n"), IsEmpty());
    EXPECT_THAT(run(check_layout, "src/a.cpp", exact + "y\n"), ElementsAre("1:columns"));
    std::string two_bytes_each;
    for (int i = 0; i < 100; ++i) {
        two_bytes_each += "\xC3\xA9";
    }
    EXPECT_THAT(run(check_layout, "src/a.cpp", two_bytes_each + "\n"), IsEmpty());
    EXPECT_THAT(run(check_layout, "a.sql", std::string(160, 'x') + "\n"), IsEmpty());
    EXPECT_THAT(run(check_layout, "a.sql", std::string(161, 'x') + "\n"), ElementsAre("1:columns"));
    EXPECT_THAT(run(check_layout, "a.md", std::string(500, 'x') + "\n"), IsEmpty());
}

TEST(Layout, SpacesTabsAndEnds) {
    EXPECT_THAT(run(check_layout, "a.md", "one \ntwo\n"), ElementsAre("1:trailing-space"));
    EXPECT_THAT(run(check_layout, "a.cpp", "\tone\n"), ElementsAre("1:tab"));
    EXPECT_THAT(run(check_layout, "a.cpp", "one\r\n"), ElementsAre("1:line-end"));
    EXPECT_THAT(run(check_layout, "a.cpp", "one"), ElementsAre("0:final-newline"));
}

TEST(LicenceLine, FirstOrAfterTheShebang) {
    const std::string line = "SPDX-License-Identifier: Apache-2.0\n";
    EXPECT_THAT(run(check_licence_line, "a.cpp", "// " + line), IsEmpty());
    EXPECT_THAT(run(check_licence_line, "a.cpp", "\n// " + line), ElementsAre("1:licence-line"));
    EXPECT_THAT(run(check_licence_line, "dev", "#!/bin/bash\n# " + line), IsEmpty());
    EXPECT_THAT(run(check_licence_line, "dev", "#!/bin/bash\n"), ElementsAre("2:licence-line"));
    EXPECT_THAT(run(check_licence_line, "x/CMakeLists.txt", "project(x)\n"),
                ElementsAre("1:licence-line"));
    EXPECT_THAT(run(check_licence_line, "README.md", "# x\n"), IsEmpty());
}

TEST(Arrows, OnlyTheModulesBelow) {
    EXPECT_THAT(run(check_arrows, "src/store/a.cpp", "#include <holdfast/env.hpp>\n"), IsEmpty());
    EXPECT_THAT(run(check_arrows, "src/store/a.cpp", "#include <holdfast/store.hpp>\n"), IsEmpty());
    EXPECT_THAT(run(check_arrows, "src/store/a.cpp", "\n#include <holdfast/services.hpp>\n"),
                ElementsAre("2:arrows"));
    EXPECT_THAT(run(check_arrows, "src/placement/a.hpp", "#include <holdfast/store.hpp>\n"),
                ElementsAre("1:arrows"));
    EXPECT_THAT(run(check_arrows, "src/placement/a.hpp", "#include \"holdfast.pb.h\"\n"),
                ElementsAre("1:arrows"));
    EXPECT_THAT(run(check_arrows, "src/cli/a.cpp", "#include <holdfast/store.hpp>\n"),
                ElementsAre("1:arrows"));
    EXPECT_THAT(run(check_arrows, "src/cli/a.cpp", "#include \"../store/rows.hpp\"\n"),
                ElementsAre("1:arrows"));
    EXPECT_THAT(run(check_arrows, "src/newcomer/a.cpp", "#include <vector>\n"),
                ElementsAre("0:arrows"));
    EXPECT_THAT(run(check_arrows, "tests/unit/cli/a.cpp", "#include <holdfast/store.hpp>\n"),
                IsEmpty());
}

TEST(BannedCalls, InTheProductAndEverywhere) {
    const std::vector<std::string> banned = {
        "auto t = std::chrono::steady_clock::now();",
        "auto t = system_clock::now();",
        "std::this_thread::sleep_for(1ms);",
        "usleep(10);",
        "std::random_device device;",
        "const char* home = std::getenv(\"HOME\");",
        "clock_gettime(CLOCK_REALTIME, &now);",
        "thread.detach();",
    };
    for (const std::string& line : banned) {
        EXPECT_THAT(run(check_banned_calls, "src/server/a.cpp", line), ElementsAre("1:banned-call"))
            << line;
        EXPECT_THAT(run(check_banned_calls, "src/base/a.cpp", line), IsEmpty()) << line;
        EXPECT_THAT(run(check_banned_calls, "tests/a.cpp", line), IsEmpty()) << line;
        EXPECT_THAT(run(check_banned_calls, "src/server/a.cpp", "// " + line), IsEmpty()) << line;
    }
    const std::vector<std::string> nowhere = {
        "std::system(text);", "system(\"ls\");",       "popen(text, \"r\");",
        "strcpy(to, from);",  "strcat(to, from);",     "sprintf(to, \"%d\");",
        "int x = rand();",    "tm* now = gmtime(&t);", "strtok(text, \",\");"};
    for (const std::string& line : nowhere) {
        EXPECT_THAT(run(check_banned_calls, "src/base/a.cpp", line), ElementsAre("1:banned-call"))
            << line;
        EXPECT_THAT(run(check_banned_calls, "tests/a.cpp", line), ElementsAre("1:banned-call"))
            << line;
    }
}

TEST(BannedCalls, WordsInsideOthersAreFree) {
    EXPECT_THAT(run(check_banned_calls, "src/server/a.cpp",
                    "file_system(x); subsystem(x); system(core), operand(y); gmtime_r(&t, &out); "
                    "\"system(x)\""),
                IsEmpty());
}

TEST(Marks, OfUnfinishedWorkAndOfMachines) {
    EXPECT_THAT(run(check_marks, "src/a.cpp", "x\n// TODO: later\n"), ElementsAre("2:mark"));
    EXPECT_THAT(run(check_marks, "docs/a.md", "FIXME\n"), ElementsAre("1:mark"));
    EXPECT_THAT(run(check_marks, "docs/a.md", "XXX\n"), ElementsAre("1:mark"));
    EXPECT_THAT(run(check_marks, "docs/a.md", "XXXX, todos\n"), IsEmpty());
    EXPECT_THAT(run(check_marks, "docs/a.md", "see /root/x\n"), ElementsAre("1:machine-path"));
    EXPECT_THAT(run(check_marks, "docs/a.md", "in frame/work/x and ./root/x\n"), IsEmpty());
}

TEST(HeaderSize, ThreeHundredLines) {
    std::string text;
    for (int i = 0; i < 300; ++i) {
        text += "x\n";
    }
    EXPECT_THAT(run(check_header_size, "include/holdfast/a.hpp", text), IsEmpty());
    EXPECT_THAT(run(check_header_size, "include/holdfast/a.hpp", text + "x\n"),
                ElementsAre("0:header-size"));
    EXPECT_THAT(run(check_header_size, "src/base/a.hpp", text + "x\n"), IsEmpty());
}

TEST(TestsRegistered, FolderAndFile) {
    Tree tree = {
        {"tests/CMakeLists.txt", "foreach(part store)"},
        {"tests/unit/store/CMakeLists.txt", "holdfast_test(store_test SOURCES a_test.cpp)"},
        {"tests/unit/store/a_test.cpp", ""},
    };
    EXPECT_THAT(run(check_tests_registered, tree), IsEmpty());
    tree["tests/unit/store/b_test.cpp"] = "";
    tree["tests/unit/cli/c_test.cpp"] = "";
    EXPECT_THAT(
        run(check_tests_registered, tree),
        ElementsAre("tests/CMakeLists.txt: tests/unit/cli is not added",
                    "tests/unit/cli/c_test.cpp: not named by a CMakeLists.txt under tests/unit/cli",
                    "tests/unit/store/b_test.cpp: not named by a CMakeLists.txt under "
                    "tests/unit/store"));
}

TEST(ErrorCodes, BothDirectionsAndTheStatus) {
    Tree tree = {
        {"include/holdfast/error_codes.def",
         "// x\nHOLD_ERROR(failed, 1000, 1, 2)  // y\nHOLD_ERROR(denied, 1003, 4, 7)\n"},
        {"docs/users/exit-codes.md",
         "| `0` | fine |\n| `failed` | 1 | any |\n| `denied` | 4 | no |\n"},
    };
    EXPECT_THAT(run(check_error_codes, tree), IsEmpty());
    tree["docs/users/exit-codes.md"] = "| `failed` | 2 | any |\n| `lost` | 4 | no |\n";
    EXPECT_THAT(run(check_error_codes, tree),
                ElementsAre("docs/users/exit-codes.md: `denied` is not documented",
                            "docs/users/exit-codes.md: `failed`: the document says '2', the code "
                            "'1'",
                            "docs/users/exit-codes.md: `lost` is not in the code"));
}

TEST(Events, BothDirectionsAndTheLevel) {
    Tree tree = {
        {"src/server/a.cpp",
         "HOLD_EVENT(info, \"node_up\", {\"node\", n});\n// HOLD_EVENT(info, \"not_this\")\n"
         "    HOLD_EVENT(\n        warn, \"node_lost\");\n"},
        {"docs/operators/events.md", "| `node_up` | info | x |\n| `node_lost` | warn | x |\n"},
    };
    EXPECT_THAT(run(check_events, tree), IsEmpty());
    tree["docs/operators/events.md"] = "| `node_up` | warn | x |\n| `node_gone` | warn | x |\n";
    EXPECT_THAT(run(check_events, tree),
                ElementsAre("docs/operators/events.md: `node_lost` is not documented",
                            "docs/operators/events.md: `node_up`: the document says 'warn', the "
                            "code 'info'",
                            "docs/operators/events.md: `node_gone` is not in the code"));
}

TEST(MetricNames, BothDirectionsAndTheKind) {
    Tree tree = {
        {"src/store/a.cpp",
         "Metrics::global().counter(\n  \"holdfast_store_commits_total\", \"x\")"},
        {"docs/operators/metrics.md", "| `holdfast_store_commits_total` | counter | x |\n"},
    };
    EXPECT_THAT(run(check_metrics, tree), IsEmpty());
    tree["docs/operators/metrics.md"] = "";
    EXPECT_THAT(run(check_metrics, tree),
                ElementsAre("docs/operators/metrics.md: `holdfast_store_commits_total` is not "
                            "documented"));
}

TEST(Promises, NameTestsThatExist) {
    Tree tree = {
        {"tests/unit/store/a_test.cpp", "TEST(Store, LosesNothing) {\nTEST_F(Crash, Kill) {\n"},
        {"SPECIFICATION.md",
         "| S-1 | no loss | `Store.LosesNothing`, `Crash.Kill` |\n| S-2 | quick | [untested] |\n"},
    };
    EXPECT_THAT(run(check_promises, tree), IsEmpty());
    tree["SPECIFICATION.md"] =
        "| S-1 | no loss | `Store.Lost` |\n| S-1 | quick | [untested] |\n| S-3 | x | y |\n";
    EXPECT_THAT(run(check_promises, tree),
                ElementsAre("SPECIFICATION.md: there is no test Store.Lost",
                            "SPECIFICATION.md: S-1 stands twice",
                            "SPECIFICATION.md: names no test and is not [untested]"));
}

TEST(Links, LeadSomewhere) {
    const Tree tree = {
        {"README.md", "[a](docs/a.md) [b](docs) [c](https://example.org/x) [d](gone.md)"},
        {"docs/a.md", "[up](../README.md#top) [side](b.md)"},
    };
    EXPECT_THAT(run(check_links, tree),
                ElementsAre("README.md: leads nowhere: gone.md", "docs/a.md: leads nowhere: b.md"));
}

// -------------------------------------------------------------------------------------------------

bool is_text(const fs::path& file) {
    static const std::set<std::string> endings = {".cpp",  ".hpp",   ".def", ".md",
                                                  ".txt",  ".cmake", ".sql", ".proto",
                                                  ".json", ".yaml",  ".sh",  ".supp"};
    static const std::set<std::string> names = {"dev",           "run",         "NOTICE",
                                                ".clang-format", ".clang-tidy", ".gitignore"};
    return endings.contains(file.extension()) || names.contains(file.filename());
}

Tree read_repository(const fs::path& root) {
    static const std::set<std::string> parts = {".ci",     "api",    "bench", "cmake", "docs",
                                                "include", "schema", "src",   "tests", "tools"};
    Tree tree;
    const auto add = [&](const fs::path& file) {
        std::ifstream in(file, std::ios::binary);
        tree.emplace(fs::relative(file, root).generic_string(),
                     std::string(std::istreambuf_iterator<char>(in), {}));
    };
    for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
        if (entry.is_regular_file()) {
            if (is_text(entry.path())) {
                add(entry.path());
            } else if (entry.path().filename() == "LICENSE") {
                tree.emplace("LICENSE", "");  // theirs, not ours to lay out
            }
        } else if (entry.is_directory() && parts.contains(entry.path().filename())) {
            for (const auto& inner : fs::recursive_directory_iterator(entry)) {
                const bool is_corpus = inner.path().string().find("/corpus/") != std::string::npos;
                if (inner.is_regular_file() && is_text(inner.path()) && !is_corpus) {
                    add(inner.path());
                }
            }
        }
    }
    return tree;
}

TEST(Repository, KeepsTheRules) {
    const Tree tree = read_repository(HOLDFAST_SOURCE_DIR);
    ASSERT_TRUE(tree.contains("include/holdfast/error_codes.def")) << "wrong folder?";
    std::string report;
    for (const Finding& finding : check_all(tree)) {
        report +=
            fmt::format("{}:{}: {}: {}\n", finding.file, finding.line, finding.rule, finding.text);
    }
    if (!report.empty()) {
        ADD_FAILURE() << report;
    }
}

}  // namespace
}  // namespace holdfast::tidy
