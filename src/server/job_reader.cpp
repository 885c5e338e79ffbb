// SPDX-License-Identifier: Apache-2.0
#include "job_reader.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <holdfast/env.hpp>
#include <holdfast/placement.hpp>

#include "cluster_view.hpp"
#include "convert.hpp"

namespace holdfast::server {
namespace {

Result<> add_training(store::ReadTx& tx, v1::Job& job) {
    HOLD_TRY(const auto run,
             tx.query_one("SELECT r.epoch, r.step, (SELECT s.loss FROM training_step s WHERE s.job "
                          "= r.job ORDER BY s.step DESC LIMIT 1) AS loss FROM training_run r WHERE "
                          "r.job = $1",
                          job.id()));
    if (run) {
        job.set_epoch(run->integer("epoch"));
        job.set_step(run->integer("step"));
        job.set_loss(run->is_null("loss") ? 0.0 : run->real("loss"));
    }
    return {};
}

void add_tasks(v1::Job& job, const std::vector<services::TaskRow>& tasks) {
    std::set<std::string> nodes(job.node_names().begin(), job.node_names().end());
    for (const services::TaskRow& task : tasks) {
        *job.add_tasks() = to_proto(task);
        if (!task.node.empty() && nodes.insert(task.node).second) {
            job.add_node_names(task.node);
        }
    }
}

}  // namespace

Result<std::vector<services::JobRow>> rows_named(store::ReadTx& tx, std::int64_t id) {
    HOLD_TRY(const auto ids, services::jobs_named(tx, id));
    std::vector<services::JobRow> rows;
    for (const JobId job : ids) {
        HOLD_TRY(services::JobRow row, services::find_job(tx, job));
        rows.push_back(std::move(row));
    }
    return rows;
}

Result<v1::Job> read_job(store::ReadTx& tx, std::int64_t id, const Caller& caller) {
    HOLD_TRY(const auto rows, rows_named(tx, id));
    if (rows.empty()) {
        return fail(Errc::not_found, "no job {}", id);
    }
    const bool is_array = rows.front().id.value != id;
    v1::Job job = is_array ? array_as_job(id, rows) : to_proto(rows.front());
    constexpr std::size_t kTasksMax = 4096;  // the answer must fit into one message
    for (const services::JobRow& row : rows) {
        HOLD_TRY(const auto tasks, services::tasks_of(tx, row.id));
        add_tasks(job, tasks);
        if (static_cast<std::size_t>(job.tasks_size()) > kTasksMax) {
            break;
        }
    }
    if (!is_array) {
        HOLD_TRY(add_training(tx, job));
    }
    if (!caller.is_operator() && caller.user != job.user()) {
        hide_private(job);
    }
    return job;
}

Result<> add_progress(store::ReadTx& tx, std::vector<v1::Job*> jobs) {
    HOLD_TRY(const auto placed, tx.query("SELECT DISTINCT job, node FROM task WHERE state IN "
                                         "('leased', 'running') ORDER BY job, rank"));
    std::map<std::int64_t, v1::Job*> by_id;
    for (v1::Job* job : jobs) {
        by_id[job->id()] = job;
    }
    for (const store::Row& row : placed) {
        if (const auto found = by_id.find(row.integer("job")); found != by_id.end()) {
            found->second->add_node_names(row.text("node"));
        }
    }
    for (v1::Job* job : jobs) {
        if (job->spec().has_training()) {
            HOLD_TRY(add_training(tx, *job));
        }
    }
    return {};
}

namespace {

std::string nodes_text(const std::vector<services::TaskRow>& tasks) {
    std::vector<std::string> names;
    for (const services::TaskRow& task : tasks) {
        if (!task.node.empty() && std::find(names.begin(), names.end(), task.node) == names.end()) {
            names.push_back(task.node);
        }
    }
    std::string text;
    for (const std::string& name : names) {
        text += (text.empty() ? "" : ", ") + name;
    }
    return text.empty() ? "no node" : text;
}

Result<> explain_pending(store::ReadTx& tx, const services::JobRow& job,
                         std::vector<services::TaskRow> tasks, v1::WhyResponse& response) {
    HOLD_TRY(const placement::ClusterView view, read_cluster(tx));
    std::erase_if(tasks, [](const services::TaskRow& task) { return task.state != "pending"; });
    const services::PlaceableJob placeable{
        .job = job, .tasks = std::move(tasks), .repair = job.state == "running"};
    const placement::Waiting waiting = placement::explain(view, pending_of(placeable));
    response.set_summary(waiting.reason.empty() ? "it fits now: the next placement round starts it"
                                                : waiting.reason);
    for (const placement::Finding& finding : waiting.findings) {
        response.add_details(finding.constraint + ": " + finding.text);
        if (!finding.fix.empty()) {
            response.add_fixes(finding.fix);
        }
    }
    for (const std::string& warning : waiting.warnings) {
        response.add_warnings(warning);
    }
    return {};
}

Result<> explain_training(store::ReadTx& tx, const services::JobRow& job,
                          v1::WhyResponse& response) {
    HOLD_TRY(const services::TrainingRunRow run, services::find_training(tx, job.id));
    HOLD_TRY(const auto workers, services::workers_of(tx, job.id));
    response.add_details(fmt::format("training: {}, epoch {}, {} of {} steps committed{}{}",
                                     run.state, run.epoch, run.step, job.spec.training->steps,
                                     run.reason.empty() ? "" : ": ", run.reason));
    for (const services::TrainingWorkerRow& worker : workers) {
        if (worker.state != "live") {
            response.add_details(fmt::format(
                "worker {}:{} is {} since epoch {}{}{}", worker.pipeline, worker.stage,
                worker.state, worker.epoch, worker.why.empty() ? "" : ": ", worker.why));
        }
    }
    return {};
}

Result<> explain_running(store::ReadTx& tx, const services::JobRow& job,
                         const std::vector<services::TaskRow>& tasks, v1::WhyResponse& response) {
    const bool has_pending = std::any_of(tasks.begin(), tasks.end(),
                                         [](const auto& task) { return task.state == "pending"; });
    if (has_pending) {  // a training job that runs with fewer workers: why do they not come back?
        HOLD_TRY(explain_pending(tx, job, tasks, response));
        response.add_details("placement: " + response.summary());
    }
    response.set_summary(
        fmt::format("runs on {} since {}", nodes_text(tasks), utc_time(job.start_us)));
    return {};
}

}  // namespace

Result<v1::WhyResponse> why(store::ReadTx& tx, std::int64_t id) {
    v1::WhyResponse response;
    response.set_job(id);
    HOLD_TRY(const auto rows, rows_named(tx, id));
    if (rows.empty()) {
        return fail(Errc::not_found, "no job {}", id);
    }
    if (rows.front().id.value != id) {
        const v1::Job array = array_as_job(id, rows);
        response.set_state(array.state());
        response.set_summary(array.reason());
        const auto waiting = std::find_if(rows.begin(), rows.end(), [](const auto& row) {
            return row.state == "pending" || row.state == "paused";
        });
        if (waiting != rows.end()) {
            HOLD_TRY(const v1::WhyResponse first, why(tx, waiting->id.value));
            response.add_details(fmt::format("element {} (job {}): {}", waiting->array_index,
                                             waiting->id.value, first.summary()));
            response.mutable_fixes()->CopyFrom(first.fixes());
        }
        return response;
    }
    const services::JobRow& job = rows.front();
    response.set_state(job.state);
    HOLD_TRY(const auto tasks, services::tasks_of(tx, job.id));
    if (job.state == "pending") {
        HOLD_TRY(explain_pending(tx, job, tasks, response));
    } else if (job.state == "paused") {
        response.set_summary("it is held");
        response.add_fixes(fmt::format("hold resume {}", id));
    } else if (job.state == "running") {
        HOLD_TRY(explain_running(tx, job, tasks, response));
    } else {
        response.set_summary(fmt::format("{} at {}{}{}", job.state, utc_time(job.end_us),
                                         job.reason.empty() ? "" : ": ", job.reason));
    }
    if (job.spec.training) {
        HOLD_TRY(explain_training(tx, job, response));
    }
    if (!job.warning.empty()) {
        response.add_warnings(job.warning);
    }
    return response;
}

}  // namespace holdfast::server
