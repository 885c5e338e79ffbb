// SPDX-License-Identifier: Apache-2.0
/// Real launchers and agents in a folder of the test's own; whatever they started is ended with the
/// test.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/types.h>

#include "task_files.hpp"

namespace holdfast::agent {

/// Who the jobs of a test run as: nobody where the test is root, else its own user.
[[nodiscard]] std::string job_user();
/// True once `condition` holds; false after a time that no healthy run needs.
[[nodiscard]] bool eventually(const std::function<bool()>& condition);
[[nodiscard]] std::string read_text(const std::filesystem::path& path);
[[nodiscard]] bool is_alive(pid_t pid);

/// A started program. Killed when destroyed.
class Program {
  public:
    explicit Program(const std::vector<std::string>& arguments,
                     const std::map<std::string, std::string>& extra_environment = {},
                     int secret_from = -1, const std::string& errors_to = "/dev/null");
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    void signal(int number) const;
    /// The exit code, or 128 + signal. Fails the test if it does not end.
    int wait();

    [[nodiscard]] pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = 0;
    bool ended_ = false;
    int code_ = -1;
};

class ProcessTest : public testing::Test {
  protected:
    ProcessTest();
    ~ProcessTest() override;

    /// A folder as the agent makes it, with this spec inside.
    std::filesystem::path task_folder(LaunchSpec spec);
    /// Runs the launcher on it to the end and returns its record.
    ExitRecord run(const std::filesystem::path& folder);
    [[nodiscard]] static ExitRecord record_of(const std::filesystem::path& folder);
    [[nodiscard]] static LauncherRecord launcher_of(const std::filesystem::path& folder);

    std::filesystem::path base;
    std::string libexec = HOLD_TEST_LIBEXEC;
    std::int64_t next_task = 1;
};

}  // namespace holdfast::agent
