// SPDX-License-Identifier: Apache-2.0
/// Rows and transaction handles: the thin part of the public interface.
#include <algorithm>

#include "connection.hpp"
#include "delta_capture.hpp"

namespace holdfast::store {

namespace {

constexpr const char* kWrongType = "a column is asked for with the type it holds";

}  // namespace

std::string_view to_string(Op op) {
    switch (op) {
        case Op::insert:
            return "insert";
        case Op::update:
            return "update";
        case Op::remove:
            break;
    }
    return "delete";
}

const std::vector<std::string>& Row::columns() const {
    static const std::vector<std::string> none;
    return columns_ == nullptr ? none : *columns_;
}

bool Row::has(std::string_view column) const {
    return std::find(columns().begin(), columns().end(), column) != columns().end();
}

const Value& Row::value(std::size_t index) const {
    HOLD_CHECK(index < values_.size(), "a row is asked for a column it has");
    return values_[index];
}

const Value& Row::value(std::string_view column) const {
    const auto found = std::find(columns().begin(), columns().end(), column);
    HOLD_CHECK(found != columns().end(), std::string("a row has the column ").append(column));
    return value(static_cast<std::size_t>(found - columns().begin()));
}

std::int64_t Row::as_integer(const Value& value) {
    const auto* number = std::get_if<std::int64_t>(&value);
    HOLD_CHECK(number != nullptr, kWrongType);
    return *number;
}

double Row::as_real(const Value& value) {
    if (const auto* number = std::get_if<std::int64_t>(&value)) {
        return static_cast<double>(*number);
    }
    const auto* real = std::get_if<double>(&value);
    HOLD_CHECK(real != nullptr, kWrongType);
    return *real;
}

const std::string& Row::as_text(const Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    HOLD_CHECK(text != nullptr, kWrongType);
    return *text;
}

const Blob& Row::as_blob(const Value& value) {
    const auto* bytes = std::get_if<Blob>(&value);
    HOLD_CHECK(bytes != nullptr, kWrongType);
    return *bytes;
}

Result<std::vector<Row>> ReadTx::query_values(std::string_view sql, std::span<const Value> values) {
    return connection_.query(sql, values, Access::caller);
}

Result<std::optional<Row>> ReadTx::query_one_values(std::string_view sql,
                                                    std::span<const Value> values) {
    HOLD_TRY(std::vector<Row> rows, connection_.query(sql, values, Access::caller));
    if (rows.size() > 1) {
        return fail(make_error(Errc::internal, "run SQL: expected one row, got {}", rows.size())
                        .at(std::string(sql.substr(0, 300))));
    }
    if (rows.empty()) {
        return std::optional<Row>();
    }
    return std::optional<Row>(std::move(rows.front()));
}

Result<std::int64_t> Tx::exec_values(std::string_view sql, std::span<const Value> values) {
    return connection_.exec(sql, values, Access::caller);
}

Result<std::int64_t> Tx::next_id(std::string_view sequence) {
    HOLD_TRY(
        const std::vector<Row> rows,
        connection_.ask("INSERT INTO id_sequence(name, last) VALUES ($1, 1) ON CONFLICT (name) DO "
                        "UPDATE SET last = last + 1 RETURNING last",
                        sequence));
    return rows.at(0).integer(0);
}

std::uint64_t Tx::random() {
    return random_.next();
}

Result<> Tx::begin_attempt() {
    HOLD_TRY(connection_.run("SAVEPOINT hold_attempt"));
    connection_.capture()->push_mark();
    return {};
}

Result<> Tx::end_attempt(bool keep) {
    connection_.capture()->pop_mark(keep);
    if (connection_.is_outside_transaction()) {
        // SQLite has undone everything (disk full, interrupted): the answer's error says why.
        return keep ? Result<>(fail(Errc::internal, "attempt: the transaction ended inside"))
                    : Result<>();
    }
    if (!keep) {
        HOLD_TRY(connection_.run("ROLLBACK TO hold_attempt"));
    }
    HOLD_TRY(connection_.run("RELEASE hold_attempt"));
    return {};
}

}  // namespace holdfast::store
