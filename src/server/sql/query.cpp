// SPDX-License-Identifier: Apache-2.0
#include "query.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include <sqlite3.h>

namespace holdfast::server::sql {
namespace {

constexpr std::int64_t kHeapBytesMax = 160 << 20;
constexpr int kValueBytesMax = 8 << 20;
constexpr int kInstructionsPerCheck = 20'000;

struct SecretColumn {
    std::string_view table;
    std::string_view column;  ///< empty: the whole table
};

/// What nobody reads, not even an admin: it would let them act as somebody else.
constexpr std::array kSecrets = {SecretColumn{"token", "hash"}, SecretColumn{"lease", "secret"},
                                 SecretColumn{"training_run", "cluster_key"},
                                 SecretColumn{"idempotency", ""}};

/// What plain users do not read: others' output and environments, and images of rows with them.
/// All else is open to every user of the cluster: who runs what, where, since when, and why not.
constexpr std::array kPrivate = {SecretColumn{"log_chunk", "text"},
                                 SecretColumn{"job_spec", "spec"},
                                 SecretColumn{"change", "before_json"},
                                 SecretColumn{"change", "after_json"}, SecretColumn{"token", ""}};

constexpr std::array<std::string_view, 99> kFunctions = {"->",
                                                         "->>",
                                                         "abs",
                                                         "avg",
                                                         "ceil",
                                                         "ceiling",
                                                         "char",
                                                         "coalesce",
                                                         "count",
                                                         "cume_dist",
                                                         "current_date",
                                                         "current_time",
                                                         "current_timestamp",
                                                         "date",
                                                         "datetime",
                                                         "degrees",
                                                         "dense_rank",
                                                         "exp",
                                                         "first_value",
                                                         "floor",
                                                         "format",
                                                         "glob",
                                                         "group_concat",
                                                         "hex",
                                                         "ifnull",
                                                         "iif",
                                                         "instr",
                                                         "json",
                                                         "json_array",
                                                         "json_array_length",
                                                         "json_each",
                                                         "json_extract",
                                                         "json_group_array",
                                                         "json_group_object",
                                                         "json_insert",
                                                         "json_object",
                                                         "json_patch",
                                                         "json_quote",
                                                         "json_remove",
                                                         "json_replace",
                                                         "json_set",
                                                         "json_tree",
                                                         "json_type",
                                                         "json_valid",
                                                         "julianday",
                                                         "lag",
                                                         "last_value",
                                                         "lead",
                                                         "length",
                                                         "like",
                                                         "likelihood",
                                                         "likely",
                                                         "ln",
                                                         "log",
                                                         "log10",
                                                         "log2",
                                                         "lower",
                                                         "ltrim",
                                                         "max",
                                                         "min",
                                                         "mod",
                                                         "nth_value",
                                                         "ntile",
                                                         "nullif",
                                                         "percent_rank",
                                                         "pi",
                                                         "pow",
                                                         "power",
                                                         "printf",
                                                         "quote",
                                                         "radians",
                                                         "random",
                                                         "rank",
                                                         "replace",
                                                         "round",
                                                         "row_number",
                                                         "rtrim",
                                                         "sign",
                                                         "sqrt",
                                                         "strftime",
                                                         "substr",
                                                         "substring",
                                                         "sum",
                                                         "time",
                                                         "total",
                                                         "trim",
                                                         "trunc",
                                                         "typeof",
                                                         "unicode",
                                                         "unixepoch",
                                                         "unlikely",
                                                         "upper",
                                                         "sqlite_version",
                                                         "zeroblob",
                                                         "randomblob",
                                                         "acos",
                                                         "asin",
                                                         "atan",
                                                         "nchar"};

struct Watch {
    Env* env = nullptr;
    std::int64_t deadline_us = 0;
    bool timed_out = false;
    bool restricted = false;
    std::vector<std::string> tables;  ///< of the main database
    std::string refused;              ///< what the authoriser said no to, for the message
};

bool is_listed(std::string_view table, std::string_view column, const SecretColumn* begin,
               const SecretColumn* end) {
    return std::any_of(begin, end, [&](const SecretColumn& secret) {
        return secret.table == table && (secret.column.empty() || secret.column == column);
    });
}

int refuse(Watch& watch, std::string what) {
    if (watch.refused.empty()) {
        watch.refused = std::move(what);
    }
    return SQLITE_DENY;
}

int authorise_read(Watch& watch, std::string_view table, std::string_view column) {
    if (is_listed(table, column, kSecrets.begin(), kSecrets.end())) {
        return refuse(watch, fmt::format("{}.{} is secret", table, column));
    }
    if (watch.restricted && is_listed(table, column, kPrivate.begin(), kPrivate.end())) {
        return refuse(watch, fmt::format("{}.{} is for operators and admins", table, column));
    }
    if (column.empty()) {
        // No column is taken: a table that is only counted, or a common table expression's name.
        return SQLITE_OK;
    }
    constexpr std::array<std::string_view, 4> kBuiltIn = {"sqlite_master", "sqlite_schema",
                                                          "json_each", "json_tree"};
    if (std::find(kBuiltIn.begin(), kBuiltIn.end(), table) != kBuiltIn.end() ||
        std::find(watch.tables.begin(), watch.tables.end(), table) != watch.tables.end()) {
        return SQLITE_OK;
    }
    return refuse(watch, fmt::format("{} is no table of the cluster", table));
}

int authorise(void* context, int action, const char* first, const char* second,
              const char* database, const char* /*trigger*/) {
    Watch& watch = *static_cast<Watch*>(context);
    const auto text = [](const char* words) {
        return words == nullptr ? std::string_view{} : std::string_view(words);
    };
    switch (action) {
        case SQLITE_SELECT:
        case SQLITE_RECURSIVE:
            return SQLITE_OK;
        case SQLITE_READ:
            // A table-valued function or subquery has no database; "temp" holds nothing of ours.
            if (text(database) == "temp") {
                return refuse(watch, "temporary tables are refused");
            }
            return authorise_read(watch, text(first), text(second));
        case SQLITE_FUNCTION:
            if (std::find(kFunctions.begin(), kFunctions.end(), text(second)) != kFunctions.end()) {
                return SQLITE_OK;
            }
            return refuse(watch, fmt::format("the function {} is refused", text(second)));
        case SQLITE_ATTACH:
            return refuse(watch, "ATTACH is refused");
        case SQLITE_PRAGMA:
            return refuse(watch, fmt::format("PRAGMA {} is refused", text(first)));
        default:
            return refuse(watch, "anything but reading is refused");
    }
}

int check_time(void* context) {
    Watch& watch = *static_cast<Watch*>(context);
    watch.timed_out = watch.env->clock.steady_us() >= watch.deadline_us;
    return watch.timed_out ? 1 : 0;
}

struct CloseDatabase {
    void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};

struct FinishStatement {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinishStatement>;

/// `line:column` of a byte offset, both from 1.
std::string place_of(std::string_view text, std::size_t offset) {
    std::size_t line = 1;
    std::size_t column = 1;
    for (const char c : text.substr(0, offset)) {
        line += c == '\n' ? 1 : 0;
        column = c == '\n' ? 1 : column + 1;
    }
    return fmt::format("{}:{}", line, column);
}

tl::unexpected<Error> sqlite_failed(sqlite3* database, int code, const Watch& watch,
                                    const Query& query) {
    if (watch.timed_out) {
        return fail(
            make_error(Errc::timed_out, "the statement ran longer than {} ms", query.timeout_ms));
    }
    const char* message = sqlite3_errmsg(database);
    if ((code & 0xff) == SQLITE_AUTH || !watch.refused.empty()) {
        return fail(Errc::denied, "SQL here only reads: {} ({})",
                    watch.refused.empty() ? "this is refused" : watch.refused, message);
    }
    if ((code & 0xff) == SQLITE_NOMEM || (code & 0xff) == SQLITE_TOOBIG ||
        (code & 0xff) == SQLITE_FULL || (code & 0xff) == SQLITE_IOERR) {
        return fail(Errc::too_large, "the statement needs more memory than it may have ({})",
                    message);
    }
    Error error = make_error(Errc::invalid_argument, "{}", message);
    if (const int offset = sqlite3_error_offset(database); offset >= 0) {
        error.where = place_of(query.statement, static_cast<std::size_t>(offset));
    }
    return fail(std::move(error));
}

Result<Database> open_database(const Query& query, Watch& watch) {
    sqlite3* raw = nullptr;
    const int code = sqlite3_open_v2(query.database.c_str(), &raw,
                                     SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, nullptr);
    Database database(raw);
    if (code != SQLITE_OK) {
        return fail(Errc::store_io, "open the database to read: {}", sqlite3_errstr(code));
    }
    sqlite3_busy_timeout(raw, 1000);
    sqlite3_hard_heap_limit64(kHeapBytesMax);
    sqlite3_limit(raw, SQLITE_LIMIT_LENGTH, kValueBytesMax);
    sqlite3_limit(raw, SQLITE_LIMIT_SQL_LENGTH, static_cast<int>(kStatementBytesMax));
    sqlite3_limit(raw, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_limit(raw, SQLITE_LIMIT_WORKER_THREADS, 0);
    sqlite3_limit(raw, SQLITE_LIMIT_EXPR_DEPTH, 500);
    sqlite3_limit(raw, SQLITE_LIMIT_COLUMN, static_cast<int>(kColumnsMax));
    sqlite3_db_config(raw, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(raw, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, nullptr);
    sqlite3_db_config(raw, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_exec(raw, "PRAGMA query_only = 1; PRAGMA temp_store = 2; PRAGMA mmap_size = 0", nullptr,
                 nullptr, nullptr);
    sqlite3_stmt* tables = nullptr;
    if (const int listed = sqlite3_prepare_v2(
            raw, "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')", -1, &tables,
            nullptr);
        listed != SQLITE_OK) {
        return fail(Errc::store_io, "read the database: {}", sqlite3_errmsg(raw));
    }
    const Statement list(tables);
    while (sqlite3_step(tables) == SQLITE_ROW) {
        // SAFETY: SQLite gives text as unsigned bytes; char may alias it.
        watch.tables.emplace_back(reinterpret_cast<const char*>(sqlite3_column_text(tables, 0)));
    }
    return database;
}

Result<Statement> prepare(sqlite3* database, const Query& query, const Watch& watch) {
    if (query.statement.size() > kStatementBytesMax) {
        return fail(Errc::too_large, "the statement has {} bytes; at most {} are allowed",
                    query.statement.size(), kStatementBytesMax);
    }
    sqlite3_stmt* raw = nullptr;
    const char* tail = nullptr;
    const char* begin = query.statement.c_str();
    const int code = sqlite3_prepare_v2(database, begin,
                                        static_cast<int>(query.statement.size() + 1), &raw, &tail);
    Statement statement(raw);
    if (code != SQLITE_OK) {
        return sqlite_failed(database, code, watch, query);
    }
    if (!statement) {
        return fail(Errc::invalid_argument, "there is no statement");
    }
    sqlite3_stmt* second = nullptr;
    const int rest = sqlite3_prepare_v2(database, tail, -1, &second, nullptr);
    const Statement also(second);
    if (rest != SQLITE_OK || second != nullptr ||
        static_cast<std::size_t>(tail - begin) + std::string_view(tail).size() !=
            query.statement.size()) {
        return fail(make_error(Errc::invalid_argument, "more than one statement")
                        .at(place_of(query.statement, static_cast<std::size_t>(tail - begin))));
    }
    if (sqlite3_stmt_readonly(raw) == 0) {
        return fail(Errc::denied, "SQL here only reads");
    }
    if (sqlite3_bind_parameter_count(raw) != 0) {
        return fail(Errc::invalid_argument, "the statement has parameters; nothing binds them");
    }
    return statement;
}

Cell cell_of(sqlite3_stmt* statement, int column) {
    const auto size = [&] {
        return static_cast<std::size_t>(sqlite3_column_bytes(statement, column));
    };
    switch (sqlite3_column_type(statement, column)) {
        case SQLITE_INTEGER:
            return static_cast<std::int64_t>(sqlite3_column_int64(statement, column));
        case SQLITE_FLOAT:
            return sqlite3_column_double(statement, column);
        case SQLITE_TEXT: {
            // SAFETY: as above; the pointer is valid until the next step.
            const auto* text =
                reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
            return std::string(text == nullptr ? "" : text, text == nullptr ? 0 : size());
        }
        case SQLITE_BLOB: {
            const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement, column));
            return Bytes{std::string(bytes == nullptr ? "" : bytes, bytes == nullptr ? 0 : size())};
        }
        default:
            return std::monostate{};
    }
}

}  // namespace

Result<> run_query(Env& env, const Query& query, AnswerWriter& out) {
    Watch watch;
    watch.env = &env;
    watch.deadline_us = env.clock.steady_us() + query.timeout_ms * 1000;
    watch.restricted = query.restricted;
    HOLD_TRY(const Database database, open_database(query, watch));
    sqlite3_set_authorizer(database.get(), authorise, &watch);
    sqlite3_progress_handler(database.get(), kInstructionsPerCheck, check_time, &watch);
    HOLD_TRY(const Statement statement, prepare(database.get(), query, watch));
    const int columns = sqlite3_column_count(statement.get());
    std::vector<std::string> names;
    for (int i = 0; i < columns; ++i) {
        names.emplace_back(sqlite3_column_name(statement.get(), i));
    }
    out.columns(names);
    std::int64_t rows = 0;
    while (true) {
        const int code = sqlite3_step(statement.get());
        if (code == SQLITE_DONE) {
            out.done(false);
            return {};
        }
        if (code != SQLITE_ROW) {
            return sqlite_failed(database.get(), code, watch, query);
        }
        std::vector<Cell> row;
        std::size_t bytes = 0;
        for (int i = 0; i < columns; ++i) {
            row.push_back(cell_of(statement.get(), i));
            bytes += 16 + static_cast<std::size_t>(sqlite3_column_bytes(statement.get(), i));
        }
        if (rows == query.rows_max || out.bytes().size() + bytes > kAnswerBytesMax) {
            out.done(true);
            return {};
        }
        out.row(row);
        ++rows;
    }
}

}  // namespace holdfast::server::sql
