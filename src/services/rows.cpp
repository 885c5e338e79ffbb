// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <algorithm>
#include <charconv>

namespace holdfast::services {

std::vector<std::int32_t> slots_from_text(const std::string& text) {
    std::vector<std::int32_t> slots;
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at < end;) {
        std::int32_t slot = 0;
        const auto read = std::from_chars(at, end, slot);
        if (read.ec == std::errc{}) {
            slots.push_back(slot);
            at = read.ptr;
        } else {
            ++at;
        }
    }
    return slots;
}

std::string slots_to_text(const std::vector<std::int32_t>& slots) {
    return fmt::format("[{}]", fmt::join(slots, ","));
}

std::optional<std::pair<std::int32_t, std::int32_t>> worker_from_text(const std::string& text) {
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos) {
        return std::nullopt;
    }
    std::pair<std::int32_t, std::int32_t> worker;
    const char* const begin = text.data();
    std::from_chars(begin, begin + colon, worker.first);
    std::from_chars(begin + colon + 1, begin + text.size(), worker.second);
    return worker;
}

std::string worker_to_text(std::int32_t pipeline, std::int32_t stage) {
    return fmt::format("{}:{}", pipeline, stage);
}

bool is_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const auto lead = static_cast<unsigned char>(text[at]);
        const std::size_t length = lead < 0x80   ? 1
                                   : lead < 0xC2 ? 0
                                   : lead < 0xE0 ? 2
                                   : lead < 0xF0 ? 3
                                   : lead < 0xF5 ? 4
                                                 : 0;
        if (length == 0 || at + length > text.size()) {
            return false;
        }
        for (std::size_t next = 1; next < length; ++next) {
            if ((static_cast<unsigned char>(text[at + next]) & 0xC0U) != 0x80U) {
                return false;
            }
        }
        if (length > 2) {
            // The second byte bounds the code point: no overlong forms, surrogates or > 10FFFF.
            const auto second = static_cast<unsigned char>(text[at + 1]);
            if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
                return false;
            }
        }
        at += length;
    }
    return true;
}

Result<> check_name(const std::string& text, const std::string& where) {
    constexpr std::size_t kNameBytesMax = 253;
    const bool known = std::all_of(text.begin(), text.end(), [](char letter) {
        return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
               (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' || letter == '-';
    });
    if (text.empty() || text.size() > kNameBytesMax || !known || text.front() == '-') {
        const std::string shown = is_utf8(text) ? text.substr(0, 64) : "…";
        return fail(make_error(Errc::invalid_argument, "{}: '{}' is not a name", where, shown)
                        .at(where)
                        .advise("use 1 to 253 letters, digits, '.', '_' and '-', not '-' first"));
    }
    return {};
}

Result<> check_line(const std::string& text, std::size_t bytes_max, const std::string& where) {
    if (text.size() > bytes_max) {
        return fail(make_error(Errc::invalid_argument, "{}: {} bytes; at most {} are allowed",
                               where, text.size(), bytes_max)
                        .at(where));
    }
    const bool control = std::any_of(text.begin(), text.end(), [](char letter) {
        return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F;
    });
    if (control || !is_utf8(text)) {
        return fail(make_error(Errc::invalid_argument,
                               "{}: holds control characters or is not UTF-8", where)
                        .at(where));
    }
    return {};
}

bool is_ended(std::string_view job_state) {
    return job_state == "completed" || job_state == "failed" || job_state == "cancelled" ||
           job_state == "timeout" || job_state == "node_fail";
}

LeaseRow lease_from(const store::Row& row) {
    LeaseRow lease;
    lease.id = row.id<LeaseId>(0);
    lease.task = row.id<TaskId>(1);
    lease.job = row.id<JobId>(2);
    lease.node = row.id<NodeId>(3);
    lease.resources.cpus = row.integer(4);
    lease.resources.memory_bytes = row.integer(5);
    lease.resources.gpus = row.integer(6);
    lease.gpu_slots = slots_from_text(row.text(7));
    return lease;
}

Result<std::optional<LeaseRow>> lease_of_task(store::ReadTx& tx, TaskId task) {
    HOLD_TRY(
        const auto row,
        tx.query_one("SELECT " HOLD_LEASE_COLUMNS ", secret FROM lease WHERE task = $1", task));
    if (!row) {
        return std::nullopt;
    }
    LeaseRow lease = lease_from(*row);
    lease.secret = row->text("secret");
    return lease;
}

Result<TaskBrief> find_task(store::ReadTx& tx, TaskId task) {
    HOLD_TRY(const auto row,
             tx.query_one("SELECT job, rank, state, lease, last_lease, worker FROM task "
                          "WHERE id = $1",
                          task));
    if (!row) {
        return fail(Errc::not_found, "no {}", task.label());
    }
    TaskBrief brief;
    brief.id = task;
    brief.job = row->id<JobId>("job");
    brief.rank = static_cast<std::int32_t>(row->integer("rank"));
    brief.state = row->text("state");
    brief.lease = row->id<LeaseId>("lease");
    brief.last_lease = row->id<LeaseId>("last_lease");
    brief.worker = row->text("worker");
    return brief;
}

Result<JobBrief> find_brief(store::ReadTx& tx, JobId job) {
    HOLD_TRY(
        const auto row,
        tx.query_one("SELECT state, recovery, restarts, array_parent FROM job WHERE id = $1", job));
    if (!row) {
        return fail(make_error(Errc::not_found, "no {}", job.label())
                        .advise("`hold jobs --all` lists jobs, ended ones included"));
    }
    JobBrief brief;
    brief.id = job;
    brief.state = row->text("state");
    brief.recovery = row->text("recovery");
    brief.restarts = static_cast<std::int32_t>(row->integer("restarts"));
    brief.array_parent = row->integer("array_parent");
    return brief;
}

Result<std::string> node_name(store::ReadTx& tx, NodeId node) {
    HOLD_TRY(const auto row, tx.query_one("SELECT name FROM node WHERE id = $1", node));
    if (!row) {
        return fail(Errc::not_found, "no {}", node.label());
    }
    return row->text("name");
}

}  // namespace holdfast::services
