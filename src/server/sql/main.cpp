// SPDX-License-Identifier: Apache-2.0
// hold-sql DATABASE ROWS_MAX TIMEOUT_MS open|restricted: runs the statement on standard input and
// writes its answer (sql_answer.hpp) to standard output. Started by the server for each
// System.Sql, so that a statement that breaks SQLite breaks only this process.
#include <array>
#include <charconv>
#include <new>
#include <string>
#include <string_view>

#include <unistd.h>

#include <holdfast/env.hpp>

#include "query.hpp"
#include "sandbox.hpp"

namespace {

using namespace holdfast;          // NOLINT: a program of one file
using namespace holdfast::server;  // NOLINT

Result<std::int64_t> number_from(std::string_view text, const char* name) {
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc{} || end != text.data() + text.size() || value <= 0) {
        return fail(Errc::invalid_argument, "{} `{}` is no positive number", name, text);
    }
    return value;
}

Result<std::string> read_statement() {
    std::string text;
    std::array<char, 4096> buffer{};
    while (text.size() <= sql::kStatementBytesMax) {
        const ssize_t count = read(STDIN_FILENO, buffer.data(), buffer.size());
        if (count < 0) {
            return fail(Errc::internal, "read the statement: errno {}", errno);
        }
        if (count == 0) {
            return text;
        }
        text.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return fail(Errc::too_large, "the statement has more than {} bytes", sql::kStatementBytesMax);
}

Result<> run(int argc, char** argv, sql::AnswerWriter& out) {
    if (argc != 5) {
        return fail(Errc::invalid_argument,
                    "usage: hold-sql DATABASE ROWS_MAX TIMEOUT_MS open|restricted");
    }
    sql::Query query;
    query.database = argv[1];
    HOLD_TRY(query.rows_max, number_from(argv[2], "ROWS_MAX"));
    HOLD_TRY(query.timeout_ms, number_from(argv[3], "TIMEOUT_MS"));
    query.restricted = std::string_view(argv[4]) != "open";
    HOLD_TRY(sql::enter_sandbox({.cpu_s = query.timeout_ms / 1000 + 2}));
    HOLD_TRY(query.statement, read_statement());
    return sql::run_query(real_env(), query, out);
}

void write_all(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = write(STDOUT_FILENO, bytes.data(), bytes.size());
        if (count <= 0) {
            return;  // the server is gone
        }
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
}

}  // namespace

int main(int argc, char** argv) {
    sql::AnswerWriter out;
    try {
        if (auto result = run(argc, argv, out); !result) {
            sql::AnswerWriter failed;
            failed.error(result.error());
            write_all(failed.bytes());
            return 1;
        }
    } catch (const std::bad_alloc&) {
        sql::AnswerWriter failed;
        failed.error(make_error(Errc::too_large, "the answer needs more memory than it may have"));
        write_all(failed.bytes());
        return 1;
    }
    write_all(out.bytes());
    return 0;
}
