// SPDX-License-Identifier: Apache-2.0
#include "migrations.hpp"

#include <map>

#include <fmt/format.h>

namespace holdfast::store {

namespace {

/// 'HOLD': marks the file as ours for `file` and for opening a stranger's database by mistake.
constexpr std::int64_t kApplicationId = 0x484F4C44;

constexpr std::string_view kOwnTables = R"sql(
CREATE TABLE schema_migration (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_us INTEGER NOT NULL,
    checksum   TEXT NOT NULL
) STRICT;
CREATE TABLE invocation (
    txn         INTEGER PRIMARY KEY,
    procedure   TEXT NOT NULL,
    who         TEXT NOT NULL,
    cause       TEXT NOT NULL,
    at_us       INTEGER NOT NULL,
    duration_us INTEGER NOT NULL,
    status      TEXT NOT NULL,      -- 'ok', or the error that undid its writes
    seq_first   INTEGER NOT NULL,   -- its changes: seq BETWEEN seq_first AND seq_last
    seq_last    INTEGER NOT NULL
) STRICT;
CREATE TABLE change (
    seq         INTEGER PRIMARY KEY,
    txn         INTEGER NOT NULL,
    at_us       INTEGER NOT NULL,
    who         TEXT NOT NULL,
    cause       TEXT NOT NULL,
    tbl         TEXT NOT NULL,
    key         TEXT NOT NULL,
    op          TEXT NOT NULL CHECK (op IN ('insert', 'update', 'delete')),
    before_json TEXT,
    after_json  TEXT
) STRICT;
CREATE INDEX change_of_row ON change(tbl, key);
CREATE TRIGGER change_is_append_only_1 BEFORE UPDATE ON change
    BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;
CREATE TRIGGER change_is_append_only_2 BEFORE DELETE ON change
    BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;
CREATE TRIGGER invocation_is_append_only_1 BEFORE UPDATE ON invocation
    BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;
CREATE TRIGGER invocation_is_append_only_2 BEFORE DELETE ON invocation
    BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;
CREATE TABLE idempotency (
    who       TEXT NOT NULL,
    key       TEXT NOT NULL,
    procedure TEXT NOT NULL,
    answer    BLOB NOT NULL,
    at_us     INTEGER NOT NULL,
    PRIMARY KEY (who, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency(at_us);
CREATE TABLE id_sequence (
    name TEXT PRIMARY KEY,
    last INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE history_exempt (
    name TEXT PRIMARY KEY,
    why  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE history_redacted (
    tbl TEXT NOT NULL,
    col TEXT NOT NULL,
    PRIMARY KEY (tbl, col)
) STRICT, WITHOUT ROWID;
)sql";

Result<> record(Connection& connection, const Migration& migration, std::int64_t now_us) {
    HOLD_TRY(
        connection.run("INSERT INTO schema_migration(version, name, applied_us, checksum) "
                       "VALUES ($1, $2, $3, $4)",
                       migration.version, migration.name, now_us, script_checksum(migration.sql)));
    return {};
}

/// Runs `work` as one transaction.
Result<> in_transaction(Connection& connection, const std::function<Result<>()>& work) {
    HOLD_TRY(connection.run("BEGIN IMMEDIATE"));
    Result<> done = work();
    if (done) {
        if (auto committed = connection.run("COMMIT"); !committed) {
            done = fail(std::move(committed).error());
        }
    }
    if (!done && !connection.is_outside_transaction()) {
        (void)connection.run("ROLLBACK");  // the first error is the one to report
    }
    return done;
}

Result<> refuse_triggers_that_fail_halfway(Connection& connection) {
    HOLD_TRY(const std::vector<Row> triggers,
             connection.ask("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"));
    for (const Row& trigger : triggers) {
        if (may_fail_halfway(trigger.text("sql"))) {
            return fail(Errc::unsupported, "trigger {}: FAIL keeps half of a statement; use ABORT",
                        trigger.text("name"));
        }
    }
    return {};
}

Result<> apply(Connection& connection, DeltaCapture& capture, Counters& counters,
               const Migration& migration, std::int64_t now_us) {
    const Counters before = counters;
    const std::size_t mark = capture.mark();
    Result<> done = in_transaction(connection, [&]() -> Result<> {
        HOLD_TRY(connection.script(std::string(migration.sql), Access::migration));
        HOLD_TRY(refuse_triggers_that_fail_halfway(connection));
        HOLD_TRY(capture.load_shapes(connection));
        const CallInfo info{
            .procedure = "migrate",
            .who = "system",
            .cause = fmt::format("migration {:04}_{}", migration.version, migration.name)};
        HOLD_TRY(
            write_history(connection, counters, capture.take(), {.info = info, .at_us = now_us}));
        return record(connection, migration, now_us);
    });
    if (!done) {
        counters = before;
        capture.fall_back_to(mark);
        return fail(std::move(done).error().within(
            fmt::format("apply migration {:04}_{}", migration.version, migration.name)));
    }
    return {};
}

Result<> check_numbers(std::span<const Migration> migrations) {
    int expected = 1;
    for (const Migration& migration : migrations) {
        if (migration.version != expected) {
            return fail(Errc::invalid_argument, "migrations: expected version {}, found {} ({})",
                        expected, migration.version, migration.name);
        }
        ++expected;
    }
    return {};
}

Result<> make_own_tables(Connection& connection, std::int64_t now_us) {
    HOLD_TRY(const std::vector<Row> strangers,
             connection.ask("SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"));
    if (strangers.at(0).integer(0) > 0) {
        return fail(make_error(Errc::conflict,
                               "open store: the database holds tables that are not Holdfast's")
                        .advise("use an empty data directory"));
    }
    return in_transaction(connection, [&]() -> Result<> {
        HOLD_TRY(connection.script(std::string(kOwnTables), Access::store));
        HOLD_TRY(connection.script(fmt::format("PRAGMA application_id = {}", kApplicationId),
                                   Access::store));
        return record(connection, {.version = 0, .name = "store", .sql = kOwnTables}, now_us);
    });
}

}  // namespace

std::string script_checksum(std::string_view sql) {
    std::uint64_t hash = 14695981039346656037ULL;
    for (const char letter : sql) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
    }
    return fmt::format("{:016x}", hash);
}

Result<int> migrate(Connection& connection, DeltaCapture& capture, Counters& counters,
                    std::span<const Migration> migrations, std::int64_t now_us) {
    HOLD_TRY(check_numbers(migrations));
    HOLD_TRY(const std::vector<Row> present,
             connection.ask("SELECT 1 FROM sqlite_schema WHERE name = 'schema_migration'"));
    if (present.empty()) {
        HOLD_TRY(make_own_tables(connection, now_us));
    }
    HOLD_TRY(
        const std::vector<Row> rows,
        connection.ask("SELECT version, name, checksum FROM schema_migration ORDER BY version"));
    const int newest = static_cast<int>(migrations.size());
    int applied = 0;
    for (const Row& row : rows) {
        const auto version = static_cast<int>(row.integer("version"));
        if (version > newest) {
            return fail(make_error(Errc::store_newer,
                                   "open store: its schema has version {}, this program knows {}",
                                   rows.back().integer("version"), newest)
                            .advise("start the newer Holdfast, or restore a backup made before"));
        }
        const std::string_view sql =
            version == 0 ? kOwnTables : migrations[static_cast<std::size_t>(version - 1)].sql;
        if (row.text("checksum") != script_checksum(sql)) {
            return fail(make_error(Errc::conflict,
                                   "open store: migration {:04}_{} was applied with "
                                   "another text",
                                   version, row.text("name"))
                            .advise("never edit an applied migration; add a new one"));
        }
        applied = version;
    }
    HOLD_TRY(capture.load_shapes(connection));
    HOLD_TRY(counters, read_counters(connection));
    for (const Migration& migration : migrations.subspan(static_cast<std::size_t>(applied))) {
        HOLD_TRY(apply(connection, capture, counters, migration, now_us));
    }
    return newest;
}

}  // namespace holdfast::store
