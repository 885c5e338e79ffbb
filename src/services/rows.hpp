// SPDX-License-Identifier: Apache-2.0
/// Rows ↔ structs, and the checks of words that several services share.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <holdfast/services.hpp>

namespace holdfast::services {

/// Reads "[0,2,3]"; anything else in the text is a bug of whoever wrote the row.
[[nodiscard]] std::vector<std::int32_t> slots_from_text(const std::string& text);
[[nodiscard]] std::string slots_to_text(const std::vector<std::int32_t>& slots);

/// "1:2" → pipeline 1, stage 2; nothing for an ordinary task's empty text.
[[nodiscard]] std::optional<std::pair<std::int32_t, std::int32_t>> worker_from_text(
    const std::string& text);
[[nodiscard]] std::string worker_to_text(std::int32_t pipeline, std::int32_t stage);

[[nodiscard]] bool is_utf8(std::string_view text);
/// Errors: invalid_argument at `where` unless `text` is a name: 1 to 253 of A-Z a-z 0-9 . _ -
[[nodiscard]] Result<> check_name(const std::string& text, const std::string& where);
/// Errors: invalid_argument at `where` for text that is too long, not UTF-8, or holds control
/// characters.
[[nodiscard]] Result<> check_line(const std::string& text, std::size_t bytes_max,
                                  const std::string& where);

[[nodiscard]] bool is_ended(std::string_view job_state);

/// The columns of lease, in the order in which lease_from reads them.
#define HOLD_LEASE_COLUMNS "id, task, job, node, cpus, memory_bytes, gpus, gpu_slots"
[[nodiscard]] LeaseRow lease_from(const store::Row& row);

/// The lease that a task holds now; nothing if it holds none.
[[nodiscard]] Result<std::optional<LeaseRow>> lease_of_task(store::ReadTx& tx, TaskId task);

struct TaskBrief {
    TaskId id;
    JobId job;
    std::int32_t rank = 0;
    std::string state;
    LeaseId lease, last_lease;
    std::string worker;
};

/// Errors: not_found.
[[nodiscard]] Result<TaskBrief> find_task(store::ReadTx& tx, TaskId task);

struct JobBrief {
    JobId id;
    std::string state, recovery;
    std::int32_t restarts = 0;
    std::int64_t array_parent = 0;
};

/// Errors: not_found.
[[nodiscard]] Result<JobBrief> find_brief(store::ReadTx& tx, JobId job);

/// Errors: not_found.
[[nodiscard]] Result<std::string> node_name(store::ReadTx& tx, NodeId node);

}  // namespace holdfast::services
