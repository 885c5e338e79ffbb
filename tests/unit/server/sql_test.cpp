// SPDX-License-Identifier: Apache-2.0
// System.Sql reads, and does nothing else, whatever the statement.
#include "fixture.hpp"
#include "sql/sql_answer.hpp"

namespace holdfast::server::testing {
namespace {

class SqlTest : public ServerTest {
  protected:
    struct Outcome {
        std::string code;
        Error error;
        v1::SqlResponse response;
    };

    Outcome ask(const std::string& statement, const std::string& by = "",
                std::int64_t timeout_ms = 0, std::int64_t rows_max = 0) {
        v1::SqlRequest request;
        request.set_sql(statement);
        request.set_timeout_ms(timeout_ms);
        request.set_rows_max(rows_max);
        Outcome outcome;
        Call call(by);
        const auto status = system_->Sql(&call.context, request, &outcome.response);
        outcome.code = code_of(status, call.context);
        outcome.error = rpc::error_from(status, call.context, "", {});
        return outcome;
    }
};

TEST_F(SqlTest, AnswersEveryTypeOfValue) {
    const auto outcome =
        ask("SELECT 1 AS i, 2.5 AS r, 'x' || char(10) AS t, x'00ff' AS b, NULL AS n");
    ASSERT_EQ(outcome.code, "ok") << outcome.error.message;
    ASSERT_EQ(outcome.response.columns_size(), 5);
    EXPECT_EQ(outcome.response.columns(3), "b");
    ASSERT_EQ(outcome.response.rows_size(), 1);
    const auto& row = outcome.response.rows(0);
    EXPECT_EQ(row.values(0).integer(), 1);
    EXPECT_EQ(row.values(1).real(), 2.5);
    EXPECT_EQ(row.values(2).text(), "x\n");
    EXPECT_EQ(row.values(3).blob(), std::string("\0\xff", 2));
    EXPECT_TRUE(row.values(4).null());
    EXPECT_FALSE(outcome.response.truncated());
}

TEST_F(SqlTest, SeesWhatWasCommitted) {
    submit(sleeper());
    const auto outcome =
        ask("SELECT name, user, state FROM job WHERE id IN (SELECT job FROM task) -- all");
    ASSERT_EQ(outcome.response.rows_size(), 1) << outcome.error.message;
    EXPECT_EQ(outcome.response.rows(0).values(1).text(), "nobody");
}

TEST_F(SqlTest, ErrorsSayWhere) {
    const auto syntax = ask("SELECT *\nFROM job WHER id = 1");
    EXPECT_EQ(syntax.code, "invalid_argument");
    EXPECT_EQ(syntax.error.where, "2:15");
    const auto column = ask("SELECT nonesuch FROM job");
    EXPECT_EQ(column.error.where, "1:8");
    EXPECT_NE(column.error.message.find("nonesuch"), std::string::npos);
    EXPECT_EQ(ask("").code, "invalid_argument");
    EXPECT_EQ(ask("  -- nothing\n").code, "invalid_argument");
    EXPECT_EQ(ask("SELECT 1; SELECT 2").code, "invalid_argument");
    EXPECT_EQ(ask("SELECT 1;").code, "ok");
    EXPECT_EQ(ask("SELECT $1").code, "invalid_argument");
    EXPECT_EQ(ask(std::string("SELECT 1\0; DROP TABLE job", 25)).code, "invalid_argument");
    EXPECT_EQ(ask("SELECT '" + std::string(70'000, 'x') + "'").code, "too_large");
}

TEST_F(SqlTest, EveryWayOutIsShut) {
    submit(sleeper());
    for (const char* statement : {
             "ATTACH '/tmp/holdfast-escape.db' AS x",
             "DETACH main",
             "PRAGMA query_only = 0",
             "PRAGMA writable_schema = 1",
             "PRAGMA journal_mode = DELETE",
             "SELECT * FROM pragma_table_info('job')",
             "SELECT * FROM pragma_database_list",
             "INSERT INTO pool(name) VALUES ('x')",
             "UPDATE job SET state = 'completed'",
             "DELETE FROM change",
             "WITH x AS (SELECT 1) DELETE FROM job",
             "DROP TABLE job",
             "CREATE TABLE x(a)",
             "CREATE TEMP TABLE x(a)",
             "CREATE VIEW x AS SELECT 1",
             "CREATE TEMP TRIGGER x AFTER INSERT ON job BEGIN SELECT 1; END",
             "VACUUM INTO '/tmp/holdfast-escape.db'",
             "BEGIN IMMEDIATE",
             "SAVEPOINT x",
             "REINDEX",
             "ANALYZE",
             "ALTER TABLE job RENAME TO x",
             "SELECT load_extension('/tmp/x.so')",
             "SELECT writefile('/tmp/holdfast-escape', 'x')",
             "SELECT readfile('/etc/passwd')",
             "SELECT fts3_tokenizer('simple')",
             "SELECT hash FROM token",
             "SELECT * FROM token",
             "SELECT count(*) FROM token WHERE hash LIKE 'a%'",
             "SELECT id FROM token ORDER BY hash",
             "SELECT max(t.hash) FROM (SELECT * FROM token) t",
             "WITH t AS (SELECT hash AS h FROM token) SELECT h FROM t",
             "SELECT secret FROM lease",
             "SELECT cluster_key FROM training_run",
             "SELECT * FROM idempotency",
             "SELECT answer FROM idempotency",
             "SELECT * FROM sqlite_dbpage",
             "SELECT * FROM dbstat",
         }) {
        const auto outcome = ask(statement);
        EXPECT_TRUE(outcome.code == "denied" || outcome.code == "invalid_argument")
            << statement << ": " << outcome.code << " " << outcome.error.message;
        EXPECT_EQ(outcome.response.rows_size(), 0) << statement;
    }
    EXPECT_FALSE(std::filesystem::exists("/tmp/holdfast-escape.db"));
    EXPECT_EQ(count("SELECT count(*) FROM job WHERE state = 'pending'"), 1);
    EXPECT_EQ(ask("SELECT id, user, role FROM token").code, "ok");
}

TEST_F(SqlTest, PlainUsersDoNotReadOthersTexts) {
    const std::string anna = token("anna", "user");
    for (const char* statement :
         {"SELECT text FROM log_chunk", "SELECT spec FROM job_spec",
          "SELECT after_json FROM change", "SELECT * FROM change", "SELECT user FROM token"}) {
        EXPECT_EQ(ask(statement, anna).code, "denied") << statement;
        if (std::string(statement) != "SELECT text FROM log_chunk") {
            EXPECT_EQ(ask(statement).code, "ok") << statement;
        }
    }
    EXPECT_EQ(ask("SELECT id, name, user, state, reason FROM job", anna).code, "ok");
    EXPECT_EQ(ask("SELECT seq, tbl, key, op FROM change", anna).code, "ok");
}

TEST_F(SqlTest, TimeIsLimited) {
    const auto begun = std::chrono::steady_clock::now();
    const auto outcome = ask(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "", 200);
    EXPECT_EQ(outcome.code, "timed_out") << outcome.error.message;
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kPatience);
    EXPECT_EQ(ask("SELECT 1").code, "ok");
    EXPECT_EQ(ask("SELECT 1", "", 1'000'000).code, "invalid_argument");
    EXPECT_EQ(ask("SELECT 1", "", -1).code, "invalid_argument");
}

TEST_F(SqlTest, MemoryIsLimited) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "copying megabytes under ThreadSanitizer takes longer than a statement may";
#endif
    for (const char* statement :
         {"SELECT length(randomblob(1000000000))", "SELECT zeroblob(1000000000)",
          "SELECT length(replace(hex(zeroblob(4000000)), '00', hex(zeroblob(4000000))))",
          "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000) SELECT "
          "length(group_concat(hex(zeroblob(500000)))) FROM n",
          "WITH RECURSIVE n(i, b) AS (SELECT 1, hex(zeroblob(500000)) UNION SELECT i + 1, "
          "hex(zeroblob(500000)) FROM n) SELECT count(*) FROM n"}) {
        const auto outcome = ask(statement, "", 20'000);
        EXPECT_EQ(outcome.code, "too_large") << statement << ": " << outcome.error.message;
    }
    EXPECT_EQ(ask("SELECT 1").code, "ok");
}

TEST_F(SqlTest, RowsAndBytesAreLimited) {
    const std::string numbers =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) SELECT i FROM "
        "n";
    const auto few = ask(numbers, "", 0, 7);
    EXPECT_EQ(few.response.rows_size(), 7);
    EXPECT_TRUE(few.response.truncated());
    const auto by_default = ask(numbers);
    EXPECT_EQ(by_default.response.rows_size(), 10'000);
    EXPECT_TRUE(by_default.response.truncated());
    const auto exact = ask(numbers, "", 0, 20'000);
    EXPECT_EQ(exact.response.rows_size(), 20'000);
    EXPECT_FALSE(exact.response.truncated());
    EXPECT_EQ(ask(numbers, "", 0, 100'001).code, "invalid_argument");
    const auto wide =
        ask("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000) SELECT "
            "hex(zeroblob(50000)) FROM n");
    EXPECT_EQ(wide.code, "ok") << wide.error.message;
    EXPECT_TRUE(wide.response.truncated());
    EXPECT_LT(wide.response.ByteSizeLong(), 4U << 20);
}

TEST(SqlAnswer, SurvivesTheWireAndRefusesNonsense) {
    sql::AnswerWriter writer;
    writer.columns({"a", "b"});
    writer.row({std::int64_t{-5}, sql::Bytes{std::string("\0x", 2)}});
    writer.row({0.25, std::monostate{}});
    writer.done(true);
    const auto answer = sql::parse_answer(writer.bytes());
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->columns, (std::vector<std::string>{"a", "b"}));
    ASSERT_EQ(answer->rows.size(), 2U);
    EXPECT_EQ(std::get<std::int64_t>(answer->rows[0][0]), -5);
    EXPECT_EQ(std::get<double>(answer->rows[1][0]), 0.25);
    EXPECT_TRUE(answer->truncated);
    // Every prefix and every changed tag is an error, never a crash or a wrong answer's end.
    for (std::size_t size = 0; size < writer.bytes().size(); ++size) {
        EXPECT_FALSE(sql::parse_answer(writer.bytes().substr(0, size))) << size;
    }
    std::string huge = "C";
    huge += std::string(8, '\xff');
    EXPECT_FALSE(sql::parse_answer(huge));
    EXPECT_FALSE(sql::parse_answer(writer.bytes() + "x"));
    sql::AnswerWriter failed;
    failed.error(make_error(Errc::denied, "no").at("1:2"));
    const auto error = sql::parse_answer(failed.bytes());
    ASSERT_FALSE(error);
    EXPECT_EQ(error.error().code, Errc::denied);
    EXPECT_EQ(error.error().where, "1:2");
}

}  // namespace
}  // namespace holdfast::server::testing
