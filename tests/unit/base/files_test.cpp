// SPDX-License-Identifier: Apache-2.0
/// The same promises for the machine's files and the simulated ones.
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <holdfast/env.hpp>
#include <holdfast/simulated_env.hpp>

namespace holdfast {
namespace {

class FilesTest : public testing::TestWithParam<bool> {
  protected:
    FilesTest() {
        if (!is_simulated()) {
            std::string pattern = testing::TempDir() + "/holdfast_files_XXXXXX";
            folder_ = mkdtemp(pattern.data());
        }
        EXPECT_TRUE(files().make_directories(folder_, 0700));
    }

    ~FilesTest() override {
        if (!is_simulated()) {
            std::filesystem::remove_all(folder_);
        }
    }

    [[nodiscard]] static bool is_simulated() { return GetParam(); }

    Files& files() { return is_simulated() ? world_.env().files : real_env().files; }

    [[nodiscard]] std::string at(const std::string& name) const { return folder_ + "/" + name; }

    SimulatedEnv world_{1};
    std::string folder_ = "/data";
};

TEST_P(FilesTest, AtomicWriteReplacesAndLeavesNoOtherName) {
    ASSERT_TRUE(files().write_file_atomic(at("a"), "one", 0600));
    ASSERT_TRUE(files().write_file_atomic(at("a"), "two!", 0600));
    EXPECT_EQ(files().read_file(at("a"), 4).value(), "two!");
    EXPECT_EQ(files().list(folder_).value(), std::vector<std::string>{"a"});
}

TEST_P(FilesTest, ReadsSayWhatIsWrong) {
    ASSERT_TRUE(files().write_file_atomic(at("a"), "12345", 0600));
    EXPECT_EQ(files().read_file(at("b"), 10).error().code, Errc::not_found);
    EXPECT_EQ(files().read_file(at("a"), 4).error().code, Errc::too_large);
    EXPECT_EQ(files().read_range(at("a"), 1, 2).value(), "23");
    EXPECT_EQ(files().read_range(at("a"), 5, 2).value(), "");
    EXPECT_EQ(files().read_range(at("a"), 99, 2).value(), "");
    EXPECT_EQ(files().write_file_atomic(at("no/such/folder"), "x", 0600).error().code,
              Errc::not_found);
}

TEST_P(FilesTest, AppendKeepsWhatIsThere) {
    {
        auto log = files().open_append(at("log"), 0600).value();
        ASSERT_TRUE(log->append("ab"));
        ASSERT_TRUE(log->sync());
        EXPECT_EQ(log->size(), 2U);
    }
    auto log = files().open_append(at("log"), 0600).value();
    EXPECT_EQ(log->size(), 2U);
    ASSERT_TRUE(log->append("c"));
    EXPECT_EQ(files().read_file(at("log"), 10).value(), "abc");
}

TEST_P(FilesTest, FoldersAreMadeListedAndRemoved) {
    ASSERT_TRUE(files().make_directories(at("x/y/z"), 0700));
    ASSERT_TRUE(files().make_directories(at("x/y/z"), 0700));
    ASSERT_TRUE(files().write_file_atomic(at("x/f"), "", 0600));
    EXPECT_EQ(files().list(at("x")).value(), (std::vector<std::string>{"f", "y"}));
    EXPECT_EQ(files().make_directories(at("x/f"), 0700).error().code, Errc::conflict);
    EXPECT_EQ(files().remove(at("x")).error().code, Errc::conflict);
    EXPECT_EQ(files().remove(at("none")).error().code, Errc::not_found);
    ASSERT_TRUE(files().remove(at("x/f")));
    ASSERT_TRUE(files().remove(at("x/y/z")));
    EXPECT_FALSE(files().exists(at("x/f")));
    EXPECT_FALSE(files().exists(at("x/y/z")));
    EXPECT_TRUE(files().exists(at("x/y")));
    EXPECT_EQ(files().list(at("none")).error().code, Errc::not_found);
}

TEST_P(FilesTest, ALockIsHeldOnceAndNamesItsOwner) {
    auto lock = files().lock_file(at("lock"));
    ASSERT_TRUE(lock);
    const auto second = files().lock_file(at("lock"));
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Errc::store_locked);
    const std::string owner = is_simulated() ? "1" : std::to_string(getpid());
    EXPECT_EQ(second.error().message, "lock " + at("lock") + ": process " + owner + " holds it");
    lock->reset();
    EXPECT_TRUE(files().lock_file(at("lock")));
}

TEST_P(FilesTest, FreeBytesAreKnown) {
    EXPECT_GT(files().free_bytes(folder_).value(), 1'000U);
}

INSTANTIATE_TEST_SUITE_P(Both, FilesTest, testing::Values(false, true),
                         [](const auto& kind) { return kind.param ? "Simulated" : "Real"; });

TEST(RealFiles, TheLockOfAKilledProcessIsFree) {
    std::string pattern = testing::TempDir() + "/holdfast_lock_XXXXXX";
    const std::string folder = mkdtemp(pattern.data());
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        auto lock = real_env().files.lock_file(folder + "/lock");
        (void)!write(ready[1], lock ? "1" : "0", 1);
        pause();
        _exit(0);
    }
    char answer = '0';
    ASSERT_EQ(read(ready[0], &answer, 1), 1);
    ASSERT_EQ(answer, '1');
    const auto refused = real_env().files.lock_file(folder + "/lock");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("process " + std::to_string(child)), std::string::npos);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_TRUE(real_env().files.lock_file(folder + "/lock"));
    close(ready[0]);
    close(ready[1]);
    std::filesystem::remove_all(folder);
}

TEST(RealFiles, APathThatIsNotWritableIsDeniedOrMissing) {
    const auto made = real_env().files.make_directories("/proc/holdfast", 0700);
    ASSERT_FALSE(made);
    EXPECT_TRUE(made.error().code == Errc::not_found || made.error().code == Errc::denied)
        << made.error().describe();
}

}  // namespace
}  // namespace holdfast
