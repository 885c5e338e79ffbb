// SPDX-License-Identifier: Apache-2.0
#include "task_files.hpp"

#include <filesystem>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

namespace fs = std::filesystem;

LaunchSpec sample() {
    LaunchSpec spec;
    spec.task = 17;
    spec.job = 5;
    spec.lease = 42;
    spec.user = "ada";
    spec.run = "echo \"hé\n\"";
    spec.arguments = {"one", ""};
    spec.env = {{"A", "1"}, {"EMPTY", ""}, {"LINES", "a\nb=c"}};
    spec.workdir = "/home/ada";
    spec.time_limit_ms = 1500;
    spec.has_secret = true;
    return spec;
}

TEST(TaskFiles, RecordsRoundTrip) {
    EXPECT_EQ(launch_spec_from(to_json(sample())), sample());
    const LauncherRecord launcher = {123, 18446744073709551615U, "boot", 99};
    EXPECT_EQ(launcher_record_from(to_json(launcher)), launcher);
    const StopRequest stop = {250, "because"};
    EXPECT_EQ(stop_request_from(to_json(stop)), stop);
    const ExitRecord exit = {"failed", 137, 9, 1, 2, "why", 3};
    EXPECT_EQ(exit_record_from(to_json(exit)), exit);
}

TEST(TaskFiles, RefusesWhatItDoesNotKnow) {
    std::string text = to_json(sample());
    text.insert(1, "\"surprise\":1,");
    EXPECT_EQ(launch_spec_from(text).error().message, "spec.json has an unknown field `surprise`");
    EXPECT_EQ(launch_spec_from("{}").error().message, "spec.json lacks the field `task`");
    EXPECT_EQ(launch_spec_from("[]").error().message, "spec.json is not a JSON object");
    EXPECT_EQ(launch_spec_from("{\"task\":").error().message, "spec.json is not a JSON object");
    EXPECT_EQ(launch_spec_from("").error().message, "spec.json is not a JSON object");
    EXPECT_EQ(stop_request_from(R"({"grace_ms":"x","reason":""})").error().message,
              "stop.json has `grace_ms` of the wrong kind");
    EXPECT_EQ(exit_record_from(to_json(ExitRecord{.state = "odd"})).error().message,
              "exit.json has the unknown state `odd`");
    for (const pid_t pid : {-1, 0, 1}) {
        EXPECT_FALSE(launcher_record_from(to_json(LauncherRecord{pid, 1, "b", 0}))) << pid;
    }
}

TEST(TaskFiles, EveryCutOfASpecIsRefused) {
    const std::string text = to_json(sample());
    for (std::size_t length = 0; length < text.size(); ++length) {
        EXPECT_FALSE(launch_spec_from(text.substr(0, length))) << length;
    }
}

TEST(CheckSpec, NamesTheField) {
    const auto refused = [](auto change) {
        LaunchSpec spec = sample();
        change(spec);
        const auto checked = check_spec(spec);
        return checked ? std::string("accepted") : checked.error().where;
    };
    EXPECT_EQ(refused([](LaunchSpec&) {}), "accepted");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.lease = 0; }), "lease");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.user.clear(); }), "user");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.run.clear(); }), "run");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.program = "/bin/true"; }), "run");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.run.assign(200'000, 'x'); }), "run");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.run += '\0'; }), "run");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.workdir = "relative"; }), "workdir");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.time_limit_ms = -1; }), "time_limit_ms");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.env["A=B"] = ""; }), "env");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.env[""] = ""; }), "env");
    EXPECT_EQ(refused([](LaunchSpec& s) { s.env["A"].assign(140'000, 'x'); }), "env");
}

class TaskFolder : public testing::Test {
  protected:
    TaskFolder() {
        char name[] = "/tmp/holdfast_files_XXXXXX";
        base = ::mkdtemp(name);
        folder = Fd(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }

    ~TaskFolder() override { fs::remove_all(base); }

    fs::path base;
    Fd folder;
};

TEST_F(TaskFolder, WriteReplacesAndReadSeesIt) {
    EXPECT_EQ(read_at(folder.get(), "a", 100).error().code, Errc::not_found);
    EXPECT_TRUE(write_at(folder.get(), "a", "one", false));
    EXPECT_TRUE(write_at(folder.get(), "a", "two", true));
    EXPECT_EQ(read_at(folder.get(), "a", 100), "two");
    EXPECT_EQ(read_at(folder.get(), "a", 2).error().code, Errc::too_large);
    struct stat facts = {};
    ASSERT_EQ(::stat((base / "a").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0600U);
}

TEST_F(TaskFolder, LinksAreNeverFollowed) {
    const fs::path victim = base / "victim";
    ASSERT_TRUE(write_at(folder.get(), "victim", "secret", false));
    fs::create_symlink(victim, base / "a");
    EXPECT_FALSE(read_at(folder.get(), "a", 100));
    // Writing replaces the link itself.
    EXPECT_TRUE(write_at(folder.get(), "a", "mine", false));
    EXPECT_EQ(read_at(folder.get(), "victim", 100), "secret");
    EXPECT_EQ(read_at(folder.get(), "a", 100), "mine");
    // A planted temporary does not lead elsewhere either.
    fs::create_symlink(victim, base / ".b.new");
    EXPECT_TRUE(write_at(folder.get(), "b", "mine", false));
    EXPECT_EQ(read_at(folder.get(), "victim", 100), "secret");
}

TEST_F(TaskFolder, SpecialFilesAreNotRead) {
    ASSERT_EQ(::mkfifoat(folder.get(), "fifo", 0600), 0);
    EXPECT_FALSE(read_at(folder.get(), "fifo", 100));
    ASSERT_EQ(::mkdirat(folder.get(), "dir", 0700), 0);
    EXPECT_FALSE(read_at(folder.get(), "dir", 100));
}

TEST_F(TaskFolder, ExitRecordHasItsSpaceInAdvance) {
    auto file = ExitFile::reserve(folder.get());
    ASSERT_TRUE(file);
    EXPECT_FALSE(exists_at(folder.get(), kExitFile));
    struct stat facts = {};
    ASSERT_EQ(::stat((base / ".exit.json.reserved").c_str(), &facts), 0);
    EXPECT_GE(facts.st_blocks * 512, 8192);
    const ExitRecord record = {.state = "failed", .exit_code = 3, .reason = std::string(9000, 'r')};
    ASSERT_TRUE(file->write(record));
    const auto read = exit_record_from(*read_at(folder.get(), kExitFile, kRecordBytesMax));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->exit_code, 3);
    EXPECT_EQ(read->reason.size(), 2000U);
    EXPECT_FALSE(fs::exists(base / ".exit.json.reserved"));
}

}  // namespace
}  // namespace holdfast::agent
