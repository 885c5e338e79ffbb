// SPDX-License-Identifier: Apache-2.0
#include "convert.hpp"

#include <algorithm>
#include <array>

namespace holdfast::server {
namespace {

constexpr std::size_t kRunBytesMax = 256 << 10;
constexpr std::size_t kTextBytesMax = 4096;
constexpr int kEnvMax = 1000;
constexpr std::size_t kEnvBytesMax = 256 << 10;
constexpr int kNodesMax = 10'000;
constexpr int kArrayMax = 10'000;

Result<> check_text(const std::string& text, std::size_t bytes_max, const char* field) {
    if (text.size() > bytes_max) {
        return fail(make_error(Errc::too_large, "{} has {} bytes; at most {} are allowed", field,
                               text.size(), bytes_max)
                        .at(field));
    }
    if (text.find('\0') != std::string::npos) {
        return fail(make_error(Errc::invalid_argument, "{} holds a zero byte", field).at(field));
    }
    return {};
}

Result<> check_count(int count, int count_max, const char* field) {
    if (count > count_max) {
        return fail(make_error(Errc::too_large, "{} has {} entries; at most {} are allowed", field,
                               count, count_max)
                        .at(field));
    }
    return {};
}

Result<> check_env(const v1::JobSpec& spec) {
    HOLD_TRY(check_count(spec.env_size(), kEnvMax, "env"));
    std::size_t bytes = 0;
    for (const auto& [name, value] : spec.env()) {
        HOLD_TRY(check_text(name, kTextBytesMax, "env"));
        HOLD_TRY(check_text(value, kEnvBytesMax, "env"));
        if (name.empty() || name.find('=') != std::string::npos) {
            return fail(make_error(Errc::invalid_argument,
                                   "`{}` is no name of an environment variable", name)
                            .at("env"));
        }
        bytes += name.size() + value.size();
    }
    if (bytes > kEnvBytesMax) {
        return fail(make_error(Errc::too_large, "env has {} bytes; at most {} are allowed", bytes,
                               kEnvBytesMax)
                        .at("env"));
    }
    return {};
}

Result<> check_bounds(const v1::JobSpec& spec) {
    HOLD_TRY(check_text(spec.name(), kTextBytesMax, "name"));
    HOLD_TRY(check_text(spec.run(), kRunBytesMax, "run"));
    HOLD_TRY(check_text(spec.workdir(), kTextBytesMax, "workdir"));
    HOLD_TRY(check_text(spec.pool(), kTextBytesMax, "pool"));
    HOLD_TRY(check_text(spec.recovery(), kTextBytesMax, "recovery"));
    HOLD_TRY(check_text(spec.per_task().gpu_type(), kTextBytesMax, "gpu_type"));
    HOLD_TRY(check_text(spec.training().model(), kTextBytesMax, "training.model"));
    HOLD_TRY(check_text(spec.training().data(), kTextBytesMax, "training.data"));
    HOLD_TRY(check_text(spec.training().backend(), kTextBytesMax, "training.backend"));
    HOLD_TRY(check_count(spec.array_size(), kArrayMax, "array"));
    HOLD_TRY(check_count(spec.nodes_size(), kNodesMax, "nodes"));
    HOLD_TRY(check_count(spec.exclude_nodes_size(), kNodesMax, "exclude_nodes"));
    for (const std::string& node : spec.nodes()) {
        HOLD_TRY(check_text(node, kTextBytesMax, "nodes"));
    }
    for (const std::string& node : spec.exclude_nodes()) {
        HOLD_TRY(check_text(node, kTextBytesMax, "exclude_nodes"));
    }
    return check_env(spec);
}

services::TrainingSpec from_proto(const v1::TrainingSpec& wire) {
    services::TrainingSpec spec;
    spec.pipelines = wire.pipelines();
    spec.stages = wire.stages();
    spec.microbatches = wire.microbatches();
    if (!wire.model().empty()) {
        spec.model = wire.model();
    }
    spec.steps = wire.steps();
    spec.exact = wire.exact();
    spec.data = wire.data();
    if (wire.seed() != 0) {
        spec.seed = wire.seed();
    }
    if (!wire.backend().empty()) {
        spec.backend = wire.backend();
    }
    return spec;
}

void fill(v1::TrainingSpec& wire, const services::TrainingSpec& spec) {
    wire.set_pipelines(spec.pipelines);
    wire.set_stages(spec.stages);
    wire.set_microbatches(spec.microbatches);
    wire.set_model(spec.model);
    wire.set_steps(spec.steps);
    wire.set_exact(spec.exact);
    wire.set_data(spec.data);
    wire.set_seed(spec.seed);
    wire.set_backend(spec.backend);
}

void fill(v1::NodeCapacity& wire, const services::Resources& resources) {
    wire.set_cpus(resources.cpus);
    wire.set_memory_bytes(resources.memory_bytes);
    wire.set_gpus(resources.gpus);
    wire.set_gpu_type(resources.gpu_type);
}

}  // namespace

Result<services::JobSpec> from_proto(const v1::JobSpec& wire) {
    HOLD_TRY(check_bounds(wire));
    services::JobSpec spec;
    spec.name = wire.name();
    spec.run = wire.run();
    spec.env.insert(wire.env().begin(), wire.env().end());
    spec.workdir = wire.workdir();
    spec.tasks = wire.tasks() == 0 && !wire.has_training() ? 1 : wire.tasks();
    if (wire.has_per_task()) {
        // 0 is proto3's "not said".
        spec.per_task.cpus = wire.per_task().cpus() == 0 ? 1 : wire.per_task().cpus();
        spec.per_task.memory_bytes = wire.per_task().memory_bytes();
        spec.per_task.gpus = wire.per_task().gpus();
        spec.per_task.gpu_type = wire.per_task().gpu_type();
    }
    if (!wire.pool().empty()) {
        spec.pool = wire.pool();
    }
    spec.priority = wire.priority();
    spec.time_limit_s = wire.time_limit_s();
    spec.array.assign(wire.array().begin(), wire.array().end());
    spec.array_at_once = wire.array_at_once();
    spec.recovery = wire.recovery();
    if (wire.has_training()) {
        spec.training = from_proto(wire.training());
        if (wire.tasks() == 0) {  // one task per worker
            const std::int64_t workers =
                std::int64_t{spec.training->pipelines} * spec.training->stages;
            spec.tasks = static_cast<std::int32_t>(std::clamp<std::int64_t>(workers, 0, 1 << 20));
        }
    }
    spec.nodes.assign(wire.nodes().begin(), wire.nodes().end());
    spec.exclude_nodes.assign(wire.exclude_nodes().begin(), wire.exclude_nodes().end());
    spec.hold = wire.hold();
    spec.tasks_per_node = wire.tasks_per_node();
    return spec;
}

v1::JobSpec to_proto(const services::JobSpec& spec) {
    v1::JobSpec wire;
    wire.set_name(spec.name);
    wire.set_run(spec.run);
    wire.mutable_env()->insert(spec.env.begin(), spec.env.end());
    wire.set_workdir(spec.workdir);
    wire.set_tasks(spec.tasks);
    wire.mutable_per_task()->set_cpus(spec.per_task.cpus);
    wire.mutable_per_task()->set_memory_bytes(spec.per_task.memory_bytes);
    wire.mutable_per_task()->set_gpus(spec.per_task.gpus);
    wire.mutable_per_task()->set_gpu_type(spec.per_task.gpu_type);
    wire.set_pool(spec.pool);
    wire.set_priority(spec.priority);
    wire.set_time_limit_s(spec.time_limit_s);
    wire.mutable_array()->Add(spec.array.begin(), spec.array.end());
    wire.set_array_at_once(spec.array_at_once);
    wire.set_recovery(spec.recovery);
    if (spec.training) {
        fill(*wire.mutable_training(), *spec.training);
    }
    for (const std::string& node : spec.nodes) {
        wire.add_nodes(node);
    }
    for (const std::string& node : spec.exclude_nodes) {
        wire.add_exclude_nodes(node);
    }
    wire.set_hold(spec.hold);
    wire.set_tasks_per_node(spec.tasks_per_node);
    return wire;
}

v1::Job to_proto(const services::JobRow& job) {
    v1::Job wire;
    wire.set_id(job.id.value);
    wire.set_name(job.name);
    wire.set_user(job.user);
    wire.set_pool(job.pool);
    wire.set_state(job.state);
    wire.set_reason(job.reason);
    wire.set_priority(job.priority);
    wire.set_submit_us(job.submit_us);
    wire.set_start_us(job.start_us);
    wire.set_end_us(job.end_us);
    wire.set_exit_code(job.exit_code);
    wire.set_array_parent(job.array_parent);
    wire.set_array_index(job.array_index);
    wire.set_restarts(job.restarts);
    *wire.mutable_spec() = to_proto(job.spec);
    return wire;
}

v1::Task to_proto(const services::TaskRow& task) {
    v1::Task wire;
    wire.set_id(task.id.value);
    wire.set_job(task.job.value);
    wire.set_rank(task.rank);
    wire.set_state(task.state);
    wire.set_node(task.node);
    wire.set_lease(task.lease.value);
    wire.set_exit_code(task.exit_code);
    wire.set_signal(task.signal);
    wire.set_pid(task.pid);
    wire.set_start_us(task.start_us);
    wire.set_end_us(task.end_us);
    wire.set_reason(task.reason);
    wire.mutable_gpu_slots()->Add(task.gpu_slots.begin(), task.gpu_slots.end());
    wire.set_worker(task.worker);
    return wire;
}

v1::Node to_proto(const services::NodeRow& node) {
    v1::Node wire;
    wire.set_id(node.id.value);
    wire.set_name(node.name);
    wire.set_pool(node.pool);
    wire.set_state(node.state);
    wire.set_reason(node.reason);
    fill(*wire.mutable_capacity(), node.capacity);
    services::Resources free = node.capacity;
    free.cpus -= node.used.cpus;
    free.memory_bytes -= node.used.memory_bytes;
    free.gpus -= node.used.gpus;
    fill(*wire.mutable_free(), free);
    wire.set_address(node.address);
    wire.set_last_heartbeat_us(node.heartbeat_us);
    wire.set_version(node.version);
    wire.set_running_tasks(node.running_tasks);
    wire.set_epoch(node.epoch);
    return wire;
}

v1::Token to_proto(const services::TokenRow& token) {
    v1::Token wire;
    wire.set_id(token.id.value);
    wire.set_user(token.user);
    wire.set_role(token.role);
    wire.set_description(token.description);
    wire.set_created_us(token.created_us);
    wire.set_expires_us(token.expires_us);
    wire.set_revoked(token.revoked);
    return wire;
}

v1::SqlResponse to_proto(sql::Answer&& answer) {
    v1::SqlResponse wire;
    wire.set_truncated(answer.truncated);
    for (std::string& column : answer.columns) {
        wire.add_columns(std::move(column));
    }
    for (auto& row : answer.rows) {
        v1::SqlRow* out = wire.add_rows();
        for (sql::Cell& cell : row) {
            v1::SqlValue* value = out->add_values();
            if (const auto* integer = std::get_if<std::int64_t>(&cell)) {
                value->set_integer(*integer);
            } else if (const auto* real = std::get_if<double>(&cell)) {
                value->set_real(*real);
            } else if (auto* text = std::get_if<std::string>(&cell)) {
                value->set_text(std::move(*text));
            } else if (auto* bytes = std::get_if<sql::Bytes>(&cell)) {
                value->set_blob(std::move(bytes->bytes));
            } else {
                value->set_null(true);
            }
        }
    }
    return wire;
}

bool is_ended(const std::string& state) {
    constexpr std::array<std::string_view, 5> kEnded = {"completed", "failed", "cancelled",
                                                        "timeout", "node_fail"};
    return std::find(kEnded.begin(), kEnded.end(), state) != kEnded.end();
}

v1::Job array_as_job(std::int64_t array, const std::vector<services::JobRow>& elements) {
    // The state that speaks for all: the first of these that any element is in.
    constexpr std::array<std::string_view, 8> kSpeaking = {
        "running", "pending", "paused", "failed", "node_fail", "timeout", "cancelled", "completed"};
    const services::JobRow* speaker = nullptr;
    std::size_t best = kSpeaking.size();
    v1::Job wire;
    if (elements.empty()) {
        return wire;
    }
    wire = to_proto(elements.front());
    std::map<std::string, int> counts;
    std::int64_t start_us = 0;
    std::int64_t end_us = 0;
    int exit_code = 0;
    for (const services::JobRow& element : elements) {
        ++counts[element.state];
        const auto rank = static_cast<std::size_t>(
            std::find(kSpeaking.begin(), kSpeaking.end(), element.state) - kSpeaking.begin());
        if (rank < best) {
            best = rank;
            speaker = &element;
        }
        if (element.start_us != 0 && (start_us == 0 || element.start_us < start_us)) {
            start_us = element.start_us;
        }
        end_us = std::max(end_us, element.end_us);
        exit_code = std::max(exit_code, element.exit_code);
    }
    std::string summary;
    for (const auto& [state, count] : counts) {
        summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", count, state);
    }
    wire.set_id(array);
    wire.set_state(speaker == nullptr ? elements.front().state : speaker->state);
    wire.set_reason(fmt::format("array of {}: {}", elements.size(), summary));
    wire.set_start_us(start_us);
    wire.set_end_us(is_ended(wire.state()) ? end_us : 0);
    wire.set_exit_code(exit_code);
    wire.set_array_parent(0);
    wire.set_array_index(0);
    wire.set_restarts(0);
    return wire;
}

void hide_private(v1::Job& job) {
    job.mutable_spec()->clear_env();
    job.mutable_spec()->clear_run();
}

}  // namespace holdfast::server
