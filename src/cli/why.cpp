// SPDX-License-Identifier: Apache-2.0
#include "job_ref.hpp"
#include "json.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

template <typename Lines>
Json array_of(const Lines& lines) {
    Json array = Json::array();
    for (const std::string& line : lines) {
        array.push_back(line);
    }
    return array;
}

template <typename Lines>
std::string bullets(std::string_view heading, const Lines& lines) {
    if (lines.empty()) {
        return "";
    }
    std::string text = fmt::format("\n{}:\n", heading);
    for (const std::string& line : lines) {
        text += fmt::format("  - {}\n", printable(line));
    }
    return text;
}

Result<int> why(Session& session, const std::string& id) {
    HOLD_TRY(const JobRef ref, parse_job_ref(id));
    HOLD_TRY(const std::int64_t job, resolve(session, ref));
    HOLD_TRY(Client * client, session.client());
    HOLD_TRY(const v1::WhyResponse answer, client->why(job));
    std::string text =
        fmt::format("{} is {}: {}\n", ref.label(), answer.state(), printable(answer.summary()));
    text += bullets("details", answer.details());
    text += bullets("warnings", answer.warnings());
    text += bullets("what would help", answer.fixes());
    const Json object = {{"job", job},
                         {"state", answer.state()},
                         {"summary", answer.summary()},
                         {"details", array_of(answer.details())},
                         {"warnings", array_of(answer.warnings())},
                         {"fixes", array_of(answer.fixes())}};
    HOLD_TRY(print(session, object, text, ref.label()));
    return 0;
}

}  // namespace

Verb why_verb() {
    return {.name = "why",
            .summary = "says why a job waits, or why it ended",
            .group = "Jobs",
            .prints = Prints::object,
            .declare = [](Flags& flags) -> Command {
                auto id = std::make_shared<std::optional<std::string>>();
                flags.positional("ID", *id, "job: 42, job-42, 42_3").completes = Completes::job;
                return [id](Session& session) { return why(session, **id); };
            },
            .examples = {"hold why 42", "hold why 42_3 --json"}};
}

}  // namespace holdfast::cli
