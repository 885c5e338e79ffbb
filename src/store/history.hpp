// SPDX-License-Identifier: Apache-2.0
/// The append-only record of what calls did: one `invocation` per call that changed something, one
/// `change` per row, written in the call's own transaction.
#pragma once

#include <string>
#include <vector>

#include <holdfast/store.hpp>

#include "connection.hpp"
#include "delta_capture.hpp"

namespace holdfast::store {

/// Numbers of the last transaction and the last change; fall back with the transaction.
struct Counters {
    std::int64_t txn = 0;
    std::int64_t seq = 0;
};

/// A row as a JSON object. Text that is not UTF-8 and blobs are {"hex": "…"}, so that nothing is
/// lost.
[[nodiscard]] std::string row_json(const std::vector<std::string>& columns,
                                   const std::vector<Value>& values);
/// The primary key: `42`, `name`, or of several columns `["a",1]`.
[[nodiscard]] std::string key_text(const TableShape& shape, const std::vector<Value>& values);

struct CallRecord {
    const CallInfo& info;
    std::int64_t at_us = 0;
    std::int64_t duration_us = 0;
    std::string_view status = "ok";  ///< or the name of the error that undid the call
};

/// Writes the history of one call and returns its deltas, numbered. No rows for a call that changed
/// only exempt tables.
[[nodiscard]] Result<std::vector<Delta>> write_history(Connection& connection, Counters& counters,
                                                       std::vector<RawDelta> changes,
                                                       const CallRecord& call);

/// The invocation alone, for a call whose writes were undone.
Result<> write_failed_invocation(Connection& connection, Counters& counters,
                                 const CallRecord& call);

/// The counters a reopened store goes on with.
[[nodiscard]] Result<Counters> read_counters(Connection& connection);

}  // namespace holdfast::store
