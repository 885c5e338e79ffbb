// SPDX-License-Identifier: Apache-2.0
#include "job_ref.hpp"
#include "verbs.hpp"

namespace holdfast::cli {

Verb cancel_verb() {
    struct Options {
        std::vector<std::string> ids;
        std::optional<std::string> reason;
    };

    return {.name = "cancel",
            .summary = "ends jobs, running or not",
            .group = "Jobs",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                flags.positionals("ID", options->ids, "job, element or whole array: 42, 42_3")
                    .completes = Completes::job;
                flags.text("--reason", options->reason, "TEXT", "kept with the job");
                return [options](Session& session) {
                    return for_each_job(session, options->ids, "cancelled",
                                        [&](Client& client, std::int64_t id) {
                                            return client.cancel(id, options->reason.value_or(""));
                                        });
                };
            },
            .examples = {"hold cancel 42", "hold cancel $(hold jobs --me -o name)"}};
}

}  // namespace holdfast::cli
