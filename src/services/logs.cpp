// SPDX-License-Identifier: Apache-2.0
/// Output of tasks, appended in order and exactly once: the agent sends from the offset that it
/// last saw acknowledged, so repeats overlap and are cut; a gap would be lost output and is
/// refused.
#include <algorithm>
#include <cstring>

#include "rows.hpp"

namespace holdfast::services {

namespace {

constexpr std::size_t kAppendBytesMax = 4U << 20U;

store::Blob blob_of(std::string_view text) {
    store::Blob bytes(text.size());
    if (!text.empty()) {
        std::memcpy(bytes.data(), text.data(), text.size());
    }
    return bytes;
}

/// Errors: stale_lease. Output may come after the task ended or its lease was revoked.
Result<> check_source(store::ReadTx& tx, const TaskBrief& task, LeaseId lease) {
    if (task.last_lease == lease && lease.is_set()) {
        return {};
    }
    HOLD_TRY(
        const auto known,
        tx.query_one("SELECT 1 FROM log_position WHERE task = $1 AND lease = $2 UNION SELECT 1 "
                     "FROM lease_revoked WHERE task = $1 AND id = $2",
                     task.id, lease));
    if (!known) {
        return fail(Errc::stale_lease, "output of {}: {} is not a lease of it", task.id.label(),
                    lease.label());
    }
    return {};
}

struct Position {
    std::int64_t offset = 0;  ///< of this stream and lease
    std::int64_t kept = 0;    ///< bytes of the task in all
    bool dropped = false;     ///< some of the task's output was dropped before
};

Result<Position> position_of(store::ReadTx& tx, TaskId task, LeaseId lease,
                             const std::string& stream) {
    HOLD_TRY(
        const auto row,
        tx.query_one("SELECT coalesce(max(CASE WHEN stream = $2 AND lease = $3 THEN offset END), "
                     "0) AS offset, coalesce(sum(stored), 0) AS kept, coalesce(sum(offset), 0) "
                     "AS received FROM log_position WHERE task = $1",
                     task, stream, lease));
    return Position{row->integer("offset"), row->integer("kept"),
                    row->integer("received") > row->integer("kept")};
}

Result<> insert_chunk(store::Tx& tx, TaskId task, LeaseId lease, const std::string& stream,
                      std::int64_t offset, std::string_view text) {
    HOLD_TRY(
        tx.exec("INSERT INTO log_chunk (task, stream, lease, offset, at_us, text) VALUES ($1, "
                "$2, $3, $4, $5, $6)",
                task, stream, lease, offset, tx.now_us(), blob_of(text)));
    return {};
}

}  // namespace

Result<std::int64_t> append_log(store::Tx& tx, TaskId task, LeaseId lease,
                                const std::string& stream, std::int64_t offset,
                                const std::string& text) {
    if (stream != "stdout" && stream != "stderr") {
        return fail(make_error(Errc::invalid_argument, "no stream is called '{}'",
                               is_utf8(stream) ? stream.substr(0, 64) : "…")
                        .at("stream"));
    }
    if (offset < 0 || text.size() > kAppendBytesMax) {
        return fail(make_error(Errc::too_large, "{} bytes of output at {}; at most {} at a time",
                               text.size(), offset, kAppendBytesMax)
                        .at("text"));
    }
    HOLD_TRY(const TaskBrief brief, find_task(tx, task));
    HOLD_TRY(check_source(tx, brief, lease));
    HOLD_TRY(const Position position, position_of(tx, task, lease, stream));
    if (offset > position.offset) {
        return fail(make_error(Errc::conflict, "output of {} at {}: what is below {} is missing",
                               task.label(), offset, position.offset)
                        .at("offset"));
    }
    const auto known = static_cast<std::size_t>(position.offset - offset);
    if (known >= text.size()) {
        return position.offset;
    }
    const std::string_view fresh = std::string_view(text).substr(known);
    const std::int64_t room = std::max<std::int64_t>(kLogBytesMax - position.kept, 0);
    const auto keep = std::min(static_cast<std::size_t>(room), fresh.size());
    if (keep > 0) {
        HOLD_TRY(insert_chunk(tx, task, lease, stream, position.offset, fresh.substr(0, keep)));
    }
    if (keep < fresh.size() && !position.dropped) {
        HOLD_TRY(insert_chunk(
            tx, task, lease, stream, position.offset + static_cast<std::int64_t>(keep),
            fmt::format(
                "\n[holdfast: the output of this task is over {} MiB; the rest is dropped]\n",
                kLogBytesMax >> 20)));
    }
    const std::int64_t end = position.offset + static_cast<std::int64_t>(fresh.size());
    HOLD_TRY(
        tx.exec("INSERT INTO log_position (task, stream, lease, offset, stored) VALUES ($1, $2, "
                "$3, $4, $5) ON CONFLICT (task, stream, lease) DO UPDATE SET offset = "
                "excluded.offset, stored = stored + excluded.stored",
                task, stream, lease, end, keep));
    return end;
}

}  // namespace holdfast::services
