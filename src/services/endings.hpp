// SPDX-License-Identifier: Apache-2.0
/// How leases, tasks and jobs end: the transitions that several services share. What is not in
/// these tables is an error of the function that was asked for it.
///
/// job
///   pending   → running     grant_gang
///             → paused      pause
///             → cancelled   cancel
///   paused    → pending     resume
///             → cancelled   cancel
///   running   → completed   every task completed; training: the run finished, no worker runs
///             → failed      a task failed; training: the run failed, or a worker keeps failing
///             → timeout     a task ran over its limit
///             → cancelled   cancel, or a task was stopped
///             → pending     a lease was lost, recovery requeue: the whole gang again, restarts + 1
///             → node_fail   a lease was lost, recovery none, or requeued too often
///             (stays)       a lease was lost, recovery recycle: the worker's task is pending again
///   the others are ends.
/// task
///   pending   → leased      grant_gang
///             → cancelled   its job ended
///   leased    → running     task_started
///   leased or running
///             → completed, failed, timeout, cancelled    task_ended
///             → pending     its lease was lost and its job goes on
///             → lost        its lease was lost and its job ends
///             → cancelled   its job ended otherwise
///   an ended task is pending again only when its job is requeued.
/// lease
///   made by grant_gang; deleted by task_ended and lease_lost (the agent says that nothing runs);
///   else moved to lease_revoked, where it still holds its slots until the agent confirms.
#pragma once

#include <string>

#include <holdfast/services.hpp>

#include "rows.hpp"

namespace holdfast::services {

/// Restarts of a job before its next lost lease ends it.
inline constexpr std::int32_t kRestartsMax = 100;
/// Exits of one training worker of its own accord, without a step of the run in between, before
/// they end the job.
inline constexpr std::int64_t kWorkerFailuresMax = 5;

/// Moves the lease to lease_revoked. Its task is the caller's business.
Result<> revoke_lease(store::Tx& tx, const LeaseRow& lease, const std::string& reason);
/// Deletes the lease: the agent is known not to run it.
Result<> drop_lease(store::Tx& tx, const LeaseRow& lease);
/// A draining node on which nothing is held any more is drained.
Result<> settle_drain(store::Tx& tx, NodeId node);

struct JobEnd {
    std::string state;
    std::string reason;
    std::int32_t exit_code = 0;
};

/// Pending tasks are cancelled, held leases revoked, a training run that has not finished fails.
/// Pre: the job has not ended.
Result<> end_job(store::Tx& tx, JobId job, const JobEnd& end);

/// Whether the job's training run has finished; false for an ordinary job.
Result<bool> run_has_finished(store::ReadTx& tx, JobId job);

/// Completes the job when none of its tasks is left to run. (A training run that finishes cancels
/// the workers that still waited for a place.)
Result<> complete_if_done(store::Tx& tx, JobId job);

/// What is known of a node's former task.
enum class Remains : std::uint8_t {
    unknown,  ///< it may still run: the lease becomes a revoked one
    nothing,  ///< the node says that it does not run
};

/// The lease is lost: its job goes on or ends by its recovery. Nothing happens for a lease that is
/// no longer held (another loss requeued its job).
Result<> lose_lease(store::Tx& tx, LeaseId lease, Remains remains, const std::string& why);

/// A training worker is gone: its row, the event, and its task pending again. The lease is gone
/// already.
Result<> lose_worker(store::Tx& tx, const LeaseRow& lease, const std::string& worker,
                     const std::string& why);

struct EventRow {
    std::string kind;
    std::string worker = {};
    std::string text = {};
    std::int64_t epoch = 0, step = 0;
    std::int32_t redone = 0;
};

Result<> record_event(store::Tx& tx, JobId job, const EventRow& event);

}  // namespace holdfast::services
