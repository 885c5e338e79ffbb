// SPDX-License-Identifier: Apache-2.0
// Reads tasks' output in order, from where it stands, as often as it is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <holdfast.pb.h>

#include <holdfast/result.hpp>
#include <holdfast/services.hpp>
#include <holdfast/store.hpp>

#include "bells.hpp"

namespace holdfast::server {

class LogReader {
  public:
    /// Of all tasks of `jobs`, or those of one rank (rank ≥ 0). tail_bytes > 0: only so much of
    /// each stream's end. Errors: not_found for a rank that does not exist.
    static Result<LogReader> open(store::ReadTx& tx, const std::vector<services::JobRow>& jobs,
                                  std::int32_t rank, std::int64_t tail_bytes);

    struct Batch {
        std::vector<v1::LogChunk> chunks;  ///< in order of time
        bool is_all = false;               ///< nothing more is stored now
        bool is_ended = false;             ///< nor will be: all jobs had ended before we read
    };

    Result<Batch> next(store::ReadTx& tx);

    /// Ring when there may be more.
    [[nodiscard]] std::vector<Bells::Topic> topics() const;

  private:
    struct Stream {
        TaskId task;
        std::int32_t rank = 0;
        std::string name;
        std::int64_t lease = 0;    ///< of the next chunk, at least
        std::int64_t offset = -1;  ///< the next chunk's is more
        std::int64_t skip = 0;     ///< bytes of that chunk that the tail leaves out
    };

    Result<> start_at_tail(store::ReadTx& tx, Stream& stream, std::int64_t tail_bytes);

    std::vector<JobId> jobs_;
    std::vector<Stream> streams_;
};

}  // namespace holdfast::server
