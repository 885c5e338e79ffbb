// SPDX-License-Identifier: Apache-2.0
// Runs hold-sql for System.Sql: one process per statement, killed at its deadline.
#pragma once

#include <atomic>
#include <string>

#include <holdfast/env.hpp>
#include <holdfast/result.hpp>

#include "sql/sql_answer.hpp"

namespace holdfast::server {

class SqlRunner {
  public:
    static constexpr int kAtOnceMax = 4;

    SqlRunner(Env& env, std::string program, std::string database)
        : env_(env), program_(std::move(program)), database_(std::move(database)) {}

    /// Errors: unavailable when kAtOnceMax statements run already, timed_out, and those of
    /// sql::run_query.
    Result<sql::Answer> run(const std::string& statement, std::int64_t rows_max,
                            std::int64_t timeout_ms, bool restricted);

    /// Statements that run end with `unavailable`; later ones, too.
    void stop() { stopping_ = true; }

  private:
    Env& env_;
    std::string program_;
    std::string database_;
    std::atomic<int> running_{0};
    std::atomic<bool> stopping_{false};
};

}  // namespace holdfast::server
