// SPDX-License-Identifier: Apache-2.0
// The rows that placement decides on, as placement's structs. Read anew for every decision.
#pragma once

#include <vector>

#include <holdfast/placement.hpp>
#include <holdfast/result.hpp>
#include <holdfast/services.hpp>
#include <holdfast/store.hpp>

namespace holdfast::server {

Result<placement::ClusterView> read_cluster(store::ReadTx& tx);

placement::PendingJob pending_of(const services::PlaceableJob& job);

/// A spec that was not submitted (dry run, check at submit): as the job that it would become.
placement::PendingJob pending_of(const services::JobSpec& checked, const std::string& user);

}  // namespace holdfast::server
