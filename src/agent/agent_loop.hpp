// SPDX-License-Identifier: Apache-2.0
/// The agent's one loop: it owns all tasks, obeys the server, and keeps on telling it the truth.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <holdfast/agent.hpp>
#include <holdfast/env.hpp>

#include "held_task.hpp"
#include "link.hpp"
#include "machine.hpp"
#include "state_dir.hpp"

namespace holdfast::agent {

class AgentLoop {
  public:
    /// `job_open_files`: the soft limit of open files that jobs get.
    AgentLoop(const AgentOptions& options, StateDir& state, Machine machine,
              std::int64_t job_open_files, Env& env);
    ~AgentLoop();
    AgentLoop(const AgentLoop&) = delete;
    AgentLoop& operator=(const AgentLoop&) = delete;

    /// Takes over what a former agent left.
    Result<> prepare();
    Result<> run(const rpc::Endpoint& endpoint);

  private:
    using Key = std::pair<std::int64_t, std::int64_t>;  ///< task, lease
    using Tasks = std::map<Key, std::unique_ptr<HeldTask>>;

    // Waiting
    void wait();
    void read_file_events();
    bool read_signals();
    [[nodiscard]] std::int64_t wait_until_us(std::int64_t now_us) const;

    // The server's words
    void handle(Link::Event event);
    void handle_message(const v1::ServerMessage& message);
    void handle_closed(const Link::Closed& closed);
    void begin_session(const v1::Registered& registered);
    [[nodiscard]] v1::RegisterNode registration() const;
    void start_task(const v1::StartTask& start);
    void stop_task(const v1::StopTask& stop);
    void acknowledge(const v1::TaskAck& ack);
    void acknowledge_log(const v1::LogAck& ack);
    [[nodiscard]] LaunchSpec spec_of(const v1::StartTask& start) const;
    void answer_unknown(std::int64_t task, std::int64_t lease, const std::string& state,
                        const std::string& reason);

    // The tasks
    void look_after_tasks();
    void launch(HeldTask& task);
    void note_change(HeldTask& task);
    [[nodiscard]] bool has_live_other(const HeldTask& task) const;
    void watch_files(HeldTask& task);
    void report(HeldTask& task, std::int64_t now_us);
    void forward_logs(HeldTask& task, std::int64_t now_us);
    bool forward_one(HeldTask& task, HeldTask::Output& output, std::int64_t now_us);
    void forget_finished();
    [[nodiscard]] static v1::TaskStatus status_of(const HeldTask& task);

    // The end
    void begin_exit();
    [[nodiscard]] bool is_exit_complete(std::int64_t now_us);

    const AgentOptions& options_;
    StateDir& state_;
    const Machine machine_;
    const std::int64_t job_open_files_;
    Env& env_;
    std::string instance_;
    std::string launcher_;
    std::string worker_ca_file_;
    Tasks tasks_;
    std::deque<Key> forgotten_;  ///< leases that ended and were confirmed, newest last; bounded

    Fd wake_;
    Fd signals_;
    Fd inotify_;
    std::map<int, HeldTask*> watched_;
    std::int64_t next_look_us_ = 0;   ///< file events before this wait: a chatty job is no siren
    std::int64_t next_sweep_us_ = 0;  ///< when everything is looked at, events or not

    std::unique_ptr<Link> link_;
    std::uint64_t session_ = 0;  ///< 0: not registered
    bool link_loss_told_ = false;
    std::optional<Result<>> outcome_;
    bool exiting_ = false;
    std::int64_t exit_by_us_ = 0;
};

}  // namespace holdfast::agent
