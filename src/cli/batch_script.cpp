// SPDX-License-Identifier: Apache-2.0
// A batch script as sbatch reads it: `#!`, then #SBATCH lines, then commands.
#include <algorithm>
#include <array>
#include <optional>

#include "job_file.hpp"
#include "yaml_tree.hpp"

namespace holdfast::cli {
namespace {

struct Directive {
    std::string_view long_name;
    std::string_view short_name;  ///< empty: none
    std::string_view field;       ///< of JobRequest; empty: understood but not built here
    std::string_view value = {};  ///< set: the flag takes none and means this
    std::string_view hint = {};
};

constexpr std::string_view kLogsHint = "output is kept by the server: see `hold logs`; remove it";
constexpr std::string_view kRemove = "remove it";

constexpr auto kDirectives = std::to_array<Directive>({
    {"--job-name", "-J", "name"},
    {"--nodes", "-N", "nodes"},
    {"--ntasks", "-n", "tasks"},
    {"--ntasks-per-node", "", "tasks_per_node"},
    {"--cpus-per-task", "-c", "cpus_per_task"},
    {"--gpus", "-G", "gpus"},
    {"--gpus-per-node", "", "gpus_per_node"},
    {"--gpus-per-task", "", "gpus_per_task"},
    {"--gres", "", "gres"},
    {"--mem", "", "memory"},
    {"--mem-per-cpu", "", "memory_per_cpu"},
    {"--time", "-t", "time_limit"},
    {"--array", "-a", "array"},
    {"--partition", "-p", "pool"},
    {"--chdir", "-D", "workdir"},
    {"--nodelist", "-w", "nodelist"},
    {"--exclude", "-x", "exclude"},
    {"--priority", "", "priority"},
    {"--requeue", "", "recovery", "requeue"},
    {"--no-requeue", "", "recovery", "none"},
    {"--hold", "-H", "hold", "true"},
    {"--wait", "-W", "wait", "true"},
    {"--account", "-A", "", "", "accounts are not built yet; remove it"},
    {"--qos", "-q", "", "", "qualities of service are not built yet; use --priority"},
    {"--dependency", "-d", "", "", "dependencies are not built yet; use `hold wait`"},
    {"--output", "-o", "", "", kLogsHint},
    {"--error", "-e", "", "", kLogsHint},
    {"--open-mode", "", "", "", kLogsHint},
    {"--mail-type", "", "", "", "notifications are not built yet; use `hold wait`"},
    {"--mail-user", "", "", "", "notifications are not built yet; use `hold wait`"},
    {"--constraint", "-C", "", "", "use --partition or --nodelist"},
    {"--licenses", "-L", "", "", kRemove},
    {"--exclusive", "", "", "", "ask for all of a node's CPUs or GPUs"},
    {"--export", "", "", "", "a job gets a clean environment; use --env NAME=VALUE"},
    {"--signal", "", "", "", kRemove},
    {"--reservation", "", "", "", kRemove},
    {"--begin", "-b", "", "", kRemove},
    {"--no-kill", "-k", "", "", kRemove},
    {"--switches", "", "", "", kRemove},
    {"--tmp", "", "", "", kRemove},
    {"--comment", "", "", "", kRemove},
    {"--get-user-env", "", "", "", kRemove},
    {"--overcommit", "-O", "", "", kRemove},
    {"--oversubscribe", "-s", "", "", kRemove},
    {"--mem-per-gpu", "", "", "", "use --mem or --mem-per-cpu"},
    {"--cpus-per-gpu", "", "", "", "use --cpus-per-task"},
    {"--ntasks-per-gpu", "", "", "", "use --gpus-per-task"},
    {"--gpu-bind", "", "", "", kRemove},
    {"--distribution", "-m", "", "", kRemove},
    {"--nice", "", "", "", "use --priority"},
});

const Directive* find_directive(std::string_view name) {
    const auto found = std::find_if(kDirectives.begin(), kDirectives.end(), [name](const auto& d) {
        return d.long_name == name || (!d.short_name.empty() && d.short_name == name);
    });
    return found == kDirectives.end() ? nullptr : found;
}

/// Words of a directive line; quotes keep blanks together; `#` begins a comment.
Result<std::vector<std::string>> words_of(std::string_view line, const std::string& where) {
    std::vector<std::string> words;
    std::optional<std::string> word;
    char quote = 0;
    for (const char c : line) {
        if (quote != 0) {
            if (c == quote) {
                quote = 0;
            } else {
                *word += c;
            }
        } else if (c == '\'' || c == '"') {
            quote = c;
            word = word.value_or("");
        } else if (c == ' ' || c == '\t' || c == '\r') {
            if (word) {
                words.push_back(std::move(*word));
                word.reset();
            }
        } else if (c == '#' && !word) {
            break;
        } else {
            word = word.value_or("") + c;
        }
    }
    if (quote != 0) {
        return fail(make_error(Errc::invalid_argument, "#SBATCH: the quote {} is not closed", quote)
                        .at(where));
    }
    if (word) {
        words.push_back(std::move(*word));
    }
    return words;
}

/// gres: "gpu:a100:8", "gpu:8" or "gpu".
Result<std::string> gpus_of_gres(std::string_view text, const std::string& where) {
    if (text == "gpu") {
        return "1";
    }
    if (!text.starts_with("gpu:")) {
        return fail(
            make_error(Errc::unsupported, "#SBATCH --gres={}: only gpu is known", printable(text))
                .at(where)
                .advise("write --gres=gpu:N or --gres=gpu:TYPE:N"));
    }
    const std::string_view rest = text.substr(4);
    const bool has_count = !rest.empty() && rest.back() >= '0' && rest.back() <= '9' &&
                           (rest.find(':') != std::string_view::npos ||
                            rest.find_first_not_of("0123456789") == std::string_view::npos);
    return has_count ? std::string(rest) : std::string(rest) + ":1";
}

tl::unexpected<Error> unknown_directive(std::string_view name, const std::string& where) {
    std::vector<std::string> known;
    for (const Directive& directive : kDirectives) {
        if (!directive.field.empty()) {
            known.emplace_back(directive.long_name);
        }
    }
    return fail(make_error(Errc::invalid_argument, "unknown directive #SBATCH {}", printable(name))
                    .at(where)
                    .advise(did_you_mean(name, known)));
}

/// One #SBATCH line's words into the request.
class Directives {
  public:
    Directives(JobRequest& request, std::string where)
        : request_(request), where_(std::move(where)) {}

    Result<> apply(const std::vector<std::string>& words) {
        for (std::size_t i = 0; i < words.size(); ++i) {
            HOLD_TRY(i, one(words, i));
        }
        return {};
    }

  private:
    /// Returns the index of the last word used.
    Result<std::size_t> one(const std::vector<std::string>& words, std::size_t i) {
        const std::string& word = words[i];
        std::string name = word;
        std::optional<std::string> value;
        if (word.starts_with("--")) {
            if (const auto equals = word.find('='); equals != std::string::npos) {
                name = word.substr(0, equals);
                value = word.substr(equals + 1);
            }
        } else if (word.starts_with("-") && word.size() > 2) {
            name = word.substr(0, 2);
            value = word.substr(2);
        }
        const Directive* directive = find_directive(name);
        if (directive == nullptr) {
            return unknown_directive(name, where_);
        }
        if (directive->field.empty()) {
            return fail(make_error(Errc::unsupported, "#SBATCH {} is not supported", name)
                            .at(where_)
                            .advise(std::string(directive->hint)));
        }
        if (!directive->value.empty()) {
            if (value) {
                return fail(make_error(Errc::invalid_argument, "#SBATCH {} takes no value", name)
                                .at(where_));
            }
            value = std::string(directive->value);
        } else if (!value) {
            if (i + 1 == words.size()) {
                return fail(make_error(Errc::invalid_argument, "#SBATCH {} needs a value", name)
                                .at(where_));
            }
            value = words[++i];
        }
        HOLD_TRY(set(*directive, name, *value));
        return i;
    }

    Result<> set(const Directive& directive, const std::string& name, std::string value) {
        std::string field(directive.field);
        if (field == "gres") {
            HOLD_TRY(value, gpus_of_gres(value, where_));
            field = "gpus_per_node";
        }
        if (auto done = set_field(request_, field, value, where_); !done) {
            return fail(std::move(done).error().within("#SBATCH " + name));
        }
        return {};
    }

    JobRequest& request_;
    std::string where_;
};

constexpr std::string_view kMarker = "#SBATCH";

bool is_comment_or_blank(std::string_view line) {
    const std::string_view text = trim(line);
    return text.empty() || text.front() == '#';
}

/// "/usr/bin/env bash" → interpreter and its one argument, as the kernel reads them.
std::pair<std::string, std::string> interpreter_of(std::string_view script) {
    const std::string_view line = trim(script.substr(2, script.find('\n') - 2));
    const auto blank = line.find_first_of(" \t");
    if (blank == std::string_view::npos) {
        return {std::string(line), ""};
    }
    return {std::string(line.substr(0, blank)), std::string(trim(line.substr(blank)))};
}

}  // namespace

bool is_batch_script(std::string_view text) {
    return text.starts_with("#!");
}

std::vector<std::string> script_warnings(std::string_view text) {
    const auto lines = split(text, '\n');
    const bool calls_srun = std::any_of(lines.begin(), lines.end(), [](std::string_view line) {
        return trim(line).starts_with("srun ");
    });
    if (!calls_srun) {
        return {};
    }
    return {
        "the script runs once per task, as under srun: its own `srun` lines are not needed, and "
        "there may be no srun on the nodes"};
}

std::string script_as_run(std::string_view script, const std::vector<std::string>& arguments) {
    const auto [interpreter, option] = interpreter_of(script);
    if (interpreter == "/bin/sh" && option.empty() && arguments.empty()) {
        return std::string(script);
    }
    // The script reaches its interpreter on descriptor 3: its standard input stays free.
    std::string end = "HOLDFAST_SCRIPT_END";
    while (script.find(end) != std::string_view::npos) {
        end += "_";
    }
    std::string command = "exec " + shell_quote(interpreter);
    if (!option.empty()) {
        command += " " + shell_quote(option);
    }
    command += " /dev/fd/3";
    for (const std::string& argument : arguments) {
        command += " " + shell_quote(argument);
    }
    return fmt::format("{} 3<<'{}'\n{}{}{}\n", command, end, script,
                       script.ends_with("\n") ? "" : "\n", end);
}

Result<JobRequest> read_batch_script(std::string_view text, const std::string& file,
                                     const std::vector<std::string>& arguments) {
    if (text.size() > kYamlBytesMax) {
        return fail(make_error(Errc::too_large, "the script has {} bytes; at most {} are read",
                               text.size(), kYamlBytesMax)
                        .at(file));
    }
    if (!is_batch_script(text)) {
        return fail(make_error(Errc::invalid_argument, "a batch script begins with #!")
                        .at(file + ":1")
                        .advise("write #!/bin/bash as its first line"));
    }
    if (!is_utf8(text) || text.find('\0') != std::string_view::npos) {
        return fail(make_error(Errc::invalid_argument, "the script is not UTF-8 text").at(file));
    }
    if (text.find("\r\n") != std::string_view::npos) {
        return fail(make_error(Errc::invalid_argument, "the script has DOS line ends")
                        .at(file)
                        .advise("convert it with `sed -i 's/\\r$//'`"));
    }
    if (interpreter_of(text).first.empty()) {
        return fail(make_error(Errc::invalid_argument, "the script's #! names no interpreter")
                        .at(file + ":1")
                        .advise("write #!/bin/bash as its first line"));
    }
    JobRequest request;
    std::size_t number = 0;
    for (const std::string_view line : split(text, '\n')) {
        ++number;
        if (!is_comment_or_blank(line)) {
            break;  // Slurm reads no directive after the first command
        }
        if (!line.starts_with(kMarker)) {
            continue;
        }
        const std::string_view rest = line.substr(kMarker.size());
        if (!rest.empty() && rest.front() != ' ' && rest.front() != '\t' && rest.front() != '\r') {
            continue;  // "#SBATCHING": a comment
        }
        const std::string where = fmt::format("{}:{}", file, number);
        HOLD_TRY(const std::vector<std::string> words, words_of(rest, where));
        HOLD_TRY(Directives(request, where).apply(words));
    }
    request.run = script_as_run(text, arguments);
    request.where["run"] = file;
    return request;
}

}  // namespace holdfast::cli
