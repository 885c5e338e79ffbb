// SPDX-License-Identifier: Apache-2.0
/// Jobs: submit, look, hold, cancel. The transitions are listed in endings.hpp.
#include <algorithm>
#include <map>
#include <tuple>

#include "endings.hpp"
#include "rows.hpp"

namespace holdfast::services {

namespace {

constexpr std::int32_t kListMax = 100'000;

#define HOLD_JOB_SELECT                                                                        \
    "SELECT j.id, j.name, j.user, j.pool, j.state, j.reason, j.priority, j.submit_us, "        \
    "j.start_us, j.end_us, j.exit_code, j.tasks, j.cpus, j.memory_bytes, j.gpus, j.gpu_type, " \
    "j.recovery, j.restarts, j.array_parent, j.array_index, j.warning, j.spec AS spec_id, "    \
    "s.spec AS spec FROM job j JOIN job_spec s ON s.id = j.spec "

#define HOLD_TASK_SELECT                                                                           \
    "SELECT t.id, t.job, t.rank, t.state, t.node, t.lease, t.exit_code, t.signal, t.pid, "         \
    "t.start_us, t.end_us, t.reason, t.worker, l.gpu_slots FROM task t LEFT JOIN lease l ON l.id " \
    "= t.lease "

std::int32_t small(const store::Row& row, const char* column) {
    return static_cast<std::int32_t>(row.integer(column));
}

/// Elements of an array share their spec: it is read once.
class JobReader {
  public:
    Result<JobRow> read(const store::Row& row) {
        JobRow job;
        job.id = row.id<JobId>("id");
        job.name = row.text("name");
        job.user = row.text("user");
        job.pool = row.text("pool");
        job.state = row.text("state");
        job.reason = row.text("reason");
        job.priority = small(row, "priority");
        job.submit_us = row.integer("submit_us");
        job.start_us = row.integer("start_us");
        job.end_us = row.integer("end_us");
        job.exit_code = small(row, "exit_code");
        job.tasks = small(row, "tasks");
        job.per_task = {row.integer("cpus"), row.integer("memory_bytes"), row.integer("gpus"),
                        row.text("gpu_type")};
        job.recovery = row.text("recovery");
        job.restarts = small(row, "restarts");
        job.array_parent = row.integer("array_parent");
        job.array_index = small(row, "array_index");
        job.warning = row.text("warning");
        const std::int64_t spec_id = row.integer("spec_id");
        auto known = specs_.find(spec_id);
        if (known == specs_.end()) {
            HOLD_TRY(JobSpec spec, job_spec_from_json(row.text("spec")));
            known = specs_.emplace(spec_id, std::move(spec)).first;
        }
        job.spec = known->second;
        return job;
    }

    Result<std::vector<JobRow>> read_all(const std::vector<store::Row>& rows) {
        std::vector<JobRow> jobs;
        jobs.reserve(rows.size());
        for (const store::Row& row : rows) {
            HOLD_TRY(JobRow job, read(row));
            jobs.push_back(std::move(job));
        }
        return jobs;
    }

  private:
    std::map<std::int64_t, JobSpec> specs_;
};

TaskRow task_from(const store::Row& row) {
    TaskRow task;
    task.id = row.id<TaskId>("id");
    task.job = row.id<JobId>("job");
    task.rank = small(row, "rank");
    task.state = row.text("state");
    task.node = row.text("node");
    task.lease = row.id<LeaseId>("lease");
    task.exit_code = small(row, "exit_code");
    task.signal = small(row, "signal");
    task.pid = row.integer("pid");
    task.start_us = row.integer("start_us");
    task.end_us = row.integer("end_us");
    task.reason = row.text("reason");
    task.worker = row.text("worker");
    task.gpu_slots = slots_from_text(row.text_or("gpu_slots", "[]"));
    return task;
}

struct NewJob {
    std::int64_t spec_id = 0;
    std::int64_t array = 0;
    std::int32_t array_index = 0;
};

Result<> insert_tasks(store::Tx& tx, JobId job, const JobSpec& spec) {
    for (std::int32_t rank = 0; rank < spec.tasks; ++rank) {
        HOLD_TRY(const std::int64_t number, tx.next_id("task"));
        std::string worker;
        if (spec.training) {
            const std::int32_t pipeline = rank / spec.training->stages;
            const std::int32_t stage = rank % spec.training->stages;
            worker = worker_to_text(pipeline, stage);
            HOLD_TRY(
                tx.exec("INSERT INTO training_worker (job, pipeline, stage, state, at_us) "
                        "VALUES ($1, $2, $3, 'waiting', $4)",
                        job, pipeline, stage, tx.now_us()));
        }
        HOLD_TRY(
            tx.exec("INSERT INTO task (id, job, rank, state, worker) VALUES ($1, $2, $3, "
                    "'pending', $4)",
                    number, job, rank, worker));
    }
    return {};
}

/// `number`: the job's id, already taken from the sequence.
Result<> insert_job(store::Tx& tx, JobId number, const JobSpec& spec, const std::string& user,
                    const NewJob& job) {
    const bool held = spec.hold;
    HOLD_TRY(
        tx.exec("INSERT INTO job (id, name, user, pool, state, reason, priority, submit_us, "
                "tasks, cpus, memory_bytes, gpus, gpu_type, recovery, array_parent, "
                "array_index, spec) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, "
                "$12, $13, $14, $15, $16, $17)",
                number, spec.name, user, spec.pool, held ? "paused" : "pending",
                held ? "submitted on hold" : "", spec.priority, tx.now_us(), spec.tasks,
                spec.per_task.cpus, spec.per_task.memory_bytes, spec.per_task.gpus,
                spec.per_task.gpu_type, spec.recovery, job.array, job.array_index, job.spec_id));
    if (spec.training) {
        HOLD_TRY(tx.exec("INSERT INTO training_run (job, state) VALUES ($1, 'forming')", number));
    }
    return insert_tasks(tx, number, spec);
}

Result<Submitted> insert_array(store::Tx& tx, std::int64_t array, const JobSpec& spec,
                               const std::string& user) {
    HOLD_TRY(
        tx.exec("INSERT INTO job_array (id, name, user, elements, at_once, submit_us) VALUES "
                "($1, $2, $3, $4, $5, $6)",
                array, spec.name, user, spec.array.size(), spec.array_at_once, tx.now_us()));
    Submitted submitted;
    submitted.job = array;
    for (const std::int32_t index : spec.array) {
        HOLD_TRY(const std::int64_t number, tx.next_id("job"));
        HOLD_TRY(insert_job(tx, JobId(number), spec, user,
                            {.spec_id = array, .array = array, .array_index = index}));
        submitted.elements.emplace_back(number);
    }
    return submitted;
}

}  // namespace

Result<Submitted> submit(store::Tx& tx, const JobSpec& spec, const std::string& user) {
    if (user.empty()) {
        return fail(make_error(Errc::invalid_argument, "submit: no user is named").at("user"));
    }
    HOLD_TRY(const auto pool, tx.query_one("SELECT 1 FROM pool WHERE name = $1", spec.pool));
    if (!pool) {
        return fail(make_error(Errc::not_found, "submit: no pool is named '{}'", spec.pool)
                        .at("pool")
                        .advise("`hold pool list` shows the pools"));
    }
    HOLD_TRY(const std::int64_t number, tx.next_id("job"));
    JobSpec stored = spec;
    stored.array.clear();  // each element's row holds its index
    HOLD_TRY(tx.exec("INSERT INTO job_spec (id, spec) VALUES ($1, $2)", number, to_json(stored)));
    if (!spec.array.empty()) {
        return insert_array(tx, number, spec, user);
    }
    HOLD_TRY(insert_job(tx, JobId(number), spec, user, {.spec_id = number}));
    return Submitted{.job = number, .elements = {JobId(number)}};
}

Result<JobRow> find_job(store::ReadTx& tx, JobId job) {
    HOLD_TRY(const auto row, tx.query_one(HOLD_JOB_SELECT "WHERE j.id = $1", job));
    if (!row) {
        return fail(make_error(Errc::not_found, "no {}", job.label())
                        .advise("`hold jobs --all` lists jobs, ended ones included"));
    }
    return JobReader().read(*row);
}

Result<std::vector<JobRow>> list_jobs(store::ReadTx& tx, const JobFilter& filter) {
    static const std::vector<std::string> kStates = {
        "pending", "running", "paused", "completed", "failed", "cancelled", "timeout", "node_fail"};
    std::vector<std::string> states;
    for (const std::string& state : filter.states) {
        if (std::find(kStates.begin(), kStates.end(), state) == kStates.end()) {
            return fail(make_error(Errc::invalid_argument, "no job state is called '{}'",
                                   is_utf8(state) ? state.substr(0, 64) : "…")
                            .at("states")
                            .advise(fmt::format("states: {}", fmt::join(kStates, ", "))));
        }
        if (std::find(states.begin(), states.end(), state) == states.end()) {
            states.push_back(state);
        }
    }
    if (states.empty()) {
        std::copy_if(kStates.begin(), kStates.end(), std::back_inserter(states),
                     [&](const std::string& state) { return filter.ended || !is_ended(state); });
    }
    states.resize(kStates.size());  // empty words match nothing
    const std::int32_t limit = std::clamp(filter.limit <= 0 ? 1000 : filter.limit, 1, kListMax);
    HOLD_TRY(const auto rows,
             tx.query(HOLD_JOB_SELECT "WHERE j.state IN ($1, $2, $3, $4, $5, $6, $7, $8) AND ($9 = "
                                      "'' OR j.user = $9) ORDER BY j.id DESC LIMIT $10",
                      states[0], states[1], states[2], states[3], states[4], states[5], states[6],
                      states[7], filter.user, limit));
    HOLD_TRY(std::vector<JobRow> jobs, JobReader().read_all(rows));
    std::reverse(jobs.begin(), jobs.end());
    return jobs;
}

Result<std::vector<TaskRow>> tasks_of(store::ReadTx& tx, JobId job) {
    HOLD_TRY(const auto rows, tx.query(HOLD_TASK_SELECT "WHERE t.job = $1 ORDER BY t.rank", job));
    std::vector<TaskRow> tasks;
    tasks.reserve(rows.size());
    std::transform(rows.begin(), rows.end(), std::back_inserter(tasks), task_from);
    return tasks;
}

Result<std::vector<JobId>> jobs_named(store::ReadTx& tx, std::int64_t id) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT id FROM job WHERE id = $1 UNION ALL SELECT id FROM job WHERE "
                      "array_parent = $1 AND array_parent != 0 ORDER BY id",
                      id));
    if (rows.empty()) {
        return fail(make_error(Errc::not_found, "no {}", JobId(id).label())
                        .advise("`hold jobs --all` lists jobs, ended ones included"));
    }
    std::vector<JobId> jobs;
    for (const store::Row& row : rows) {
        jobs.push_back(row.id<JobId>(0));
    }
    return jobs;
}

Result<> cancel(store::Tx& tx, JobId job, const std::string& reason) {
    HOLD_TRY(const JobBrief brief, find_brief(tx, job));
    if (is_ended(brief.state)) {
        return fail(Errc::bad_state, "cancel {}: it is {} already", job.label(), brief.state);
    }
    return end_job(
        tx, job,
        {.state = "cancelled", .reason = reason.empty() ? "cancelled" : reason, .exit_code = 1});
}

Result<> pause(store::Tx& tx, JobId job) {
    HOLD_TRY(const JobBrief brief, find_brief(tx, job));
    if (brief.state != "pending") {
        return fail(make_error(Errc::bad_state, "pause {}: it is {}; only pending jobs are held",
                               job.label(), brief.state)
                        .advise(brief.state == "running" ? "cancel it, or let it end" : ""));
    }
    HOLD_TRY(tx.exec("UPDATE job SET state = 'paused', reason = 'held' WHERE id = $1", job));
    return {};
}

Result<> resume(store::Tx& tx, JobId job) {
    HOLD_TRY(const JobBrief brief, find_brief(tx, job));
    if (brief.state != "paused") {
        return fail(Errc::bad_state, "resume {}: it is {}, not paused", job.label(), brief.state);
    }
    HOLD_TRY(tx.exec("UPDATE job SET state = 'pending', reason = '' WHERE id = $1", job));
    return {};
}

Result<> set_reason(store::Tx& tx, JobId job, const std::string& reason,
                    const std::string& warning) {
    HOLD_TRY(const JobBrief brief, find_brief(tx, job));
    if (is_ended(brief.state)) {
        return {};
    }
    HOLD_TRY(
        tx.exec("UPDATE job SET reason = $2, warning = $3 WHERE id = $1 AND (reason != $2 OR "
                "warning != $3)",
                job, reason, warning));
    return {};
}

Result<std::vector<PlaceableJob>> jobs_to_place(store::ReadTx& tx, std::int32_t limit) {
    const std::int32_t most = std::clamp(limit, 1, kListMax);
    // Two queries: each walks an index in its order instead of sorting the backlog.
    HOLD_TRY(auto rows, tx.query(HOLD_JOB_SELECT "WHERE j.state = 'pending' ORDER BY j.priority "
                                                 "DESC, j.submit_us, j.id LIMIT $1",
                                 most));
    HOLD_TRY(const auto repairs,
             tx.query(HOLD_JOB_SELECT
                      "WHERE j.state = 'running' AND j.recovery = 'recycle' AND EXISTS (SELECT 1 "
                      "FROM task t WHERE t.job = j.id AND t.state IN ('pending', 'leased', "
                      "'running') AND t.state = 'pending') LIMIT $1",
                      most));
    rows.insert(rows.end(), repairs.begin(), repairs.end());
    HOLD_TRY(std::vector<JobRow> jobs, JobReader().read_all(rows));
    std::stable_sort(jobs.begin(), jobs.end(), [](const JobRow& a, const JobRow& b) {
        return std::tuple(-a.priority, a.submit_us, a.id) <
               std::tuple(-b.priority, b.submit_us, b.id);
    });
    jobs.resize(std::min(jobs.size(), static_cast<std::size_t>(most)));
    std::vector<PlaceableJob> answer;
    answer.reserve(jobs.size());
    for (JobRow& job : jobs) {
        PlaceableJob placeable;
        HOLD_TRY(const auto tasks, tx.query(HOLD_TASK_SELECT "WHERE t.job = $1 AND t.state IN "
                                                             "('pending', 'leased', 'running') AND "
                                                             "t.state = 'pending' ORDER BY t.rank",
                                            job.id));
        std::transform(tasks.begin(), tasks.end(), std::back_inserter(placeable.tasks), task_from);
        placeable.repair = job.state == "running";
        placeable.job = std::move(job);
        answer.push_back(std::move(placeable));
    }
    return answer;
}

Result<std::vector<ArrayLoad>> array_loads(store::ReadTx& tx) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT array_parent, count(*) AS running FROM job WHERE state = 'running' "
                      "AND array_parent != 0 GROUP BY array_parent ORDER BY array_parent"));
    std::vector<ArrayLoad> loads;
    for (const store::Row& row : rows) {
        loads.push_back({row.integer(0), small(row, "running")});
    }
    return loads;
}

}  // namespace holdfast::services
