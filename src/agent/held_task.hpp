// SPDX-License-Identifier: Apache-2.0
/// One lease that this agent holds: its folder, its launcher, what was reported and what was sent.
///
/// The phase only moves on, driven by what stands in the folder and by whether the launcher lives:
///
///     waiting → starting → running → ended
///                    └──── cleaning ────┘    the launcher died without a record
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <holdfast/env.hpp>
#include <holdfast/log.hpp>
#include <holdfast/result.hpp>

#include "log_stream.hpp"
#include "process_tree.hpp"
#include "state_dir.hpp"
#include "task_files.hpp"

namespace holdfast::agent {

class HeldTask {
  public:
    enum class Phase : std::uint8_t { waiting, starting, running, cleaning, ended };

    /// What may be sent of one output stream.
    struct Output {
        const char* name;  ///< "stdout" or "stderr": the file and the stream
        Fd file = {};
        LogStream stream = {};
    };

    /// A task that will be started later. Nothing is written yet.
    HeldTask(LaunchSpec spec, Secret secret, StateDir& state, Env& env);
    /// What a former agent left in tasks/`name`. Nothing if no launcher was started there and none
    /// will be: the folder may be discarded.
    static std::unique_ptr<HeldTask> adopt(const std::string& name, StateDir& state, Env& env);

    /// waiting → starting, or → ended with the reason why it could not be started.
    void launch(const std::string& launcher);
    /// Looks at the folder and the launcher. Returns whether the phase changed.
    bool observe();
    /// Asks the launcher to end the task; grace 0: at once. Repeats may shorten the grace.
    void stop(const StopRequest& request);
    /// Ends a launcher that did not answer a stop in time.
    void enforce_stop();

    [[nodiscard]] const LaunchSpec& spec() const { return spec_; }

    [[nodiscard]] Phase phase() const { return phase_; }

    [[nodiscard]] bool has_ended() const { return phase_ == Phase::ended; }

    [[nodiscard]] pid_t pid() const { return launcher_.pid; }

    [[nodiscard]] const ExitRecord& exit() const { return exit_; }

    /// When the job began, as far as known; 0: it never ran.
    [[nodiscard]] std::int64_t start_us() const;

    /// When this agent saw the end, by the steady clock.
    [[nodiscard]] std::int64_t ended_steady_us() const { return ended_steady_us_; }

    /// "running" or the final state.
    [[nodiscard]] std::string state() const;

    /// Readable when the launcher ends; -1 when there is none.
    [[nodiscard]] int process_handle() const { return process_.get(); }

    /// Empty when the task has no folder (it was refused before).
    [[nodiscard]] const std::string& folder() const { return folder_name_; }

    [[nodiscard]] Output& out() { return out_; }

    [[nodiscard]] Output& err() { return err_; }

    [[nodiscard]] bool logs_stored() const {
        return out_.stream.all_stored() && err_.stream.all_stored();
    }

    /// The size of both output files, as of now.
    void measure_output();

    // What the server was told; kept by the loop.
    std::string told_state;  ///< last sent on this connection; empty: nothing
    std::int64_t told_us = 0;
    std::string acknowledged_state;  ///< last confirmed by the server
    std::int64_t log_progress_us = 0;
    int inotify_watch = -1;

  private:
    Result<> prepare();
    Result<> spawn(const std::string& launcher);
    void find_launcher();
    void load_start();
    bool load_exit();
    void clean_up();
    bool kill_leftovers();
    Fd take_lock();
    void signal_stop();
    void end(ExitRecord record);
    void end_without_record();
    void reap();

    LaunchSpec spec_;
    Secret secret_;
    StateDir& state_;
    Env& env_;
    Phase phase_ = Phase::waiting;
    std::string folder_name_;
    Fd folder_;
    LauncherRecord launcher_;
    Fd process_;
    bool is_child_ = false;
    std::int64_t spawned_us_ = 0;
    Output out_ = {.name = kStdoutFile};
    Output err_ = {.name = kStderrFile};
    std::optional<StopRequest> stop_;
    std::int64_t kill_at_us_ = kNoLimit;
    std::int64_t cleaning_since_us_ = 0;
    ExitRecord exit_;
    std::int64_t ended_steady_us_ = 0;
};

}  // namespace holdfast::agent
