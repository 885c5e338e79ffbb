// SPDX-License-Identifier: Apache-2.0
/// The rows of training runs: membership, steps and events. Who lives and when an epoch begins is
/// the coordinator's decision (include/holdfast/training.hpp); these functions store it, fence what
/// is late, and keep tasks and leases in step with it.
#include <cmath>
#include <set>

#include "endings.hpp"
#include "rows.hpp"

namespace holdfast::services {

namespace {

bool is_final(const std::string& state) {
    return state == "finished" || state == "failed";
}

std::optional<double> stored_loss(double loss) {
    return std::isnan(loss) ? std::nullopt : std::optional<double>(loss);
}

TrainingWorkerRow worker_from(const store::Row& row) {
    TrainingWorkerRow worker;
    worker.pipeline = static_cast<std::int32_t>(row.integer("pipeline"));
    worker.stage = static_cast<std::int32_t>(row.integer("stage"));
    worker.state = row.text("state");
    worker.lease = row.id<LeaseId>("lease");
    worker.node = row.text("node");
    worker.why = row.text("why");
    worker.epoch = row.integer("epoch");
    worker.at_us = row.integer("at_us");
    return worker;
}

/// The run is done: workers that are not placed are not wanted any more, and where none runs the
/// job completes.
Result<> finish_job(store::Tx& tx, JobId job) {
    HOLD_TRY(
        tx.exec("UPDATE task SET state = 'cancelled', end_us = $2, reason = 'the run finished "
                "without it' WHERE job = $1 AND state = 'pending'",
                job, tx.now_us()));
    return complete_if_done(tx, job);
}

Result<> begin_worker(store::Tx& tx, JobId job, std::int64_t epoch, std::int64_t step,
                      const TrainingWorkerRow& live) {
    HOLD_TRY(
        const auto row,
        tx.query_one("SELECT w.state, coalesce(l.id, 0) AS lease, coalesce(n.name, '') AS node "
                     "FROM training_worker w LEFT JOIN lease l ON l.id = w.lease LEFT JOIN node "
                     "n ON n.id = l.node WHERE w.job = $1 AND w.pipeline = $2 AND w.stage = $3",
                     job, live.pipeline, live.stage));
    const std::string name = worker_to_text(live.pipeline, live.stage);
    if (!row) {
        return fail(Errc::not_found, "epoch {} of {}: no worker {}", epoch, job.label(), name);
    }
    if (!live.lease.is_set() || row->id<LeaseId>("lease") != live.lease) {
        return fail(Errc::stale_lease, "epoch {} of {}: worker {} no longer holds {}", epoch,
                    job.label(), name, live.lease.label());
    }
    if (row->text("state") != "live" && epoch > 1) {
        HOLD_TRY(record_event(tx, job,
                              {.kind = "rejoined",
                               .worker = name,
                               .text = fmt::format("on node {}", row->text("node")),
                               .epoch = epoch,
                               .step = step}));
    }
    HOLD_TRY(
        tx.exec("UPDATE training_worker SET state = 'live', epoch = CASE WHEN state = 'live' "
                "THEN epoch ELSE $4 END, why = '', at_us = CASE WHEN state = 'live' THEN at_us "
                "ELSE $5 END WHERE job = $1 AND pipeline = $2 AND stage = $3",
                job, live.pipeline, live.stage, epoch, tx.now_us()));
    return {};
}

/// Workers that were live and are not in the new epoch wait for the next.
Result<> set_aside_others(store::Tx& tx, JobId job, std::int64_t epoch,
                          const std::vector<TrainingWorkerRow>& live) {
    std::set<std::pair<std::int32_t, std::int32_t>> named;
    for (const TrainingWorkerRow& worker : live) {
        named.emplace(worker.pipeline, worker.stage);
    }
    HOLD_TRY(const auto all, workers_of(tx, job));
    for (const TrainingWorkerRow& worker : all) {
        if (worker.state != "live" || named.contains({worker.pipeline, worker.stage})) {
            continue;
        }
        HOLD_TRY(
            tx.exec("UPDATE training_worker SET state = 'waiting', epoch = $4, why = 'not in "
                    "the epoch', at_us = $5 WHERE job = $1 AND pipeline = $2 AND stage = $3",
                    job, worker.pipeline, worker.stage, epoch, tx.now_us()));
    }
    return {};
}

}  // namespace

Result<TrainingRunRow> find_training(store::ReadTx& tx, JobId job) {
    HOLD_TRY(const auto row,
             tx.query_one("SELECT epoch, step, state, reason, cluster_key FROM training_run WHERE "
                          "job = $1",
                          job));
    if (!row) {
        return fail(Errc::not_found, "{} is not a training job", job.label());
    }
    TrainingRunRow run;
    run.job = job;
    run.epoch = row->integer("epoch");
    run.step = row->integer("step");
    run.state = row->text("state");
    run.reason = row->text("reason");
    run.cluster_key = row->text("cluster_key");
    return run;
}

Result<std::vector<TrainingWorkerRow>> workers_of(store::ReadTx& tx, JobId job) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT pipeline, stage, state, lease, node, why, epoch, at_us FROM "
                      "training_worker WHERE job = $1 ORDER BY pipeline, stage",
                      job));
    std::vector<TrainingWorkerRow> workers;
    for (const store::Row& row : rows) {
        workers.push_back(worker_from(row));
    }
    return workers;
}

Result<> training_state(store::Tx& tx, JobId job, const std::string& state,
                        const std::string& reason) {
    static const std::set<std::string> kStates = {"forming", "running",  "recovering", "pausing",
                                                  "stalled", "finished", "failed"};
    if (!kStates.contains(state)) {
        return fail(make_error(Errc::invalid_argument, "no state of a run is called '{}'",
                               is_utf8(state) ? state.substr(0, 64) : "…")
                        .at("state"));
    }
    HOLD_TRY(const TrainingRunRow run, find_training(tx, job));
    if (run.state == state) {
        HOLD_TRY(
            tx.exec("UPDATE training_run SET reason = $2 WHERE job = $1 AND reason != $2 AND "
                    "state NOT IN ('finished', 'failed')",
                    job, reason));
        return {};
    }
    HOLD_TRY(const JobBrief brief, find_brief(tx, job));
    if (is_final(run.state) || brief.state != "running") {
        return fail(Errc::bad_state, "training of {}: it is {} (job {}), not to become {}",
                    job.label(), run.state, brief.state, state);
    }
    if (state == "failed") {
        return end_job(tx, job, {.state = "failed", .reason = reason, .exit_code = 1});
    }
    HOLD_TRY(tx.exec("UPDATE training_run SET state = $2, reason = $3 WHERE job = $1", job, state,
                     reason));
    if (state == "stalled" || state == "finished") {
        HOLD_TRY(record_event(
            tx, job, {.kind = state, .text = reason, .epoch = run.epoch, .step = run.step}));
    }
    return state == "finished" ? finish_job(tx, job) : Result<>{};
}

Result<> worker_dead(store::Tx& tx, JobId job, std::int32_t pipeline, std::int32_t stage,
                     LeaseId lease, const std::string& why) {
    HOLD_TRY(const auto row,
             tx.query_one("SELECT lease FROM training_worker WHERE job = $1 AND pipeline = $2 AND "
                          "stage = $3",
                          job, pipeline, stage));
    if (!row) {
        return fail(Errc::not_found, "{} has no worker {}", job.label(),
                    worker_to_text(pipeline, stage));
    }
    if (row->id<LeaseId>(0) != lease) {
        return {};
    }
    // By the job's recovery: recycle goes on without it, none ends the job. Nothing if the lease is
    // gone already.
    return lose_lease(tx, lease, Remains::unknown, why);
}

Result<> training_epoch(store::Tx& tx, JobId job, std::int64_t epoch, std::int64_t step,
                        const std::vector<TrainingWorkerRow>& live, const std::string& cluster_key,
                        std::int32_t redone) {
    HOLD_TRY(const TrainingRunRow run, find_training(tx, job));
    if (is_final(run.state)) {
        return fail(Errc::bad_state, "epoch {} of {}: the run is {}", epoch, job.label(),
                    run.state);
    }
    if (epoch != run.epoch + 1) {
        return fail(Errc::stale_epoch, "epoch {} of {}: the rows are at epoch {}", epoch,
                    job.label(), run.epoch);
    }
    HOLD_TRY(set_aside_others(tx, job, epoch, live));
    for (const TrainingWorkerRow& worker : live) {
        HOLD_TRY(begin_worker(tx, job, epoch, step, worker));
    }
    HOLD_TRY(tx.exec("DELETE FROM training_step WHERE job = $1 AND step >= $2", job, step));
    HOLD_TRY(
        tx.exec("UPDATE training_run SET epoch = $2, step = $3, state = 'running', reason = '', "
                "cluster_key = $4 WHERE job = $1",
                job, epoch, step, cluster_key));
    std::string text = fmt::format("{} workers from step {}", live.size(), step);
    if (step < run.step) {
        text += fmt::format(", back from step {}", run.step);
    }
    return record_event(tx, job,
                        {.kind = epoch == 1 ? "began" : "epoch",
                         .text = text,
                         .epoch = epoch,
                         .step = step,
                         .redone = redone});
}

Result<> training_step(store::Tx& tx, JobId job, std::int64_t epoch, std::int64_t step, double loss,
                       std::int64_t step_us) {
    HOLD_TRY(const TrainingRunRow run, find_training(tx, job));
    const bool late = epoch < run.epoch && step >= run.step;
    if (epoch > run.epoch || epoch < 1 || late || step < 0) {
        return fail(Errc::stale_epoch,
                    "step {} of epoch {} of {}: the rows are at epoch {}, step {}", step, epoch,
                    job.label(), run.epoch, run.step);
    }
    HOLD_TRY(const std::int64_t added,
             tx.exec("INSERT INTO training_step (job, step, epoch, loss, step_us, committed_us) "
                     "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (job, step) DO NOTHING",
                     job, step, epoch, stored_loss(loss), step_us, tx.now_us()));
    if (added == 0 || step < run.step) {
        return {};
    }
    HOLD_TRY(tx.exec("UPDATE training_run SET step = $2 WHERE job = $1", job, step + 1));
    HOLD_TRY(const auto first,
             tx.query_one("SELECT 1 FROM training_event WHERE job = $1 AND kind = 'first_step' AND "
                          "epoch = $2 LIMIT 1",
                          job, epoch));
    if (epoch == 1 || first) {
        return {};
    }
    return record_event(tx, job,
                        {.kind = "first_step",
                         .text = fmt::format("step {} is the first of epoch {}", step, epoch),
                         .epoch = epoch,
                         .step = step});
}

Result<> training_event(store::Tx& tx, JobId job, const std::string& kind,
                        const std::string& worker, const std::string& text, std::int64_t epoch,
                        std::int64_t step, std::int32_t redone) {
    HOLD_TRY(find_training(tx, job));
    HOLD_TRY(
        const auto newest,
        tx.query_one("SELECT epoch FROM training_event WHERE job = $1 AND kind = $2 AND worker "
                     "= $3 ORDER BY seq DESC LIMIT 1",
                     job, kind, worker));
    if (newest && newest->integer(0) == epoch) {
        return {};
    }
    return record_event(tx, job,
                        {.kind = kind,
                         .worker = worker,
                         .text = text,
                         .epoch = epoch,
                         .step = step,
                         .redone = redone});
}

}  // namespace holdfast::services
