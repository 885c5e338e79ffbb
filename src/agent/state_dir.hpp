// SPDX-License-Identifier: Apache-2.0
/// The agent's state directory: one agent at a time, one folder per task.
///
///     lock        held by the agent           node.token  the node's own token (0600)
///     node.name   the name it registered as   ca.crt      copy of the CA, readable for workers
///     tasks/      see task_files.hpp          trash/      folders that are being removed
///
/// As root the directory is searchable (0711) so that users reach their own scratch folders.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <holdfast/env.hpp>
#include <holdfast/log.hpp>
#include <holdfast/result.hpp>

#include "descriptor.hpp"

namespace holdfast::agent {

class StateDir {
  public:
    /// Makes it if missing. Errors: store_locked (another agent, naming its process id), denied
    /// (somebody else's, or writable by others), store_full.
    static Result<std::unique_ptr<StateDir>> open(const std::string& path, Env& env);
    ~StateDir();
    StateDir(const StateDir&) = delete;
    StateDir& operator=(const StateDir&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }

    /// A new, empty folder; what a former attempt left under this name is discarded first.
    Result<Fd> create_task(const std::string& name);
    Result<Fd> open_task(const std::string& name);
    [[nodiscard]] std::string task_path(const std::string& name) const;
    [[nodiscard]] std::vector<std::string> tasks();
    /// Gone from tasks/ at once, from the disk a little later (a thread of its own removes it).
    Result<> discard(const std::string& name);

    /// The kept token; empty when there is none.
    Result<Secret> token();
    Result<> keep_token(const Secret& token);
    /// Whether an agent with this state registered under that name before.
    [[nodiscard]] bool has_registered_as(const std::string& name);
    void note_registered_as(const std::string& name);
    /// Copies the CA certificate to where every user can read it; returns that path.
    Result<std::string> publish_ca(const std::string& ca_file);

  private:
    StateDir(std::string path, Env& env) : path_(std::move(path)), env_(env) {}

    void remove_trash();

    std::string path_;
    Env& env_;
    std::unique_ptr<FileLock> lock_;
    Fd tasks_;
    Fd trash_;
    std::thread janitor_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false;
    bool has_trash_ = true;
};

/// "17-42" → task 17, lease 42. False for any other name.
bool task_and_lease_of(const std::string& name, std::int64_t& task, std::int64_t& lease);
[[nodiscard]] std::string folder_name(std::int64_t task, std::int64_t lease);

}  // namespace holdfast::agent
