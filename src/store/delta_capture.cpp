// SPDX-License-Identifier: Apache-2.0
#include "delta_capture.hpp"

#include <algorithm>
#include <map>

#include "connection.hpp"

namespace holdfast::store {

namespace {

Value value_of(sqlite3_value* value) {
    switch (sqlite3_value_type(value)) {
        case SQLITE_INTEGER:
            return std::int64_t{sqlite3_value_int64(value)};
        case SQLITE_FLOAT:
            return sqlite3_value_double(value);
        case SQLITE_TEXT: {
            // SAFETY: SQLite's UTF-8 text of value_bytes bytes, valid inside the hook.
            const auto* text = reinterpret_cast<const char*>(sqlite3_value_text(value));
            return std::string(text, static_cast<std::size_t>(sqlite3_value_bytes(value)));
        }
        case SQLITE_BLOB: {
            const auto* bytes = static_cast<const std::byte*>(sqlite3_value_blob(value));
            return Blob(bytes, bytes + sqlite3_value_bytes(value));
        }
        default:
            return {};
    }
}

using Side = int (*)(sqlite3*, int, sqlite3_value**);

std::vector<Value> read_side(sqlite3* handle, Side side) {
    const int count = sqlite3_preupdate_count(handle);
    std::vector<Value> values;
    values.reserve(static_cast<std::size_t>(count));
    for (int column = 0; column < count; ++column) {
        sqlite3_value* value = nullptr;
        const int status = side(handle, column, &value);
        HOLD_CHECK(status == SQLITE_OK, "a row in the preupdate hook can be read");
        values.push_back(value_of(value));
    }
    return values;
}

/// Makes values equal to what a SELECT would give, then hides the redacted ones.
void finish_values(const TableShape& shape, std::vector<Value>& values) {
    if (values.empty()) {
        return;
    }
    values.resize(shape.columns->size());
    for (std::size_t column = 0; column < values.size(); ++column) {
        Value& value = values[column];
        if (std::holds_alternative<std::monostate>(value)) {
            value = shape.missing[column];
        }
        if (const auto* number = std::get_if<std::int64_t>(&value);
            number != nullptr && shape.is_real[column]) {
            value = static_cast<double>(*number);
        }
        if (shape.is_redacted[column] && !std::holds_alternative<std::monostate>(value)) {
            value = std::string("***");
        }
    }
}

std::string quoted(const std::string& name) {
    std::string text = "\"";
    for (const char letter : name) {
        text += letter;
        if (letter == '"') {
            text += '"';
        }
    }
    return text + '"';
}

Result<> read_columns(Connection& connection, TableShape& shape) {
    HOLD_TRY(const std::vector<Row> rows,
             connection.ask("SELECT name, upper(type) AS type, \"notnull\" AS is_required, "
                            "dflt_value, pk, hidden FROM pragma_table_xinfo($1) ORDER BY cid",
                            shape.name));
    auto columns = std::make_shared<std::vector<std::string>>();
    std::map<std::int64_t, std::size_t> key;
    shape.is_real.clear();
    shape.missing.clear();
    for (const Row& row : rows) {
        if (row.integer("hidden") != 0) {
            return fail(Errc::unsupported, "table {}: column {} is generated; compute it in a view",
                        shape.name, row.text("name"));
        }
        if (row.integer("pk") > 0) {
            key[row.integer("pk")] = columns->size();
        }
        columns->push_back(row.text("name"));
        const std::string& type = row.text("type");
        shape.is_real.push_back(type.find("REAL") != std::string::npos ||
                                type.find("FLOA") != std::string::npos ||
                                type.find("DOUB") != std::string::npos);
        Value missing;
        if (row.boolean("is_required") && !row.is_null("dflt_value")) {
            HOLD_TRY(const std::vector<Row> value,
                     connection.ask("SELECT " + row.text("dflt_value")));
            missing = value.at(0).value(0);
        }
        shape.missing.push_back(std::move(missing));
    }
    if (key.empty()) {
        return fail(Errc::unsupported, "table {}: needs a PRIMARY KEY", shape.name);
    }
    shape.key_columns.clear();
    for (const auto& [order, column] : key) {
        shape.key_columns.push_back(column);
    }
    shape.columns = std::move(columns);
    shape.is_redacted.assign(shape.columns->size(), false);
    return {};
}

}  // namespace

Result<> DeltaCapture::load_shapes(Connection& connection) {
    HOLD_TRY(const std::vector<Row> tables,
             connection.ask("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE "
                            "'CREATE VIRTUAL%' ORDER BY name"));
    for (const Row& row : tables) {
        const std::string& name = row.text("name");
        if (is_system_table(name)) {
            continue;
        }
        auto& shape = shapes_[name];
        if (shape == nullptr) {
            shape = std::make_unique<TableShape>();
            shape->name = name;
        }
        HOLD_TRY(read_columns(connection, *shape));
        HOLD_TRY(const std::vector<Row> exempt,
                 connection.ask("SELECT 1 FROM history_exempt WHERE name = $1", name));
        shape->is_exempt = !exempt.empty();
        HOLD_TRY(const std::vector<Row> redacted,
                 connection.ask("SELECT col FROM history_redacted WHERE tbl = $1", name));
        for (const Row& hidden : redacted) {
            const auto found =
                std::find(shape->columns->begin(), shape->columns->end(), hidden.text(0));
            if (found == shape->columns->end()) {
                return fail(Errc::invalid_argument, "history_redacted: table {} has no column {}",
                            name, quoted(hidden.text(0)));
            }
            shape->is_redacted[static_cast<std::size_t>(found - shape->columns->begin())] = true;
        }
    }
    return {};
}

const TableShape* DeltaCapture::shape_of(std::string_view table) {
    if (const auto found = shapes_.find(table); found != shapes_.end()) {
        return found->second.get();
    }
    if (is_system_table(table)) {
        return nullptr;
    }
    // A table that the running migration has just made: load_shapes fills it in before take().
    auto shape = std::make_unique<TableShape>();
    shape->name = table;
    return shapes_.emplace(table, std::move(shape)).first->second.get();
}

void DeltaCapture::on_change(void* self, sqlite3* handle, int op, const char* database,
                             const char* table, sqlite3_int64 /*old_rowid*/,
                             sqlite3_int64 /*new_rowid*/) {
    if (std::string_view(database) != "main") {
        return;
    }
    auto* capture = static_cast<DeltaCapture*>(self);
    const TableShape* shape = capture->shape_of(table);
    if (shape == nullptr) {
        return;
    }
    RawDelta delta;
    delta.table = shape;
    delta.op = op == SQLITE_INSERT ? Op::insert : (op == SQLITE_UPDATE ? Op::update : Op::remove);
    if (delta.op != Op::insert) {
        delta.before = read_side(handle, &sqlite3_preupdate_old);
    }
    if (delta.op != Op::remove) {
        delta.after = read_side(handle, &sqlite3_preupdate_new);
    }
    capture->deltas_.push_back(std::move(delta));
}

std::vector<RawDelta> DeltaCapture::take() {
    std::vector<RawDelta> taken = std::move(deltas_);
    deltas_.clear();
    for (RawDelta& delta : taken) {
        HOLD_CHECK(delta.table->columns != nullptr,
                   "a migration's tables are loaded before take()");
        finish_values(*delta.table, delta.before);
        finish_values(*delta.table, delta.after);
    }
    return taken;
}

}  // namespace holdfast::store
