// SPDX-License-Identifier: Apache-2.0
/// Places one gang on what is free now.
///
/// The tasks of a gang are alike, so a node is a number of places ("slots") and first-fit is exact:
/// it finds room whenever there is room. Training workers add one rule: workers of one stage in
/// different pipelines never share a node. Which stage may use which node is then a flow problem
/// (stage → node: at most one worker; node: at most its slots). First-fit gives a first flow,
/// augmenting paths complete it, and Ford and Fulkerson's theorem says that what cannot be
/// completed is impossible. Not done here: preemption, topology.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <holdfast/placement.hpp>

namespace holdfast::placement {

/// Counts node visits against the caller's budget.
class Meter {
  public:
    explicit Meter(const Budget& budget) : left_(budget.units), stop_(budget.stop) {}

    /// Takes `units`; false when there are no more or the caller says stop.
    bool spend(std::int64_t units) {
        left_ -= units;
        return !spent();
    }

    [[nodiscard]] bool spent() const {
        return left_ < 0 || (stop_ != nullptr && stop_->load(std::memory_order_relaxed));
    }

  private:
    std::int64_t left_;
    const std::atomic<bool>* stop_;
};

/// How many tasks of `per_task` fit into `room`; the gpu type is not looked at.
[[nodiscard]] std::int64_t tasks_that_fit(const Capacity& room, const Capacity& per_task);

/// What keeps the job off this node whatever is free on it: the first that applies.
enum class Bar : std::uint8_t { none, pool, not_listed, excluded, gpu_type, too_small, state };

[[nodiscard]] Bar bar_of(const PendingJob& job, const NodeView& node);

/// Places for tasks of the job on the node: in its free room or, `idle`, in all of it. Workers that
/// a repaired job still has there count against tasks_per_node. 0 for a barred node.
[[nodiscard]] std::int64_t slots_on(const PendingJob& job, const NodeView& node, bool idle);

struct GangPlacement {
    static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

    std::vector<std::size_t> node_of;  ///< per task of the job: index into the nodes, or kNowhere
    std::size_t placed = 0;
    std::vector<std::string> warnings;
    bool out_of_budget = false;
};

/// The most tasks that fit, in the nodes' order, or best score first. Whether a part of the gang is
/// worth anything is the caller's question.
[[nodiscard]] GangPlacement place_gang(const std::vector<NodeView>& nodes, const PendingJob& job,
                                       const Policy& policy, Meter& meter);

}  // namespace holdfast::placement
