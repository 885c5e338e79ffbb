// SPDX-License-Identifier: Apache-2.0
// A program that the demo starts and must never leave behind: it gets SIGTERM when the demo dies.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include <holdfast/result.hpp>

namespace holdfast::cli::demo {

class ChildProcess {
  public:
    ChildProcess() = default;
    ~ChildProcess();
    ChildProcess(ChildProcess&& other) noexcept;
    ChildProcess& operator=(ChildProcess&& other) noexcept;
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;

    /// Starts `arguments[0]` with its output appended to `log_file`. Errors: failed (cannot fork or
    /// open the log).
    static Result<ChildProcess> start(const std::vector<std::string>& arguments,
                                      const std::string& log_file);

    [[nodiscard]] pid_t pid() const { return pid_; }

    /// Reaps if it ended. Errors: none; false once it ended.
    [[nodiscard]] bool is_running();
    /// SIGKILL, then reaps: what the demo does to a node.
    void kill_now();
    /// SIGTERM, then SIGKILL after the grace time.
    void stop(std::int64_t grace_ms);

  private:
    explicit ChildProcess(pid_t pid) : pid_(pid) {}

    pid_t pid_ = -1;
};

}  // namespace holdfast::cli::demo
