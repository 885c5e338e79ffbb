// SPDX-License-Identifier: Apache-2.0
#include "json.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <holdfast/env.hpp>

#include "client.hpp"
#include "text.hpp"

namespace holdfast::cli {
namespace {

template <typename Values>
Json array_of(const Values& values) {
    Json array = Json::array();
    for (const auto& value : values) {
        array.push_back(value);
    }
    return array;
}

Json resources_json(const v1::Resources& resources) {
    return {{"cpus", resources.cpus()},
            {"memory_bytes", resources.memory_bytes()},
            {"gpus", resources.gpus()},
            {"gpu_type", resources.gpu_type()}};
}

Json training_json(const v1::TrainingSpec& training) {
    return {{"pipelines", training.pipelines()},
            {"stages", training.stages()},
            {"microbatches", training.microbatches()},
            {"model", training.model()},
            {"steps", training.steps()},
            {"exact", training.exact()},
            {"data", training.data()},
            {"seed", training.seed()},
            {"backend", training.backend()}};
}

Json capacity_json(const v1::NodeCapacity& capacity) {
    return {{"cpus", capacity.cpus()},
            {"memory_bytes", capacity.memory_bytes()},
            {"gpus", capacity.gpus()},
            {"gpu_type", capacity.gpu_type()}};
}

/// A row of history holds JSON text; one that does not parse is shown as the text that it is.
Json row_json(const std::string& text) {
    if (text.empty()) {
        return nullptr;
    }
    Json value = Json::parse(text, nullptr, false);
    return value.is_discarded() ? Json(text) : value;
}

}  // namespace

Json to_json(const v1::JobSpec& spec) {
    Json env = Json::object();
    std::vector<std::string> names;
    for (const auto& [name, value] : spec.env()) {
        names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
        env[name] = spec.env().at(name);
    }
    return {{"name", spec.name()},
            {"run", spec.run()},
            {"env", std::move(env)},
            {"workdir", spec.workdir()},
            {"tasks", spec.tasks()},
            {"tasks_per_node", spec.tasks_per_node()},
            {"per_task", resources_json(spec.per_task())},
            {"pool", spec.pool()},
            {"priority", spec.priority()},
            {"time_limit_s", spec.time_limit_s()},
            {"array", array_of(spec.array())},
            {"array_at_once", spec.array_at_once()},
            {"recovery", spec.recovery()},
            {"training", spec.has_training() ? training_json(spec.training()) : Json(nullptr)},
            {"nodes", array_of(spec.nodes())},
            {"exclude_nodes", array_of(spec.exclude_nodes())},
            {"hold", spec.hold()}};
}

Json to_json(const v1::Task& task) {
    return {{"id", task.id()},
            {"job", task.job()},
            {"rank", task.rank()},
            {"state", task.state()},
            {"node", task.node()},
            {"lease", task.lease()},
            {"exit_code", task.exit_code()},
            {"signal", task.signal()},
            {"pid", task.pid()},
            {"start_us", task.start_us()},
            {"end_us", task.end_us()},
            {"reason", task.reason()},
            {"gpu_slots", array_of(task.gpu_slots())},
            {"worker", task.worker()}};
}

namespace {

/// A list gives the shape of the gang only; a whole spec always names its pool.
bool has_whole_spec(const v1::Job& job) {
    return !job.spec().pool().empty();
}

bool is_training(const v1::Job& job) {
    return job.spec().has_training() || job.epoch() > 0 || job.step() > 0;
}

}  // namespace

Json to_json(const v1::Job& job) {
    Json tasks = Json::array();
    for (const v1::Task& task : job.tasks()) {
        tasks.push_back(to_json(task));
    }
    const bool has_loss = is_training(job) && job.step() > 0 && std::isfinite(job.loss());
    return {{"id", job.id()},
            {"name", job.name()},
            {"user", job.user()},
            {"pool", job.pool()},
            {"state", job.state()},
            {"reason", job.reason()},
            {"priority", job.priority()},
            {"submit_us", job.submit_us()},
            {"start_us", job.start_us()},
            {"end_us", job.end_us()},
            {"exit_code", job.exit_code()},
            {"restarts", job.restarts()},
            {"array_parent", job.array_parent()},
            {"array_index", job.array_index()},
            {"tasks", job.spec().tasks()},
            {"nodes", array_of(job.node_names())},
            {"step", job.step()},
            {"loss", has_loss ? Json(job.loss()) : Json(nullptr)},
            {"epoch", job.epoch()},
            {"spec", has_whole_spec(job) ? to_json(job.spec()) : Json(nullptr)},
            {"task_list", std::move(tasks)}};
}

Json to_json(const v1::Node& node) {
    return {{"id", node.id()},
            {"name", node.name()},
            {"pool", node.pool()},
            {"state", node.state()},
            {"reason", node.reason()},
            {"capacity", capacity_json(node.capacity())},
            {"free", capacity_json(node.free())},
            {"running_tasks", node.running_tasks()},
            {"address", node.address()},
            {"version", node.version()},
            {"epoch", node.epoch()},
            {"last_heartbeat_us", node.last_heartbeat_us()}};
}

Json to_json(const v1::Pool& pool) {
    return {{"name", pool.name()}, {"description", pool.description()}, {"nodes", pool.nodes()}};
}

Json to_json(const v1::Token& token) {
    return {{"id", token.id()},
            {"user", token.user()},
            {"role", token.role()},
            {"description", token.description()},
            {"created_us", token.created_us()},
            {"expires_us", token.expires_us()},
            {"revoked", token.revoked()}};
}

Json to_json(const v1::Change& change) {
    return {{"seq", change.seq()},
            {"txn", change.txn()},
            {"at_us", change.at_us()},
            {"who", change.who()},
            {"cause", change.cause()},
            {"table", change.table()},
            {"key", change.key()},
            {"op", change.op()},
            {"before", row_json(change.before())},
            {"after", row_json(change.after())}};
}

std::string job_label(const v1::Job& job) {
    return job.array_parent() == 0 ? std::to_string(job.id())
                                   : fmt::format("{}_{}", job.array_parent(), job.array_index());
}

std::string state_letters(const std::string& state) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kLetters = {{
        {"pending", "PD"},
        {"running", "R"},
        {"paused", "S"},
        {"completed", "CD"},
        {"failed", "F"},
        {"cancelled", "CA"},
        {"timeout", "TO"},
        {"node_fail", "NF"},
    }};
    for (const auto& [word, letters] : kLetters) {
        if (word == state) {
            return std::string(letters);
        }
    }
    return state;
}

namespace {

/// Time on its nodes, as squeue counts it.
std::string elapsed(const v1::Job& job, std::int64_t now_us) {
    if (job.start_us() == 0) {
        return "0:00";
    }
    return format_elapsed((job.end_us() == 0 ? now_us : job.end_us()) - job.start_us());
}

std::int64_t node_count(const v1::Job& job) {
    if (job.node_names_size() > 0) {
        return job.node_names_size();
    }
    const std::int64_t per_node = job.spec().tasks_per_node();
    return per_node == 0 ? 1 : (job.spec().tasks() + per_node - 1) / per_node;
}

std::string nodes_or_reason(const v1::Job& job) {
    if (job.state() == "running" || job.reason().empty()) {
        return compress_hosts({job.node_names().begin(), job.node_names().end()});
    }
    return "(" + job.reason() + ")";
}

/// "3/8": free of all.
std::string share(std::int64_t free, std::int64_t all) {
    return fmt::format("{}/{}", free, all);
}

std::string memory(std::int64_t bytes) {
    return human_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)));
}

}  // namespace

Listing job_listing(const google::protobuf::RepeatedPtrField<v1::Job>& jobs, std::int64_t now_us) {
    Listing listing;
    listing.noun = "jobs";
    listing.shape = to_json(v1::Job());
    listing.columns = {{.header = "JOBID", .right = true},
                       {.header = "PARTITION"},
                       {.header = "NAME"},
                       {.header = "USER"},
                       {.header = "ST"},
                       {.header = "TIME", .right = true},
                       {.header = "NODES", .right = true},
                       {.header = "TASKS", .wide = true, .right = true},
                       {.header = "PRIORITY", .wide = true, .right = true},
                       {.header = "SUBMITTED", .wide = true},
                       {.header = "EXIT", .wide = true, .right = true},
                       {.header = "RESTARTS", .wide = true, .right = true},
                       {.header = "STEP", .wide = true, .right = true},
                       {.header = "LOSS", .wide = true, .right = true},
                       {.header = "NODELIST(REASON)"}};
    for (const v1::Job& job : jobs) {
        Row row;
        row.object = to_json(job);
        row.name = "job-" + job_label(job);
        const bool ended = is_ended(job.state());
        const Json& loss = row.object["loss"];
        row.cells = {job_label(job),
                     job.pool(),
                     job.name(),
                     job.user(),
                     state_letters(job.state()),
                     elapsed(job, now_us),
                     std::to_string(node_count(job)),
                     std::to_string(job.spec().tasks()),
                     std::to_string(job.priority()),
                     format_local_time(job.submit_us()),
                     ended ? std::to_string(job.exit_code()) : "-",
                     std::to_string(job.restarts()),
                     is_training(job) ? std::to_string(job.step()) : "-",
                     loss.is_null() ? "-" : fmt::format("{:.4f}", job.loss()),
                     nodes_or_reason(job)};
        listing.rows.push_back(std::move(row));
    }
    return listing;
}

Listing node_listing(const google::protobuf::RepeatedPtrField<v1::Node>& nodes,
                     std::int64_t now_us) {
    Listing listing;
    listing.noun = "nodes";
    listing.shape = to_json(v1::Node());
    listing.columns = {{.header = "NODE"},
                       {.header = "PARTITION"},
                       {.header = "STATE"},
                       {.header = "CPUS", .right = true},
                       {.header = "MEMORY", .right = true},
                       {.header = "GPUS", .right = true},
                       {.header = "GPUTYPE"},
                       {.header = "TASKS", .right = true},
                       {.header = "ADDRESS", .wide = true},
                       {.header = "VERSION", .wide = true},
                       {.header = "EPOCH", .wide = true, .right = true},
                       {.header = "HEARTBEAT", .wide = true, .right = true},
                       {.header = "REASON"}};
    for (const v1::Node& node : nodes) {
        Row row;
        row.object = to_json(node);
        row.name = node.name();
        row.cells = {
            node.name(),
            node.pool(),
            node.state(),
            share(node.free().cpus(), node.capacity().cpus()),
            memory(node.free().memory_bytes()) + "/" + memory(node.capacity().memory_bytes()),
            share(node.free().gpus(), node.capacity().gpus()),
            node.capacity().gpu_type().empty() ? "-" : node.capacity().gpu_type(),
            std::to_string(node.running_tasks()),
            node.address().empty() ? "-" : node.address(),
            node.version().empty() ? "-" : node.version(),
            std::to_string(node.epoch()),
            node.last_heartbeat_us() == 0
                ? "-"
                : format_elapsed(now_us - node.last_heartbeat_us()) + " ago",
            node.reason()};
        listing.rows.push_back(std::move(row));
    }
    return listing;
}

}  // namespace holdfast::cli
