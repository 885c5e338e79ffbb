// SPDX-License-Identifier: Apache-2.0
#include "connection.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "delta_capture.hpp"

namespace holdfast::store {

namespace {

constexpr std::size_t kStatementsMax = 512;
constexpr std::size_t kSqlBytesMax = 64 * 1024;
constexpr int kBusyTimeoutMs =
    5000;  // another process that recovers or checkpoints, never a writer
constexpr int kOpsBetweenChecks = 4000;  // about 0.1 ms of work between looks at the clock

constexpr std::array<std::string_view, 7> kSystemTables = {
    "change",         "invocation",       "idempotency",     "id_sequence",
    "history_exempt", "history_redacted", "schema_migration"};

Errc code_of(int status, int system_error) {
    switch (status & 0xFF) {
        case SQLITE_CONSTRAINT:
            return Errc::constraint;
        case SQLITE_FULL:
            return Errc::store_full;
        case SQLITE_IOERR:
        case SQLITE_CANTOPEN:
            return system_error == ENOSPC || system_error == EDQUOT ? Errc::store_full
                                                                    : Errc::store_io;
        case SQLITE_CORRUPT:
        case SQLITE_NOTADB:
            return Errc::store_corrupt;
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
            return Errc::store_busy;
        case SQLITE_INTERRUPT:
            return Errc::timed_out;
        case SQLITE_TOOBIG:
            return Errc::too_large;
        case SQLITE_READONLY:
        case SQLITE_PERM:
            return Errc::denied;
        case SQLITE_NOMEM:
            return Errc::unavailable;
        case SQLITE_PROTOCOL:
        case SQLITE_INTERNAL:
            return Errc::internal;
        default:
            return Errc::invalid_argument;  // the SQL is wrong
    }
}

std::string_view hint_of(Errc code) {
    switch (code) {
        case Errc::store_full:
            return "free space on the data directory's file system; nothing was written";
        case Errc::store_io:
            return "look at the kernel log for disk errors, then restart the server";
        case Errc::store_corrupt:
            return "run `hold store check`, then `hold store restore` from a backup";
        default:
            return "";
    }
}

bool is_word_letter(char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '_';
}

char upper(char letter) {
    return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
}

/// The next token in capitals; empty for space and comments, `'` for a quoted text or name. Moves
/// `at`.
std::string next_word(std::string_view sql, std::size_t& at) {
    std::string word;
    while (at < sql.size() && is_word_letter(sql[at])) {
        word += upper(sql[at++]);
    }
    if (!word.empty()) {
        return word;
    }
    const std::size_t start = at++;
    const char first = sql[start];
    std::size_t end = at;
    if (sql.substr(start, 2) == "--") {
        end = sql.find('\n', start);
    } else if (sql.substr(start, 2) == "/*") {
        end = sql.find("*/", start + 2);
        end = end == std::string_view::npos ? end : end + 2;
    } else if (first == '\'' || first == '"' || first == '`') {
        end = sql.find(first, at);
        end = end == std::string_view::npos ? end : end + 1;
        word = "'";
    } else if (first != ' ' && first != '\n' && first != '\t' && first != '\r') {
        word = first;
    }
    at = std::min(end, sql.size());
    return word;
}

Value column_value(sqlite3_stmt* statement, int column) {
    switch (sqlite3_column_type(statement, column)) {
        case SQLITE_INTEGER:
            return std::int64_t{sqlite3_column_int64(statement, column)};
        case SQLITE_FLOAT:
            return sqlite3_column_double(statement, column);
        case SQLITE_TEXT: {
            // SAFETY: SQLite's UTF-8 text of column_bytes bytes, valid until the next step.
            const auto* text =
                reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
            return std::string(text,
                               static_cast<std::size_t>(sqlite3_column_bytes(statement, column)));
        }
        case SQLITE_BLOB: {
            const auto* bytes =
                static_cast<const std::byte*>(sqlite3_column_blob(statement, column));
            return Blob(bytes, bytes + sqlite3_column_bytes(statement, column));
        }
        default:
            return {};
    }
}

}  // namespace

bool is_system_table(std::string_view table) {
    return table.starts_with("sqlite_") ||
           std::find(kSystemTables.begin(), kSystemTables.end(), table) != kSystemTables.end();
}

bool may_fail_halfway(std::string_view sql) {
    std::string before;
    std::string last;
    for (std::size_t at = 0; at < sql.size();) {
        std::string word = next_word(sql, at);
        if (word.empty()) {
            continue;
        }
        if (word == "FAIL" && (last == "OR" || (last == "(" && before == "RAISE"))) {
            return true;
        }
        before = std::exchange(last, std::move(word));
    }
    return false;
}

struct Connection::Statement {
    sqlite3_stmt* handle = nullptr;
    Row::Columns columns;
    bool is_writing = false;
    bool may_fail_halfway = false;

    Statement() = default;
    Statement(const Statement&) = delete;
    Statement& operator=(const Statement&) = delete;

    ~Statement() { sqlite3_finalize(handle); }

    void reset() const {
        sqlite3_reset(handle);  // repeats the step's status, which was handled there
        sqlite3_clear_bindings(handle);
    }
};

Result<std::unique_ptr<Connection>> Connection::open(const std::string& path, Kind kind) {
    int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    flags |=
        kind == Kind::reader ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    sqlite3* handle = nullptr;
    const std::string name = kind == Kind::memory ? ":memory:" : path;
    const int status = sqlite3_open_v2(name.c_str(), &handle, flags, nullptr);
    HOLD_CHECK(handle != nullptr, "memory for a connection");
    std::unique_ptr<Connection> connection(new Connection(handle));
    if (status != SQLITE_OK) {
        return fail(connection->error(status, fmt::format("open {}", path)));
    }
    HOLD_TRY(connection->configure(kind));
    return connection;
}

Connection::Connection(sqlite3* handle) : handle_(handle) {}

Connection::~Connection() {
    caller_cache_.clear();
    store_cache_.clear();
    sqlite3_close_v2(handle_);
}

Result<> Connection::configure(Kind kind) {
    sqlite3_busy_timeout(handle_, kBusyTimeoutMs);
    sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(handle_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_db_config(handle_, SQLITE_DBCONFIG_DQS_DML, 0, nullptr);
    sqlite3_db_config(handle_, SQLITE_DBCONFIG_DQS_DDL, 0, nullptr);
    // Deleted rows need not be overwritten: queues delete all day, and secrets are stored as
    // hashes.
    std::string pragmas =
        "PRAGMA foreign_keys = ON; PRAGMA secure_delete = OFF; PRAGMA cell_size_check = ON;"
        "PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384;";
    if (kind == Kind::writer) {
        // A WAL that a long reader let grow is cut back at the next full checkpoint.
        pragmas += "PRAGMA journal_mode = WAL; PRAGMA journal_size_limit = 67108864;";
    }
    if (kind == Kind::reader) {
        pragmas += "PRAGMA query_only = ON;";
    }
    HOLD_TRY(script(pragmas, Access::store));
    sqlite3_set_authorizer(handle_, &Connection::authorize, this);
    return {};
}

Error Connection::error(int status, std::string_view doing) const {
    const Errc code = code_of(status, sqlite3_system_errno(handle_));
    Error made = make_error(code, "{}: {}", doing, sqlite3_errmsg(handle_));
    made.hint = hint_of(code);
    made.retryable = code == Errc::store_busy || code == Errc::unavailable;
    return made;
}

int Connection::authorize(void* self, int action, const char* first, const char* second,
                          const char* /*database*/, const char* /*trigger*/) {
    const Access access = static_cast<Connection*>(self)->access_;
    if (access == Access::store) {
        return SQLITE_OK;
    }
    switch (action) {
        case SQLITE_SELECT:
        case SQLITE_READ:
        case SQLITE_RECURSIVE:
            return SQLITE_OK;
        case SQLITE_FUNCTION:
            // Time and chance come from the Tx, so that history can be replayed.
            return second != nullptr && (std::strcmp(second, "random") == 0 ||
                                         std::strcmp(second, "randomblob") == 0 ||
                                         std::strcmp(second, "load_extension") == 0)
                       ? SQLITE_DENY
                       : SQLITE_OK;
        case SQLITE_INSERT:
        case SQLITE_UPDATE:
        case SQLITE_DELETE:
            if (access == Access::migration) {
                const std::string_view table = first == nullptr ? "" : first;
                const bool is_allowed = !is_system_table(table) || table.starts_with("sqlite_") ||
                                        table.starts_with("history_");
                return is_allowed ? SQLITE_OK : SQLITE_DENY;
            }
            return first != nullptr && is_system_table(first) ? SQLITE_DENY : SQLITE_OK;
        case SQLITE_ATTACH:
        case SQLITE_DETACH:
        case SQLITE_TRANSACTION:
        case SQLITE_SAVEPOINT:
        case SQLITE_PRAGMA:
            return SQLITE_DENY;
        default:
            return access == Access::migration ? SQLITE_OK : SQLITE_DENY;
    }
}

int Connection::check_deadline(void* self) {
    const auto* connection = static_cast<Connection*>(self);
    return connection->clock_->steady_us() >= connection->deadline_us_ ? 1 : 0;
}

void Connection::set_deadline(Clock& clock, std::int64_t deadline_us) {
    clock_ = &clock;
    deadline_us_ = deadline_us;
    if (deadline_us == kNoLimit) {
        sqlite3_progress_handler(handle_, 0, nullptr, nullptr);
    } else {
        sqlite3_progress_handler(handle_, kOpsBetweenChecks, &Connection::check_deadline, this);
    }
}

bool Connection::is_outside_transaction() const {
    return sqlite3_get_autocommit(handle_) != 0;
}

void Connection::set_capture(DeltaCapture* capture) {
    capture_ = capture;
    sqlite3_preupdate_hook(handle_, capture == nullptr ? nullptr : &DeltaCapture::on_change,
                           capture);
}

Result<Connection::Statement*> Connection::prepare(std::string_view sql, Access access) {
    Cache& cache = access == Access::store ? store_cache_ : caller_cache_;
    if (const auto found = cache.find(sql); found != cache.end()) {
        return found->second.get();
    }
    if (sql.size() > kSqlBytesMax) {
        return fail(Errc::too_large, "SQL of {} bytes: at most {}", sql.size(), kSqlBytesMax);
    }
    if (cache.size() >= kStatementsMax) {
        cache.clear();  // texts are literals: more than this many means they are built from data
    }
    auto statement = std::make_unique<Statement>();
    const char* rest = nullptr;
    access_ = access;
    const int status = sqlite3_prepare_v3(handle_, sql.data(), static_cast<int>(sql.size()),
                                          SQLITE_PREPARE_PERSISTENT, &statement->handle, &rest);
    access_ = Access::store;
    if (status != SQLITE_OK) {
        return fail(error(status, "prepare SQL").at(std::string(sql.substr(0, 300))));
    }
    const std::string_view tail = sql.substr(static_cast<std::size_t>(rest - sql.data()));
    if (statement->handle == nullptr ||
        tail.find_first_not_of(" \t\r\n;") != std::string_view::npos) {
        return fail(
            make_error(Errc::invalid_argument, "prepare SQL: expected exactly one statement")
                .at(std::string(sql.substr(0, 300))));
    }
    auto columns = std::make_shared<std::vector<std::string>>();
    for (int column = 0; column < sqlite3_column_count(statement->handle); ++column) {
        columns->emplace_back(sqlite3_column_name(statement->handle, column));
    }
    statement->columns = std::move(columns);
    statement->is_writing = sqlite3_stmt_readonly(statement->handle) == 0;
    statement->may_fail_halfway = statement->is_writing && store::may_fail_halfway(sql);
    return cache.emplace(sql, std::move(statement)).first->second.get();
}

Result<> Connection::bind(Statement& statement, std::span<const Value> values) const {
    const int wanted = sqlite3_bind_parameter_count(statement.handle);
    if (static_cast<std::size_t>(wanted) != values.size()) {
        return fail(make_error(Errc::invalid_argument, "bind: the SQL has {} parameters, {} given",
                               wanted, values.size())
                        .at(sqlite3_sql(statement.handle)));
    }
    for (int index = 1; index <= wanted; ++index) {
        // `$3` binds the third value wherever it stands; unnumbered parameters bind in order.
        int position = index;
        if (const char* name = sqlite3_bind_parameter_name(statement.handle, index);
            name != nullptr && name[0] == '$') {
            position = std::atoi(name + 1);
        }
        if (position < 1 || position > wanted) {
            return fail(make_error(Errc::invalid_argument, "bind: parameters are $1 to ${}", wanted)
                            .at(sqlite3_sql(statement.handle)));
        }
        const Value& value = values[static_cast<std::size_t>(position - 1)];
        int status = SQLITE_OK;
        if (const auto* number = std::get_if<std::int64_t>(&value)) {
            status = sqlite3_bind_int64(statement.handle, index, *number);
        } else if (const auto* real = std::get_if<double>(&value)) {
            status = sqlite3_bind_double(statement.handle, index, *real);
        } else if (const auto* text = std::get_if<std::string>(&value)) {
            // The values outlive the step (execute clears the bindings), so SQLite need not copy.
            status = sqlite3_bind_text64(statement.handle, index, text->data(), text->size(),
                                         SQLITE_STATIC, SQLITE_UTF8);
        } else if (const auto* bytes = std::get_if<Blob>(&value)) {
            status =
                sqlite3_bind_blob64(statement.handle, index,
                                    bytes->empty() ? static_cast<const void*>("") : bytes->data(),
                                    bytes->size(), SQLITE_STATIC);
        } else {
            status = sqlite3_bind_null(statement.handle, index);
        }
        if (status != SQLITE_OK) {
            return fail(error(status, "bind").at(sqlite3_sql(statement.handle)));
        }
    }
    return {};
}

Result<> Connection::step_all(Statement& statement, std::vector<Row>* rows, std::size_t rows_max) {
    while (true) {
        const int status = sqlite3_step(statement.handle);
        if (status == SQLITE_DONE) {
            return {};
        }
        if (status != SQLITE_ROW) {
            return fail(error(status, "run SQL")
                            .at(std::string(sqlite3_sql(statement.handle)).substr(0, 300)));
        }
        if (rows == nullptr) {
            continue;
        }
        if (rows->size() >= rows_max) {
            return fail(make_error(Errc::too_large, "run SQL: more than {} rows", rows_max)
                            .at(std::string(sqlite3_sql(statement.handle)).substr(0, 300)));
        }
        std::vector<Value> values;
        const int columns = sqlite3_data_count(statement.handle);
        values.reserve(static_cast<std::size_t>(columns));
        for (int column = 0; column < columns; ++column) {
            values.push_back(column_value(statement.handle, column));
        }
        rows->emplace_back(statement.columns, std::move(values));
    }
}

Result<> Connection::execute(Statement& statement, std::vector<Row>* rows, std::size_t rows_max) {
    if (!statement.is_writing) {
        Result<> done = step_all(statement, rows, rows_max);
        statement.reset();
        return done;
    }
    // The hook also reports rows that SQLite undoes when the statement fails: fall back to this
    // mark.
    const std::size_t mark = capture_ == nullptr ? 0 : capture_->mark();
    const bool needs_savepoint = statement.may_fail_halfway && !is_outside_transaction();
    if (needs_savepoint) {
        HOLD_TRY(run("SAVEPOINT hold_statement"));
    }
    Result<> done = step_all(statement, rows, rows_max);
    statement.reset();
    if (!done) {
        if (capture_ != nullptr) {
            capture_->fall_back_to(mark);
        }
        if (needs_savepoint && !is_outside_transaction()) {
            HOLD_TRY(run("ROLLBACK TO hold_statement"));
        }
    }
    if (needs_savepoint && !is_outside_transaction()) {
        HOLD_TRY(run("RELEASE hold_statement"));
    }
    return done;
}

Result<std::vector<Row>> Connection::query(std::string_view sql, std::span<const Value> values,
                                           Access access, std::size_t rows_max) {
    HOLD_TRY(Statement* const statement, prepare(sql, access));
    HOLD_TRY(bind(*statement, values));
    std::vector<Row> rows;
    HOLD_TRY(execute(*statement, &rows, rows_max));
    return rows;
}

Result<std::int64_t> Connection::exec(std::string_view sql, std::span<const Value> values,
                                      Access access) {
    HOLD_TRY(Statement* const statement, prepare(sql, access));
    HOLD_TRY(bind(*statement, values));
    HOLD_TRY(execute(*statement, nullptr, 0));
    return statement->is_writing ? std::int64_t{sqlite3_changes64(handle_)} : std::int64_t{0};
}

Result<> Connection::script(const std::string& sql, Access access) {
    access_ = access;
    const int status = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
    access_ = Access::store;
    if (status != SQLITE_OK) {
        return fail(error(status, "run SQL script"));
    }
    return {};
}

Result<> Connection::copy_to(const std::string& path) {
    HOLD_TRY(const std::unique_ptr<Connection> target, open(path, Kind::copy));
    sqlite3_backup* backup = sqlite3_backup_init(target->handle_, "main", handle_, "main");
    if (backup == nullptr) {
        return fail(target->error(sqlite3_errcode(target->handle_), "copy to " + path));
    }
    sqlite3_backup_step(backup, -1);  // all pages; finish reports how it went
    const int status = sqlite3_backup_finish(backup);
    if (status != SQLITE_OK) {
        return fail(target->error(status, "copy to " + path));
    }
    return {};
}

Result<std::string> Connection::save_image() {
    sqlite3_int64 bytes = 0;
    unsigned char* image = sqlite3_serialize(handle_, "main", &bytes, 0);
    if (image == nullptr) {
        return fail(Errc::unavailable, "save image: no memory for {} bytes", bytes);
    }
    // SAFETY: SQLite's buffer of `bytes` bytes, read as char.
    std::string copy(reinterpret_cast<const char*>(image), static_cast<std::size_t>(bytes));
    sqlite3_free(image);
    return copy;
}

Result<> Connection::load_image(const std::string& image) {
    auto* buffer = static_cast<unsigned char*>(sqlite3_malloc64(image.size()));
    HOLD_CHECK(buffer != nullptr, "memory for an image");
    std::memcpy(buffer, image.data(), image.size());
    const auto bytes = static_cast<sqlite3_int64>(image.size());
    const int status =
        sqlite3_deserialize(handle_, "main", buffer, bytes, bytes,
                            SQLITE_DESERIALIZE_FREEONCLOSE | SQLITE_DESERIALIZE_RESIZEABLE);
    if (status != SQLITE_OK) {
        return fail(error(status, "load image"));
    }
    return {};
}

}  // namespace holdfast::store
