// SPDX-License-Identifier: Apache-2.0
/// What a transaction changed, row by row, from SQLite's preupdate hook.
///
/// The hook sees everything: REPLACE's implicit deletes, cascades, triggers, DELETE without WHERE.
/// It also sees what is undone later (ROLLBACK TO, a failing statement), so whoever undoes falls
/// back to a mark taken before. It does not see schema changes; those happen in migrations only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <holdfast/store.hpp>

#include "sqlite.hpp"

namespace holdfast::store {

class Connection;

struct TableShape {
    std::string name;
    Row::Columns columns;
    std::vector<std::size_t> key_columns;  ///< in key order
    std::vector<bool> is_real;             ///< REAL columns: whole numbers are stored as integers
    std::vector<bool> is_redacted;
    std::vector<Value> missing;  ///< value of NOT NULL columns in rows older than the column
    bool is_exempt = false;      ///< no history, deltas only
};

struct RawDelta {
    const TableShape* table = nullptr;
    Op op = Op::insert;
    std::vector<Value> before;
    std::vector<Value> after;
};

class DeltaCapture {
  public:
    /// Reads the shape of every table. Pre: outside the hook.
    /// Errors: unsupported for a table that cannot be captured (no PRIMARY KEY, generated columns).
    Result<> load_shapes(Connection& connection);

    [[nodiscard]] std::size_t mark() const { return deltas_.size(); }

    void fall_back_to(std::size_t mark) { deltas_.resize(mark); }

    /// Marks of nested Tx::attempt calls.
    void push_mark() { marks_.push_back(deltas_.size()); }

    void pop_mark(bool keep) {
        if (!keep) {
            deltas_.resize(marks_.back());
        }
        marks_.pop_back();
    }

    void clear() {
        deltas_.clear();
        marks_.clear();
    }

    /// The deltas in order, values made canonical and redacted; the buffer is empty afterwards.
    [[nodiscard]] std::vector<RawDelta> take();

    static void on_change(void* self, sqlite3* handle, int op, const char* database,
                          const char* table, sqlite3_int64 old_rowid, sqlite3_int64 new_rowid);

  private:
    [[nodiscard]] const TableShape* shape_of(std::string_view table);

    struct TextHash {
        using is_transparent = void;

        std::size_t operator()(std::string_view text) const noexcept {
            return std::hash<std::string_view>{}(text);
        }
    };

    std::unordered_map<std::string, std::unique_ptr<TableShape>, TextHash, std::equal_to<>> shapes_;
    std::vector<RawDelta> deltas_;
    std::vector<std::size_t> marks_;
};

}  // namespace holdfast::store
