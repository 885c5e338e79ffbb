// SPDX-License-Identifier: Apache-2.0
// What hold-sql writes to its standard output, read by the server: a stream of records, each a tag
// byte and fields; numbers are 8 bytes, lengths 4 bytes, both little-endian.
//
//   'C' count, count × text                       columns, first
//   'R' count × value                             one row; value = 'n' | 'i' number | 'r' bits |
//                                                 't' text | 'b' bytes; text and bytes: length, …
//   'E' code, message, where                      the statement failed; last
//   'D' truncated byte                            all rows were written; last
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::server::sql {

/// Bounds of an answer: it must fit into one gRPC message with room to spare.
inline constexpr std::size_t kAnswerBytesMax = 3 << 20;
inline constexpr std::size_t kStatementBytesMax = 64 << 10;
inline constexpr std::int64_t kRowsMax = 100'000;
inline constexpr std::int64_t kRowsDefault = 10'000;
inline constexpr std::int64_t kTimeoutMsDefault = 5'000;
inline constexpr std::int64_t kTimeoutMsMax = 30'000;
inline constexpr std::uint32_t kColumnsMax = 2'000;

struct Bytes {
    std::string bytes;
};

using Cell = std::variant<std::monostate, std::int64_t, double, std::string, Bytes>;

struct Answer {
    std::vector<std::string> columns;
    std::vector<std::vector<Cell>> rows;
    bool truncated = false;
};

class AnswerWriter {
  public:
    void columns(const std::vector<std::string>& names);
    void row(const std::vector<Cell>& cells);
    void error(const Error& error);
    void done(bool truncated);

    [[nodiscard]] const std::string& bytes() const { return bytes_; }

  private:
    void number(std::uint64_t value);
    void text(std::string_view value);

    std::string bytes_;
};

/// The answer, or the error that the statement ended with.
/// Errors: internal for bytes that no AnswerWriter makes.
Result<Answer> parse_answer(std::string_view bytes);

}  // namespace holdfast::server::sql
