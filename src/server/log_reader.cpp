// SPDX-License-Identifier: Apache-2.0
#include "log_reader.hpp"

#include <algorithm>

#include "convert.hpp"

namespace holdfast::server {
namespace {

constexpr std::int64_t kChunksPerStream = 64;
constexpr std::size_t kBatchBytesMax = 1 << 20;

std::string text_of(const store::Row& row) {
    const store::Blob& blob = row.blob("text");
    // SAFETY: std::byte and char are both bytes.
    return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

}  // namespace

Result<LogReader> LogReader::open(store::ReadTx& tx, const std::vector<services::JobRow>& jobs,
                                  std::int32_t rank, std::int64_t tail_bytes) {
    LogReader reader;
    for (const services::JobRow& job : jobs) {
        reader.jobs_.push_back(job.id);
        HOLD_TRY(const auto tasks, services::tasks_of(tx, job.id));
        for (const services::TaskRow& task : tasks) {
            if (rank >= 0 && task.rank != rank) {
                continue;
            }
            for (const char* name : {"stdout", "stderr"}) {
                Stream stream{.task = task.id, .rank = task.rank, .name = name};
                if (tail_bytes > 0) {
                    HOLD_TRY(reader.start_at_tail(tx, stream, tail_bytes));
                }
                reader.streams_.push_back(std::move(stream));
            }
        }
    }
    if (reader.streams_.empty()) {
        return fail(make_error(Errc::not_found, "job {} has no task of rank {}",
                               jobs.empty() ? 0 : jobs.front().id.value, rank)
                        .at("rank"));
    }
    return reader;
}

Result<> LogReader::start_at_tail(store::ReadTx& tx, Stream& stream, std::int64_t tail_bytes) {
    constexpr std::int64_t kChunksMax = 10'000;
    HOLD_TRY(const auto rows,
             tx.query("SELECT lease, offset, length(text) AS size FROM log_chunk WHERE task = $1 "
                      "AND stream = $2 ORDER BY lease DESC, offset DESC LIMIT $3",
                      stream.task, stream.name, kChunksMax));
    std::int64_t left = tail_bytes;
    for (const store::Row& row : rows) {
        stream.lease = row.integer("lease");
        stream.offset = row.integer("offset") - 1;
        left -= row.integer("size");
        if (left <= 0) {
            stream.skip = -left;
            break;
        }
    }
    return {};
}

Result<LogReader::Batch> LogReader::next(store::ReadTx& tx) {
    Batch batch;
    batch.is_ended = true;
    for (const JobId job : jobs_) {
        HOLD_TRY(const auto row, tx.query_one("SELECT state FROM job WHERE id = $1", job));
        batch.is_ended = batch.is_ended && (!row || server::is_ended(row->text("state")));
    }
    batch.is_all = true;
    std::size_t bytes = 0;
    for (Stream& stream : streams_) {
        if (bytes >= kBatchBytesMax) {
            batch.is_all = false;
            break;
        }
        HOLD_TRY(const auto rows,
                 tx.query("SELECT lease, offset, at_us, text FROM log_chunk WHERE task = $1 AND "
                          "stream = $2 AND (lease, offset) > ($3, $4) ORDER BY lease, offset "
                          "LIMIT $5",
                          stream.task, stream.name, stream.lease, stream.offset, kChunksPerStream));
        for (const store::Row& row : rows) {
            if (bytes >= kBatchBytesMax) {
                batch.is_all = false;
                break;
            }
            std::string text = text_of(row);
            const auto skipped = std::min<std::size_t>(
                static_cast<std::size_t>(std::exchange(stream.skip, 0)), text.size());
            text.erase(0, skipped);
            stream.lease = row.integer("lease");
            stream.offset = row.integer("offset");
            bytes += text.size();
            v1::LogChunk& chunk = batch.chunks.emplace_back();
            chunk.set_task(stream.task.value);
            chunk.set_rank(stream.rank);
            chunk.set_stream(stream.name);
            chunk.set_offset(stream.offset + static_cast<std::int64_t>(skipped));
            chunk.set_text(std::move(text));
            chunk.set_at_us(row.integer("at_us"));
        }
        batch.is_all = batch.is_all && rows.size() < static_cast<std::size_t>(kChunksPerStream);
    }
    std::stable_sort(batch.chunks.begin(), batch.chunks.end(),
                     [](const auto& a, const auto& b) { return a.at_us() < b.at_us(); });
    return batch;
}

std::vector<Bells::Topic> LogReader::topics() const {
    std::vector<Bells::Topic> topics;
    for (const JobId job : jobs_) {
        topics.push_back(Bells::of(job));
    }
    for (const Stream& stream : streams_) {
        topics.push_back(Bells::output_of(stream.task));
    }
    return topics;
}

}  // namespace holdfast::server
