// SPDX-License-Identifier: Apache-2.0
#include "history.hpp"

#include <cmath>

#include <fmt/format.h>

namespace holdfast::store {

namespace {

/// Appends `text` as a JSON string; false (and nothing appended) if it is not valid UTF-8.
bool append_json_text(std::string& json, std::string_view text) {
    const std::size_t start = json.size();
    json += '"';
    for (std::size_t at = 0; at < text.size();) {
        const auto first = static_cast<unsigned char>(text[at]);
        if (first < 0x80) {
            if (first == '"' || first == '\\') {
                json += '\\';
                json += text[at];
            } else if (first == '\n') {
                json += "\\n";
            } else if (first < 0x20) {
                fmt::format_to(std::back_inserter(json), "\\u{:04x}", static_cast<unsigned>(first));
            } else {
                json += text[at];
            }
            ++at;
            continue;
        }
        const std::size_t length = first >= 0xF0 ? 4U : (first >= 0xE0 ? 3U : 2U);
        bool is_valid = first >= 0xC2 && first <= 0xF4 && at + length <= text.size();
        std::uint32_t code = first & (0xFFU >> (length + 1));
        for (std::size_t index = 1; is_valid && index < length; ++index) {
            const auto next = static_cast<unsigned char>(text[at + index]);
            is_valid = (next & 0xC0U) == 0x80U;
            code = code << 6 | (next & 0x3FU);
        }
        constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
        if (!is_valid || code < kSmallest[length] || code > 0x10FFFF ||
            (code >= 0xD800 && code <= 0xDFFF)) {
            json.resize(start);
            return false;
        }
        json += text.substr(at, length);
        at += length;
    }
    json += '"';
    return true;
}

template <typename Bytes>
void append_hex(std::string& json, const Bytes& bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    json += R"({"hex":")";
    for (const auto byte : bytes) {
        const auto number = static_cast<unsigned char>(byte);
        json += kDigits[number >> 4];
        json += kDigits[number & 0x0F];
    }
    json += R"("})";
}

void append_json(std::string& json, const Value& value) {
    if (const auto* number = std::get_if<std::int64_t>(&value)) {
        fmt::format_to(std::back_inserter(json), "{}", *number);
    } else if (const auto* real = std::get_if<double>(&value)) {
        if (std::isfinite(*real)) {
            const std::string text = fmt::format("{}", *real);
            json += text;
            json += text.find_first_of(".e") == std::string::npos ? ".0" : "";
        } else {
            json += *real > 0 ? "9e999" : "-9e999";  // reads back as infinity; SQLite stores no NaN
        }
    } else if (const auto* text = std::get_if<std::string>(&value)) {
        if (!append_json_text(json, *text)) {
            append_hex(json, *text);
        }
    } else if (const auto* bytes = std::get_if<Blob>(&value)) {
        append_hex(json, *bytes);
    } else {
        json += "null";
    }
}

Value json_or_null(const TableShape& shape, const std::vector<Value>& values) {
    return values.empty() ? Value{} : Value{row_json(*shape.columns, values)};
}

Result<> write_invocation(Connection& connection, std::int64_t txn, const CallRecord& call,
                          std::int64_t seq_first, std::int64_t seq_last) {
    HOLD_TRY(
        connection.run("INSERT INTO invocation(txn, procedure, who, cause, at_us, duration_us, "
                       "status, seq_first, seq_last) VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9)",
                       txn, call.info.procedure, call.info.who, call.info.cause, call.at_us,
                       call.duration_us, call.status, seq_first, seq_last));
    return {};
}

}  // namespace

std::string row_json(const std::vector<std::string>& columns, const std::vector<Value>& values) {
    std::string json = "{";
    for (std::size_t column = 0; column < columns.size(); ++column) {
        json += column == 0 ? "" : ",";
        append_json_text(json, columns[column]);
        json += ':';
        append_json(json, values[column]);
    }
    return json + "}";
}

std::string key_text(const TableShape& shape, const std::vector<Value>& values) {
    if (shape.key_columns.size() == 1) {
        const Value& value = values[shape.key_columns[0]];
        std::string key;
        append_json(key, value);
        if (const auto* text = std::get_if<std::string>(&value); text != nullptr && key[0] == '"') {
            return *text;  // bare, as people type it
        }
        return key;
    }
    std::string key = "[";
    for (const std::size_t column : shape.key_columns) {
        key += key.size() == 1 ? "" : ",";
        append_json(key, values[column]);
    }
    return key + "]";
}

Result<std::vector<Delta>> write_history(Connection& connection, Counters& counters,
                                         std::vector<RawDelta> changes, const CallRecord& call) {
    std::vector<Delta> deltas;
    if (changes.empty()) {
        return deltas;
    }
    deltas.reserve(changes.size());
    const std::int64_t txn = ++counters.txn;
    const std::int64_t seq_first = counters.seq + 1;
    bool has_history = false;
    for (RawDelta& change : changes) {
        const TableShape& shape = *change.table;
        Delta delta;
        delta.seq = ++counters.seq;
        delta.txn = txn;
        delta.table = shape.name;
        delta.op = change.op;
        delta.key = key_text(shape, change.after.empty() ? change.before : change.after);
        if (!shape.is_exempt) {
            has_history = true;
            HOLD_TRY(connection.run(
                "INSERT INTO change(seq, txn, at_us, who, cause, tbl, key, op, before_json, "
                "after_json) VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)",
                delta.seq, txn, call.at_us, call.info.who, call.info.cause, shape.name, delta.key,
                to_string(delta.op), json_or_null(shape, change.before),
                json_or_null(shape, change.after)));
        }
        if (!change.before.empty()) {
            delta.before.emplace(shape.columns, std::move(change.before));
        }
        if (!change.after.empty()) {
            delta.after.emplace(shape.columns, std::move(change.after));
        }
        deltas.push_back(std::move(delta));
    }
    if (has_history) {
        HOLD_TRY(write_invocation(connection, txn, call, seq_first, counters.seq));
    }
    return deltas;
}

Result<> write_failed_invocation(Connection& connection, Counters& counters,
                                 const CallRecord& call) {
    // No change has a number between first and last: the range is empty.
    return write_invocation(connection, ++counters.txn, call, counters.seq + 1, counters.seq);
}

Result<Counters> read_counters(Connection& connection) {
    HOLD_TRY(const std::vector<Row> rows,
             connection.ask(
                 "SELECT coalesce((SELECT max(txn) FROM invocation), 0), "
                 "max(coalesce((SELECT max(seq) FROM change), 0), "
                 "coalesce((SELECT seq_last FROM invocation ORDER BY txn DESC LIMIT 1), 0))"));
    return Counters{rows.at(0).integer(0), rows.at(0).integer(1)};
}

}  // namespace holdfast::store
