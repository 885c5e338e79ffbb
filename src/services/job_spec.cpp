// SPDX-License-Identifier: Apache-2.0
/// What a job may ask for. Everything that enters by the API passes here once, before the first row
/// is written; nothing after it checks again.
#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include <holdfast/services.hpp>

#include "rows.hpp"

namespace holdfast::services {

namespace {

constexpr std::int64_t kTasksMax = 10'000;
constexpr std::size_t kArrayElementsMax = 10'000;
/// Tasks of one submit over all array elements: about a second of the writer's time.
constexpr std::int64_t kTasksOfArrayMax = 20'000;
constexpr std::int32_t kArrayIndexMax = 4'000'000;
constexpr std::size_t kJobNameBytesMax = 200;
constexpr std::size_t kRunBytesMax = 120U << 10U;  // one argument of execve holds 128 KiB
constexpr std::size_t kEnvEntriesMax = 1000;
constexpr std::size_t kEnvBytesMax = 256U << 10U;
constexpr std::size_t kEnvValueBytesMax = 120U << 10U;
constexpr std::size_t kPathBytesMax = 4095;
constexpr std::size_t kNodesNamedMax = 10'000;
constexpr std::int64_t kCpusMax = 100'000;
constexpr std::int64_t kGpusMax = 1024;
constexpr std::int64_t kMemoryBytesMax = std::int64_t{1} << 50;
constexpr std::int32_t kPriorityMax = 1'000'000;
constexpr std::int64_t kTimeLimitMax = std::int64_t{3650} * 24 * 3600;
constexpr std::int64_t kWorkersMax = 1024;
constexpr std::int32_t kPipelinesMax = 256;
constexpr std::int32_t kStagesMax = 64;
constexpr std::int32_t kMicrobatchesMax = 1024;
constexpr std::int64_t kStepsMax = 1'000'000'000;

struct Model {
    std::string_view name;
    std::int32_t layers;
};

constexpr std::array kModels = {Model{"gpt-tiny", 4}, Model{"gpt-small", 6}};

Error wrong(std::string where, const std::string& text, const std::string& hint = "") {
    return make_error(Errc::invalid_argument, "{}: {}", where, text).at(where).advise(hint);
}

Result<> in_range(std::int64_t value, std::int64_t low, std::int64_t high,
                  const std::string& where) {
    if (value < low || value > high) {
        return fail(wrong(where, fmt::format("{} is not in {} to {}", value, low, high)));
    }
    return {};
}

Result<> check_path(const std::string& path, const std::string& where) {
    HOLD_TRY(check_line(path, kPathBytesMax, where));
    if (!path.starts_with('/')) {
        return fail(wrong(where, fmt::format("'{}' is not an absolute path", path),
                          "write the path from '/', as it is on the nodes"));
    }
    return {};
}

bool is_env_name(const std::string& name) {
    const auto letter = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    return !name.empty() && name.size() <= 255 && letter(name.front()) &&
           std::all_of(name.begin(), name.end(),
                       [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

Result<> check_env(const JobSpec& spec) {
    if (spec.env.size() > kEnvEntriesMax) {
        return fail(wrong("env", fmt::format("{} variables; at most {} are allowed",
                                             spec.env.size(), kEnvEntriesMax)));
    }
    std::size_t bytes = 0;
    for (const auto& [name, value] : spec.env) {
        if (!is_env_name(name)) {
            return fail(wrong("env",
                              fmt::format("'{}' is not a variable's name",
                                          is_utf8(name) ? name.substr(0, 64) : "…"),
                              "use letters, digits and '_', a digit not first"));
        }
        if (value.size() > kEnvValueBytesMax || !is_utf8(value) ||
            value.find('\0') != std::string::npos) {
            return fail(wrong("env." + name,
                              fmt::format("the value has more than {} bytes, is not UTF-8 or holds "
                                          "a zero byte",
                                          kEnvValueBytesMax)));
        }
        bytes += name.size() + value.size() + 2;
    }
    if (bytes > kEnvBytesMax) {
        return fail(wrong(
            "env", fmt::format("{} bytes in all; at most {} are allowed", bytes, kEnvBytesMax)));
    }
    return {};
}

Result<> check_run(const JobSpec& spec) {
    const bool empty =
        std::all_of(spec.run.begin(), spec.run.end(), [](char c) { return c == ' ' || c == '\n'; });
    if (spec.training && !empty) {
        return fail(wrong("run", "a training job has no command of its own",
                          "remove run, or remove training"));
    }
    if (!spec.training && empty) {
        return fail(wrong("run", "the job has nothing to do",
                          "give a command in run, or training for a pipeline job"));
    }
    if (spec.run.size() > kRunBytesMax || !is_utf8(spec.run) ||
        spec.run.find('\0') != std::string::npos) {
        return fail(wrong(
            "run",
            fmt::format("has more than {} bytes, is not UTF-8 or holds a zero byte", kRunBytesMax),
            "put the text into a file that the nodes can read"));
    }
    return {};
}

Result<> fill_resources(JobSpec& spec) {
    Resources& want = spec.per_task;
    if (want.cpus == 0) {
        want.cpus = 1;
    }
    if (spec.training && want.gpus == 0) {
        want.gpus = 1;
    }
    HOLD_TRY(in_range(want.cpus, 1, kCpusMax, "per_task.cpus"));
    HOLD_TRY(in_range(want.memory_bytes, 0, kMemoryBytesMax, "per_task.memory_bytes"));
    HOLD_TRY(in_range(want.gpus, 0, kGpusMax, "per_task.gpus"));
    if (want.gpu_type.empty()) {
        return {};
    }
    if (want.gpus == 0) {
        return fail(wrong("per_task.gpu_type", "names a type of gpu, but no gpus are asked for",
                          "set per_task.gpus too"));
    }
    return check_name(want.gpu_type, "per_task.gpu_type");
}

Result<> check_array(const JobSpec& spec) {
    if (spec.array.size() > kArrayElementsMax) {
        return fail(wrong("array", fmt::format("{} elements; at most {} are allowed",
                                               spec.array.size(), kArrayElementsMax)));
    }
    std::set<std::int32_t> seen;
    for (const std::int32_t index : spec.array) {
        HOLD_TRY(in_range(index, 0, kArrayIndexMax, "array"));
        if (!seen.insert(index).second) {
            return fail(wrong("array", fmt::format("index {} is there twice", index)));
        }
    }
    HOLD_TRY(in_range(spec.array_at_once, 0, static_cast<std::int64_t>(kArrayElementsMax),
                      "array_at_once"));
    if (spec.array_at_once > 0 && spec.array.empty()) {
        return fail(wrong("array_at_once", "the job is not an array", "set array too"));
    }
    if (!spec.array.empty() && spec.training) {
        return fail(make_error(Errc::unsupported, "array: arrays of training jobs are not built")
                        .at("array")
                        .advise("submit the training jobs one by one"));
    }
    const std::int64_t tasks = static_cast<std::int64_t>(spec.array.size()) * spec.tasks;
    if (tasks > kTasksOfArrayMax) {
        return fail(wrong("array",
                          fmt::format("{} elements of {} tasks are {}; at most {} are allowed",
                                      spec.array.size(), spec.tasks, tasks, kTasksOfArrayMax),
                          "submit smaller arrays"));
    }
    return {};
}

Result<> fill_recovery(JobSpec& spec) {
    if (spec.recovery.empty()) {
        spec.recovery = spec.training ? "recycle" : "requeue";
    }
    if (spec.recovery == "vm") {
        return fail(
            make_error(Errc::unsupported, "recovery: vm is not built yet")
                .at("recovery")
                .advise(spec.training ? "choose recycle or none" : "choose requeue or none"));
    }
    if (spec.recovery != "none" && spec.recovery != "requeue" && spec.recovery != "recycle") {
        return fail(wrong("recovery",
                          fmt::format("unknown recovery '{}'",
                                      is_utf8(spec.recovery) ? spec.recovery.substr(0, 64) : "…"),
                          "choose none, requeue or recycle"));
    }
    if (spec.recovery == "recycle" && !spec.training) {
        return fail(wrong("recovery", "recycle is for training jobs", "choose requeue or none"));
    }
    if (spec.recovery == "requeue" && spec.training) {
        return fail(make_error(Errc::unsupported,
                               "recovery: a training job is not started again from its beginning")
                        .at("recovery")
                        .advise("choose recycle (goes on without the lost workers) or none"));
    }
    return {};
}

Result<> check_node_lists(const JobSpec& spec) {
    std::set<std::string> seen;
    const auto check = [&](const std::vector<std::string>& names,
                           const std::string& where) -> Result<> {
        if (names.size() > kNodesNamedMax) {
            return fail(wrong(where, fmt::format("{} names; at most {} are allowed", names.size(),
                                                 kNodesNamedMax)));
        }
        for (const std::string& name : names) {
            HOLD_TRY(check_name(name, where));
            if (!seen.insert(name).second) {
                return fail(wrong(where, fmt::format("node {} is named twice", name),
                                  "a node is either wanted or excluded"));
            }
        }
        return {};
    };
    HOLD_TRY(check(spec.nodes, "nodes"));
    return check(spec.exclude_nodes, "exclude_nodes");
}

Result<> check_model(const TrainingSpec& training) {
    const auto* const model = std::find_if(kModels.begin(), kModels.end(), [&](const Model& known) {
        return known.name == training.model;
    });
    if (model == kModels.end()) {
        return fail(wrong("training.model",
                          fmt::format("no model is named '{}'",
                                      is_utf8(training.model) ? training.model.substr(0, 64) : "…"),
                          "known models: gpt-tiny, gpt-small"));
    }
    if (training.stages > model->layers) {
        return fail(wrong("training.stages",
                          fmt::format("{} stages, but {} has {} layers: each stage needs one",
                                      training.stages, model->name, model->layers)));
    }
    return {};
}

Result<> fill_training(JobSpec& spec) {
    const TrainingSpec& training = *spec.training;
    HOLD_TRY(in_range(training.pipelines, 1, kPipelinesMax, "training.pipelines"));
    HOLD_TRY(in_range(training.stages, 1, kStagesMax, "training.stages"));
    HOLD_TRY(in_range(training.microbatches, 1, kMicrobatchesMax, "training.microbatches"));
    HOLD_TRY(in_range(training.steps, 1, kStepsMax, "training.steps"));
    HOLD_TRY(check_model(training));
    if (training.backend != "torch" && training.backend != "reference") {
        return fail(wrong("training.backend", "is neither torch nor reference"));
    }
    if (training.data.empty()) {
        return fail(wrong("training.data", "no text to learn from is named",
                          "name a text file that is present on every node"));
    }
    HOLD_TRY(check_path(training.data, "training.data"));
    const std::int32_t workers = training.pipelines * training.stages;
    if (workers > kWorkersMax) {
        return fail(wrong("training",
                          fmt::format("{} pipelines of {} stages are {} workers; at most {} are "
                                      "allowed",
                                      training.pipelines, training.stages, workers, kWorkersMax)));
    }
    if (spec.tasks > 1 && spec.tasks != workers) {
        return fail(wrong("tasks",
                          fmt::format("{} tasks, but {} pipelines of {} stages are {} workers",
                                      spec.tasks, training.pipelines, training.stages, workers),
                          "leave tasks out of a training job"));
    }
    spec.tasks = workers;
    return {};
}

}  // namespace

Result<JobSpec> checked(JobSpec spec) {
    if (spec.tasks == 0) {
        spec.tasks = 1;
    }
    if (spec.training) {
        HOLD_TRY(fill_training(spec));
    }
    HOLD_TRY(in_range(spec.tasks, 1, kTasksMax, "tasks"));
    if (spec.name.empty()) {
        spec.name = spec.training ? spec.training->model : "job";
    }
    HOLD_TRY(check_line(spec.name, kJobNameBytesMax, "name"));
    HOLD_TRY(check_run(spec));
    HOLD_TRY(check_env(spec));
    if (!spec.workdir.empty()) {
        HOLD_TRY(check_path(spec.workdir, "workdir"));
    }
    if (spec.pool.empty()) {
        spec.pool = "default";
    }
    HOLD_TRY(check_name(spec.pool, "pool"));
    HOLD_TRY(fill_resources(spec));
    HOLD_TRY(in_range(spec.priority, -kPriorityMax, kPriorityMax, "priority"));
    HOLD_TRY(in_range(spec.time_limit_s, 0, kTimeLimitMax, "time_limit_s"));
    HOLD_TRY(in_range(spec.tasks_per_node, 0, kTasksMax, "tasks_per_node"));
    HOLD_TRY(check_array(spec));
    HOLD_TRY(fill_recovery(spec));
    HOLD_TRY(check_node_lists(spec));
    return spec;
}

}  // namespace holdfast::services
