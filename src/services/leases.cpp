// SPDX-License-Identifier: Apache-2.0
/// Leases: the right to run one task on one node, under a number that only grows (fencing: whoever
/// speaks with an older number is told so, or only confirms that it stopped). Gangs get all of
/// theirs or none. The transitions are listed in endings.hpp.
#include <algorithm>
#include <map>
#include <set>

#include "endings.hpp"
#include "rows.hpp"

namespace holdfast::services {

namespace {

/// What one node can still give.
struct Room {
    std::string name;
    Resources free;
    std::set<std::int32_t> taken;  ///< gpu slots
    std::int64_t gpus = 0;
};

Result<Room> room_of(store::ReadTx& tx, NodeId node, const std::string& pool) {
    HOLD_TRY(const auto row, tx.query_one("SELECT name, pool, state, cpus, memory_bytes, gpus, "
                                          "gpu_type FROM node WHERE id = $1",
                                          node));
    if (!row) {
        return fail(Errc::not_found, "no {}", node.label());
    }
    if (row->text("state") != "up" || row->text("pool") != pool) {
        return fail(Errc::no_capacity, "node {} is {} in pool '{}'; wanted: up in pool '{}'",
                    row->text("name"), row->text("state"), row->text("pool"), pool);
    }
    Room room;
    room.name = row->text("name");
    room.free = {row->integer("cpus"), row->integer("memory_bytes"), row->integer("gpus"),
                 row->text("gpu_type")};
    room.gpus = room.free.gpus;
    HOLD_TRY(const auto held,
             tx.query("SELECT cpus, memory_bytes, gpus, gpu_slots FROM lease WHERE node = $1 UNION "
                      "ALL SELECT cpus, memory_bytes, gpus, gpu_slots FROM lease_revoked WHERE "
                      "node = $1",
                      node));
    for (const store::Row& lease : held) {
        room.free.cpus -= lease.integer(0);
        room.free.memory_bytes -= lease.integer(1);
        room.free.gpus -= lease.integer(2);
        for (const std::int32_t slot : slots_from_text(lease.text(3))) {
            room.taken.insert(slot);
        }
    }
    return room;
}

/// Takes what one task needs, with the lowest free gpu slots.
Result<std::vector<std::int32_t>> take(Room& room, const Resources& want) {
    if (want.gpus > 0 && !want.gpu_type.empty() && want.gpu_type != room.free.gpu_type) {
        return fail(Errc::no_capacity, "node {} has gpus of type '{}', wanted: '{}'", room.name,
                    room.free.gpu_type, want.gpu_type);
    }
    if (want.cpus > room.free.cpus || want.memory_bytes > room.free.memory_bytes ||
        want.gpus > room.free.gpus) {
        return fail(Errc::no_capacity,
                    "node {} has {} cpus, {} bytes and {} gpus free; a task wants {}, {} and {}",
                    room.name, room.free.cpus, room.free.memory_bytes, room.free.gpus, want.cpus,
                    want.memory_bytes, want.gpus);
    }
    std::vector<std::int32_t> slots;
    for (std::int32_t slot = 0;
         slot < room.gpus && static_cast<std::int64_t>(slots.size()) < want.gpus; ++slot) {
        if (room.taken.insert(slot).second) {
            slots.push_back(slot);
        }
    }
    if (static_cast<std::int64_t>(slots.size()) < want.gpus) {
        // Only after a node came back with fewer gpus: slots beyond its size are still held.
        return fail(Errc::no_capacity, "node {} has {} gpu slots free; a task wants {}", room.name,
                    slots.size(), want.gpus);
    }
    room.free.cpus -= want.cpus;
    room.free.memory_bytes -= want.memory_bytes;
    room.free.gpus -= want.gpus;
    return slots;
}

std::string new_secret(store::Tx& tx) {
    return fmt::format("{:016x}{:016x}{:016x}{:016x}", tx.random(), tx.random(), tx.random(),
                       tx.random());
}

/// Errors: bad_state unless the gang is exactly what may be placed of this job now.
Result<> check_gang(store::ReadTx& tx, const JobBrief& job, const std::vector<Assignment>& gang) {
    const bool repair = job.state == "running" && job.recovery == "recycle";
    if (job.state != "pending" && !repair) {
        return fail(Errc::bad_state, "place {}: it is {}", job.id.label(), job.state);
    }
    std::set<TaskId> named;
    for (const Assignment& each : gang) {
        HOLD_TRY(const TaskBrief task, find_task(tx, each.task));
        if (task.job != job.id || task.state != "pending" || !named.insert(each.task).second) {
            return fail(Errc::bad_state, "place {}: {} is {} of {}, or named twice", job.id.label(),
                        each.task.label(), task.state, task.job.label());
        }
    }
    if (gang.empty()) {
        return fail(Errc::bad_state, "place {}: no task is named", job.id.label());
    }
    if (repair) {
        return {};
    }
    HOLD_TRY(const auto count, tx.query_one("SELECT tasks FROM job WHERE id = $1", job.id));
    if (static_cast<std::int64_t>(gang.size()) != count->integer(0)) {
        return fail(Errc::bad_state, "place {}: {} of {} tasks are named; a gang starts whole",
                    job.id.label(), gang.size(), count->integer(0));
    }
    return {};
}

Result<> check_array_limit(store::ReadTx& tx, const JobBrief& job) {
    if (job.array_parent == 0 || job.state != "pending") {
        return {};
    }
    HOLD_TRY(const auto row,
             tx.query_one("SELECT at_once, (SELECT count(*) FROM job WHERE array_parent = $1 AND "
                          "array_parent != 0 AND state = 'running') AS running FROM job_array "
                          "WHERE id = $1",
                          job.array_parent));
    if (row && row->integer("at_once") > 0 && row->integer("running") >= row->integer("at_once")) {
        return fail(Errc::no_capacity, "place {}: {} elements of array {} run, its limit is {}",
                    job.id.label(), row->integer("running"), job.array_parent,
                    row->integer("at_once"));
    }
    return {};
}

Result<LeaseRow> grant(store::Tx& tx, const Assignment& each, JobId job, const Resources& want,
                       Room& room) {
    LeaseRow lease;
    HOLD_TRY(lease.gpu_slots, take(room, want));
    HOLD_TRY(const std::int64_t number, tx.next_id("lease"));
    lease.id = LeaseId(number);
    lease.task = each.task;
    lease.job = job;
    lease.node = each.node;
    lease.resources = want;
    lease.secret = new_secret(tx);
    HOLD_TRY(
        tx.exec("INSERT INTO lease (id, task, job, node, cpus, memory_bytes, gpus, gpu_slots, "
                "secret, granted_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                lease.id, lease.task, lease.job, lease.node, want.cpus, want.memory_bytes,
                want.gpus, slots_to_text(lease.gpu_slots), lease.secret, tx.now_us()));
    HOLD_TRY(
        tx.exec("UPDATE task SET state = 'leased', node = $2, lease = $3, last_lease = $3, "
                "reason = '' WHERE id = $1",
                lease.task, room.name, lease.id));
    HOLD_TRY(const TaskBrief task, find_task(tx, each.task));
    if (const auto worker = worker_from_text(task.worker)) {
        HOLD_TRY(
            tx.exec("UPDATE training_worker SET state = 'waiting', lease = $4, node = $5, why "
                    "= '', at_us = $6, epoch = (SELECT epoch FROM training_run WHERE job = "
                    "$1) WHERE job = $1 AND pipeline = $2 AND stage = $3",
                    job, worker->first, worker->second, lease.id, room.name, tx.now_us()));
    }
    return lease;
}

Error stale(TaskId task, LeaseId lease, const TaskBrief& now) {
    return make_error(Errc::stale_lease, "{} no longer holds {} (now {}, {})", lease.label(),
                      task.label(), now.state,
                      now.lease.is_set() ? now.lease.label() : std::string("no lease"))
        .advise("stop the task: its right to run was taken back");
}

/// A number that may have been this task's, some time ago.
Result<> check_former(store::ReadTx& tx, const TaskBrief& task, LeaseId lease) {
    HOLD_TRY(const auto other,
             tx.query_one("SELECT task FROM lease WHERE id = $1 UNION ALL SELECT task FROM "
                          "lease_revoked WHERE id = $1",
                          lease));
    const bool of_another = other && other->id<TaskId>(0) != task.id;
    if (of_another || lease.value <= 0 || lease > task.last_lease) {
        return fail(Errc::stale_lease, "{} was never granted for {}", lease.label(),
                    task.id.label());
    }
    return {};
}

/// A training worker that ended of its own accord. Rejoining it costs the others nothing, but one
/// that cannot work at all would come back for ever.
Result<> worker_ended(store::Tx& tx, const LeaseRow& lease, const TaskBrief& task,
                      const TaskEnd& end) {
    const auto worker = worker_from_text(task.worker);
    HOLD_CHECK(worker.has_value(), "a training job's task names its worker");
    HOLD_TRY(const auto row,
             tx.query_one("SELECT r.step, w.failures, w.failed_step FROM training_run r "
                          "JOIN training_worker w ON w.job = r.job WHERE r.job = $1 AND w.pipeline "
                          "= $2 AND w.stage = $3",
                          task.job, worker->first, worker->second));
    HOLD_CHECK(row.has_value(), "a training job has a run and its workers");
    const std::int64_t step = row->integer("step");
    const std::int64_t failures =
        row->integer("failed_step") == step ? row->integer("failures") + 1 : 1;
    const std::string how = end.signal != 0 ? fmt::format("signal {}", end.signal)
                                            : fmt::format("exit code {}", end.exit_code);
    const std::string why = end.reason.empty()
                                ? fmt::format("its process ended with {}", how)
                                : fmt::format("its process ended with {}: {}", how, end.reason);
    if (failures >= kWorkerFailuresMax) {
        return end_job(tx, task.job,
                       {.state = "failed",
                        .reason = fmt::format("worker {}: {}, {} times at step {}", task.worker,
                                              why, failures, step),
                        .exit_code = end.exit_code != 0 ? end.exit_code : 128 + end.signal});
    }
    HOLD_TRY(
        tx.exec("UPDATE training_worker SET failures = $4, failed_step = $5 WHERE job = $1 "
                "AND pipeline = $2 AND stage = $3",
                task.job, worker->first, worker->second, failures, step));
    return lose_worker(tx, lease, task.worker, why);
}

Result<> end_held_task(store::Tx& tx, const LeaseRow& lease, const TaskBrief& task,
                       const TaskEnd& end) {
    HOLD_TRY(const JobBrief job, find_brief(tx, task.job));
    HOLD_TRY(drop_lease(tx, lease));
    HOLD_TRY(
        tx.exec("UPDATE task SET state = $2, exit_code = $3, signal = $4, reason = $5, lease = "
                "0, end_us = $6 WHERE id = $1",
                task.id, end.state, end.exit_code, end.signal, end.reason, tx.now_us()));
    const bool training = !task.worker.empty();
    HOLD_TRY(const bool finished, run_has_finished(tx, task.job));
    if (training && finished) {
        return complete_if_done(tx, task.job);  // however its worker went, the run is done
    }
    if (job.recovery == "recycle" && (end.state == "failed" || end.state == "completed")) {
        TaskEnd early = end;
        if (end.state == "completed" && early.reason.empty()) {
            early.reason = "it left before the run had finished";
        }
        return worker_ended(tx, lease, task, early);
    }
    if (end.state == "completed") {
        return complete_if_done(tx, task.job);
    }
    const std::string cause = fmt::format("task {} {}", task.rank, end.state);
    return end_job(tx, task.job,
                   {.state = end.state,
                    .reason = end.reason.empty() ? cause : fmt::format("{}: {}", cause, end.reason),
                    .exit_code = end.exit_code != 0 ? end.exit_code
                                 : end.signal != 0  ? 128 + end.signal
                                                    : 1});
}

Result<> check_end(const TaskEnd& end) {
    static const std::set<std::string> kStates = {"completed", "failed", "cancelled", "timeout"};
    if (!kStates.contains(end.state)) {
        return fail(make_error(Errc::invalid_argument, "a task cannot end as '{}'", end.state)
                        .at("state")
                        .advise("completed, failed, cancelled or timeout"));
    }
    if (end.state == "completed" && (end.exit_code != 0 || end.signal != 0)) {
        return fail(make_error(Errc::invalid_argument,
                               "a completed task has exit code 0 and no signal, not {} and {}",
                               end.exit_code, end.signal)
                        .at("state"));
    }
    return {};
}

}  // namespace

Result<std::vector<LeaseRow>> grant_gang(store::Tx& tx, JobId job,
                                         const std::vector<Assignment>& gang) {
    HOLD_TRY(const JobBrief brief, find_brief(tx, job));
    HOLD_TRY(check_gang(tx, brief, gang));
    HOLD_TRY(check_array_limit(tx, brief));
    HOLD_TRY(const auto asked,
             tx.query_one("SELECT pool, cpus, memory_bytes, gpus, gpu_type FROM job WHERE id = $1",
                          job));
    const Resources want = {asked->integer("cpus"), asked->integer("memory_bytes"),
                            asked->integer("gpus"), asked->text("gpu_type")};
    std::map<NodeId, Room> rooms;
    std::vector<LeaseRow> leases;
    for (const Assignment& each : gang) {
        auto room = rooms.find(each.node);
        if (room == rooms.end()) {
            HOLD_TRY(Room fresh, room_of(tx, each.node, asked->text("pool")));
            room = rooms.emplace(each.node, std::move(fresh)).first;
        }
        HOLD_TRY(LeaseRow lease, grant(tx, each, job, want, room->second));
        leases.push_back(std::move(lease));
    }
    HOLD_TRY(
        tx.exec("UPDATE job SET state = 'running', start_us = $2, reason = '' WHERE id = $1 "
                "AND state = 'pending'",
                job, tx.now_us()));
    return leases;
}

Result<LeaseRow> check_lease(store::ReadTx& tx, TaskId task, LeaseId lease) {
    HOLD_TRY(const TaskBrief brief, find_task(tx, task));
    HOLD_TRY(const auto held, lease_of_task(tx, task));
    if (!held || held->id != lease) {
        return fail(stale(task, lease, brief));
    }
    return *held;
}

Result<> task_started(store::Tx& tx, TaskId task, LeaseId lease, std::int64_t pid) {
    HOLD_TRY(check_lease(tx, task, lease));
    HOLD_TRY(
        tx.exec("UPDATE task SET state = 'running', pid = $2, start_us = $3 WHERE id = $1 AND "
                "state = 'leased'",
                task, pid, tx.now_us()));
    return {};
}

Result<> task_ended(store::Tx& tx, TaskId task, LeaseId lease, const TaskEnd& end) {
    HOLD_TRY(check_end(end));
    HOLD_TRY(const TaskBrief brief, find_task(tx, task));
    HOLD_TRY(const auto held, lease_of_task(tx, task));
    if (held && held->id == lease) {
        return end_held_task(tx, *held, brief, end);
    }
    HOLD_TRY(check_former(tx, brief, lease));
    return confirm_revoked(tx, lease);
}

Result<> confirm_revoked(store::Tx& tx, LeaseId lease) {
    HOLD_TRY(const auto row, tx.query_one("SELECT node FROM lease_revoked WHERE id = $1", lease));
    if (!row) {
        return {};
    }
    HOLD_TRY(tx.exec("DELETE FROM lease_revoked WHERE id = $1", lease));
    return settle_drain(tx, row->id<NodeId>(0));
}

Result<> lease_lost(store::Tx& tx, TaskId task, LeaseId lease, const std::string& reason) {
    HOLD_TRY(const TaskBrief brief, find_task(tx, task));
    HOLD_TRY(const auto held, lease_of_task(tx, task));
    if (held && held->id == lease) {
        return lose_lease(tx, lease, Remains::nothing, reason);
    }
    HOLD_TRY(check_former(tx, brief, lease));
    return confirm_revoked(tx, lease);
}

Result<std::vector<LeaseRow>> leases_of_node(store::ReadTx& tx, NodeId node) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT " HOLD_LEASE_COLUMNS ", secret FROM lease WHERE node "
                      "= $1 ORDER BY id",
                      node));
    std::vector<LeaseRow> leases;
    for (const store::Row& row : rows) {
        leases.push_back(lease_from(row));
        leases.back().secret = row.text("secret");
    }
    return leases;
}

Result<std::vector<LeaseRow>> revoked_of_node(store::ReadTx& tx, NodeId node) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT " HOLD_LEASE_COLUMNS " FROM lease_revoked WHERE node "
                      "= $1 ORDER BY id",
                      node));
    std::vector<LeaseRow> leases;
    std::transform(rows.begin(), rows.end(), std::back_inserter(leases), lease_from);
    return leases;
}

Result<std::vector<Holding>> holdings(store::ReadTx& tx) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT node, job, sum(cpus) AS cpus, sum(memory_bytes) AS memory_bytes, "
                      "sum(gpus) AS gpus, sum(revoked) AS revoked FROM (SELECT node, job, cpus, "
                      "memory_bytes, gpus, 0 AS revoked FROM lease UNION ALL SELECT node, job, "
                      "cpus, memory_bytes, gpus, 1 FROM lease_revoked) GROUP BY node, job ORDER BY "
                      "node, job"));
    std::vector<Holding> answer;
    for (const store::Row& row : rows) {
        answer.push_back(
            {row.id<NodeId>("node"),
             row.id<JobId>("job"),
             {row.integer("cpus"), row.integer("memory_bytes"), row.integer("gpus"), ""},
             static_cast<std::int32_t>(row.integer("revoked"))});
    }
    return answer;
}

Result<std::vector<PlacedWorker>> placed_workers(store::ReadTx& tx) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT l.node, l.job, t.worker FROM lease l JOIN task t ON t.id = l.task "
                      "WHERE t.worker != '' ORDER BY l.id"));
    std::vector<PlacedWorker> workers;
    for (const store::Row& row : rows) {
        const auto name = worker_from_text(row.text("worker"));
        HOLD_CHECK(name.has_value(), "a worker's name is pipeline:stage");
        workers.push_back(
            {row.id<NodeId>("node"), row.id<JobId>("job"), name->first, name->second});
    }
    return workers;
}

}  // namespace holdfast::services
