// SPDX-License-Identifier: Apache-2.0
/// The database that is the cluster: transactions, deltas and history on SQLite.
///
/// One writer thread owns the file. It drains its queue, runs each call inside a savepoint, commits
/// the batch once (group commit) and answers after the commit: after the disk's sync when any call
/// of the batch asked for Durability::durable. What changed is captured by SQLite's preupdate hook,
/// written to the append-only tables `change` and `invocation` in the same transaction, and handed
/// to subscribers after the commit, in commit order, never for work that was rolled back.
///
///     Result<JobId> id = store.call({.procedure = "submit", .who = user}, [&](Tx& tx) ->
///     Result<JobId> {
///         HOLD_TRY(const std::int64_t number, tx.next_id("job"));
///         HOLD_TRY(tx.exec("INSERT INTO job(id, name, at_us) VALUES ($1, $2, $3)", number, name,
///                          tx.now_us()));
///         return JobId(number);
///     });
///
/// A procedure does no I/O and reads no clock or random source but the Tx's; it runs at most once
/// and must not wait for another thread that calls the store. Tables are created by migrations only
/// (STRICT, with a PRIMARY KEY). Table names of the store itself: change, invocation, idempotency,
/// id_sequence, history_exempt, history_redacted, schema_migration.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <holdfast/env.hpp>
#include <holdfast/ids.hpp>
#include <holdfast/result.hpp>

namespace holdfast::store {

using Blob = std::vector<std::byte>;
using Value = std::variant<std::monostate, std::int64_t, double, std::string, Blob>;

// What may be bound to $1, $2, …: integers, bools (0/1), doubles, text, Blob, ids, and optionals of
// them.
[[nodiscard]] inline Value to_value(std::nullopt_t) {
    return {};
}

[[nodiscard]] inline Value to_value(Value value) {
    return value;
}

[[nodiscard]] inline Value to_value(Blob bytes) {
    return bytes;
}

[[nodiscard]] inline Value to_value(double number) {
    return number;
}

[[nodiscard]] inline Value to_value(std::string text) {
    return text;
}

[[nodiscard]] inline Value to_value(std::string_view text) {
    return std::string(text);
}

[[nodiscard]] inline Value to_value(const char* text) {
    return std::string(text);
}

template <std::integral T>
[[nodiscard]] Value to_value(T number) {
    return static_cast<std::int64_t>(number);
}

template <typename Tag>
[[nodiscard]] Value to_value(Id<Tag> id) {
    return id.value;
}

template <typename T>
[[nodiscard]] Value to_value(const std::optional<T>& maybe) {
    return maybe ? to_value(*maybe) : Value{};
}

/// One row of an answer or one side of a delta. Asking for a column that does not exist, or for
/// another type than it holds, is a bug in the SQL beside it and ends the process.
class Row {
  public:
    using Columns = std::shared_ptr<const std::vector<std::string>>;
    Row() = default;

    Row(Columns columns, std::vector<Value> values)
        : columns_(std::move(columns)), values_(std::move(values)) {}

    [[nodiscard]] std::size_t size() const { return values_.size(); }

    [[nodiscard]] const std::vector<std::string>& columns() const;
    [[nodiscard]] bool has(std::string_view column) const;
    [[nodiscard]] const Value& value(std::size_t index) const;
    [[nodiscard]] const Value& value(std::string_view column) const;

    /// `column`: index or name.
    template <typename C>
    [[nodiscard]] bool is_null(C column) const {
        return std::holds_alternative<std::monostate>(value(column));
    }

    template <typename C>
    [[nodiscard]] std::int64_t integer(C column) const {
        return as_integer(value(column));
    }

    template <typename C>
    [[nodiscard]] std::int64_t integer_or(C column, std::int64_t if_null) const {
        return is_null(column) ? if_null : integer(column);
    }

    template <typename C>
    [[nodiscard]] bool boolean(C column) const {
        return integer(column) != 0;
    }

    /// Integers are converted.
    template <typename C>
    [[nodiscard]] double real(C column) const {
        return as_real(value(column));
    }

    template <typename C>
    [[nodiscard]] const std::string& text(C column) const {
        return as_text(value(column));
    }

    template <typename C>
    [[nodiscard]] std::string text_or(C column, std::string if_null) const {
        return is_null(column) ? std::move(if_null) : text(column);
    }

    template <typename C>
    [[nodiscard]] const Blob& blob(C column) const {
        return as_blob(value(column));
    }

    /// An Id<Tag> type: row.id<JobId>("job"); NULL gives the unset id.
    template <typename I, typename C>
    [[nodiscard]] I id(C column) const {
        return I(integer_or(column, 0));
    }

    bool operator==(const Row& other) const { return values_ == other.values_; }

  private:
    [[nodiscard]] static std::int64_t as_integer(const Value& value);
    [[nodiscard]] static double as_real(const Value& value);
    [[nodiscard]] static const std::string& as_text(const Value& value);
    [[nodiscard]] static const Blob& as_blob(const Value& value);

    Columns columns_;
    std::vector<Value> values_;
};

enum class Durability : std::uint8_t {
    relaxed,  ///< survives a crash of the process at once, a power loss after the next durable call
    durable,  ///< survives a power loss when the call returns
};

struct CallInfo {
    std::string procedure = {};        ///< stable name: "submit_job"
    std::string who = {};              ///< user, node or "system"
    std::string cause = {};            ///< what led to it: a request id, "delta 123", …
    std::string idempotency_key = {};  ///< for call_once
    Durability durability = Durability::durable;
};

class Connection;

/// Reads on one consistent snapshot. Valid only inside the function it is passed to.
/// Statements are single, use $1 … for values, and their prepared form is cached by text: never
/// build them from data. Errors: invalid_argument (bad SQL), store_io, store_corrupt, too_large
/// (rows).
class ReadTx {
  public:
    ReadTx(Connection& connection, std::int64_t now_us)
        : connection_(connection), now_us_(now_us) {}

    ReadTx(const ReadTx&) = delete;
    ReadTx& operator=(const ReadTx&) = delete;

    /// All rows, at most 1,000,000.
    template <typename... Args>
    [[nodiscard]] Result<std::vector<Row>> query(std::string_view sql, const Args&... args) {
        const std::initializer_list<Value> values = {to_value(args)...};
        return query_values(sql, std::span<const Value>(values.begin(), values.size()));
    }

    /// No row, or the one row; a second row is an error (internal).
    template <typename... Args>
    [[nodiscard]] Result<std::optional<Row>> query_one(std::string_view sql, const Args&... args) {
        const std::initializer_list<Value> values = {to_value(args)...};
        return query_one_values(sql, std::span<const Value>(values.begin(), values.size()));
    }

    [[nodiscard]] Result<std::vector<Row>> query_values(std::string_view sql,
                                                        std::span<const Value> values);
    [[nodiscard]] Result<std::optional<Row>> query_one_values(std::string_view sql,
                                                              std::span<const Value> values);

    /// The transaction's instant: the same at every call.
    [[nodiscard]] std::int64_t now_us() const { return now_us_; }

  protected:
    ~ReadTx() = default;
    Connection& connection_;  // NOLINT: shared with Tx
    std::int64_t now_us_;
};

/// A writing transaction. Valid only inside the call.
class Tx : public ReadTx {
  public:
    Tx(Connection& connection, std::int64_t now_us, const CallInfo& info, Random& random)
        : ReadTx(connection, now_us), info_(info), random_(random) {}

    ~Tx() = default;

    /// Runs INSERT, UPDATE or DELETE and returns the number of rows it changed itself (0 for a
    /// SELECT). For RETURNING use query. A failed statement leaves no trace; the transaction may go
    /// on. Errors: constraint (naming it), store_full, and those of ReadTx.
    template <typename... Args>
    Result<std::int64_t> exec(std::string_view sql, const Args&... args) {
        const std::initializer_list<Value> values = {to_value(args)...};
        return exec_values(sql, std::span<const Value>(values.begin(), values.size()));
    }

    Result<std::int64_t> exec_values(std::string_view sql, std::span<const Value> values);

    /// Runs `fn` in a savepoint of its own: its error undoes its writes only, and is returned.
    template <typename F>
    auto attempt(F&& fn) -> std::invoke_result_t<F&, Tx&> {
        HOLD_TRY(begin_attempt());
        auto answer = fn(*this);
        HOLD_TRY(end_attempt(answer.has_value()));
        return answer;
    }

    /// 1, 2, 3, … per sequence name; a rolled-back transaction gives its number back.
    [[nodiscard]] Result<std::int64_t> next_id(std::string_view sequence);
    [[nodiscard]] std::uint64_t random();

    [[nodiscard]] const CallInfo& info() const { return info_; }

  private:
    Result<> begin_attempt();
    Result<> end_attempt(bool keep);

    const CallInfo& info_;
    Random& random_;
};

enum class Op : std::uint8_t { insert, update, remove };

/// "insert", "update", "delete".
[[nodiscard]] std::string_view to_string(Op op);

/// One changed row of one committed transaction. Redacted columns hold "***".
struct Delta {
    std::int64_t seq = 0;  ///< order of all changes; equals change.seq where the table has history
    std::int64_t txn = 0;  ///< the call it belongs to; equals invocation.txn
    std::string table;
    Op op = Op::insert;
    std::string key;            ///< primary key: `42` or, of several columns, `[1,"a"]`
    std::optional<Row> before;  ///< absent for insert
    std::optional<Row> after;   ///< absent for delete

    /// after if present, else before.
    [[nodiscard]] const Row& row() const { return after ? *after : *before; }
};

using DeltaHandler = std::function<void(const std::vector<Delta>&)>;

/// Ends when destroyed; afterwards the handler is not running and never runs again.
class Subscription {
  public:
    Subscription() = default;

    explicit Subscription(std::function<void()> cancel) : cancel_(std::move(cancel)) {}

    Subscription(Subscription&& other) noexcept : cancel_(std::exchange(other.cancel_, nullptr)) {}

    Subscription& operator=(Subscription&& other) noexcept {
        std::swap(cancel_, other.cancel_);
        return *this;
    }

    ~Subscription() { cancel(); }

    void cancel() {
        if (cancel_) {
            std::exchange(cancel_, nullptr)();
        }
    }

  private:
    std::function<void()> cancel_;
};

struct Migration {
    int version = 0;  ///< 1, 2, 3, … without gaps (0 is the store's own)
    std::string_view name;
    std::string_view sql;
};

/// The files schema/NNNN_name.sql, in order, built into the library.
[[nodiscard]] std::span<const Migration> shipped_migrations();

struct StoreOptions {
    std::string directory = {};  ///< of holdfast.db and holdfast.lock; made if missing
    std::span<const Migration> migrations = {};
    Env* env = nullptr;  ///< null: real_env(). Clock and random in every mode; files for the lock
    /// For tests and simulation: no file, no threads; calls, reads and handlers run in the caller's
    /// thread, one after another: deterministic. Not to be shared between threads.
    bool in_memory = false;
    std::string image = {};        ///< in memory only: start from Store::image() of another store
    std::size_t queue_max = 4096;  ///< waiting calls; more are refused with unavailable
    std::size_t batch_max = 256;   ///< calls per commit
    std::size_t readers_max = 4;   ///< read-only connections
    std::size_t deltas_pending_max = 100'000;      ///< above, the writer waits for the subscribers
    std::int64_t call_budget_us = 10 * kSecondUs;  ///< a call's statements are interrupted after it
};

struct StoreStats {
    std::int64_t calls = 0;
    std::int64_t failed_calls = 0;
    std::int64_t commits = 0;
    std::int64_t deltas = 0;
    std::int64_t last_txn = 0;
    std::int64_t last_seq = 0;
};

/// Threads: all methods are safe to call from any thread (but not from inside a call, and not the
/// destructor). Handlers may call the store.
class Store {
  public:
    static constexpr std::string_view kDatabaseFile = "holdfast.db";
    static constexpr std::string_view kLockFile = "holdfast.lock";

    /// Opens, locks, recovers and migrates.
    /// Errors: store_locked (naming the owner's process id), store_newer, store_corrupt, store_io,
    /// store_full, denied, conflict (a migration that was applied has changed).
    [[nodiscard]] static Result<std::unique_ptr<Store>> open(StoreOptions options);
    ~Store();
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    /// Runs `fn: Result<T>(Tx&)` as one transaction and returns its answer after the commit. An
    /// error from `fn` undoes all of its writes and is returned. Errors: those of fn; unavailable
    /// (queue full or store closing; nothing was done, may be retried); store_full, store_io
    /// (nothing was done).
    template <typename F>
    auto call(CallInfo info, F&& fn) -> std::invoke_result_t<F&, Tx&> {
        std::optional<std::invoke_result_t<F&, Tx&>> answer;
        HOLD_TRY(run(std::move(info), [&](Tx& tx) -> Result<> {
            answer.emplace(fn(tx));
            if (!answer->has_value()) {
                return fail(answer->error());
            }
            return {};
        }));
        return std::move(*answer);
    }

    /// As call, but a repeat with the same (who, idempotency_key) returns the first answer without
    /// running `fn`; answer and writes are one transaction. An empty key never matches.
    /// Errors: as call; conflict when the key was used for another procedure.
    Result<std::string> call_once(CallInfo info, std::function<Result<std::string>(Tx&)> fn);
    /// Drops stored answers older than this instant; returns how many.
    Result<std::int64_t> forget_answers_before(std::int64_t wall_us);

    /// Runs `fn: Result<T>(ReadTx&)` on a snapshot that includes every call that has returned.
    template <typename F>
    auto read(F&& fn) -> std::invoke_result_t<F&, ReadTx&> {
        std::optional<std::invoke_result_t<F&, ReadTx&>> answer;
        HOLD_TRY(run_read([&](ReadTx& tx) { answer.emplace(fn(tx)); }));
        return std::move(*answer);
    }

    /// `handler` gets the deltas of `tables` (empty: all) of each commit that follows, one commit
    /// after another, on one publisher thread. Handlers are quick: a slow one slows every writer
    /// down.
    [[nodiscard]] Subscription subscribe(std::set<std::string> tables, DeltaHandler handler);
    /// Returns when the deltas of all calls that have returned are delivered. Not from a handler.
    void wait_published();

    /// A consistent copy as a database file; the target must not exist.
    Result<> backup(const std::string& path);
    /// Errors: store_corrupt with the first findings of SQLite's integrity and foreign key checks.
    Result<> check();
    /// The database as bytes (in memory only), for simulated restarts.
    [[nodiscard]] Result<std::string> image();
    /// The version of the newest migration applied.
    [[nodiscard]] int schema_version() const;
    [[nodiscard]] StoreStats stats() const;

  private:
    struct State;
    explicit Store(std::unique_ptr<State> state);
    Result<> run(CallInfo info, std::function<Result<>(Tx&)> fn);
    Result<> run_read(const std::function<void(ReadTx&)>& fn);

    std::unique_ptr<State> state_;
};

}  // namespace holdfast::store
