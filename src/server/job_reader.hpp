// SPDX-License-Identifier: Apache-2.0
// Jobs as the API shows them, read from the rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <holdfast.pb.h>

#include <holdfast/result.hpp>
#include <holdfast/services.hpp>
#include <holdfast/store.hpp>

#include "access.hpp"

namespace holdfast::server {

/// The job, or the array as one job; with tasks. Hides what `caller` must not see.
Result<v1::Job> read_job(store::ReadTx& tx, std::int64_t id, const Caller& caller);

/// The rows of all jobs that `id` names.
Result<std::vector<services::JobRow>> rows_named(store::ReadTx& tx, std::int64_t id);

/// Adds nodes and training progress to listed jobs.
Result<> add_progress(store::ReadTx& tx, std::vector<v1::Job*> jobs);

/// Why the job is in its state. Cost: one read of the cluster for a pending one.
Result<v1::WhyResponse> why(store::ReadTx& tx, std::int64_t id);

}  // namespace holdfast::server
