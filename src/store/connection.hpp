// SPDX-License-Identifier: Apache-2.0
/// One SQLite connection: prepared statements cached by text, errors as values, and a guard that
/// keeps callers' statements away from transactions, schema and the store's own tables.
///
/// SQLite is named in this folder only; every status code ends here as an Errc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <holdfast/store.hpp>

#include "sqlite.hpp"

namespace holdfast::store {

class DeltaCapture;

/// Tables that only the store writes.
[[nodiscard]] bool is_system_table(std::string_view table);

/// The text says OR FAIL or RAISE(FAIL…): a failure keeps the rows written before it.
[[nodiscard]] bool may_fail_halfway(std::string_view sql);

enum class Access : std::uint8_t {
    caller,     ///< one SELECT, INSERT, UPDATE or DELETE on the application's tables
    migration,  ///< and schema changes; no transaction control
    store,      ///< everything
};

class Connection {
  public:
    enum class Kind : std::uint8_t { writer, reader, memory, copy };
    static constexpr std::size_t kRowsMax = 1'000'000;

    [[nodiscard]] static Result<std::unique_ptr<Connection>> open(const std::string& path,
                                                                  Kind kind);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    [[nodiscard]] Result<std::vector<Row>> query(std::string_view sql,
                                                 std::span<const Value> values, Access access,
                                                 std::size_t rows_max = kRowsMax);
    /// Rows changed by the statement itself.
    Result<std::int64_t> exec(std::string_view sql, std::span<const Value> values, Access access);

    /// The store's own statements.
    template <typename... Args>
    Result<std::int64_t> run(std::string_view sql, const Args&... args) {
        const std::initializer_list<Value> values = {to_value(args)...};
        return exec(sql, std::span<const Value>(values.begin(), values.size()), Access::store);
    }

    template <typename... Args>
    [[nodiscard]] Result<std::vector<Row>> ask(std::string_view sql, const Args&... args) {
        const std::initializer_list<Value> values = {to_value(args)...};
        return query(sql, std::span<const Value>(values.begin(), values.size()), Access::store);
    }

    /// Several statements without values, not cached.
    Result<> script(const std::string& sql, Access access);

    /// A consistent copy into a new database file.
    Result<> copy_to(const std::string& path);
    [[nodiscard]] Result<std::string> save_image();
    Result<> load_image(const std::string& image);

    /// Callers' statements are interrupted (timed_out) when `clock` passes the deadline; kNoLimit:
    /// never.
    void set_deadline(Clock& clock, std::int64_t deadline_us);
    /// SQLite has ended the transaction by itself (disk full, I/O error) or none was begun.
    [[nodiscard]] bool is_outside_transaction() const;
    void set_capture(DeltaCapture* capture);

    [[nodiscard]] DeltaCapture* capture() const { return capture_; }

    [[nodiscard]] sqlite3* handle() const { return handle_; }

    /// The Error for the connection's last failure.
    [[nodiscard]] Error error(int status, std::string_view doing) const;

  private:
    struct Statement;

    struct TextHash {
        using is_transparent = void;

        std::size_t operator()(std::string_view text) const noexcept {
            return std::hash<std::string_view>{}(text);
        }
    };

    using Cache =
        std::unordered_map<std::string, std::unique_ptr<Statement>, TextHash, std::equal_to<>>;

    explicit Connection(sqlite3* handle);

    Result<> configure(Kind kind);
    [[nodiscard]] Result<Statement*> prepare(std::string_view sql, Access access);
    [[nodiscard]] Result<> bind(Statement& statement, std::span<const Value> values) const;
    /// Steps to the end; rows go to `rows` if given.
    Result<> step_all(Statement& statement, std::vector<Row>* rows, std::size_t rows_max);
    /// step_all, and a failed writing statement leaves no rows and no deltas behind.
    Result<> execute(Statement& statement, std::vector<Row>* rows, std::size_t rows_max);
    static int authorize(void* self, int action, const char* first, const char* second,
                         const char* database, const char* trigger);
    static int check_deadline(void* self);

    sqlite3* handle_;
    Cache caller_cache_;
    Cache store_cache_;
    DeltaCapture* capture_ = nullptr;
    Access access_ = Access::store;
    Clock* clock_ = nullptr;
    std::int64_t deadline_us_ = kNoLimit;
};

}  // namespace holdfast::store
