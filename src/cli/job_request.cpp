// SPDX-License-Identifier: Apache-2.0
#include "job_request.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

namespace holdfast::cli {
namespace {

constexpr std::size_t kNameBytesMax = 200;
constexpr std::int64_t kCpusMax = 100'000;
constexpr std::int64_t kPriorityMax = 1'000'000;
constexpr std::int64_t kPriorityStep = 100;  // of the words low and high from normal

Result<std::string> parse_name(std::string_view text) {
    if (text.empty() || text.size() > kNameBytesMax) {
        return fail(Errc::invalid_argument, "a name has 1 to {} bytes, not {}", kNameBytesMax,
                    text.size());
    }
    if (printable(text) != text) {
        return fail(Errc::invalid_argument, "the name `{}` holds control characters",
                    printable(text));
    }
    return std::string(text);
}

Result<std::string> parse_workdir(std::string_view text) {
    if (!text.starts_with("/")) {
        return fail(make_error(Errc::invalid_argument, "the folder `{}` is not an absolute path",
                               printable(text))
                        .advise("jobs run on other machines: begin the path with /"));
    }
    return std::string(text);
}

Result<std::string> parse_recovery(std::string_view text) {
    static const std::vector<std::string> kKnown = {"none", "requeue", "recycle"};
    if (text == "vm") {
        return fail(make_error(Errc::unsupported, "`vm` is not built yet")
                        .advise("choose none, requeue or recycle"));
    }
    if (std::find(kKnown.begin(), kKnown.end(), text) == kKnown.end()) {
        const std::string near = did_you_mean(text, kKnown);
        return fail(make_error(Errc::invalid_argument, "unknown recovery `{}`", printable(text))
                        .advise(near.empty() ? "choose none, requeue or recycle" : near));
    }
    return std::string(text);
}

Result<std::int64_t> parse_priority(std::string_view text) {
    if (text == "low") {
        return -kPriorityStep;
    }
    if (text == "normal") {
        return 0;
    }
    if (text == "high") {
        return kPriorityStep;
    }
    auto number = parse_integer(text, -kPriorityMax, kPriorityMax);
    if (!number) {
        return fail(std::move(number).error().advise("write low, normal, high or a number"));
    }
    return number;
}

Result<std::int64_t> parse_nodes(std::string_view text) {
    const auto dash = text.find('-');
    if (dash != std::string_view::npos && dash > 0) {
        HOLD_TRY(const std::int64_t low, parse_integer(text.substr(0, dash), 1, kTasksMax));
        HOLD_TRY(const std::int64_t high, parse_integer(text.substr(dash + 1), 1, kTasksMax));
        if (low != high) {
            return fail(make_error(Errc::unsupported, "a range of nodes ({}-{}) is not built yet",
                                   low, high)
                            .advise("name one number of nodes"));
        }
        return low;
    }
    return parse_integer(text, 1, kTasksMax);
}

Result<bool> parse_bool(std::string_view text) {
    if (text == "true" || text == "false") {
        return text == "true";
    }
    return fail(Errc::invalid_argument, "`{}` is neither true nor false", printable(text));
}

// --------------------------------------------------------------------------- fields of the request

using Setter = std::function<Result<>(JobRequest&, std::string_view)>;

/// A setter that parses and stores.
template <typename T, typename Parse>
Setter into(std::optional<T> JobRequest::* field, Parse parse) {
    return [field, parse](JobRequest& request, std::string_view text) -> Result<> {
        HOLD_TRY(auto value, parse(text));
        request.*field = std::move(value);
        return {};
    };
}

auto number(std::int64_t low, std::int64_t high) {
    return [low, high](std::string_view text) { return parse_integer(text, low, high); };
}

const std::map<std::string, Setter, std::less<>>& setters() {
    static const std::map<std::string, Setter, std::less<>> kSetters = {
        {"name", into(&JobRequest::name, parse_name)},
        {"run",
         into(&JobRequest::run,
              [](std::string_view text) -> Result<std::string> { return std::string(text); })},
        {"workdir", into(&JobRequest::workdir, parse_workdir)},
        {"pool", into(&JobRequest::pool, parse_name)},
        {"recovery", into(&JobRequest::recovery, parse_recovery)},
        {"nodes", into(&JobRequest::nodes, parse_nodes)},
        {"tasks", into(&JobRequest::tasks, number(1, kTasksMax))},
        {"tasks_per_node", into(&JobRequest::tasks_per_node, number(1, kTasksMax))},
        {"cpus_per_task", into(&JobRequest::cpus_per_task, number(1, kCpusMax))},
        {"gpus", into(&JobRequest::gpus, parse_gpus)},
        {"gpus_per_node", into(&JobRequest::gpus_per_node, parse_gpus)},
        {"gpus_per_task", into(&JobRequest::gpus_per_task, parse_gpus)},
        {"memory", into(&JobRequest::memory, parse_memory)},
        {"memory_per_task", into(&JobRequest::memory_per_task, parse_memory)},
        {"memory_per_cpu", into(&JobRequest::memory_per_cpu, parse_memory)},
        {"time_limit", into(&JobRequest::time_limit_s, parse_time_limit)},
        {"array", into(&JobRequest::array, parse_array)},
        {"priority", into(&JobRequest::priority, parse_priority)},
        {"nodelist", into(&JobRequest::nodelist, expand_hosts)},
        {"exclude", into(&JobRequest::exclude, expand_hosts)},
        {"hold",
         [](JobRequest& request, std::string_view text) -> Result<> {
             HOLD_TRY(request.hold, parse_bool(text));
             return {};
         }},
        {"wait",
         [](JobRequest& request, std::string_view text) -> Result<> {
             HOLD_TRY(request.wait, parse_bool(text));
             return {};
         }},
    };
    return kSetters;
}

template <typename T>
void overlay(std::optional<T>& earlier, const std::optional<T>& later) {
    if (later) {
        earlier = later;
    }
}

/// Two ways to say one thing: the later source's way counts alone.
template <typename... Fields>
void drop_if_replaced(JobRequest& earlier, const JobRequest& later, Fields... fields) {
    if (((later.*fields).has_value() || ...)) {
        ((earlier.*fields).reset(), ...);
    }
}

}  // namespace

std::string JobRequest::place(const std::string& field) const {
    const auto found = where.find(field);
    return found == where.end() ? field : found->second;
}

Result<> set_field(JobRequest& request, const std::string& field, std::string_view text,
                   const std::string& where) {
    const auto found = setters().find(field);
    HOLD_CHECK(found != setters().end(), "a field without a setter");
    if (!is_utf8(text) || text.find('\0') != std::string_view::npos) {
        return fail(make_error(Errc::invalid_argument, "{} is not text", field).at(where));
    }
    if (auto done = found->second(request, text); !done) {
        Error error = std::move(done).error();
        error.message = fmt::format("{}: {}", field, error.message);
        return fail(std::move(error).at(where));
    }
    request.where[field] = where;
    return {};
}

Result<> set_env(JobRequest& request, std::string_view text, const std::string& where) {
    const auto equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    const bool good_name = !name.empty() && (name[0] < '0' || name[0] > '9') &&
                           std::all_of(name.begin(), name.end(), [](char c) {
                               return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                                      (c >= 'a' && c <= 'z') || c == '_';
                           });
    if (equals == std::string_view::npos || !good_name) {
        return fail(make_error(Errc::invalid_argument, "env: `{}` is not NAME=VALUE",
                               printable(text.substr(0, 60)))
                        .at(where)
                        .advise("a name has letters, digits and _, and no digit in front"));
    }
    if (!is_utf8(text) || text.find('\0') != std::string_view::npos) {
        return fail(make_error(Errc::invalid_argument, "env: {} is not text", name).at(where));
    }
    request.env[std::string(name)] = std::string(text.substr(equals + 1));
    return {};
}

JobRequest merged(JobRequest earlier, const JobRequest& later) {
    drop_if_replaced(earlier, later, &JobRequest::gpus, &JobRequest::gpus_per_node,
                     &JobRequest::gpus_per_task);
    drop_if_replaced(earlier, later, &JobRequest::memory, &JobRequest::memory_per_task,
                     &JobRequest::memory_per_cpu);
    overlay(earlier.name, later.name);
    overlay(earlier.run, later.run);
    overlay(earlier.workdir, later.workdir);
    overlay(earlier.pool, later.pool);
    overlay(earlier.recovery, later.recovery);
    overlay(earlier.nodes, later.nodes);
    overlay(earlier.tasks, later.tasks);
    overlay(earlier.tasks_per_node, later.tasks_per_node);
    overlay(earlier.cpus_per_task, later.cpus_per_task);
    overlay(earlier.gpus, later.gpus);
    overlay(earlier.gpus_per_node, later.gpus_per_node);
    overlay(earlier.gpus_per_task, later.gpus_per_task);
    overlay(earlier.memory, later.memory);
    overlay(earlier.memory_per_task, later.memory_per_task);
    overlay(earlier.memory_per_cpu, later.memory_per_cpu);
    overlay(earlier.time_limit_s, later.time_limit_s);
    overlay(earlier.array, later.array);
    overlay(earlier.priority, later.priority);
    overlay(earlier.nodelist, later.nodelist);
    overlay(earlier.exclude, later.exclude);
    overlay(earlier.training, later.training);
    earlier.hold = earlier.hold || later.hold;
    earlier.wait = earlier.wait || later.wait;
    for (const auto& [name, value] : later.env) {
        earlier.env[name] = value;
    }
    for (const auto& [field, where] : later.where) {
        earlier.where[field] = where;
    }
    return earlier;
}

// ----------------------------------------------------------------------------------- to the API

namespace {

/// How many tasks, and how they spread: `per_node` 0 is any spread.
struct Shape {
    std::int64_t tasks = 1;
    std::int64_t per_node = 0;
};

/// The number of workers of a training job.
std::optional<std::int64_t> worker_count(const JobRequest& request) {
    if (!request.training) {
        return std::nullopt;
    }
    return request.training->pipelines.value_or(1) * request.training->stages.value_or(1);
}

Result<Shape> shape_on_nodes(const JobRequest& request, std::int64_t nodes) {
    Shape shape;
    shape.per_node = request.tasks_per_node.value_or(0);
    shape.tasks = request.tasks.value_or(shape.per_node == 0 ? nodes : nodes * shape.per_node);
    if (const auto workers = worker_count(request); workers && !request.tasks) {
        shape.tasks = *workers;
    }
    if (shape.tasks < nodes) {
        return fail(make_error(Errc::invalid_argument, "{} nodes for {} tasks: some would be empty",
                               nodes, shape.tasks)
                        .at(request.place("nodes"))
                        .advise("ask for fewer nodes or more tasks"));
    }
    if (shape.per_node == 0 && shape.tasks % nodes != 0) {
        return fail(
            make_error(Errc::unsupported,
                       "{} tasks do not spread evenly over {} nodes; uneven spreads are not "
                       "built yet",
                       shape.tasks, nodes)
                .at(request.place("tasks"))
                .advise("ask for a multiple, or leave out nodes"));
    }
    if (shape.per_node == 0) {
        shape.per_node = shape.tasks / nodes;
    }
    if (shape.per_node * nodes != shape.tasks) {
        return fail(make_error(Errc::invalid_argument, "{} tasks are not {} on each of {} nodes",
                               shape.tasks, shape.per_node, nodes)
                        .at(request.place("tasks_per_node"))
                        .advise("leave one of nodes, tasks and tasks_per_node out"));
    }
    return shape;
}

Result<Shape> shape_of(const JobRequest& request) {
    const auto workers = worker_count(request);
    if (workers && request.tasks && *request.tasks != *workers) {
        return fail(make_error(Errc::invalid_argument,
                               "a training job has pipelines × stages = {} tasks, not {}", *workers,
                               *request.tasks)
                        .at(request.place("tasks"))
                        .advise("leave out tasks"));
    }
    if (workers && *workers > kTasksMax) {
        return fail(make_error(Errc::invalid_argument,
                               "{} training workers; at most {} are allowed", *workers, kTasksMax)
                        .at(request.place("training")));
    }
    Shape shape;
    if (request.nodes) {
        HOLD_TRY(shape, shape_on_nodes(request, *request.nodes));
    } else {
        shape.tasks = workers.value_or(request.tasks.value_or(1));
        shape.per_node = request.tasks_per_node.value_or(0);
    }
    if (shape.tasks > kTasksMax) {
        return fail(make_error(Errc::invalid_argument, "{} tasks; at most {} are allowed",
                               shape.tasks, kTasksMax)
                        .at(request.place("tasks")));
    }
    return shape;
}

/// Tasks that share what was asked for per node.
Result<std::int64_t> sharers(const JobRequest& request, const Shape& shape,
                             const std::string& field) {
    if (shape.tasks == 1) {
        return 1;
    }
    if (shape.per_node == 0) {
        return fail(make_error(Errc::invalid_argument,
                               "{} is per node, but not said is how many of the {} tasks share one",
                               field, shape.tasks)
                        .at(request.place(field))
                        .advise("add nodes or tasks_per_node"));
    }
    return std::min(shape.per_node, shape.tasks);
}

Result<Gpus> gpus_of(const JobRequest& request, const Shape& shape) {
    const auto given = static_cast<int>(request.gpus.has_value()) +
                       static_cast<int>(request.gpus_per_node.has_value()) +
                       static_cast<int>(request.gpus_per_task.has_value());
    if (given > 1) {
        return fail(make_error(Errc::invalid_argument, "GPUs are asked for in {} ways", given)
                        .at(request.place(request.gpus_per_node ? "gpus_per_node" : "gpus"))
                        .advise("keep one of gpus, gpus_per_node and gpus_per_task"));
    }
    if (request.gpus_per_task) {
        return *request.gpus_per_task;
    }
    if (!request.gpus && !request.gpus_per_node) {
        return Gpus{};
    }
    const std::string field = request.gpus ? "gpus" : "gpus_per_node";
    Gpus gpus = request.gpus ? *request.gpus : *request.gpus_per_node;
    std::int64_t share = shape.tasks;
    if (request.gpus_per_node) {
        HOLD_TRY(share, sharers(request, shape, field));
    }
    if (gpus.count % share != 0) {
        return fail(make_error(Errc::invalid_argument, "{} {} cannot be shared evenly by {} tasks",
                               field, gpus.count, share)
                        .at(request.place(field))
                        .advise("ask for a multiple, or say gpus_per_task"));
    }
    gpus.count /= share;
    return gpus;
}

Result<std::int64_t> memory_of(const JobRequest& request, const Shape& shape, std::int64_t cpus) {
    const auto given = static_cast<int>(request.memory.has_value()) +
                       static_cast<int>(request.memory_per_task.has_value()) +
                       static_cast<int>(request.memory_per_cpu.has_value());
    if (given > 1) {
        return fail(make_error(Errc::invalid_argument, "memory is asked for in {} ways", given)
                        .at(request.place(request.memory ? "memory" : "memory_per_task"))
                        .advise("keep one of memory, memory_per_task and memory_per_cpu"));
    }
    if (request.memory_per_task) {
        return *request.memory_per_task;
    }
    if (request.memory_per_cpu) {
        if (*request.memory_per_cpu > std::numeric_limits<std::int64_t>::max() / cpus) {
            return fail(
                make_error(Errc::invalid_argument, "memory_per_cpu × {} CPUs is too much", cpus)
                    .at(request.place("memory_per_cpu")));
        }
        return *request.memory_per_cpu * cpus;
    }
    if (!request.memory) {
        return 0;
    }
    HOLD_TRY(const std::int64_t share, sharers(request, shape, "memory"));
    return *request.memory / share;
}

Result<> fill_training(const JobRequest& request, v1::JobSpec& spec) {
    const TrainingRequest& asked = *request.training;
    if (request.run) {
        return fail(make_error(Errc::invalid_argument, "a training job has no `run`")
                        .at(request.place("run"))
                        .advise("remove run, or remove training"));
    }
    if (!asked.steps) {
        return fail(make_error(Errc::invalid_argument, "training.steps is missing")
                        .at(request.place("training"))
                        .advise("say how many optimizer steps: steps: 100"));
    }
    if (request.array) {
        return fail(make_error(Errc::unsupported, "an array of training jobs is not built yet")
                        .at(request.place("array"))
                        .advise("submit the jobs one by one"));
    }
    v1::TrainingSpec& training = *spec.mutable_training();
    const std::int64_t stages = asked.stages.value_or(1);
    training.set_pipelines(static_cast<std::int32_t>(asked.pipelines.value_or(1)));
    training.set_stages(static_cast<std::int32_t>(stages));
    training.set_microbatches(static_cast<std::int32_t>(asked.microbatches.value_or(stages)));
    training.set_steps(*asked.steps);
    training.set_model(asked.model.value_or("gpt-small"));
    training.set_exact(asked.exact.value_or(false));
    training.set_data(asked.data.value_or(kDefaultTrainingData));
    training.set_seed(static_cast<std::uint64_t>(asked.seed.value_or(1)));
    training.set_backend(asked.backend.value_or("torch"));
    return {};
}

Result<> check_work(const JobRequest& request) {
    if (!request.training && (!request.run || trim(*request.run).empty())) {
        return fail(
            make_error(Errc::invalid_argument, "the job has nothing to do: `run` is missing")
                .at(request.place("run"))
                .advise("add `run: COMMAND`, or `training:` for a pipeline job"));
    }
    if (request.run && request.run->size() > kRunBytesMax) {
        return fail(make_error(Errc::too_large, "run has {} bytes; at most {} are possible",
                               request.run->size(), kRunBytesMax)
                        .at(request.place("run"))
                        .advise("put the text into a file that the nodes can read"));
    }
    if (request.recovery == "recycle" && !request.training) {
        return fail(make_error(Errc::invalid_argument, "recovery: recycle is for training jobs")
                        .at(request.place("recovery"))
                        .advise("choose none or requeue"));
    }
    if (request.recovery == "requeue" && request.training) {
        return fail(make_error(Errc::invalid_argument,
                               "recovery: requeue is not for training jobs, which go on in place")
                        .at(request.place("recovery"))
                        .advise("choose recycle or none"));
    }
    return {};
}

}  // namespace

Result<v1::JobSpec> to_spec(const JobRequest& request) {
    HOLD_TRY(check_work(request));
    HOLD_TRY(const Shape shape, shape_of(request));
    HOLD_TRY(const Gpus gpus, gpus_of(request, shape));
    const std::int64_t cpus = request.cpus_per_task.value_or(1);
    HOLD_TRY(const std::int64_t memory_bytes, memory_of(request, shape, cpus));
    v1::JobSpec spec;
    spec.set_name(request.name.value_or(request.training ? "training" : "job"));
    spec.set_run(request.run.value_or(""));
    for (const auto& [name, value] : request.env) {
        (*spec.mutable_env())[name] = value;
    }
    spec.set_workdir(request.workdir.value_or(""));
    spec.set_tasks(static_cast<std::int32_t>(shape.tasks));
    spec.set_tasks_per_node(static_cast<std::int32_t>(shape.per_node));
    spec.mutable_per_task()->set_cpus(cpus);
    spec.mutable_per_task()->set_memory_bytes(memory_bytes);
    spec.mutable_per_task()->set_gpus(gpus.count);
    spec.mutable_per_task()->set_gpu_type(gpus.count == 0 ? "" : gpus.type);
    spec.set_pool(request.pool.value_or("default"));
    spec.set_priority(static_cast<std::int32_t>(request.priority.value_or(0)));
    spec.set_time_limit_s(request.time_limit_s.value_or(0));
    if (request.array) {
        for (const std::int32_t index : request.array->indices) {
            spec.add_array(index);
        }
        spec.set_array_at_once(request.array->at_once);
    }
    spec.set_recovery(request.recovery.value_or(""));
    if (request.training) {
        HOLD_TRY(fill_training(request, spec));
    }
    for (const std::string& node : request.nodelist.value_or(std::vector<std::string>())) {
        spec.add_nodes(node);
    }
    for (const std::string& node : request.exclude.value_or(std::vector<std::string>())) {
        spec.add_exclude_nodes(node);
    }
    spec.set_hold(request.hold);
    return spec;
}

}  // namespace holdfast::cli
