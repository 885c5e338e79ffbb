// SPDX-License-Identifier: Apache-2.0
/// The node agent: registers this machine, starts the tasks leased to it, and reports.
///
/// The problem: server, agent and tasks die independently, and none may take another along. The
/// idea: a task belongs to a launcher of its own (src/agent/launcher.hpp) and to a folder that says
/// everything about it, so an agent can be killed at any moment and its successor finds the tasks
/// again. What the agent holds is the truth about what runs here; it says so at every connection,
/// and repeats each transition until the server has it. Leases fence: a newer lease of a task ends
/// the older one before it starts.
///
/// Stopping an agent (SIGTERM) leaves its tasks running, as slurmd does; `kill_tasks_on_exit`
/// changes that. A service manager must not kill the whole control group (systemd:
/// KillMode=process).
///
/// What it does not do yet: confine a task further than another user, no capabilities and no new
/// privileges; cores and memory of a lease are accounted for, not enforced.
#pragma once

#include <cstdint>
#include <string>

#include <holdfast/result.hpp>

namespace holdfast {
struct Env;
}

namespace holdfast::agent {

struct AgentOptions {
    std::string server;   ///< `unix:/path` or `host:port`
    std::string ca_file;  ///< TLS only
    std::string state_dir;
    std::string name;
    std::string pool;                  ///< empty: the server's default
    std::string address;               ///< where this node's workers can be reached by other nodes
    std::string token_file;            ///< empty: the token kept in the state directory, if any
    std::string enrolment_token_file;  ///< used once, when there is no token yet
    std::string libexec_dir;           ///< holds hold-launch and hold-train
    // 0 or empty: what the machine has.
    std::int64_t cpus = 0;
    std::int64_t memory_bytes = 0;
    std::int64_t gpus = -1;  ///< -1: ask the driver
    std::string gpu_type;
    bool kill_tasks_on_exit = false;
};

/// Runs until SIGTERM or SIGINT (success) or until the server refuses this node for good.
/// Errors: store_locked (another agent uses the state directory), conflict (another agent has the
/// name), denied or unauthenticated (token), invalid_argument, store_full.
/// Threads: blocks SIGTERM, SIGINT and SIGCHLD; call it once, before other threads exist.
Result<> run_agent(const AgentOptions& options, Env& env);

}  // namespace holdfast::agent
