// SPDX-License-Identifier: Apache-2.0
#include "log_stream.hpp"

#include <algorithm>

namespace holdfast::agent {

void LogStream::grow(std::uint64_t size) {
    size_ = std::max(size_, size);
}

std::optional<LogStream::Range> LogStream::next() const {
    const std::uint64_t under_way = sent_ - stored_;
    const std::uint64_t window = probing_ ? kChunkBytes : kWindowBytes;
    if (sent_ >= size_ || under_way >= window || (probing_ && under_way > 0)) {
        return std::nullopt;
    }
    return Range{sent_, std::min({size_ - sent_, kChunkBytes, window - under_way})};
}

void LogStream::sent(const Range& range, std::int64_t now_us) {
    sent_ = range.offset + range.bytes;
    if (waiting_since_us_ < 0) {
        waiting_since_us_ = now_us;
    }
}

void LogStream::stored_below(std::uint64_t offset, std::int64_t now_us) {
    // More than the file holds cannot be: it would mean output of another task.
    offset = std::min(offset, size_);
    if (offset < stored_ || offset > sent_) {
        sent_ = offset;
    }
    stored_ = offset;
    probing_ = false;
    waiting_since_us_ = sent_ > stored_ ? now_us : -1;
}

void LogStream::restart() {
    sent_ = stored_;
    probing_ = true;
    waiting_since_us_ = -1;
}

void LogStream::expire(std::int64_t now_us) {
    if (waiting_since_us_ >= 0 && now_us - waiting_since_us_ >= kResendUs) {
        restart();
    }
}

}  // namespace holdfast::agent
