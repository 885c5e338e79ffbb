// SPDX-License-Identifier: Apache-2.0
/// How far one output stream of a task has been sent and stored.
///
/// The server says `all below this offset is stored`. After a new connection one chunk goes out
/// alone, from the last offset known to be stored; its answer may name a later offset (a former
/// agent sent more) or an earlier one (the server lost some), and sending goes on from there with a
/// bounded window. Repeats do no harm, gaps never happen.
#pragma once

#include <cstdint>
#include <optional>

namespace holdfast::agent {

class LogStream {
  public:
    static constexpr std::uint64_t kChunkBytes = 64 * 1024;
    static constexpr std::uint64_t kWindowBytes = 4 * kChunkBytes;
    static constexpr std::int64_t kResendUs = 5'000'000;

    struct Range {
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;

        bool operator==(const Range&) const = default;
    };

    /// The file holds this many bytes now.
    void grow(std::uint64_t size);
    /// What to send now, if anything.
    [[nodiscard]] std::optional<Range> next() const;
    void sent(const Range& range, std::int64_t now_us);
    void stored_below(std::uint64_t offset, std::int64_t now_us);
    /// A new connection: nothing of what was under way may be relied on.
    void restart();
    /// Sends again what has had no answer for too long.
    void expire(std::int64_t now_us);

    [[nodiscard]] bool all_stored() const { return stored_ >= size_; }

    [[nodiscard]] std::uint64_t stored() const { return stored_; }

    [[nodiscard]] std::uint64_t unsent() const { return size_ > sent_ ? size_ - sent_ : 0; }

  private:
    std::uint64_t size_ = 0;
    std::uint64_t stored_ = 0;
    std::uint64_t sent_ = 0;
    bool probing_ = true;  ///< no answer yet on this connection
    std::int64_t waiting_since_us_ = -1;
};

}  // namespace holdfast::agent
