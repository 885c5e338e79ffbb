// SPDX-License-Identifier: Apache-2.0
/// JobSpec ↔ JSON with the API's field names. The one file that knows the JSON library; its
/// exceptions end here.
#include <functional>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include <holdfast/services.hpp>

namespace holdfast::services {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kSpecBytesMax = 4U << 20U;

/// Thrown inside this file only.
struct WrongField {
    std::string where;
    std::string text;
};

std::string text_of(const Json& value, const std::string& where) {
    if (!value.is_string()) {
        throw WrongField{where, "is not a text"};
    }
    return value.get<std::string>();
}

template <typename T>
T number_of(const Json& value, const std::string& where) {
    if (!value.is_number_integer()) {
        throw WrongField{where, "is not a whole number"};
    }
    if constexpr (std::is_same_v<T, std::uint64_t>) {
        if (!value.is_number_unsigned()) {
            throw WrongField{where, "is negative"};
        }
        return value.get<std::uint64_t>();
    } else {
        if (value.is_number_unsigned() &&
            value.get<std::uint64_t>() >
                static_cast<std::uint64_t>(std::numeric_limits<T>::max())) {
            throw WrongField{where, "is too large"};
        }
        const auto number = value.get<std::int64_t>();
        if (number < std::numeric_limits<T>::min()) {
            throw WrongField{where, "is too small"};
        }
        return static_cast<T>(number);
    }
}

bool flag_of(const Json& value, const std::string& where) {
    if (!value.is_boolean()) {
        throw WrongField{where, "is neither true nor false"};
    }
    return value.get<bool>();
}

template <typename T, typename Read>
std::vector<T> list_of(const Json& value, const std::string& where, Read read) {
    if (!value.is_array()) {
        throw WrongField{where, "is not a list"};
    }
    std::vector<T> items;
    for (const Json& item : value) {
        items.push_back(read(item, where));
    }
    return items;
}

using Readers = std::map<std::string, std::function<void(const Json&, const std::string&)>>;

/// Calls the reader of each field; a field that has none is refused by name.
void read_object(const Json& object, const std::string& prefix, const Readers& readers) {
    if (!object.is_object()) {
        throw WrongField{prefix.empty() ? "spec" : prefix, "is not an object"};
    }
    for (const auto& [key, value] : object.items()) {
        const std::string where = prefix.empty() ? key : prefix + "." + key;
        const auto reader = readers.find(key);
        if (reader == readers.end()) {
            throw WrongField{where, "is not a field of a job"};
        }
        reader->second(value, where);
    }
}

auto into(std::string& target) {
    return
        [&target](const Json& value, const std::string& where) { target = text_of(value, where); };
}

auto into(bool& target) {
    return
        [&target](const Json& value, const std::string& where) { target = flag_of(value, where); };
}

template <typename T>
    requires std::is_integral_v<T>
auto into(T& target) {
    return [&target](const Json& value, const std::string& where) {
        target = number_of<T>(value, where);
    };
}

auto into(std::vector<std::string>& target) {
    return [&target](const Json& value, const std::string& where) {
        target = list_of<std::string>(value, where, text_of);
    };
}

auto into(std::vector<std::int32_t>& target) {
    return [&target](const Json& value, const std::string& where) {
        target = list_of<std::int32_t>(value, where, number_of<std::int32_t>);
    };
}

void read_resources(const Json& value, const std::string& where, Resources& resources) {
    read_object(value, where,
                {{"cpus", into(resources.cpus)},
                 {"memory_bytes", into(resources.memory_bytes)},
                 {"gpus", into(resources.gpus)},
                 {"gpu_type", into(resources.gpu_type)}});
}

void read_training(const Json& value, const std::string& where, TrainingSpec& training) {
    read_object(value, where,
                {{"pipelines", into(training.pipelines)},
                 {"stages", into(training.stages)},
                 {"microbatches", into(training.microbatches)},
                 {"model", into(training.model)},
                 {"steps", into(training.steps)},
                 {"exact", into(training.exact)},
                 {"data", into(training.data)},
                 {"seed", into(training.seed)},
                 {"backend", into(training.backend)}});
}

void read_env(const Json& value, const std::string& where,
              std::map<std::string, std::string>& env) {
    if (!value.is_object()) {
        throw WrongField{where, "is not an object"};
    }
    for (const auto& [name, text] : value.items()) {
        env[name] = text_of(text, where + "." + name);
    }
}

JobSpec read_spec(const Json& json) {
    JobSpec spec;
    const Readers readers = {
        {"name", into(spec.name)},
        {"run", into(spec.run)},
        {"env",
         [&](const Json& value, const std::string& where) { read_env(value, where, spec.env); }},
        {"workdir", into(spec.workdir)},
        {"tasks", into(spec.tasks)},
        {"per_task",
         [&](const Json& value, const std::string& where) {
             read_resources(value, where, spec.per_task);
         }},
        {"pool", into(spec.pool)},
        {"priority", into(spec.priority)},
        {"time_limit_s", into(spec.time_limit_s)},
        {"array", into(spec.array)},
        {"array_at_once", into(spec.array_at_once)},
        {"recovery", into(spec.recovery)},
        {"training",
         [&](const Json& value, const std::string& where) {
             read_training(value, where, spec.training.emplace());
         }},
        {"nodes", into(spec.nodes)},
        {"exclude_nodes", into(spec.exclude_nodes)},
        {"hold", into(spec.hold)},
        {"tasks_per_node", into(spec.tasks_per_node)},
    };
    read_object(json, "", readers);
    return spec;
}

Json training_json(const TrainingSpec& training) {
    return {{"pipelines", training.pipelines},
            {"stages", training.stages},
            {"microbatches", training.microbatches},
            {"model", training.model},
            {"steps", training.steps},
            {"exact", training.exact},
            {"data", training.data},
            {"seed", training.seed},
            {"backend", training.backend}};
}

}  // namespace

std::string to_json(const JobSpec& spec) {
    Json json = {
        {"name", spec.name},
        {"run", spec.run},
        {"env", spec.env},
        {"workdir", spec.workdir},
        {"tasks", spec.tasks},
        {"per_task",
         {{"cpus", spec.per_task.cpus},
          {"memory_bytes", spec.per_task.memory_bytes},
          {"gpus", spec.per_task.gpus},
          {"gpu_type", spec.per_task.gpu_type}}},
        {"pool", spec.pool},
        {"priority", spec.priority},
        {"time_limit_s", spec.time_limit_s},
        {"array", spec.array},
        {"array_at_once", spec.array_at_once},
        {"recovery", spec.recovery},
        {"nodes", spec.nodes},
        {"exclude_nodes", spec.exclude_nodes},
        {"hold", spec.hold},
        {"tasks_per_node", spec.tasks_per_node},
    };
    if (spec.training) {
        json["training"] = training_json(*spec.training);
    }
    // checked() refuses text that is not UTF-8; what was not checked is shown, not thrown at.
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<JobSpec> job_spec_from_json(const std::string& text) {
    if (text.size() > kSpecBytesMax) {
        return fail(Errc::invalid_argument, "a job's JSON has {} bytes; at most {} are allowed",
                    text.size(), kSpecBytesMax);
    }
    try {
        return read_spec(Json::parse(text));
    } catch (const WrongField& wrong) {
        return fail(make_error(Errc::invalid_argument, "{} {}", wrong.where, wrong.text)
                        .at(wrong.where)
                        .advise("the fields are those of JobSpec in api/holdfast.proto"));
    } catch (const Json::parse_error& error) {
        return fail(make_error(Errc::invalid_argument, "a job's JSON cannot be read")
                        .at(fmt::format("byte {}", error.byte)));
    } catch (const Json::exception& error) {
        return fail(Errc::invalid_argument, "a job's JSON cannot be read: {}", error.what());
    }
}

}  // namespace holdfast::services
