// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "job_file.hpp"
#include "job_flags.hpp"
#include "job_ref.hpp"
#include "json.hpp"
#include "text.hpp"
#include "verbs.hpp"
#include "waiting.hpp"
#include "yaml_tree.hpp"

namespace holdfast::cli {
namespace {

constexpr std::size_t kKeyBytes = 16;

struct Options {
    JobFlags job;
    std::vector<std::string> words;  ///< FILE and the script's arguments
    std::vector<std::string> rest;   ///< arguments after --
    std::optional<std::string> wrap;
    bool hold = false;
    bool wait = false;
    bool dry_run = false;
};

Result<std::string> read_source(Session& session, const std::string& file) {
    if (file == "-") {
        return session.around.read_input(kYamlBytesMax);
    }
    auto text = session.around.env.files.read_file(file, kYamlBytesMax);
    if (!text) {
        return fail(std::move(text).error().within("submit").at(file));
    }
    return text;
}

/// The request that the file alone makes, named after the file where it says no name.
Result<JobRequest> read_request(Session& session, Options& options) {
    if (options.wrap) {
        if (!options.words.empty()) {
            return fail(make_error(Errc::invalid_argument, "--wrap and a file are two jobs")
                            .at("--wrap")
                            .advise("give one of them"));
        }
        JobRequest request;
        HOLD_TRY(set_field(request, "run", *options.wrap, "--wrap"));
        HOLD_TRY(set_field(request, "name", "wrap", "--wrap"));
        return request;
    }
    if (options.words.empty()) {
        return fail(make_error(Errc::invalid_argument, "FILE is missing")
                        .advise("name a job file, a batch script, or - for the standard input"));
    }
    const std::string file = options.words.front();
    std::vector<std::string> arguments(options.words.begin() + 1, options.words.end());
    arguments.insert(arguments.end(), options.rest.begin(), options.rest.end());
    HOLD_TRY(const std::string text, read_source(session, file));
    if (is_batch_script(text)) {
        for (const std::string& warning : script_warnings(text)) {
            session.note("warning: " + warning);
        }
        HOLD_TRY(JobRequest request, read_batch_script(text, file, arguments));
        if (!request.name) {
            request.name = file == "-" ? "script" : std::filesystem::path(file).filename().string();
        }
        return request;
    }
    if (!arguments.empty()) {
        return fail(make_error(Errc::invalid_argument,
                               "the job file {} takes no arguments, but `{}` was given", file,
                               printable(arguments.front()))
                        .at(printable(arguments.front())));
    }
    HOLD_TRY(JobRequest request, read_job_file(text, file));
    if (!request.name && file != "-") {
        request.name = std::filesystem::path(file).stem().string();
    }
    return request;
}

Result<v1::SubmitRequest> build(Session& session, Options& options) {
    HOLD_TRY(JobRequest from_file, read_request(session, options));
    HOLD_TRY(JobRequest from_flags, request_from(options.job));
    from_flags.hold = options.hold;
    from_flags.wait = options.wait;
    const JobRequest request = merged(std::move(from_file), from_flags);
    options.wait = request.wait;
    v1::SubmitRequest submit;
    HOLD_TRY(*submit.mutable_spec(), to_spec(request));
    submit.set_idempotency_key(session.around.env.random.hex(kKeyBytes));
    submit.set_dry_run(options.dry_run);
    submit.set_user(options.job.user.value_or(""));
    return submit;
}

std::string dry_run_text(const v1::SubmitResponse& answer) {
    if (!answer.reason().empty()) {
        return fmt::format("would wait: {}\n", printable(answer.reason()));
    }
    if (answer.node_names().empty()) {
        return "would wait: there is no room for it now\n";
    }
    return fmt::format("would run now on {}\n",
                       compress_hosts({answer.node_names().begin(), answer.node_names().end()}));
}

Json answer_object(const v1::SubmitResponse& answer, bool dry_run) {
    Json warnings = Json::array();
    for (const std::string& warning : answer.warnings()) {
        warnings.push_back(warning);
    }
    Json nodes = Json::array();
    for (const std::string& node : answer.node_names()) {
        nodes.push_back(node);
    }
    return {
        {"job", answer.job()},       {"dry_run", dry_run},        {"warnings", std::move(warnings)},
        {"reason", answer.reason()}, {"nodes", std::move(nodes)}, {"ended", nullptr}};
}

Result<int> submit(Session& session, Options& options) {
    HOLD_TRY(const v1::SubmitRequest request, build(session, options));
    HOLD_TRY(Client * client, session.client());
    HOLD_TRY(const v1::SubmitResponse answer,
             client->submit(request, options.job.retry_for_s * kSecondUs));
    for (const std::string& warning : answer.warnings()) {
        session.note("warning: " + printable(warning));
    }
    const bool people = session.output.is_for_people();
    Json object = answer_object(answer, options.dry_run);
    const std::string name = fmt::format("job-{}", answer.job());
    if (options.dry_run) {
        HOLD_TRY(print(session, object, dry_run_text(answer), "-"));
        return 0;
    }
    if (people && !answer.reason().empty()) {
        session.note(fmt::format("warning: {} waits: {}", name, printable(answer.reason())));
    }
    if (!options.wait || people) {
        HOLD_TRY(print(session, object, fmt::format("submitted {}\n", name), name));
    }
    if (!options.wait) {
        return 0;
    }
    HOLD_TRY(const std::vector<std::int64_t> ids,
             resolve_all(session, {.id = answer.job(), .index = {}, .rank = {}}));
    HOLD_TRY(const v1::ListJobsResponse jobs, wait_for_all(session, ids, kNoLimit));
    if (people) {
        HOLD_TRY(session.around.out.write(ends_text(jobs)));
    } else {
        object["ended"] = Json::array();
        for (const v1::Job& job : jobs.jobs()) {
            object["ended"].push_back(to_json(job));
        }
        HOLD_TRY(print(session, object, "", name));
    }
    return status_of(jobs);
}

}  // namespace

Verb submit_verb() {
    return {.name = "submit",
            .summary = "submits a job file (YAML) or a batch script",
            .group = "Jobs",
            .prints = Prints::object,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                PositionalInfo& file = flags.positionals(
                    "FILE", options->words,
                    "job.yaml, a script with #SBATCH lines and its arguments, or -");
                file.required = false;
                file.completes = Completes::file;
                declare_job_flags(flags, options->job);
                flags.text("-a,--array", options->job.array, "LIST",
                           "one job per index: 0-9%4, 1,3,5-7, 0-15:4");
                flags.text("--wrap", options->wrap, "COMMAND", "this shell text instead of a file");
                flags.flag("-H,--hold", options->hold, "paused until `hold resume`");
                flags.flag("-W,--wait", options->wait, "until it has ended; fails if it does");
                flags.flag("--dry-run", options->dry_run, "check and place, write nothing");
                flags.rest("[-- ARG…]", options->rest);
                return [options](Session& session) { return submit(session, *options); };
            },
            .examples = {"hold submit job.yaml",
                         "hold submit -N 4 --gpus-per-node h100:8 -t 2-00 job.sh"},
            .notes =
                "Flags win over the file. A script runs once per task, as under srun. A submit is "
                "tried again while no server answers: an idempotency key makes sure that it "
                "happens once."};
}

}  // namespace holdfast::cli
