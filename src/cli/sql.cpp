// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "job_ref.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

constexpr std::size_t kSqlBytesMax = 64 << 10;
constexpr std::int64_t kRowsMax = 100'000;

struct Options {
    std::optional<std::string> sql;
    std::optional<std::string> file;
    std::int64_t rows_max = 10'000;
    std::int64_t timeout_s = 10;
};

Result<std::string> statement(Session& session, const Options& options) {
    if (options.sql.has_value() == options.file.has_value()) {
        return fail(make_error(Errc::invalid_argument, "give one SQL text, or --file")
                        .advise("hold sql \"SELECT * FROM job\""));
    }
    if (options.file) {
        return session.around.env.files.read_file(*options.file, kSqlBytesMax);
    }
    return *options.sql == "-" ? session.around.read_input(kSqlBytesMax)
                               : Result<std::string>(*options.sql);
}

/// Blobs as hexadecimal; a real that JSON cannot write as null.
Json value_json(const v1::SqlValue& value) {
    switch (value.kind_case()) {
        case v1::SqlValue::kInteger:
            return value.integer();
        case v1::SqlValue::kReal:
            return std::isfinite(value.real()) ? Json(value.real()) : Json(nullptr);
        case v1::SqlValue::kText:
            return value.text();
        case v1::SqlValue::kBlob: {
            std::string text;
            for (const char byte : value.blob()) {
                text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
            }
            return text;
        }
        default:
            return nullptr;
    }
}

std::string cell_text(const v1::SqlValue& value) {
    if (value.kind_case() == v1::SqlValue::kText) {
        return value.text();
    }
    const Json json = value_json(value);
    if (value.kind_case() == v1::SqlValue::kBlob) {
        return "x'" + json.get<std::string>() + "'";
    }
    return json.is_null() ? "NULL" : json_text(json, -1);
}

/// Rows as arrays in JSON: column names of a query may repeat.
Json answer_object(const v1::SqlResponse& answer) {
    Json columns = Json::array();
    for (const std::string& column : answer.columns()) {
        columns.push_back(column);
    }
    Json rows = Json::array();
    for (const v1::SqlRow& row : answer.rows()) {
        Json values = Json::array();
        for (const v1::SqlValue& value : row.values()) {
            values.push_back(value_json(value));
        }
        rows.push_back(std::move(values));
    }
    return {{"columns", std::move(columns)},
            {"rows", std::move(rows)},
            {"truncated", answer.truncated()},
            {"elapsed_us", answer.elapsed_us()}};
}

/// Column names that repeat get a number, for CSV's fields.
std::vector<std::string> field_names(const v1::SqlResponse& answer) {
    std::vector<std::string> names;
    for (const std::string& column : answer.columns()) {
        std::string name = column;
        for (int n = 2; std::find(names.begin(), names.end(), name) != names.end(); ++n) {
            name = fmt::format("{}_{}", column, n);
        }
        names.push_back(std::move(name));
    }
    return names;
}

Listing answer_listing(const v1::SqlResponse& answer) {
    const std::vector<std::string> names = field_names(answer);
    Listing listing;
    listing.noun = "rows";
    listing.shape = Json::object();
    for (int i = 0; i < answer.columns_size(); ++i) {
        const bool number =
            !answer.rows().empty() && i < answer.rows(0).values_size() &&
            (answer.rows(0).values(i).has_integer() || answer.rows(0).values(i).has_real());
        listing.columns.push_back({.header = answer.columns(i), .right = number});
        listing.shape[names[static_cast<std::size_t>(i)]] = nullptr;
    }
    for (const v1::SqlRow& values : answer.rows()) {
        Row row;
        row.object = Json::object();
        row.cells.resize(names.size());
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto at = static_cast<int>(i);
            const v1::SqlValue value =
                at < values.values_size() ? values.values(at) : v1::SqlValue();
            row.object[names[i]] = value_json(value);
            row.cells[i] = cell_text(value);
        }
        row.name = row.cells.empty() ? "" : row.cells.front();
        listing.rows.push_back(std::move(row));
    }
    return listing;
}

Result<int> sql(Session& session, const Options& options) {
    HOLD_TRY(const std::string text, statement(session, options));
    v1::SqlRequest request;
    if (!is_utf8(text)) {
        return fail(Errc::invalid_argument, "the SQL is not UTF-8 text");
    }
    request.set_sql(text);
    request.set_rows_max(options.rows_max);
    request.set_timeout_ms(options.timeout_s * 1000);
    HOLD_TRY(Client * client, session.client());
    HOLD_TRY(const v1::SqlResponse answer, client->sql(request));
    if (answer.truncated()) {
        session.note(
            fmt::format("only the first {} rows are shown; see --max-rows", answer.rows_size()));
    }
    if (session.output.format == Format::json || session.output.format == Format::yaml) {
        HOLD_TRY(print(session, answer_object(answer), "", ""));
    } else {
        HOLD_TRY(print(session, answer_listing(answer)));
    }
    return 0;
}

}  // namespace

Verb sql_verb() {
    return {
        .name = "sql",
        .summary = "asks the cluster in SQL, read-only",
        .group = "Questions",
        .prints = Prints::list,
        .declare = [](Flags& flags) -> Command {
            auto options = std::make_shared<Options>();
            flags.positional("SQL", options->sql, "one SELECT, or - for the standard input")
                .required = false;
            flags.text("--file", options->file, "FILE", "the SQL stands in this file").completes =
                Completes::file;
            flags.integer("--max-rows", options->rows_max, 1, kRowsMax, "N",
                          "at most so many (default 10000)");
            flags.integer("--timeout", options->timeout_s, 1, 3600, "SECONDS",
                          "give up after it (default 10)");
            return [options](Session& session) { return sql(session, *options); };
        },
        .examples = {"hold sql \"SELECT state, count(*) FROM job GROUP BY state\"",
                     "hold sql -o csv \"SELECT * FROM training_step WHERE job = 42\""},
        .notes =
            "Names of tables and columns are those of `hold history`. Blobs are shown in "
            "hexadecimal."};
}

}  // namespace holdfast::cli
