// SPDX-License-Identifier: Apache-2.0
/// explain() on a view that decide() is changing.
#pragma once

#include <holdfast/placement.hpp>

namespace holdfast::placement {

[[nodiscard]] Waiting explain_on(const std::vector<NodeView>& nodes,
                                 const std::vector<ClusterView::ArrayLoad>& arrays,
                                 const PendingJob& job);

}  // namespace holdfast::placement
