// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

namespace holdfast::cli::demo {
namespace {

void claim(Report& report, bool holds, std::string otherwise) {
    if (!holds) {
        report.failures.push_back(std::move(otherwise));
    }
}

std::string joined(const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

void check_claims(Report& report) {
    std::int64_t lost = 0;
    for (const auto& killed : report.killed) {
        lost += static_cast<std::int64_t>(killed.workers.size());
    }
    claim(report, !report.killed.empty() && lost > 0, "no worker was killed: nothing was shown");
    claim(report, report.restarts == 0,
          fmt::format("the job was restarted {} times", report.restarts));
    claim(
        report, report.recoveries.size() == report.killed.size(),
        fmt::format("{} kills but {} recoveries", report.killed.size(), report.recoveries.size()));
    for (const Recovery& recovery : report.recoveries) {
        claim(report, recovery.redone_iterations <= 1,
              fmt::format("{} iterations were redone after one kill", recovery.redone_iterations));
    }
    claim(report, report.rejoined == lost,
          fmt::format("{} of {} lost workers came back", report.rejoined, lost));
    claim(report, report.loss_last < report.loss_first,
          fmt::format("the loss did not fall ({} to {})", report.loss_first, report.loss_last));
    claim(report, report.loss_max_abs_diff == 0.0,
          fmt::format("losses differ from the undisturbed run by up to {}",
                      report.loss_max_abs_diff));
    claim(report, report.array_completed == report.array_elements,
          fmt::format("{} of {} array elements completed", report.array_completed,
                      report.array_elements));
}

nlohmann::ordered_json to_json(const Report& report) {
    nlohmann::ordered_json json;
    json["steps"] = report.steps;
    json["workers"] = report.workers;
    json["events"] = report.events;
    json["killed"] = nlohmann::ordered_json::array();
    for (const auto& killed : report.killed) {
        nlohmann::ordered_json entry;
        entry["node"] = killed.node;
        entry["workers"] = killed.workers;
        entry["step"] = killed.step;
        json["killed"].push_back(entry);
    }
    json["restarts"] = report.restarts;
    json["recoveries"] = nlohmann::ordered_json::array();
    for (const Recovery& recovery : report.recoveries) {
        nlohmann::ordered_json entry;
        entry["detect_ms"] = recovery.detect_ms;
        entry["resume_ms"] = recovery.resume_ms;
        entry["redone_iterations"] = recovery.redone_iterations;
        json["recoveries"].push_back(entry);
    }
    json["rejoined"] = report.rejoined;
    json["loss_first"] = report.loss_first;
    json["loss_last"] = report.loss_last;
    json["loss_max_abs_diff"] = report.loss_max_abs_diff;
    json["step_ms"]["undisturbed"] = report.step_times.undisturbed_ms;
    json["step_ms"]["degraded"] = report.step_times.degraded_ms;
    json["step_ms"]["after_rejoin"] = report.step_times.after_rejoin_ms;
    json["array_completed"] = report.array_completed;
    json["failures"] = report.failures;
    json["ok"] = report.ok();
    return json;
}

std::string to_page(const Report& report, const std::string& directory, std::int64_t job) {
    std::string page = "\n";
    page += fmt::format("  training      {} workers, {} steps, loss {:.4f} -> {:.4f}\n",
                        report.workers, report.steps, report.loss_first, report.loss_last);
    for (std::size_t i = 0; i < report.killed.size(); ++i) {
        const auto& killed = report.killed[i];
        page += fmt::format("  killed        {} with workers {} at step {}\n", killed.node,
                            joined(killed.workers), killed.step);
        if (i < report.recoveries.size()) {
            const Recovery& recovery = report.recoveries[i];
            page += fmt::format(
                "  recovery      death row after {:.0f} ms, next optimizer step after {:.0f} ms, "
                "{} "
                "iteration(s) redone\n",
                recovery.detect_ms, recovery.resume_ms, recovery.redone_iterations);
        }
    }
    page += fmt::format("  rejoined      {} worker(s), {} restarts of the job\n", report.rejoined,
                        report.restarts);
    page += fmt::format(
        "  step time     {:.0f} ms undisturbed, {:.0f} ms with the node gone, {:.0f} ms after its "
        "return\n",
        report.step_times.undisturbed_ms, report.step_times.degraded_ms,
        report.step_times.after_rejoin_ms);
    page += fmt::format("  exactness     max |loss difference| to the undisturbed run: {}\n",
                        report.loss_max_abs_diff);
    page += fmt::format("  job array     {} of {} elements completed beside it\n",
                        report.array_completed, report.array_elements);
    page += fmt::format("  history       {} rows written on the way\n\n", report.events);
    for (const std::string& failure : report.failures) {
        page += "  FAILED        " + failure + "\n";
    }
    page += report.ok() ? "  OK: the job went on without restart and without a spare.\n"
                        : "  NOT OK: see above.\n";
    page += fmt::format(
        "\nLook further (everything that happened is rows):\n"
        "  hold server --data {0}/server --socket {0}/hold.sock &\n"
        "  export HOLDFAST_SERVER=unix:{0}/hold.sock\n"
        "  hold history job-{1}\n"
        "  hold sql \"select at_us, kind, epoch, step, worker, text from training_event where job "
        "= {1}\"\n"
        "  hold logs {1}.0\n"
        "Delete it all: rm -r {0}\n",
        directory, job);
    return page;
}

}  // namespace holdfast::cli::demo
