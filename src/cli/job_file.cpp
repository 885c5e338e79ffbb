// SPDX-License-Identifier: Apache-2.0
#include "job_file.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "yaml_tree.hpp"

namespace holdfast::cli {
namespace {

constexpr std::int64_t kWorkersMax = 4096;  // of one dimension
constexpr std::int64_t kStepsMax = 1'000'000'000;

/// Keys of the design whose part is not built yet: named when refused.
const std::set<std::string, std::less<>> kNotBuilt = {"account",    "preemptible", "min_runtime",
                                                      "topology",   "after",       "secrets",
                                                      "checkpoint", "notify"};

/// Words that other systems use for our keys.
const std::map<std::string, std::string, std::less<>> kOtherWords = {
    {"cpus", "cpus_per_task"},
    {"cpu", "cpus_per_task"},
    {"mem", "memory"},
    {"time", "time_limit"},
    {"timeout", "time_limit"},
    {"num_nodes", "nodes"},
    {"envs", "env"},
    {"environment", "env"},
    {"command", "run"},
    {"cmd", "run"},
    {"script", "run"},
    {"chdir", "workdir"},
    {"cwd", "workdir"},
    {"queue", "pool"},
    {"accelerators", "gpus_per_node"},
    {"job_name", "name"},
    {"dependency", "after"},
    {"depends_on", "after"},
};

enum class Kind : unsigned char { text, number, yes_no };

/// Keys whose value is one scalar, and the field that it fills.
struct ScalarKey {
    const char* field;
    Kind kind = Kind::text;
};

const std::map<std::string, ScalarKey, std::less<>> kScalars = {
    {"name", {"name"}},
    {"run", {"run"}},
    {"workdir", {"workdir"}},
    {"pool", {"pool"}},
    {"partition", {"pool"}},
    {"recovery", {"recovery"}},
    {"tasks", {"tasks", Kind::number}},
    {"ntasks", {"tasks", Kind::number}},
    {"tasks_per_node", {"tasks_per_node", Kind::number}},
    {"cpus_per_task", {"cpus_per_task", Kind::number}},
    {"gpus", {"gpus"}},
    {"gpus_per_node", {"gpus_per_node"}},
    {"gpus_per_task", {"gpus_per_task"}},
    {"memory", {"memory"}},
    {"memory_per_task", {"memory_per_task"}},
    {"memory_per_cpu", {"memory_per_cpu"}},
    {"time_limit", {"time_limit"}},
    {"priority", {"priority"}},
    {"hold", {"hold", Kind::yes_no}},
};

tl::unexpected<Error> refuse(const YamlNode& node, const std::string& file, Errc code,
                             const std::string& message, const std::string& hint = "") {
    return fail(make_error(code, "{}", message).at(node.where(file)).advise(hint));
}

std::vector<std::string> known_keys() {
    std::vector<std::string> keys = {"array", "env", "exclude", "nodelist", "nodes", "training"};
    for (const auto& [key, scalar] : kScalars) {
        keys.push_back(key);
    }
    return keys;
}

tl::unexpected<Error> unknown_key(const YamlNode& key, const std::string& file,
                                  const std::string& inside,
                                  const std::vector<std::string>& known) {
    std::string hint = did_you_mean(key.text, known);
    if (const auto other = kOtherWords.find(key.text);
        other != kOtherWords.end() && inside.empty()) {
        hint = fmt::format("the key is called `{}` here", other->second);
    }
    if (hint.empty()) {
        hint = fmt::format("known keys: {}", fmt::join(known, ", "));
    }
    return refuse(key, file, Errc::invalid_argument,
                  fmt::format("unknown key `{}{}`", inside, printable(key.text)), hint);
}

/// A scalar of the right kind. `name` is for the message.
Result<std::string> scalar_of(const YamlNode& value, const std::string& name, Kind kind,
                              const std::string& file) {
    const std::string_view wanted = kind == Kind::number   ? "a number"
                                    : kind == Kind::yes_no ? "true or false"
                                                           : "a value";
    if (value.kind != YamlNode::Kind::scalar) {
        return refuse(value, file, Errc::invalid_argument,
                      fmt::format("{}: {} is wanted, not {}", name, wanted, value.kind_name()));
    }
    if (value.quoted && kind != Kind::text) {
        return refuse(value, file, Errc::invalid_argument,
                      fmt::format("{}: {} is wanted, not text in quotes", name, wanted),
                      "remove the quotes");
    }
    return value.text;
}

/// Walks a job file's top-level map.
class JobFile {
  public:
    explicit JobFile(const std::string& file) : file_(file) {}

    Result<JobRequest> read(const YamlNode& root) {
        if (root.kind == YamlNode::Kind::null) {
            return refuse(root, file_, Errc::invalid_argument, "the job file is empty",
                          "write at least `run: COMMAND`");
        }
        if (root.kind != YamlNode::Kind::map) {
            return refuse(root, file_, Errc::invalid_argument,
                          fmt::format("a job file is a map of keys, not {}", root.kind_name()),
                          "write at least `run: COMMAND`");
        }
        for (const auto& [key, value] : root.entries) {
            HOLD_TRY(entry(key, value));
        }
        return std::move(request_);
    }

  private:
    Result<> entry(const YamlNode& key, const YamlNode& value) {
        if (kNotBuilt.contains(key.text)) {
            return refuse(key, file_, Errc::unsupported,
                          fmt::format("`{}` is not built yet", key.text), "remove the key");
        }
        if (const auto scalar = kScalars.find(key.text); scalar != kScalars.end()) {
            return scalar_entry(key, value, scalar->second);
        }
        if (key.text == "nodes") {
            return nodes(key, value);
        }
        if (key.text == "env") {
            return env(value);
        }
        if (key.text == "training") {
            return training(key, value);
        }
        if (key.text == "array" || key.text == "nodelist" || key.text == "exclude") {
            return list(key, value);
        }
        return unknown_key(key, file_, "", known_keys());
    }

    Result<> once(const YamlNode& key, const std::string& field) {
        if (request_.where.contains(field)) {
            return refuse(
                key, file_, Errc::invalid_argument,
                fmt::format("`{}` says again what was said at {}", key.text, request_.where[field]),
                "keep one of them");
        }
        return {};
    }

    Result<> scalar_entry(const YamlNode& key, const YamlNode& value, const ScalarKey& scalar) {
        HOLD_TRY(once(key, scalar.field));
        HOLD_TRY(const std::string text, scalar_of(value, key.text, scalar.kind, file_));
        return set_field(request_, scalar.field, text, value.where(file_));
    }

    /// N, or {min: N, want: N}.
    Result<> nodes(const YamlNode& key, const YamlNode& value) {
        if (value.kind != YamlNode::Kind::map) {
            HOLD_TRY(const std::string text, scalar_of(value, "nodes", Kind::number, file_));
            return set_field(request_, "nodes", text, value.where(file_));
        }
        std::map<std::string, std::string> range;
        for (const auto& [name, number] : value.entries) {
            if (name.text != "min" && name.text != "want") {
                return unknown_key(name, file_, "nodes.", {"min", "want"});
            }
            HOLD_TRY(const std::string text,
                     scalar_of(number, "nodes." + name.text, Kind::number, file_));
            HOLD_TRY(set_field(request_, "nodes", text, number.where(file_)));
            range[name.text] = std::to_string(*request_.nodes);
        }
        if (range.empty()) {
            return refuse(value, file_, Errc::invalid_argument, "nodes: the map is empty",
                          "write nodes: N");
        }
        if (range.size() == 2 && range["min"] != range["want"]) {
            return refuse(key, file_, Errc::unsupported,
                          fmt::format("`nodes`: a range ({} to {}) is not built yet", range["min"],
                                      range["want"]),
                          "give min and want the same number");
        }
        request_.where["nodes"] = value.where(file_);
        return {};
    }

    Result<> env(const YamlNode& value) {
        if (value.kind != YamlNode::Kind::map) {
            return refuse(value, file_, Errc::invalid_argument,
                          fmt::format("env: a map is wanted, not {}", value.kind_name()),
                          "write env: {NAME: \"value\"}");
        }
        for (const auto& [name, text] : value.entries) {
            HOLD_TRY(const std::string content,
                     scalar_of(text, "env." + printable(name.text), Kind::text, file_));
            if (name.text.find('=') != std::string::npos) {
                return refuse(name, file_, Errc::invalid_argument,
                              fmt::format("env: `{}` is not a name", printable(name.text)));
            }
            HOLD_TRY(set_env(request_, name.text + "=" + content, name.where(file_)));
        }
        return {};
    }

    /// Text as on the command line, or a YAML list.
    Result<> list(const YamlNode& key, const YamlNode& value) {
        if (value.kind != YamlNode::Kind::sequence) {
            HOLD_TRY(const std::string text, scalar_of(value, key.text, Kind::text, file_));
            return set_field(request_, key.text, text, value.where(file_));
        }
        std::string joined;
        for (const YamlNode& item : value.items) {
            HOLD_TRY(const std::string text, scalar_of(item, key.text, Kind::text, file_));
            joined += joined.empty() ? text : "," + text;
        }
        return set_field(request_, key.text, joined, value.where(file_));
    }

    Result<> training(const YamlNode& key, const YamlNode& value) {
        if (value.kind != YamlNode::Kind::map) {
            return refuse(value, file_, Errc::invalid_argument,
                          fmt::format("training: a map is wanted, not {}", value.kind_name()),
                          "write training: {pipelines: 2, stages: 3, steps: 100}");
        }
        request_.training.emplace();
        request_.where["training"] = key.where(file_);
        for (const auto& [name, field] : value.entries) {
            HOLD_TRY(training_entry(name, field));
        }
        return {};
    }

    Result<> training_entry(const YamlNode& name, const YamlNode& value) {
        struct Number {
            std::optional<std::int64_t> TrainingRequest::* field;
            std::int64_t low;
            std::int64_t high;
        };

        static const std::map<std::string, Number, std::less<>> kNumbers = {
            {"pipelines", {&TrainingRequest::pipelines, 1, kWorkersMax}},
            {"stages", {&TrainingRequest::stages, 1, kWorkersMax}},
            {"microbatches", {&TrainingRequest::microbatches, 1, kWorkersMax}},
            {"steps", {&TrainingRequest::steps, 1, kStepsMax}},
            {"seed", {&TrainingRequest::seed, 0, std::int64_t{1} << 62}},
        };
        TrainingRequest& training = *request_.training;
        const std::string label = "training." + printable(name.text);
        if (const auto number = kNumbers.find(name.text); number != kNumbers.end()) {
            HOLD_TRY(const std::string text, scalar_of(value, label, Kind::number, file_));
            auto parsed = parse_integer(text, number->second.low, number->second.high);
            if (!parsed) {
                return fail(std::move(parsed).error().within(label).at(value.where(file_)));
            }
            training.*(number->second.field) = *parsed;
            return {};
        }
        if (name.text == "exact") {
            HOLD_TRY(const std::string text, scalar_of(value, label, Kind::yes_no, file_));
            if (text != "true" && text != "false") {
                return refuse(
                    value, file_, Errc::invalid_argument,
                    fmt::format("{}: `{}` is neither true nor false", label, printable(text)));
            }
            training.exact = text == "true";
            return {};
        }
        if (name.text == "model") {
            return choice(value, label, {"gpt-tiny", "gpt-small"}, training.model);
        }
        if (name.text == "backend") {
            return choice(value, label, {"torch", "reference"}, training.backend);
        }
        if (name.text == "data") {
            return data(value, label);
        }
        return unknown_key(name, file_, "training.",
                           {"pipelines", "stages", "microbatches", "model", "steps", "exact",
                            "data", "seed", "backend"});
    }

    Result<> choice(const YamlNode& value, const std::string& label,
                    const std::vector<std::string>& words, std::optional<std::string>& into) {
        HOLD_TRY(const std::string text, scalar_of(value, label, Kind::text, file_));
        if (std::find(words.begin(), words.end(), text) == words.end()) {
            const std::string near = did_you_mean(text, words);
            return refuse(value, file_, Errc::invalid_argument,
                          fmt::format("{}: unknown `{}`", label, printable(text)),
                          near.empty() ? fmt::format("choose {}", fmt::join(words, " or ")) : near);
        }
        into = text;
        return {};
    }

    Result<> data(const YamlNode& value, const std::string& label) {
        HOLD_TRY(const std::string text, scalar_of(value, label, Kind::text, file_));
        if (!text.starts_with("/")) {
            return refuse(value, file_, Errc::invalid_argument,
                          fmt::format("{}: `{}` is not an absolute path", label, printable(text)),
                          "name a text file that every node has");
        }
        request_.training->data = text;
        return {};
    }

    const std::string& file_;
    JobRequest request_;
};

}  // namespace

Result<JobRequest> read_job_file(std::string_view text, const std::string& file) {
    HOLD_TRY(const YamlNode root, parse_yaml(text, file));
    return JobFile(file).read(root);
}

}  // namespace holdfast::cli
