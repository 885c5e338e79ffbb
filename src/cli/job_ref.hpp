// SPDX-License-Identifier: Apache-2.0
// How people name jobs: 42, job-42, an array's element 42_3, a task's output 42.1 or 42_3.0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <holdfast/result.hpp>

#include "verb.hpp"

namespace holdfast::cli {

struct JobRef {
    std::int64_t id = 0;                ///< the job, or the array
    std::optional<std::int32_t> index;  ///< of an array
    std::optional<std::int32_t> rank;   ///< only where asked for
    [[nodiscard]] std::string label() const;
};

/// Errors: invalid_argument.
Result<JobRef> parse_job_ref(std::string_view text, bool with_rank = false);

/// The job's own id: asks the server for an element's. Errors: not_found, the server's.
Result<std::int64_t> resolve(Session& session, const JobRef& ref);
/// The elements of an array, as rows of a list; none if it is a job. Errors: the server's.
Result<v1::ListJobsResponse> elements_of(Session& session, std::int64_t array);
/// The job, or the elements of an array. Errors: not_found, the server's.
Result<std::vector<std::int64_t>> resolve_all(Session& session, const JobRef& ref);

/// Runs `act` on each id in turn. One that fails does not stop the others: its error is shown, and
/// the first one decides the exit status. Prints the jobs; for people a line "job-42 VERB" each.
Result<int> for_each_job(Session& session, const std::vector<std::string>& ids,
                         const std::string& done,
                         const std::function<Result<v1::Job>(Client&, std::int64_t)>& act);

/// Prints a listing or an object in the session's form.
Result<> print(Session& session, Listing listing);
Result<> print(Session& session, const Json& object, const std::string& text,
               const std::string& name);

}  // namespace holdfast::cli
