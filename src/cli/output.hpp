// SPDX-License-Identifier: Apache-2.0
// What `hold` prints: one row set, in the form that was asked for.
//
// Tables are for people and may change. JSON, YAML and CSV are for programs: one object with
// "schema": 1, fields are never missing, ids are bare integers, times are microseconds in fields
// named *_us. Row fields of a CSV file are the JSON object's, nested values as JSON text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <holdfast/result.hpp>

namespace holdfast::cli {

using Json = nlohmann::ordered_json;

inline constexpr int kSchema = 1;

/// Where text goes: a file descriptor, or a string in tests.
class Stream {
  public:
    virtual ~Stream() = default;
    /// Writes all. Errors: failed (a closed pipe, a full disk).
    virtual Result<> write(std::string_view text) = 0;
    [[nodiscard]] virtual bool is_terminal() const = 0;
};

class FileStream : public Stream {
  public:
    explicit FileStream(int descriptor) : descriptor_(descriptor) {}

    Result<> write(std::string_view text) override;
    [[nodiscard]] bool is_terminal() const override;

  private:
    int descriptor_;
};

class StringStream : public Stream {
  public:
    Result<> write(std::string_view text) override {
        text_ += text;
        return {};
    }

    [[nodiscard]] bool is_terminal() const override { return false; }

    [[nodiscard]] const std::string& text() const { return text_; }

  private:
    std::string text_;
};

enum class Format : std::uint8_t { table, wide, json, yaml, csv, name };

Result<Format> format_from(std::string_view name);

struct OutputOptions {
    Format format = Format::table;
    bool headers = true;
    std::string sort;     ///< a column's or field's name, "-" before it: descending
    bool colour = false;  ///< set by the program: a terminal, and NO_COLOR unset

    [[nodiscard]] bool is_for_people() const {
        return format == Format::table || format == Format::wide;
    }
};

struct Column {
    std::string header;
    bool wide = false;   ///< only in -o wide
    bool right = false;  ///< numbers
};

struct Row {
    Json object;                     ///< the machine forms
    std::vector<std::string> cells;  ///< one per column
    std::string name;                ///< -o name
};

struct Listing {
    std::string noun;  ///< key of the array in JSON: "jobs"
    std::vector<Column> columns;
    Json shape;  ///< a row's object with every field: names the CSV columns of an empty list
    std::vector<Row> rows;
    Json extra = Json::object();  ///< more fields of the JSON object
};

/// The listing in the form that `options` asks for, ending in a newline.
/// Errors: invalid_argument for an unknown sort key.
Result<std::string> render(Listing listing, const OutputOptions& options);

/// One object: `text` for people, the object with "schema" for programs.
/// Errors: unsupported for csv.
Result<std::string> render_object(const Json& object, const std::string& text,
                                  const std::string& name, const OutputOptions& options);

/// The object that JSON mode prints for a failure.
Json error_object(const Error& error);
/// "error: …" with its place and hint on lines of their own.
std::string error_text(const Error& error, std::string_view verb, bool colour);

/// Invalid UTF-8 becomes U+FFFD: names of users and files are not always text.
std::string json_text(const Json& value, int indent);
std::string yaml_text(const Json& value);

}  // namespace holdfast::cli
