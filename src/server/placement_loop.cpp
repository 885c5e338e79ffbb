// SPDX-License-Identifier: Apache-2.0
#include "placement_loop.hpp"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include <holdfast/log.hpp>
#include <holdfast/services.hpp>

#include "cluster_view.hpp"

namespace holdfast::server {
namespace {

/// Whether a job's delta can change what may be placed: our own reasons do not.
bool matters(const store::Delta& delta) {
    if (delta.table != "job" || delta.op != store::Op::update) {
        return true;
    }
    return delta.before->text("state") != delta.after->text("state") ||
           delta.before->integer("priority") != delta.after->integer("priority");
}

bool has_room(const placement::ClusterView& view) {
    return std::any_of(view.nodes.begin(), view.nodes.end(), [](const placement::NodeView& node) {
        return node.schedulable && node.free.cpus > 0;
    });
}

std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) {
        text += (text.empty() ? "" : "; ") + line;
    }
    return text;
}

}  // namespace

void PlacementLoop::start() {
    thread_ = std::thread([this] { run(); });
}

void PlacementLoop::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    stop_flag_ = true;
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

void PlacementLoop::wake() {
    {
        const std::lock_guard lock(mutex_);
        dirty_ = true;
    }
    changed_.notify_one();
}

void PlacementLoop::on_deltas(const std::vector<store::Delta>& deltas) {
    bool is_relevant = false;
    for (const store::Delta& delta : deltas) {
        if (delta.table == "node") {
            ++node_changes_;
        }
        is_relevant = is_relevant ||
                      ((delta.table == "job" || delta.table == "task" || delta.table == "node" ||
                        delta.table == "lease" || delta.table == "lease_revoked") &&
                       matters(delta));
    }
    if (is_relevant) {
        wake();
    }
}

Result<std::shared_ptr<const placement::ClusterView>> PlacementLoop::nodes_for_advice() {
    const std::lock_guard lock(advice_mutex_);
    const std::int64_t changes = node_changes_;
    if (advice_of_ != changes || advice_ == nullptr) {
        HOLD_TRY(placement::ClusterView view,
                 core_.store->read([](store::ReadTx& tx) { return read_cluster(tx); }));
        advice_ = std::make_shared<const placement::ClusterView>(std::move(view));
        advice_of_ = changes;
    }
    return advice_;
}

void PlacementLoop::run() {
    std::int64_t wait_us = kNoLimit;
    std::unique_lock lock(mutex_);
    while (true) {
        const auto is_due = [this] { return dirty_ || stopping_; };
        if (wait_us == kNoLimit) {
            changed_.wait(lock, is_due);
        } else {
            changed_.wait_for(lock, std::chrono::microseconds(wait_us), is_due);
        }
        if (stopping_) {
            return;
        }
        dirty_ = false;
        lock.unlock();
        wait_us = kNoLimit;
        const std::int64_t begun_us = core_.env.clock.steady_us();
        if (auto done = round(); !done) {
            // The rows are as they were; the store may be full or busy.
            HOLD_EVENT(warn, "placement_failed", {"why", done.error()});
            wait_us = kRetryGapUs;
        } else if (reasons_due_) {
            wait_us = kReasonGapUs;
        }
        // A burst of submits gathers meanwhile, and a long backlog takes a fifth of a core at most.
        const std::int64_t gap_us =
            std::clamp(4 * (core_.env.clock.steady_us() - begun_us), kRoundGapUs, kRoundGapMaxUs);
        lock.lock();
        changed_.wait_for(lock, std::chrono::microseconds(gap_us), [this] { return stopping_; });
    }
}

Result<> PlacementLoop::round() {
    const std::int64_t begun_us = core_.env.clock.steady_us();
    static Histogram& seconds =
        Metrics::global().histogram("holdfast_server_placement_round_seconds",
                                    "Time of one placement round", latency_bounds_s());

    struct Rows {
        placement::ClusterView view;
        std::vector<services::PlaceableJob> jobs;
    };

    const std::int32_t limit = jobs_per_round_;
    HOLD_TRY(const Rows rows, core_.store->read([&](store::ReadTx& tx) -> Result<Rows> {
        Rows out;
        HOLD_TRY(out.jobs, services::jobs_to_place(tx, limit));
        if (!out.jobs.empty()) {
            HOLD_TRY(out.view, read_cluster(tx));
        }
        return out;
    }));
    if (rows.jobs.empty()) {
        return {};
    }
    std::vector<placement::PendingJob> pending;
    pending.reserve(rows.jobs.size());
    for (const services::PlaceableJob& job : rows.jobs) {
        pending.push_back(pending_of(job));
    }
    const placement::Budget budget{.stop = &stop_flag_};
    const placement::Decision decision =
        placement::decide(rows.view, pending, placement::fifo_first_fit(), budget);
    HOLD_TRY(grant(decision));
    // All that we looked at waits, there is room, and there are more: look further next time.
    const bool is_full = rows.jobs.size() == static_cast<std::size_t>(limit);
    if (is_full && decision.placed.empty() && has_room(rows.view) && limit < kJobsPerRoundMax) {
        jobs_per_round_ = std::min(limit * 4, kJobsPerRoundMax);
        wake();
    } else if (!is_full || !decision.placed.empty()) {
        jobs_per_round_ = kJobsPerRound;
    }
    std::unordered_map<JobId, const services::JobRow*> known;
    for (const services::PlaceableJob& job : rows.jobs) {
        known[job.job.id] = &job.job;
    }
    std::vector<Reason> reasons;
    for (const placement::Waiting& waiting : decision.waiting) {
        Reason reason{
            .job = waiting.job, .text = waiting.reason, .warning = joined(waiting.warnings)};
        const auto row = known.find(waiting.job);
        if (row != known.end() &&
            (row->second->reason != reason.text || row->second->warning != reason.warning)) {
            reasons.push_back(std::move(reason));
        }
    }
    write_reasons(std::move(reasons));
    seconds.observe(static_cast<double>(core_.env.clock.steady_us() - begun_us) / 1e6);
    return {};
}

/// Each gang in a savepoint of its own: all of its leases or none; many gangs share one commit.
Result<> PlacementLoop::grant(const placement::Decision& decision) {
    constexpr std::size_t kGangsPerCall = 64;
    for (std::size_t from = 0; from < decision.placed.size(); from += kGangsPerCall) {
        const std::size_t to = std::min(from + kGangsPerCall, decision.placed.size());
        std::vector<Error> refused;
        auto done = core_.store->call(
            {.procedure = "place", .who = "system", .cause = "placement"},
            [&](store::Tx& tx) -> Result<> {
                refused.clear();
                for (std::size_t i = from; i < to; ++i) {
                    const placement::Placed& placed = decision.placed[i];
                    std::vector<services::Assignment> gang;
                    for (const auto& at : placed.tasks) {
                        gang.push_back({.task = at.task, .node = at.node});
                    }
                    const auto granted = tx.attempt([&](store::Tx& inner) -> Result<> {
                        HOLD_TRY(services::grant_gang(inner, placed.job, gang));
                        return services::set_reason(inner, placed.job, "", joined(placed.warnings));
                    });
                    if (!granted) {  // it was cancelled or the node left meanwhile: look again
                        refused.push_back(granted.error());
                    }
                }
                return {};
            });
        HOLD_TRY(std::move(done));
        for (const Error& error : refused) {
            HOLD_EVENT(info, "placement_refused", {"why", error.message});
            wake();
        }
    }
    return {};
}

void PlacementLoop::write_reasons(std::vector<Reason> reasons) {
    reasons_due_ = false;
    if (reasons.empty()) {
        return;
    }
    const std::int64_t now_us = core_.env.clock.steady_us();
    if (reasons_at_us_ != 0 && now_us - reasons_at_us_ < kReasonGapUs) {
        reasons_due_ = true;  // run() comes back for them
        return;
    }
    reasons_at_us_ = now_us;
    auto done = core_.store->call(
        {.procedure = "set_reasons",
         .who = "system",
         .cause = "placement",
         .durability = store::Durability::relaxed},
        [&](store::Tx& tx) -> Result<> {
            for (const Reason& reason : reasons) {
                HOLD_TRY(services::set_reason(tx, reason.job, reason.text, reason.warning));
            }
            return {};
        });
    if (!done) {
        HOLD_EVENT(warn, "reasons_not_written", {"why", done.error()});
        reasons_due_ = true;
    }
}

}  // namespace holdfast::server
