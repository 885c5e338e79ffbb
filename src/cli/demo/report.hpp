// SPDX-License-Identifier: Apache-2.0
// What the demo claims, and how it says so: one JSON object, or a page for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cluster.hpp"

namespace holdfast::cli::demo {

struct Recovery {
    double detect_ms = 0;  ///< from SIGKILL to the death row
    double resume_ms = 0;  ///< from SIGKILL to the first new optimizer step
    std::int64_t redone_iterations = 0;
};

/// Medians, in milliseconds per optimizer step.
struct StepTimes {
    double undisturbed_ms = 0;  ///< the run without failure
    double degraded_ms = 0;     ///< between the first kill and the return of the workers
    double after_rejoin_ms = 0;
};

struct Report {
    std::int64_t steps = 0;
    std::int64_t workers = 0;
    std::int64_t events = 0;  ///< rows of history that the two runs and the array wrote
    std::vector<Cluster::Killed> killed;
    std::int64_t restarts = 0;
    std::vector<Recovery> recoveries;
    std::int64_t rejoined = 0;
    double loss_first = 0;
    double loss_last = 0;
    double loss_max_abs_diff = 0;
    StepTimes step_times;
    std::int64_t array_completed = 0;
    std::int64_t array_elements = 0;
    std::vector<std::string> failures;  ///< claims that do not hold

    [[nodiscard]] bool ok() const { return failures.empty(); }
};

/// Fills `failures` from the rest.
void check_claims(Report& report);

nlohmann::ordered_json to_json(const Report& report);
/// A page with what happened and how to look further.
std::string to_page(const Report& report, const std::string& directory, std::int64_t job);

}  // namespace holdfast::cli::demo
