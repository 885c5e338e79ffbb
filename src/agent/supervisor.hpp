// SPDX-License-Identifier: Apache-2.0
/// The process between launcher and job; see launcher.hpp.
#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <holdfast/env.hpp>
#include <holdfast/result.hpp>

#include "account.hpp"
#include "descendants.hpp"
#include "output_sink.hpp"
#include "task_files.hpp"

namespace holdfast::agent {

/// The supervisor listens to its launcher alone; a job that signals its whole group is not heard.
inline constexpr int kForwardedStop = SIGUSR1;

class Supervisor {
  public:
    Supervisor(int folder, const LaunchSpec& spec, LauncherRecord launcher,
               const Fd& launcher_alive)
        : folder_(folder),
          spec_(spec),
          launcher_(std::move(launcher)),
          launcher_alive_(launcher_alive) {}

    /// From the start to the moment when nothing of the task is left.
    ExitRecord run();

  private:
    Result<> start();
    Result<> open_outputs(const Account& account, Fd& output, Fd& errors);
    Result<std::string> make_workdir(const Account& account);
    Result<> wait_for_exec(int status, const std::string& workdir);
    void watch();
    void handle_signals();
    void take_stop_request();
    void enforce(std::int64_t now_us);
    void terminate(std::int64_t grace_us);
    void carry_output();
    ExitRecord verdict() const;

    int folder_;
    const LaunchSpec& spec_;
    LauncherRecord launcher_;
    const Fd& launcher_alive_;
    Fd signals_;
    std::vector<OutputSink> outputs_;
    pid_t job_ = 0;
    std::int64_t start_steady_us_ = 0;
    std::optional<Ended> ended_;
    std::optional<StopRequest> stop_;
    bool outside_signal_ = false;
    bool time_is_up_ = false;
    bool launcher_died_ = false;
    std::int64_t kill_at_us_ = kNoLimit;
};

}  // namespace holdfast::agent
