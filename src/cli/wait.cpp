// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "job_ref.hpp"
#include "json.hpp"
#include "text.hpp"
#include "verbs.hpp"
#include "waiting.hpp"

namespace holdfast::cli {

Result<v1::ListJobsResponse> wait_for_all(Session& session, const std::vector<std::int64_t>& ids,
                                          std::int64_t timeout_us) {
    HOLD_TRY(Client * client, session.client());
    Clock& clock = session.around.env.clock;
    const std::int64_t start_us = clock.steady_us();
    v1::ListJobsResponse jobs;
    for (const std::int64_t id : ids) {
        const std::int64_t left_us =
            timeout_us == kNoLimit
                ? kNoLimit
                : std::max<std::int64_t>(timeout_us - (clock.steady_us() - start_us), 1000);
        HOLD_TRY(v1::Job job, client->wait(id, left_us, kServerAwayUs));
        *jobs.add_jobs() = std::move(job);
    }
    return jobs;
}

int status_of(const v1::ListJobsResponse& jobs) {
    return std::all_of(jobs.jobs().begin(), jobs.jobs().end(),
                       [](const v1::Job& job) { return job.state() == "completed"; })
               ? 0
               : 1;
}

std::string ends_text(const v1::ListJobsResponse& jobs) {
    std::string text;
    for (const v1::Job& job : jobs.jobs()) {
        text += fmt::format("job-{} {}", job_label(job), job.state());
        text += job.reason().empty() ? "\n" : ": " + printable(job.reason()) + "\n";
    }
    return text;
}

Verb wait_verb() {
    struct Options {
        std::vector<std::string> ids;
        std::optional<std::string> timeout;
    };

    return {.name = "wait",
            .summary = "waits until jobs have ended; fails if one of them did",
            .group = "Jobs",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                flags.positionals("ID", options->ids, "job or array: 42, job-42, 42_3").completes =
                    Completes::job;
                flags.text("--timeout", options->timeout, "TIME",
                           "give up after it: 90s, 30m, HH:MM:SS (exit status 124)");
                return [options](Session& session) -> Result<int> {
                    std::int64_t timeout_us = kNoLimit;
                    if (options->timeout) {
                        auto seconds = parse_time_limit(*options->timeout);
                        if (!seconds) {
                            return fail(std::move(seconds).error().at("--timeout"));
                        }
                        timeout_us = *seconds == 0 ? kNoLimit : *seconds * kSecondUs;
                    }
                    std::vector<std::int64_t> ids;
                    for (const std::string& text : options->ids) {
                        HOLD_TRY(const JobRef ref, parse_job_ref(text));
                        HOLD_TRY(const std::vector<std::int64_t> named, resolve_all(session, ref));
                        ids.insert(ids.end(), named.begin(), named.end());
                    }
                    HOLD_TRY(const v1::ListJobsResponse jobs,
                             wait_for_all(session, ids, timeout_us));
                    if (session.output.is_for_people()) {
                        HOLD_TRY(session.around.out.write(ends_text(jobs)));
                    } else {
                        HOLD_TRY(print(session, job_listing(jobs.jobs(), session.now_us())));
                    }
                    return status_of(jobs);
                };
            },
            .examples = {"hold wait 42", "hold wait --timeout 30m 42 43"},
            .notes =
                "The exit status is 0 only if every job completed, 1 if one did not, and 124 "
                "after the time. Jobs go on while a server is away; so does waiting, for five "
                "minutes."};
}

}  // namespace holdfast::cli
