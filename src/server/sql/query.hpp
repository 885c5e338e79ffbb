// SPDX-License-Identifier: Apache-2.0
// One SELECT on a database file that it cannot change, inside limits.
#pragma once

#include <cstdint>
#include <string>

#include <holdfast/env.hpp>
#include <holdfast/result.hpp>

#include "sql_answer.hpp"

namespace holdfast::server::sql {

struct Query {
    std::string database;
    std::string statement;
    std::int64_t rows_max = kRowsDefault;
    std::int64_t timeout_ms = kTimeoutMsDefault;
    /// For plain users: also without other people's output, job texts and environments, and the
    /// history's images of rows (which hold those).
    bool restricted = false;
};

/// Writes columns, rows and the end to `out`.
/// Errors: invalid_argument with SQLite's message and line:column, denied for what nobody may
/// read or do here, timed_out, too_large (memory).
Result<> run_query(Env& env, const Query& query, AnswerWriter& out);

}  // namespace holdfast::server::sql
