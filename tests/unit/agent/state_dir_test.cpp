// SPDX-License-Identifier: Apache-2.0
#include "state_dir.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

namespace fs = std::filesystem;

class StateDirTest : public testing::Test {
  protected:
    StateDirTest() {
        char name[] = "/tmp/holdfast_state_XXXXXX";
        base = ::mkdtemp(name);
    }

    ~StateDirTest() override { fs::remove_all(base); }

    [[nodiscard]] mode_t mode_of(const fs::path& path) const {
        struct stat facts = {};
        EXPECT_EQ(::stat(path.c_str(), &facts), 0) << path;
        return facts.st_mode & 07777;
    }

    fs::path base;
};

TEST(TaskFolderName, RoundTripAndNothingElse) {
    std::int64_t task = 0;
    std::int64_t lease = 0;
    EXPECT_TRUE(task_and_lease_of(folder_name(17, 42), task, lease));
    EXPECT_EQ(task, 17);
    EXPECT_EQ(lease, 42);
    for (const char* const bad : {"", "-", "17", "17-", "-42", "17-42x", "017-42", "17-042", "0-1",
                                  "1-0", "+1-2", "17--2", "17-42-3", "../1-2"}) {
        EXPECT_FALSE(task_and_lease_of(bad, task, lease)) << bad;
    }
}

TEST_F(StateDirTest, OneAgentAtATime) {
    auto first = StateDir::open(base / "state", real_env());
    ASSERT_TRUE(first) << first.error().message;
    const auto second = StateDir::open(base / "state", real_env());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Errc::store_locked);
    EXPECT_NE(second.error().message.find("another agent runs on the state directory"),
              std::string::npos);
    first->reset();
    EXPECT_TRUE(StateDir::open(base / "state", real_env()));
}

TEST_F(StateDirTest, RefusesWhereOthersWrite) {
    fs::create_directory(base / "open");
    ASSERT_EQ(::chmod((base / "open").c_str(), 0777), 0);
    const auto state = StateDir::open(base / "open", real_env());
    ASSERT_FALSE(state);
    EXPECT_EQ(state.error().code, Errc::denied);
}

TEST_F(StateDirTest, ModesLetUsersThroughAndNotIn) {
    const auto state = StateDir::open(base / "state", real_env());
    ASSERT_TRUE(state);
    const mode_t expected = ::geteuid() == 0 ? 0711 : 0700;
    EXPECT_EQ(mode_of(base / "state"), expected);
    EXPECT_EQ(mode_of(base / "state/tasks"), expected);
    ASSERT_TRUE((*state)->create_task("1-2"));
    EXPECT_EQ(mode_of(base / "state/tasks/1-2"), expected);
}

TEST_F(StateDirTest, TokenIsKeptForTheAgentAlone) {
    const auto state = StateDir::open(base / "state", real_env());
    ASSERT_TRUE(state);
    EXPECT_TRUE((*state)->token()->is_empty());
    ASSERT_TRUE((*state)->keep_token(Secret("hf_abc")));
    EXPECT_EQ((*state)->token()->reveal(), "hf_abc");
    EXPECT_EQ(mode_of(base / "state/node.token"), 0600U);
}

TEST_F(StateDirTest, RemembersItsName) {
    const auto state = StateDir::open(base / "state", real_env());
    ASSERT_TRUE(state);
    EXPECT_FALSE((*state)->has_registered_as("n1"));
    (*state)->note_registered_as("n1");
    EXPECT_TRUE((*state)->has_registered_as("n1"));
    EXPECT_FALSE((*state)->has_registered_as("n2"));
}

TEST_F(StateDirTest, TaskFoldersComeAndGo) {
    const auto state = StateDir::open(base / "state", real_env());
    ASSERT_TRUE(state);
    ASSERT_TRUE((*state)->create_task("3-4"));
    std::ofstream(base / "state/tasks/3-4/stdout") << "old";
    EXPECT_EQ((*state)->tasks(), std::vector<std::string>{"3-4"});
    // A second start of one lease begins with an empty folder.
    ASSERT_TRUE((*state)->create_task("3-4"));
    EXPECT_FALSE(fs::exists(base / "state/tasks/3-4/stdout"));
    ASSERT_TRUE((*state)->discard("3-4"));
    EXPECT_TRUE((*state)->tasks().empty());
    for (int i = 0; i < 1000 && !fs::is_empty(base / "state/trash"); ++i) {
        real_env().clock.sleep_us(10'000);
    }
    EXPECT_TRUE(fs::is_empty(base / "state/trash"));
}

}  // namespace
}  // namespace holdfast::agent
