// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "text.hpp"

namespace holdfast::cli {
namespace {

constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kRed = "\x1b[31m";
constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kYellow = "\x1b[33m";
constexpr std::string_view kPlain = "\x1b[0m";

constexpr std::array<std::pair<std::string_view, Format>, 6> kFormats = {{
    {"table", Format::table},
    {"wide", Format::wide},
    {"json", Format::json},
    {"yaml", Format::yaml},
    {"csv", Format::csv},
    {"name", Format::name},
}};

/// States, and the letters that stand for them.
std::string_view colour_of(std::string_view cell) {
    constexpr std::array<std::string_view, 4> kGood = {"up", "running", "R", "completed"};
    constexpr std::array<std::string_view, 8> kBad = {"down", "failed", "F",         "timeout",
                                                      "TO",   "lost",   "node_fail", "NF"};
    constexpr std::array<std::string_view, 6> kWaits = {"pending",  "PD",      "paused",
                                                        "draining", "drained", "cordoned"};
    const auto among = [cell](const auto& words) {
        return std::find(words.begin(), words.end(), cell) != words.end();
    };
    if (among(kGood)) {
        return kGreen;
    }
    if (among(kBad)) {
        return kRed;
    }
    return among(kWaits) ? kYellow : std::string_view();
}

// ----------------------------------------------------------------------------------------- tables

std::vector<std::size_t> shown_columns(const Listing& listing, Format format) {
    std::vector<std::size_t> shown;
    for (std::size_t i = 0; i < listing.columns.size(); ++i) {
        if (!listing.columns[i].wide || format == Format::wide) {
            shown.push_back(i);
        }
    }
    return shown;
}

/// One padded line; the last column is not padded on its right.
void append_line(std::string& text, const std::vector<std::string>& cells,
                 const std::vector<std::size_t>& widths, const std::vector<bool>& right,
                 const std::vector<std::string_view>& colours) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const std::string gap(widths[i] - std::min(widths[i], display_width(cells[i])), ' ');
        const bool last = i + 1 == cells.size();
        std::string cell = cells[i];
        if (!colours[i].empty()) {
            cell = std::string(colours[i]) + cell + std::string(kPlain);
        }
        text += right[i] ? gap + cell : last ? cell : cell + gap;
        text += last ? "" : "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
}

std::string render_table(const Listing& listing, const OutputOptions& options) {
    const auto shown = shown_columns(listing, options.format);
    std::vector<std::vector<std::string>> lines;
    std::vector<std::string> headers;
    std::vector<bool> right;
    for (const std::size_t i : shown) {
        headers.push_back(listing.columns[i].header);
        right.push_back(listing.columns[i].right);
    }
    for (const Row& row : listing.rows) {
        std::vector<std::string> cells;
        for (const std::size_t i : shown) {
            cells.push_back(printable(row.cells[i]));
        }
        lines.push_back(std::move(cells));
    }
    std::vector<std::size_t> widths(shown.size(), 0);
    for (std::size_t i = 0; i < shown.size(); ++i) {
        widths[i] = options.headers ? display_width(headers[i]) : 0;
        for (const auto& cells : lines) {
            widths[i] = std::max(widths[i], display_width(cells[i]));
        }
    }
    std::string text;
    if (options.headers) {
        append_line(text, headers, widths, right,
                    {shown.size(), options.colour ? kBold : std::string_view()});
    }
    for (const auto& cells : lines) {
        std::vector<std::string_view> colours;
        for (const std::string& cell : cells) {
            colours.push_back(options.colour ? colour_of(cell) : std::string_view());
        }
        append_line(text, cells, widths, right, colours);
    }
    return text;
}

// -------------------------------------------------------------------------------------------- csv

std::string csv_cell(const Json& value) {
    if (value.is_null()) {
        return "";
    }
    std::string text = value.is_string() ? value.get<std::string>() : json_text(value, -1);
    if (text.find_first_of(",\"\r\n") == std::string::npos) {
        return text;
    }
    std::string quoted = "\"";
    for (const char c : text) {
        quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    }
    return quoted + "\"";
}

std::string render_csv(const Listing& listing, const OutputOptions& options) {
    std::string text;
    std::vector<std::string> fields;
    for (const auto& [key, value] : listing.shape.items()) {
        fields.push_back(key);
    }
    if (options.headers) {
        for (std::size_t i = 0; i < fields.size(); ++i) {
            text += (i == 0 ? "" : ",") + csv_cell(fields[i]);
        }
        text += "\n";
    }
    for (const Row& row : listing.rows) {
        for (std::size_t i = 0; i < fields.size(); ++i) {
            text += i == 0 ? "" : ",";
            text += row.object.contains(fields[i]) ? csv_cell(row.object[fields[i]]) : "";
        }
        text += "\n";
    }
    return text;
}

// --------------------------------------------------------------------------------------- sorting

bool same_word(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
        const auto low = [](char c) {
            return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        };
        return low(x) == low(y);
    });
}

bool less_value(const Json& a, const Json& b) {
    if (a.is_number() && b.is_number()) {
        return a.is_number_float() || b.is_number_float()
                   ? a.get<double>() < b.get<double>()
                   : a.get<std::int64_t>() < b.get<std::int64_t>();
    }
    if (a.is_string() && b.is_string()) {
        return a.get_ref<const std::string&>() < b.get_ref<const std::string&>();
    }
    return json_text(a, -1) < json_text(b, -1);
}

Result<> sort_rows(Listing& listing, std::string_view key) {
    const bool down = key.starts_with("-");
    key.remove_prefix(down ? 1 : 0);
    std::function<bool(const Row&, const Row&)> less;
    std::vector<std::string> known;
    for (const auto& [field, value] : listing.shape.items()) {
        known.push_back(field);
        if (same_word(field, key)) {
            less = [name = field](const Row& a, const Row& b) {
                return less_value(a.object.at(name), b.object.at(name));
            };
        }
    }
    for (std::size_t i = 0; i < listing.columns.size() && !less; ++i) {
        known.push_back(listing.columns[i].header);
        if (same_word(listing.columns[i].header, key)) {
            less = [i](const Row& a, const Row& b) { return a.cells[i] < b.cells[i]; };
        }
    }
    if (!less) {
        const std::string near = did_you_mean(key, known);
        return fail(
            make_error(Errc::invalid_argument, "no column `{}` to sort by", printable(key))
                .at("--sort")
                .advise(near.empty() ? fmt::format("sort by {}", fmt::join(known, ", ")) : near));
    }
    std::stable_sort(listing.rows.begin(), listing.rows.end(),
                     [&](const Row& a, const Row& b) { return down ? less(b, a) : less(a, b); });
    return {};
}

Json with_schema(const Json& fields) {
    Json object = {{"schema", kSchema}};
    for (const auto& [key, value] : fields.items()) {
        object[key] = value;
    }
    return object;
}

// ------------------------------------------------------------------------------------------- yaml

void append_yaml(std::string& text, const Json& value, std::size_t indent);

/// A value after "key:" or "-": scalars on the same line, filled containers below.
void append_yaml_value(std::string& text, const Json& value, std::size_t indent) {
    if (!value.is_structured() || value.empty()) {
        text += " " + json_text(value, -1) + "\n";
        return;
    }
    text += "\n";
    append_yaml(text, value, indent);
}

/// Block style; scalars and keys as JSON writes them, which YAML reads as the same values.
void append_yaml(std::string& text, const Json& value, std::size_t indent) {
    if (value.is_array()) {
        for (const Json& item : value) {
            text += std::string(indent, ' ') + "-";
            append_yaml_value(text, item, indent + 2);
        }
        return;
    }
    for (const auto& [key, item] : value.items()) {
        const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
            return (c >= 'a' && c <= 'z') || c == '_';
        });
        text += std::string(indent, ' ') + (plain ? key : json_text(key, -1)) + ":";
        append_yaml_value(text, item, indent + 2);
    }
}

}  // namespace

// ---------------------------------------------------------------------------------------- streams

Result<> FileStream::write(std::string_view text) {
    while (!text.empty()) {
        const ssize_t wrote = ::write(descriptor_, text.data(), text.size());
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote < 0) {
            return fail(Errc::failed, "write the output: {}", std::strerror(errno));
        }
        text.remove_prefix(static_cast<std::size_t>(wrote));
    }
    return {};
}

bool FileStream::is_terminal() const {
    return isatty(descriptor_) != 0;
}

// ---------------------------------------------------------------------------------------- formats

Result<Format> format_from(std::string_view name) {
    std::vector<std::string> names;
    for (const auto& [word, format] : kFormats) {
        if (word == name) {
            return format;
        }
        names.emplace_back(word);
    }
    return fail(make_error(Errc::invalid_argument, "unknown output format `{}`", printable(name))
                    .at("--output")
                    .advise(fmt::format("choose one of {}", fmt::join(names, ", "))));
}

std::string json_text(const Json& value, int indent) {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string yaml_text(const Json& value) {
    std::string text;
    append_yaml(text, value, 0);
    return text;
}

Result<std::string> render(Listing listing, const OutputOptions& options) {
    if (!options.sort.empty()) {
        HOLD_TRY(sort_rows(listing, options.sort));
    }
    switch (options.format) {
        case Format::table:
        case Format::wide:
            return render_table(listing, options);
        case Format::csv:
            return render_csv(listing, options);
        case Format::name: {
            std::string text;
            for (const Row& row : listing.rows) {
                text += printable(row.name) + "\n";
            }
            return text;
        }
        case Format::json:
        case Format::yaml:
            break;
    }
    Json object = {{"schema", kSchema}};
    Json rows = Json::array();
    for (Row& row : listing.rows) {
        rows.push_back(std::move(row.object));
    }
    object[listing.noun] = std::move(rows);
    for (const auto& [key, value] : listing.extra.items()) {
        object[key] = value;
    }
    return options.format == Format::json ? json_text(object, 2) + "\n" : yaml_text(object);
}

Result<std::string> render_object(const Json& object, const std::string& text,
                                  const std::string& name, const OutputOptions& options) {
    switch (options.format) {
        case Format::table:
        case Format::wide:
            return text;
        case Format::name:
            return printable(name) + "\n";
        case Format::json:
            return json_text(with_schema(object), 2) + "\n";
        case Format::yaml:
            return yaml_text(with_schema(object));
        case Format::csv:
            break;
    }
    return fail(make_error(Errc::unsupported, "one object has no CSV form")
                    .at("--output")
                    .advise("choose table, json, yaml or name"));
}

Json error_object(const Error& error) {
    return {{"schema", kSchema},
            {"error",
             {{"code", to_string(error.code)},
              {"message", error.message},
              {"where", error.where},
              {"hint", error.hint}}}};
}

std::string error_text(const Error& error, std::string_view verb, bool colour) {
    std::string text =
        fmt::format("{}hold{}{}: error:{} {}\n", colour ? kRed : "", verb.empty() ? "" : " ", verb,
                    colour ? kPlain : "", printable(error.message));
    if (!error.where.empty()) {
        text += fmt::format("  at {}\n", printable(error.where));
    }
    if (!error.hint.empty()) {
        text += fmt::format("  hint: {}\n", printable(error.hint));
    }
    return text;
}

}  // namespace holdfast::cli
