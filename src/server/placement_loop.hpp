// SPDX-License-Identifier: Apache-2.0
// The live loop: deltas wake one thread, which reads the rows, asks placement::decide, and writes
// leases and reasons. It keeps no copy of anything that it decides on.
//
// Wakes are coalesced: after a round of t the next begins no sooner than 4 t, and reasons (which
// are for people) are written at most every kReasonGapUs, only where they differ, in one relaxed
// transaction.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <holdfast/placement.hpp>
#include <holdfast/store.hpp>

#include "core.hpp"

namespace holdfast::server {

class PlacementLoop {
  public:
    explicit PlacementLoop(Core& core) : core_(core) {}

    ~PlacementLoop() { stop(); }

    PlacementLoop(const PlacementLoop&) = delete;
    PlacementLoop& operator=(const PlacementLoop&) = delete;

    void start();
    void stop();

    /// From the publisher's thread.
    void on_deltas(const std::vector<store::Delta>& deltas);

    /// The cluster's nodes as the newest committed rows show them, for advice at submit; the same
    /// copy until a node's row changes.
    Result<std::shared_ptr<const placement::ClusterView>> nodes_for_advice();

  private:
    struct Reason {
        JobId job;
        std::string text;
        std::string warning;
    };

    void run();
    Result<> round();
    Result<> grant(const placement::Decision& decision);
    void write_reasons(std::vector<Reason> reasons);
    void wake();

    static constexpr std::int64_t kRoundGapUs = 3'000;
    static constexpr std::int64_t kRoundGapMaxUs = 250'000;
    static constexpr std::int64_t kReasonGapUs = 300'000;
    static constexpr std::int64_t kRetryGapUs = 500'000;
    static constexpr std::int32_t kJobsPerRound = 1'000;
    static constexpr std::int32_t kJobsPerRoundMax = 20'000;

    Core& core_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool dirty_ = true;
    bool stopping_ = false;
    std::thread thread_;
    std::atomic<bool> stop_flag_{false};
    std::int64_t reasons_at_us_ = 0;
    bool reasons_due_ = false;
    std::int32_t jobs_per_round_ = kJobsPerRound;

    std::mutex advice_mutex_;
    std::atomic<std::int64_t> node_changes_{0};
    std::int64_t advice_of_ = -1;
    std::shared_ptr<const placement::ClusterView> advice_;
};

}  // namespace holdfast::server
