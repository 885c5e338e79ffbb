// SPDX-License-Identifier: Apache-2.0
// Output of tasks on its way to the terminal.
//
// The stream of a followed job may break and be opened again: what was printed before is skipped.
// With several tasks each line begins with its rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <holdfast/result.hpp>

#include "verb.hpp"

namespace holdfast::cli {

struct FollowOptions {
    std::int64_t job = 0;
    std::int32_t rank = -1;  ///< -1: all
    bool follow = false;
    std::int64_t tail_bytes = 0;
    bool prefix = false;
    std::int64_t server_away_us = 0;  ///< how long a broken stream is opened again
};

class LogPrinter {
  public:
    LogPrinter(Session& session, bool prefix) : session_(session), prefix_(prefix) {}

    /// Prints the part of the chunk that is new. Errors: the terminal's.
    Result<> print(const v1::LogChunk& chunk);
    /// Prints lines that have no end yet.
    Result<> finish();

  private:
    struct Seen {
        std::int64_t at_us = 0;
        std::int64_t end = 0;
    };

    using Source = std::pair<std::int32_t, std::string>;  ///< rank, stream

    Result<> lines(const Source& source, std::string_view text);
    Stream& stream_of(const Source& source);

    Session& session_;
    bool prefix_;
    std::map<std::pair<std::int64_t, std::string>, Seen> seen_;
    std::map<Source, std::string> open_lines_;
};

/// Prints a job's output; with `follow` until it has ended.
Result<> print_logs(Session& session, const FollowOptions& options);

}  // namespace holdfast::cli
