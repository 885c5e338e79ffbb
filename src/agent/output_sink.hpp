// SPDX-License-Identifier: Apache-2.0
/// Carries one output stream of a job from its pipe to the log file.
///
/// The job writes to a pipe and never to the file: so it can neither truncate nor replace what it
/// said, and a full disk is our trouble, not the job's: bytes that do not fit are counted, a line
/// in the log says how many are missing, and the job goes on.
#pragma once

#include <cstdint>

#include "descriptor.hpp"

namespace holdfast::agent {

class OutputSink {
  public:
    OutputSink(Fd pipe, Fd file, std::int64_t bytes_max)
        : pipe_(std::move(pipe)), file_(std::move(file)), bytes_max_(bytes_max) {}

    /// The pipe's reading end, non-blocking; -1 after its end.
    [[nodiscard]] int pipe() const { return pipe_.get(); }

    /// Moves what is there, at most 64 KiB. Returns whether there was any.
    bool carry();
    /// Moves all that is there without waiting for more, and closes the pipe.
    void finish();

    /// Bytes that the disk did not take.
    [[nodiscard]] std::int64_t lost_bytes() const { return lost_total_; }

  private:
    void store(const char* bytes, std::size_t count);
    bool note_loss();

    Fd pipe_;
    Fd file_;
    std::int64_t bytes_max_;
    std::int64_t written_ = 0;
    std::int64_t lost_ = 0;  ///< since the last note in the log
    std::int64_t lost_total_ = 0;
    int lost_errno_ = 0;
    bool limit_noted_ = false;
};

}  // namespace holdfast::agent
