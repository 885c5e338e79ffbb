// SPDX-License-Identifier: Apache-2.0
#include "history_reader.hpp"

#include <optional>

namespace holdfast::server {
namespace {

constexpr std::int32_t kRowsDefault = 1000;
constexpr std::int32_t kRowsMax = 10'000;
constexpr std::size_t kBytesMax = 3 << 20;

// One statement per kind of question, each on an index: (tbl, key) or seq.
#define HISTORY_COLUMNS                                                                 \
    "SELECT c.seq, c.txn, c.at_us, c.who, coalesce(i.procedure, '') AS procedure, "     \
    "c.cause, c.tbl, c.key, c.op, c.before_json, c.after_json FROM change c LEFT JOIN " \
    "invocation i ON i.txn = c.txn "

constexpr std::string_view kAll =
    HISTORY_COLUMNS "WHERE c.seq > $1 AND ($2 = '' OR c.tbl = $2) ORDER BY c.seq LIMIT $3";
constexpr std::string_view kByKey =
    HISTORY_COLUMNS "WHERE c.seq > $1 AND c.tbl = $2 AND c.key = $3 ORDER BY c.seq LIMIT $4";
constexpr std::string_view kByKeyAnyTable =
    HISTORY_COLUMNS "WHERE c.seq > $1 AND c.key = $2 ORDER BY c.seq LIMIT $3";
constexpr std::string_view kByJob =
    "WITH tasks(key) AS (SELECT CAST(id AS TEXT) FROM task WHERE job = $2), "
    "leases(key) AS (SELECT DISTINCT CAST(json_extract(after_json, '$.lease') AS TEXT) FROM "
    "change WHERE tbl = 'task' AND key IN (SELECT key FROM tasks) AND after_json IS NOT NULL), "
    "wanted(seq) AS ("
    "SELECT seq FROM change WHERE tbl IN ('job', 'job_spec', 'job_array', 'training_run') AND key "
    "= CAST($2 AS TEXT) "
    "UNION SELECT seq FROM change WHERE tbl = 'task' AND key IN (SELECT key FROM tasks) "
    "UNION SELECT seq FROM change WHERE tbl IN ('lease', 'lease_revoked') AND key IN (SELECT key "
    "FROM leases) "
    // Composite keys are JSON arrays that begin with the job: `[7,…`, and ',' + 1 is '-'.
    "UNION SELECT seq FROM change WHERE tbl IN ('training_worker', 'training_event') AND key >= "
    "'[' || $2 || ',' AND key < '[' || $2 || '-') " HISTORY_COLUMNS
    "WHERE c.seq IN (SELECT seq FROM wanted) AND c.seq > $1 AND ($3 = '' OR c.tbl = $3) ORDER BY "
    "c.seq LIMIT $4";
constexpr std::string_view kByNode =
    "WITH wanted(seq) AS ("
    "SELECT seq FROM change WHERE tbl = 'node' AND key = CAST($2 AS TEXT) "
    "UNION SELECT seq FROM change WHERE tbl IN ('lease', 'lease_revoked') AND "
    "json_extract(coalesce(after_json, before_json), '$.node') = $2) " HISTORY_COLUMNS
    "WHERE c.seq IN (SELECT seq FROM wanted) AND c.seq > $1 AND ($3 = '' OR c.tbl = $3) ORDER BY "
    "c.seq LIMIT $4";
#undef HISTORY_COLUMNS

Result<std::vector<store::Row>> find(store::ReadTx& tx, const v1::HistoryRequest& request,
                                     std::int32_t limit) {
    if (request.job() != 0) {
        return tx.query(kByJob, request.after_seq(), request.job(), request.table(), limit);
    }
    if (!request.node().empty()) {
        HOLD_TRY(const auto node,
                 tx.query_one("SELECT id FROM node WHERE name = $1", request.node()));
        if (!node) {
            return fail(make_error(Errc::not_found, "no node {}", request.node()).at("node"));
        }
        return tx.query(kByNode, request.after_seq(), node->integer("id"), request.table(), limit);
    }
    if (request.key().empty()) {
        return tx.query(kAll, request.after_seq(), request.table(), limit);
    }
    if (request.table().empty()) {
        return tx.query(kByKeyAnyTable, request.after_seq(), request.key(), limit);
    }
    return tx.query(kByKey, request.after_seq(), request.table(), request.key(), limit);
}

/// Whether the row is a spec of a job that is not the caller's.
Result<bool> is_private(store::ReadTx& tx, const store::Row& row, const Caller& caller) {
    if (caller.is_operator() || row.text("tbl") != "job_spec") {
        return false;
    }
    HOLD_TRY(
        const auto job,
        tx.query("SELECT user FROM job WHERE spec = CAST($1 AS INTEGER) LIMIT 1", row.text("key")));
    return job.empty() || job.front().text("user") != caller.user;
}

}  // namespace

Result<v1::HistoryResponse> read_history(store::ReadTx& tx, const v1::HistoryRequest& request,
                                         const Caller& caller) {
    if (request.limit() < 0 || request.limit() > kRowsMax) {
        return fail(
            make_error(Errc::invalid_argument, "history: 0 to {} rows", kRowsMax).at("limit"));
    }
    HOLD_TRY(const auto rows,
             find(tx, request, request.limit() == 0 ? kRowsDefault : request.limit()));
    v1::HistoryResponse response;
    std::size_t bytes = 0;
    for (const store::Row& row : rows) {
        v1::Change change;
        change.set_seq(row.integer("seq"));
        change.set_txn(row.integer("txn"));
        change.set_at_us(row.integer("at_us"));
        change.set_who(row.text("who"));
        const std::string& procedure = row.text("procedure");
        const std::string& cause = row.text("cause");
        change.set_cause(cause.empty() ? procedure : procedure + ": " + cause);
        change.set_table(row.text("tbl"));
        change.set_key(row.text("key"));
        change.set_op(row.text("op"));
        HOLD_TRY(const bool hidden, is_private(tx, row, caller));
        if (!hidden) {
            change.set_before(row.text_or("before_json", ""));
            change.set_after(row.text_or("after_json", ""));
        }
        bytes += change.ByteSizeLong() + 8;
        if (bytes > kBytesMax) {
            break;  // the caller goes on after the last seq
        }
        *response.add_changes() = std::move(change);
    }
    return response;
}

}  // namespace holdfast::server
