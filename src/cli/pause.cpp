// SPDX-License-Identifier: Apache-2.0
#include "job_ref.hpp"
#include "verbs.hpp"

namespace holdfast::cli {

Verb pause_verb() {
    return {.name = "pause",
            .summary = "keeps waiting jobs from starting",
            .group = "Jobs",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto ids = std::make_shared<std::vector<std::string>>();
                flags.positionals("ID", *ids, "job: 42, job-42, 42_3").completes = Completes::job;
                return [ids](Session& session) {
                    return for_each_job(
                        session, *ids, "paused",
                        [](Client& client, std::int64_t id) { return client.pause(id); });
                };
            },
            .examples = {"hold pause 42", "hold pause 42 43_1"}};
}

}  // namespace holdfast::cli
