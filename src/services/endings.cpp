// SPDX-License-Identifier: Apache-2.0
#include "endings.hpp"

namespace holdfast::services {

namespace {

Result<> requeue_job(store::Tx& tx, const JobBrief& job, const std::string& why) {
    HOLD_TRY(
        const auto leases,
        tx.query("SELECT " HOLD_LEASE_COLUMNS " FROM lease WHERE job = $1 ORDER BY id", job.id));
    for (const store::Row& row : leases) {
        HOLD_TRY(revoke_lease(tx, lease_from(row), "its job is queued again: " + why));
    }
    HOLD_TRY(
        tx.exec("UPDATE task SET state = 'pending', node = '', lease = 0, exit_code = 0, "
                "signal = 0, pid = 0, start_us = 0, end_us = 0, reason = '' WHERE job = $1",
                job.id));
    HOLD_TRY(
        tx.exec("UPDATE job SET state = 'pending', start_us = 0, restarts = restarts + 1, "
                "reason = $2 WHERE id = $1",
                job.id, "queued again: " + why));
    return {};
}

Result<> fail_training_run(store::Tx& tx, JobId job, const std::string& why) {
    HOLD_TRY(const auto run, tx.query_one("SELECT epoch, step FROM training_run WHERE job = $1 AND "
                                          "state NOT IN ('finished', 'failed')",
                                          job));
    if (!run) {
        return {};
    }
    HOLD_TRY(
        tx.exec("UPDATE training_run SET state = 'failed', reason = $2 WHERE job = $1", job, why));
    return record_event(tx, job,
                        {.kind = "failed",
                         .text = why,
                         .epoch = run->integer("epoch"),
                         .step = run->integer("step")});
}

}  // namespace

Result<> revoke_lease(store::Tx& tx, const LeaseRow& lease, const std::string& reason) {
    HOLD_TRY(
        tx.exec("INSERT INTO lease_revoked (id, task, job, node, cpus, memory_bytes, gpus, "
                "gpu_slots, revoked_us, reason) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, "
                "$10)",
                lease.id, lease.task, lease.job, lease.node, lease.resources.cpus,
                lease.resources.memory_bytes, lease.resources.gpus, slots_to_text(lease.gpu_slots),
                tx.now_us(), reason));
    HOLD_TRY(tx.exec("DELETE FROM lease WHERE id = $1", lease.id));
    return {};
}

Result<> drop_lease(store::Tx& tx, const LeaseRow& lease) {
    HOLD_TRY(tx.exec("DELETE FROM lease WHERE id = $1", lease.id));
    return settle_drain(tx, lease.node);
}

Result<> settle_drain(store::Tx& tx, NodeId node) {
    HOLD_TRY(
        tx.exec("UPDATE node SET state = 'drained', drain_deadline_us = 0 WHERE id = $1 AND "
                "state = 'draining' AND NOT EXISTS (SELECT 1 FROM lease WHERE node = $1) AND "
                "NOT EXISTS (SELECT 1 FROM lease_revoked WHERE node = $1)",
                node));
    return {};
}

Result<> end_job(store::Tx& tx, JobId job, const JobEnd& end) {
    HOLD_TRY(
        tx.exec("UPDATE task SET state = 'cancelled', end_us = $2, reason = $3 WHERE job = $1 "
                "AND state = 'pending'",
                job, tx.now_us(), end.reason));
    HOLD_TRY(const auto leases,
             tx.query("SELECT " HOLD_LEASE_COLUMNS " FROM lease WHERE job = $1 ORDER BY id", job));
    for (const store::Row& row : leases) {
        const LeaseRow lease = lease_from(row);
        HOLD_TRY(revoke_lease(tx, lease, end.reason));
        HOLD_TRY(
            tx.exec("UPDATE task SET state = 'cancelled', lease = 0, end_us = $2, reason = $3 "
                    "WHERE id = $1",
                    lease.task, tx.now_us(), end.reason));
    }
    HOLD_TRY(
        tx.exec("UPDATE job SET state = $2, reason = $3, exit_code = $4, end_us = $5 "
                "WHERE id = $1",
                job, end.state, end.reason, end.exit_code, tx.now_us()));
    return fail_training_run(tx, job, end.reason);
}

Result<bool> run_has_finished(store::ReadTx& tx, JobId job) {
    HOLD_TRY(const auto run,
             tx.query_one("SELECT 1 FROM training_run WHERE job = $1 AND state = 'finished'", job));
    return run.has_value();
}

Result<> complete_if_done(store::Tx& tx, JobId job) {
    HOLD_TRY(const auto left,
             tx.query_one("SELECT 1 FROM task WHERE job = $1 AND state IN ('pending', 'leased', "
                          "'running') LIMIT 1",
                          job));
    if (left) {
        return {};
    }
    return end_job(tx, job, {.state = "completed", .reason = "", .exit_code = 0});
}

Result<> lose_lease(store::Tx& tx, LeaseId id, Remains remains, const std::string& why) {
    HOLD_TRY(const auto row,
             tx.query_one("SELECT " HOLD_LEASE_COLUMNS " FROM lease WHERE id = $1", id));
    if (!row) {
        return {};
    }
    const LeaseRow lease = lease_from(*row);
    HOLD_TRY(const JobBrief job, find_brief(tx, lease.job));
    HOLD_TRY(const TaskBrief task, find_task(tx, lease.task));
    if (remains == Remains::unknown) {
        HOLD_TRY(revoke_lease(tx, lease, why));
    } else {
        HOLD_TRY(drop_lease(tx, lease));
    }
    HOLD_TRY(const bool finished, run_has_finished(tx, job.id));
    if (finished) {
        HOLD_TRY(
            tx.exec("UPDATE task SET state = 'lost', lease = 0, end_us = $2, reason = $3 "
                    "WHERE id = $1",
                    task.id, tx.now_us(), why));
        return complete_if_done(tx, job.id);
    }
    if (job.recovery == "recycle") {
        return lose_worker(tx, lease, task.worker, why);
    }
    if (job.recovery == "requeue" && job.restarts < kRestartsMax) {
        return requeue_job(tx, job, why);
    }
    HOLD_TRY(
        tx.exec("UPDATE task SET state = 'lost', lease = 0, end_us = $2, reason = $3 "
                "WHERE id = $1",
                task.id, tx.now_us(), why));
    return end_job(tx, job.id,
                   {.state = "node_fail",
                    .reason = job.recovery == "requeue"
                                  ? fmt::format("{}, after {} restarts", why, job.restarts)
                                  : why,
                    .exit_code = 1});
}

Result<> lose_worker(store::Tx& tx, const LeaseRow& lease, const std::string& worker,
                     const std::string& why) {
    const auto name = worker_from_text(worker);
    HOLD_CHECK(name.has_value(), "a training job's task names its worker");
    HOLD_TRY(
        tx.exec("UPDATE task SET state = 'pending', node = '', lease = 0, exit_code = 0, "
                "signal = 0, pid = 0, start_us = 0, end_us = 0, reason = $2 WHERE id = $1",
                lease.task, why));
    HOLD_TRY(const auto run,
             tx.query_one("SELECT epoch, step, state FROM training_run WHERE job = $1", lease.job));
    HOLD_CHECK(run.has_value(), "a training job has a run");
    HOLD_TRY(tx.exec(
        "UPDATE training_worker SET state = 'dead', lease = $4, epoch = $5, why = $6, "
        "at_us = $7 WHERE job = $1 AND pipeline = $2 AND stage = $3",
        lease.job, name->first, name->second, lease.id, run->integer("epoch"), why, tx.now_us()));
    if (run->text("state") == "running") {
        HOLD_TRY(tx.exec("UPDATE training_run SET state = 'recovering', reason = $2 WHERE job = $1",
                         lease.job, fmt::format("worker {} is dead: {}", worker, why)));
    }
    return record_event(tx, lease.job,
                        {.kind = "worker_dead",
                         .worker = worker,
                         .text = why,
                         .epoch = run->integer("epoch"),
                         .step = run->integer("step")});
}

Result<> record_event(store::Tx& tx, JobId job, const EventRow& event) {
    HOLD_TRY(
        tx.exec("INSERT INTO training_event (job, seq, kind, epoch, step, worker, redone, "
                "text, at_us) SELECT $1, coalesce(max(seq), 0) + 1, $2, $3, $4, $5, $6, $7, $8 "
                "FROM training_event WHERE job = $1",
                job, event.kind, event.epoch, event.step, event.worker, event.redone, event.text,
                tx.now_us()));
    return {};
}

}  // namespace holdfast::services
