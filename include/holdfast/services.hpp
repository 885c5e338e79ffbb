// SPDX-License-Identifier: Apache-2.0
/// The operating system's services as short transactions on rows: jobs and tasks, leases, nodes,
/// logs, tokens, pools, training membership. Every function runs inside one store::Tx and decides
/// from rows only; nothing here keeps state. Source: DBOS (PVLDB 15(1)): OS services as tables and
/// procedures. Leases, fencing and gangs are ours.
///
/// Errors: not_found, bad_state, conflict, denied, stale_lease, no_capacity, invalid_argument; each
/// names the row.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <holdfast/ids.hpp>
#include <holdfast/result.hpp>
#include <holdfast/store.hpp>

namespace holdfast::services {

// -------------------------------------------------------------------------------------------------
// rows

struct Resources {
    std::int64_t cpus = 1;
    std::int64_t memory_bytes = 0;
    std::int64_t gpus = 0;
    std::string gpu_type = {};  ///< empty: any
    bool operator==(const Resources&) const = default;
};

struct TrainingSpec {
    std::int32_t pipelines = 0;
    std::int32_t stages = 0;
    std::int32_t microbatches = 0;
    std::string model = "gpt-small";
    std::int64_t steps = 0;
    bool exact = false;
    std::string data;
    std::uint64_t seed = 1;
    std::string backend = "torch";
    bool operator==(const TrainingSpec&) const = default;
};

struct JobSpec {
    std::string name;
    std::string run;
    std::map<std::string, std::string> env;
    std::string workdir;
    std::int32_t tasks = 1;
    Resources per_task;
    std::string pool = "default";
    std::int32_t priority = 0;
    std::int64_t time_limit_s = 0;
    std::vector<std::int32_t> array;
    std::int32_t array_at_once = 0;
    std::string recovery;  ///< empty: requeue, or recycle for a training job
    std::optional<TrainingSpec> training;
    std::vector<std::string> nodes;
    std::vector<std::string> exclude_nodes;
    bool hold = false;
    std::int32_t tasks_per_node = 0;
    bool operator==(const JobSpec&) const = default;
};

/// JSON with the API's field names; round-trips exactly. Errors: invalid_argument naming the field.
std::string to_json(const JobSpec& spec);
Result<JobSpec> job_spec_from_json(const std::string& text);

struct JobRow {
    JobId id;
    std::string name, user, pool, state, reason;
    std::int32_t priority = 0;
    std::int64_t submit_us = 0, start_us = 0, end_us = 0;
    std::int32_t exit_code = 0;
    std::int32_t tasks = 0;
    Resources per_task;
    std::string recovery;
    std::int32_t restarts = 0;
    std::int64_t array_parent = 0;
    std::int32_t array_index = 0;
    std::string warning;
    JobSpec spec;
};

struct TaskRow {
    TaskId id;
    JobId job;
    std::int32_t rank = 0;
    std::string state, node;
    LeaseId lease;
    std::int32_t exit_code = 0, signal = 0;
    std::int64_t pid = 0, start_us = 0, end_us = 0;
    std::string reason, worker;
    std::vector<std::int32_t> gpu_slots;
};

struct NodeRow {
    NodeId id;
    std::string name, pool, state, reason;
    Resources capacity;
    Resources used;  ///< by leases, revoked ones not yet confirmed included
    std::string address, version, instance;
    std::int64_t epoch = 0, registered_us = 0, heartbeat_us = 0;
    std::int32_t running_tasks = 0;
};

struct LeaseRow {
    LeaseId id;
    TaskId task;
    JobId job;
    NodeId node;
    Resources resources;
    std::vector<std::int32_t> gpu_slots;
    std::string secret;
};

// -------------------------------------------------------------------------------------------------
// jobs

/// Checks a spec and fills defaults. Errors: invalid_argument or unsupported, `where` names the
/// field.
Result<JobSpec> checked(JobSpec spec);

struct Submitted {
    std::int64_t job = 0;  ///< the job, or the array
    std::vector<JobId> elements;
};

/// Inserts the job (or the array's elements) and its tasks. `spec` must be checked().
Result<Submitted> submit(store::Tx& tx, const JobSpec& spec, const std::string& user);

Result<JobRow> find_job(store::ReadTx& tx, JobId job);

struct JobFilter {
    std::vector<std::string> states = {};  ///< empty: all
    std::string user = {};
    bool ended = false;
    std::int32_t limit = 1000;
};

Result<std::vector<JobRow>> list_jobs(store::ReadTx& tx, const JobFilter& filter);
Result<std::vector<TaskRow>> tasks_of(store::ReadTx& tx, JobId job);
/// The jobs that an id names: itself, or the elements of an array. Errors: not_found.
Result<std::vector<JobId>> jobs_named(store::ReadTx& tx, std::int64_t id);

/// Ends a job: pending tasks are cancelled, leases revoked (the agents kill, then confirm).
Result<> cancel(store::Tx& tx, JobId job, const std::string& reason);
Result<> pause(store::Tx& tx, JobId job);   ///< pending → paused
Result<> resume(store::Tx& tx, JobId job);  ///< paused → pending
/// Writes only what differs; an ended job is left as it is.
Result<> set_reason(store::Tx& tx, JobId job, const std::string& reason,
                    const std::string& warning);

/// What the placement loop reads: jobs that wait (FIFO: priority, submit time, id), and running
/// training jobs that lost workers (`repair`: each of `tasks` may be placed alone).
struct PlaceableJob {
    JobRow job;
    std::vector<TaskRow> tasks;  ///< the pending ones
    bool repair = false;
};

Result<std::vector<PlaceableJob>> jobs_to_place(store::ReadTx& tx, std::int32_t limit = 1000);

struct ArrayLoad {
    std::int64_t array = 0;
    std::int32_t running = 0;
};

/// Running elements per array; arrays without any are left out.
Result<std::vector<ArrayLoad>> array_loads(store::ReadTx& tx);

// -------------------------------------------------------------------------------------- leases and
// tasks

struct Assignment {
    TaskId task;
    NodeId node;
};

/// Grants every lease of the gang or none: capacity is checked against rows, GPU slots are chosen,
/// numbers grow. For a running training job it re-places lost workers only. Errors: no_capacity,
/// bad_state.
Result<std::vector<LeaseRow>> grant_gang(store::Tx& tx, JobId job,
                                         const std::vector<Assignment>& gang);

/// Pre: the caller is the node that holds the lease. Errors: stale_lease when the number no longer
/// holds.
Result<LeaseRow> check_lease(store::ReadTx& tx, TaskId task, LeaseId lease);

Result<> task_started(store::Tx& tx, TaskId task, LeaseId lease, std::int64_t pid);

struct TaskEnd {
    std::string state;  ///< completed | failed | cancelled | timeout
    std::int32_t exit_code = 0, signal = 0;
    std::string reason = {};
};

/// Ends the task, deletes its lease, and ends or requeues its job where this decides it (a failed
/// task ends its gang; a failed training worker is declared dead and placed again, unless it keeps
/// failing). A number that no longer holds only confirms that the revoked lease's slots are free:
/// that is success, so the agent's repeats are acknowledged. Errors: stale_lease when the number
/// was never this task's, not_found, invalid_argument.
Result<> task_ended(store::Tx& tx, TaskId task, LeaseId lease, const TaskEnd& end);
/// The agent says that it no longer runs a revoked lease.
Result<> confirm_revoked(store::Tx& tx, LeaseId lease);
/// The node does not know of a lease that it should hold (its agent came back without the task):
/// the slots are free at once, the job goes on as in node_down. Idempotent.
Result<> lease_lost(store::Tx& tx, TaskId task, LeaseId lease, const std::string& reason);
/// Leases of a node, and revoked ones that it has not confirmed: what an agent must and must not
/// run.
Result<std::vector<LeaseRow>> leases_of_node(store::ReadTx& tx, NodeId node);
Result<std::vector<LeaseRow>> revoked_of_node(store::ReadTx& tx, NodeId node);

/// What a job holds on a node, revoked leases that are not confirmed included.
struct Holding {
    NodeId node;
    JobId job;
    Resources held;
    std::int32_t revoked = 0;  ///< leases among them that the agent must still confirm
};

Result<std::vector<Holding>> holdings(store::ReadTx& tx);

struct PlacedWorker {
    NodeId node;
    JobId job;
    std::int32_t pipeline = 0, stage = 0;
};

/// Every training worker that holds a lease.
Result<std::vector<PlacedWorker>> placed_workers(store::ReadTx& tx);

// -------------------------------------------------------------------------------------------------
// nodes

struct NodeRegistration {
    std::string name, pool = "default", address, version, instance;
    Resources capacity;
};

/// Makes the row of a node that is expected (state down until it registers); brings a removed name
/// back. Idempotent for a node that never registered. Errors: conflict when the node is known.
Result<NodeRow> announce_node(store::Tx& tx, const std::string& name, const std::string& pool);
/// First or renewed registration; the epoch grows. A node that was down returns to what its
/// operator wants (up, cordoned, drained). Leases that a smaller capacity cannot hold are revoked.
/// Afterwards the caller compares leases_of_node and revoked_of_node with what the agent reports:
/// leased but not reported → send StartTask again; running but not reported → lease_lost; revoked
/// and not reported → confirm_revoked; reported and not held → StopTask. A caller that knows the
/// former instance's connection to be gone passes 0 for `dead_after_us`. Errors: conflict when
/// another live instance holds the name
/// (`now
/// - heartbeat < dead_after_us`), bad_state for a removed node.
Result<NodeRow> register_node(store::Tx& tx, const NodeRegistration& node,
                              std::int64_t dead_after_us);
Result<> heartbeat(store::Tx& tx, NodeId node, double load1, std::int64_t memory_available_bytes);
/// up/draining → down: leases are revoked; tasks are lost; ordinary jobs are requeued or failed by
/// their recovery, training jobs go on (their workers' tasks become pending again, to be placed
/// when there is room).
Result<> node_down(store::Tx& tx, NodeId node, const std::string& reason);
/// down → what its operator wants; nothing for a node that is not down.
Result<> node_up(store::Tx& tx, NodeId node);
/// Takes every lease of the node back (a drain's deadline, for one); jobs go on as in node_down.
Result<> evict_node(store::Tx& tx, NodeId node, const std::string& reason);
/// The operator's wish: up, cordoned, draining (drained at once where nothing runs), or down. A
/// node that is down stays so and takes the wish when it returns.
Result<NodeRow> set_node_state(store::Tx& tx, const std::string& name, const std::string& state,
                               const std::string& reason, std::int64_t deadline_us);
/// Errors: bad_state while tasks run on it.
Result<> remove_node(store::Tx& tx, const std::string& name);
Result<std::vector<NodeRow>> list_nodes(store::ReadTx& tx, bool removed = false);
Result<NodeRow> find_node(store::ReadTx& tx, const std::string& name);

struct PoolRow {
    std::string name, description;
    std::int32_t nodes = 0;
};

Result<> create_pool(store::Tx& tx, const std::string& name, const std::string& description);
Result<> delete_pool(store::Tx& tx, const std::string& name);
Result<std::vector<PoolRow>> list_pools(store::ReadTx& tx);

// -------------------------------------------------------------------------------------------------
// tokens

struct TokenRow {
    TokenId id;
    std::string user, role, description;
    std::int64_t created_us = 0, expires_us = 0;
    bool revoked = false;
};

/// Only the hash is stored. `secret` is made by the caller from Env's randomness (256 bits, text
/// "hf_…").
Result<TokenId> create_token(store::Tx& tx, const TokenRow& token, const std::string& secret);
/// Errors: unauthenticated (unknown, expired, revoked, used enrolment).
Result<TokenRow> authenticate(store::ReadTx& tx, const std::string& secret, std::int64_t now_us);
/// Uses up an enrolment token for this node and stores the node's own token.
Result<> enrol_node(store::Tx& tx, const std::string& enrolment_secret, const std::string& node,
                    const std::string& node_secret);
Result<> revoke_token(store::Tx& tx, TokenId token);
Result<std::vector<TokenRow>> list_tokens(store::ReadTx& tx);

// -------------------------------------------------------------------------------------------------
// logs

/// Appends a task's output at `offset` of this lease; repeats are ignored, gaps refused. A task
/// keeps at most kLogBytesMax; later output is dropped and a line says so. Returns the offset below
/// which all is stored.
inline constexpr std::int64_t kLogBytesMax = 64 << 20;
Result<std::int64_t> append_log(store::Tx& tx, TaskId task, LeaseId lease,
                                const std::string& stream, std::int64_t offset,
                                const std::string& text);

// ------------------------------------------------------------------------------------------------
// training

struct TrainingRunRow {
    JobId job;
    std::int64_t epoch = 0, step = 0;
    std::string state, reason, cluster_key;
};

struct TrainingWorkerRow {
    std::int32_t pipeline = 0, stage = 0;
    std::string state;
    LeaseId lease;
    std::string node, why;
    std::int64_t epoch = 0, at_us = 0;
};

/// Events are recorded by the functions below: `worker_dead` (worker_dead, node_down, task_ended),
/// `began`/`epoch` and `rejoined` (training_epoch), `first_step` (the first step of an epoch after
/// the first), `finished`, `stalled`, `failed` (training_state). training_event adds others and
/// ignores one that only repeats the newest of its kind and worker.
Result<TrainingRunRow> find_training(store::ReadTx& tx, JobId job);
Result<std::vector<TrainingWorkerRow>> workers_of(store::ReadTx& tx, JobId job);
/// `finished` and `failed` are final. finished: call it before telling workers to finish; the job
/// completes when its last worker has exited. failed: the job fails and its leases are revoked.
Result<> training_state(store::Tx& tx, JobId job, const std::string& state,
                        const std::string& reason);
/// Declares a worker dead under its lease: row, lease revoked, task lost and made pending again.
/// Idempotent.
Result<> worker_dead(store::Tx& tx, JobId job, std::int32_t pipeline, std::int32_t stage,
                     LeaseId lease, const std::string& why);
/// Begins membership epoch `epoch` (must be the stored one + 1) from version `step`: the run's
/// state is running, the workers of `live` are live under their leases. Going back behind committed
/// steps takes their rows back. Errors: stale_epoch; stale_lease when a lease of `live` no longer
/// holds.
Result<> training_epoch(store::Tx& tx, JobId job, std::int64_t epoch, std::int64_t step,
                        const std::vector<TrainingWorkerRow>& live, const std::string& cluster_key,
                        std::int32_t redone);
/// Every stage has completed `step` (counted from 0): training_run.step becomes step + 1. A repeat
/// is ignored; a late report of an earlier epoch is kept where the step is part of the run. Errors:
/// stale_epoch.
Result<> training_step(store::Tx& tx, JobId job, std::int64_t epoch, std::int64_t step, double loss,
                       std::int64_t step_us);
Result<> training_event(store::Tx& tx, JobId job, const std::string& kind,
                        const std::string& worker, const std::string& text, std::int64_t epoch,
                        std::int64_t step, std::int32_t redone);

}  // namespace holdfast::services
