// SPDX-License-Identifier: Apache-2.0
#include "sql_answer.hpp"

#include <bit>

namespace holdfast::server::sql {

void AnswerWriter::number(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
        bytes_ += static_cast<char>((value >> shift) & 0xff);
    }
}

void AnswerWriter::text(std::string_view value) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
        bytes_ += static_cast<char>((value.size() >> shift) & 0xff);
    }
    bytes_ += value;
}

void AnswerWriter::columns(const std::vector<std::string>& names) {
    bytes_ += 'C';
    number(names.size());
    for (const std::string& name : names) {
        text(name);
    }
}

void AnswerWriter::row(const std::vector<Cell>& cells) {
    bytes_ += 'R';
    for (const Cell& cell : cells) {
        if (const auto* integer = std::get_if<std::int64_t>(&cell)) {
            bytes_ += 'i';
            number(static_cast<std::uint64_t>(*integer));
        } else if (const auto* real = std::get_if<double>(&cell)) {
            bytes_ += 'r';
            number(std::bit_cast<std::uint64_t>(*real));
        } else if (const auto* words = std::get_if<std::string>(&cell)) {
            bytes_ += 't';
            text(*words);
        } else if (const auto* blob = std::get_if<Bytes>(&cell)) {
            bytes_ += 'b';
            text(blob->bytes);
        } else {
            bytes_ += 'n';
        }
    }
}

void AnswerWriter::error(const Error& error) {
    bytes_ += 'E';
    text(to_string(error.code));
    text(error.message);
    text(error.where);
}

void AnswerWriter::done(bool truncated) {
    bytes_ += 'D';
    bytes_ += truncated ? '\1' : '\0';
}

namespace {

/// Reads forward; after the first short read everything is empty and `broken` stays set.
class Reader {
  public:
    explicit Reader(std::string_view bytes) : rest_(bytes) {}

    std::string_view take(std::size_t count) {
        if (count > rest_.size()) {
            broken = true;
            rest_ = {};
            return {};
        }
        const std::string_view taken = rest_.substr(0, count);
        rest_.remove_prefix(count);
        return taken;
    }

    char tag() {
        const std::string_view byte = take(1);
        return byte.empty() ? '\0' : byte[0];
    }

    std::uint64_t number(std::size_t size = 8) {
        std::uint64_t value = 0;
        std::size_t shift = 0;
        for (const char byte : take(size)) {
            value |= static_cast<std::uint64_t>(static_cast<unsigned char>(byte)) << shift;
            shift += 8;
        }
        return value;
    }

    std::string text() { return std::string(take(number(4))); }

    [[nodiscard]] bool is_at_end() const { return rest_.empty(); }

    bool broken = false;

  private:
    std::string_view rest_;
};

Cell read_cell(Reader& reader) {
    switch (reader.tag()) {
        case 'i':
            return static_cast<std::int64_t>(reader.number());
        case 'r':
            return std::bit_cast<double>(reader.number());
        case 't':
            return reader.text();
        case 'b':
            return Bytes{reader.text()};
        case 'n':
            return std::monostate{};
        default:
            reader.broken = true;
            return std::monostate{};
    }
}

}  // namespace

Result<Answer> parse_answer(std::string_view bytes) {
    Reader reader(bytes);
    Answer answer;
    while (!reader.broken && !reader.is_at_end()) {
        switch (reader.tag()) {
            case 'C': {
                const std::uint64_t count = reader.number();
                reader.broken = reader.broken || count > kColumnsMax || !answer.columns.empty();
                for (std::uint64_t i = 0; i < count && !reader.broken; ++i) {
                    answer.columns.push_back(reader.text());
                }
                break;
            }
            case 'R': {
                std::vector<Cell> row;
                for (std::size_t i = 0; i < answer.columns.size() && !reader.broken; ++i) {
                    row.push_back(read_cell(reader));
                }
                reader.broken = reader.broken || answer.columns.empty();
                answer.rows.push_back(std::move(row));
                break;
            }
            case 'E': {
                Error error;
                error.code = errc_from(reader.text());
                error.message = reader.text();
                error.where = reader.text();
                if (!reader.broken && reader.is_at_end()) {
                    return fail(std::move(error));
                }
                reader.broken = true;
                break;
            }
            case 'D':
                answer.truncated = reader.tag() != '\0';
                if (!reader.broken && reader.is_at_end()) {
                    return answer;
                }
                reader.broken = true;
                break;
            default:
                reader.broken = true;
        }
    }
    return fail(Errc::internal, "read the answer of hold-sql: {} bytes that make no sense",
                bytes.size());
}

}  // namespace holdfast::server::sql
