// SPDX-License-Identifier: Apache-2.0
#include "remove_tree.hpp"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process_tree.hpp"

namespace holdfast::agent {
namespace {

namespace fs = std::filesystem;

class RemoveTree : public testing::Test {
  protected:
    RemoveTree() {
        char name[] = "/tmp/holdfast_remove_XXXXXX";
        base = ::mkdtemp(name);
        folder = Fd(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        fs::create_directories(base / "victim/inner");
        std::ofstream(base / "victim/file") << "keep";
        fs::create_directory(base / "tree");
    }

    ~RemoveTree() override { fs::remove_all(base); }

    void expect_victim_whole() {
        EXPECT_TRUE(fs::exists(base / "victim/file"));
        EXPECT_TRUE(fs::exists(base / "victim/inner"));
    }

    fs::path base;
    Fd folder;
};

TEST_F(RemoveTree, FollowsNoLink) {
    fs::create_directories(base / "tree/a/b");
    std::ofstream(base / "tree/a/b/file") << "x";
    fs::create_symlink(base / "victim", base / "tree/a/link");
    fs::create_symlink(base / "victim/file", base / "tree/file");
    fs::create_symlink("/nonexistent", base / "tree/dangling");
    EXPECT_TRUE(remove_tree(folder.get(), "tree"));
    EXPECT_FALSE(fs::exists(base / "tree"));
    expect_victim_whole();
}

TEST_F(RemoveTree, IsNotFooledByALinkItself) {
    fs::create_symlink(base / "victim", base / "link");
    EXPECT_FALSE(remove_tree(folder.get(), "link"));
    expect_victim_whole();
    const auto missing = remove_tree(folder.get(), "missing");
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code, Errc::not_found);
}

TEST_F(RemoveTree, DeeperThanDescriptorsAllow) {
    Fd at(::openat(folder.get(), "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (int depth = 0; depth < 300; ++depth) {
        ASSERT_EQ(::mkdirat(at.get(), "d", 0700), 0);
        at.reset(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        ASSERT_TRUE(at.is_open());
    }
    std::ofstream(base / "tree/.deep-1") << "the name is taken";
    at.reset();
    const auto removed = remove_tree(folder.get(), "tree");
    EXPECT_TRUE(removed) << removed.error().message;
    EXPECT_FALSE(fs::exists(base / "tree"));
}

TEST_F(RemoveTree, ManyFilesAndNoPermissions) {
    for (int i = 0; i < 3000; ++i) {
        std::ofstream(base / "tree" / std::to_string(i)) << i;
    }
    fs::create_directories(base / "tree/closed/inner");
    fs::permissions(base / "tree/closed", fs::perms::none);
    EXPECT_TRUE(remove_tree(folder.get(), "tree"));
    EXPECT_FALSE(fs::exists(base / "tree"));
}

TEST_F(RemoveTree, ARacingSwapperReachesNothing) {
    std::atomic<bool> stop = false;
    std::thread swapper([&] {
        // Replaces a folder by a link to the victim and back, as fast as it can.
        const std::string spot = (base / "tree/spot").string();
        const std::string victim = (base / "victim").string();
        while (!stop) {
            ::mkdir(spot.c_str(), 0700);
            ::rmdir(spot.c_str());
            (void)::symlink(victim.c_str(), spot.c_str());  // fails while the remover is inside
            ::unlink(spot.c_str());
        }
    });
    for (int round = 0; round < 300; ++round) {
        fs::create_directories(base / "tree");
        (void)remove_tree(folder.get(), "tree");  // may lose against the swapper; must not escape
    }
    stop = true;
    swapper.join();
    expect_victim_whole();
}

}  // namespace
}  // namespace holdfast::agent
