// SPDX-License-Identifier: Apache-2.0
#include "agent_session.hpp"

#include <algorithm>
#include <chrono>

#include <holdfast/log.hpp>

#include "start_task.hpp"

namespace holdfast::server {
namespace {

constexpr std::size_t kLogBytesMax = 256 << 10;
/// What a cancelled job's tasks have between SIGTERM and SIGKILL. Fenced ones have none.
constexpr std::int64_t kCancelGraceMs = 3'000;

bool is_store_trouble(Errc code) {
    return code == Errc::store_full || code == Errc::store_io || code == Errc::store_busy ||
           code == Errc::store_corrupt || code == Errc::unavailable;
}

/// Whose lease it is: the holder's node, held or revoked; nothing for a number long gone.
Result<std::optional<NodeId>> node_of(store::ReadTx& tx, LeaseId lease) {
    HOLD_TRY(const auto row,
             tx.query_one("SELECT node FROM lease WHERE id = $1 UNION ALL SELECT node FROM "
                          "lease_revoked WHERE id = $1",
                          lease));
    if (!row) {
        return std::optional<NodeId>();
    }
    return std::optional<NodeId>(row->id<NodeId>("node"));
}

}  // namespace

v1::ServerMessage stop_message(TaskId task, LeaseId lease, std::int64_t grace_ms,
                               const std::string& reason) {
    v1::ServerMessage message;
    message.mutable_stop()->set_task(task.value);
    message.mutable_stop()->set_lease(lease.value);
    message.mutable_stop()->set_grace_ms(grace_ms);
    message.mutable_stop()->set_reason(reason);
    return message;
}

Result<> apply_status(store::Tx& tx, NodeId node, const v1::TaskStatus& status,
                      std::vector<v1::ServerMessage>& replies) {
    const TaskId task(status.task());
    const LeaseId lease(status.lease());
    HOLD_TRY(const auto holder, node_of(tx, lease));
    if (holder && *holder != node) {
        return fail(Errc::denied, "task {} lease {} is not held by the node that reports on it",
                    task.value, lease.value);
    }
    const auto acknowledge = [&] {
        v1::ServerMessage message;
        message.mutable_task_ack()->set_task(status.task());
        message.mutable_task_ack()->set_lease(status.lease());
        message.mutable_task_ack()->set_state(status.state());
        replies.push_back(std::move(message));
    };
    auto done = tx.attempt([&](store::Tx& inner) -> Result<> {
        if (status.state() == "running") {
            return services::task_started(inner, task, lease, status.pid());
        }
        if (status.state() == "lost") {
            return services::lease_lost(inner, task, lease, status.reason().substr(0, 1024));
        }
        services::TaskEnd end;
        end.state = status.state();
        end.exit_code = status.exit_code();
        end.signal = status.signal();
        end.reason = status.reason().substr(0, 1024);
        return services::task_ended(inner, task, lease, end);
    });
    if (!done && is_store_trouble(done.error().code)) {
        return done;  // nothing is acknowledged: the agent says it again
    }
    if (!done) {
        HOLD_EVENT(info, "stale_report", {"task", task}, {"lease", lease},
                   {"state", status.state()}, {"why", done.error()});
        if (status.state() == "running") {
            replies.push_back(stop_message(task, lease, 0, done.error().message));
        }
    }
    acknowledge();
    return {};
}

void AgentSession::read() {
    v1::AgentMessage message;
    while (stream_.Read(&message)) {
        core_.agents->heard(node_, message.has_heartbeat() ? &message.heartbeat() : nullptr);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return inbox_.size() < kInboxMax || over_; });
        if (over_) {
            break;
        }
        inbox_.push_back(std::move(message));
        lock.unlock();
        changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
}

void AgentSession::wake() {
    {
        const std::lock_guard lock(mutex_);
        woken_ = true;
    }
    changed_.notify_all();
}

void AgentSession::end() {
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    context_.TryCancel();
    changed_.notify_all();
}

AgentSession::Batch AgentSession::take() {
    Batch batch;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return woken_ || over_ || !inbox_.empty(); });
    batch.is_woken = std::exchange(woken_, false);
    batch.is_over = over_;
    while (!inbox_.empty() && batch.messages.size() < kBatchMax) {
        batch.messages.push_back(std::move(inbox_.front()));
        inbox_.pop_front();
    }
    lock.unlock();
    changed_.notify_all();
    return batch;
}

bool AgentSession::send(const std::vector<v1::ServerMessage>& messages) {
    return std::all_of(messages.begin(), messages.end(),
                       [this](const auto& message) { return stream_.Write(message); });
}

void AgentSession::wait_for_work() {
    constexpr std::chrono::seconds kPatience{1};
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [this] { return worked_; })) {
        context_.TryCancel();
        changed_.wait(lock, [this] { return worked_; });
    }
}

void AgentSession::work(const std::vector<v1::ServerMessage>& first) {
    converse(first);
    const std::lock_guard lock(mutex_);
    worked_ = true;
    changed_.notify_all();
}

void AgentSession::converse(const std::vector<v1::ServerMessage>& first) {
    constexpr std::int64_t kRetryUs = 200'000;
    bool is_open = send(first);
    while (is_open) {
        Batch batch = take();
        if (!batch.messages.empty()) {
            // Also what came before the stream ended: the agent need not say it again.
            auto replies = store_messages(batch.messages);
            if (!replies) {
                HOLD_EVENT(warn, "reports_not_stored", {"node", name_}, {"why", replies.error()});
                core_.env.clock.sleep_us(kRetryUs);  // a full disk should not be hammered
            } else {
                is_open = send(*replies);
            }
        }
        if (batch.is_over && batch.messages.empty()) {
            return;
        }
        if (batch.is_woken && !batch.is_over) {
            auto messages = news();
            if (!messages) {
                HOLD_EVENT(warn, "leases_not_read", {"node", name_}, {"why", messages.error()});
                core_.env.clock.sleep_us(kRetryUs);
                wake();
            } else {
                is_open = is_open && send(*messages);
            }
        }
    }
    end();
}

Result<std::vector<v1::ServerMessage>> AgentSession::store_messages(
    const std::vector<v1::AgentMessage>& messages) {
    std::vector<v1::ServerMessage> replies;
    bool has_task = false;
    bool has_log = false;
    for (const v1::AgentMessage& message : messages) {
        has_task = has_task || message.has_task();
        has_log = has_log || message.has_log();
        if (message.has_heartbeat()) {
            v1::ServerMessage reply;
            reply.mutable_heartbeat()->set_sent_us(message.heartbeat().sent_us());
            replies.push_back(std::move(reply));
        }
    }
    if (!has_task && !has_log) {
        return replies;
    }
    // Transitions are durable; output alone is worth no disk sync.
    const store::CallInfo info{
        .procedure = has_task ? "report_tasks" : "append_logs",
        .who = name_,
        .cause = "agent",
        .durability = has_task ? store::Durability::durable : store::Durability::relaxed};
    HOLD_TRY(core_.store->call(info, [&](store::Tx& tx) -> Result<> {
        for (const v1::AgentMessage& message : messages) {
            if (message.has_task()) {
                HOLD_TRY(store_task(tx, message.task(), replies));
            } else if (message.has_log()) {
                HOLD_TRY(store_log(tx, message.log(), replies));
            }
        }
        return {};
    }));
    return replies;
}

Result<> AgentSession::store_task(store::Tx& tx, const v1::TaskStatus& status,
                                  std::vector<v1::ServerMessage>& replies) {
    auto done = apply_status(tx, node_, status, replies);
    if (!done && done.error().code == Errc::denied) {
        HOLD_EVENT(warn, "report_refused", {"node", name_}, {"why", done.error()});
        return {};
    }
    return done;
}

Result<> AgentSession::store_log(store::Tx& tx, const v1::LogAppend& log,
                                 std::vector<v1::ServerMessage>& replies) {
    const auto answer = [&](std::int64_t offset) {
        v1::ServerMessage reply;
        reply.mutable_log_ack()->set_task(log.task());
        reply.mutable_log_ack()->set_stream(log.stream());
        reply.mutable_log_ack()->set_lease(log.lease());
        reply.mutable_log_ack()->set_offset(offset);
        replies.push_back(std::move(reply));
    };
    const std::int64_t behind = log.offset() + static_cast<std::int64_t>(log.text().size());
    HOLD_TRY(const auto holder, node_of(tx, LeaseId(log.lease())));
    bool is_ours = holder && *holder == node_;
    if (!holder) {  // output that comes after the end: the task's row still says where it ran
        HOLD_TRY(const auto task, tx.query_one("SELECT node FROM task WHERE id = $1", log.task()));
        is_ours = task && task->text("node") == name_;
    }
    if (!is_ours || log.text().size() > kLogBytesMax || log.offset() < 0) {
        answer(behind);  // dropped for good
        return {};
    }
    auto stored = tx.attempt([&](store::Tx& inner) {
        return services::append_log(inner, TaskId(log.task()), LeaseId(log.lease()), log.stream(),
                                    log.offset(), log.text());
    });
    if (stored) {
        answer(*stored);
        return {};
    }
    if (is_store_trouble(stored.error().code)) {
        return fail(stored.error());
    }
    if (stored.error().code == Errc::conflict || stored.error().code == Errc::bad_state) {
        return {};  // a gap: the agent sends again from its last acknowledgement
    }
    answer(behind);
    return {};
}

/// What the rows say that the agent was not told in this session.
Result<std::vector<v1::ServerMessage>> AgentSession::news() {
    std::vector<LeaseId> never_started;
    std::vector<v1::ServerMessage> messages;
    std::set<std::int64_t> present;
    HOLD_TRY(core_.store->read([&](store::ReadTx& tx) -> Result<> {
        HOLD_TRY(const auto leases, services::leases_of_node(tx, node_));
        for (const services::LeaseRow& lease : leases) {
            present.insert(lease.id.value);
            if (told_.contains(lease.id.value)) {
                continue;
            }
            HOLD_TRY(v1::StartTask start, start_task_for(tx, lease));
            *messages.emplace_back().mutable_start() = std::move(start);
            told_.insert(lease.id.value);
        }
        HOLD_TRY(const auto revoked,
                 tx.query("SELECT r.id, r.task, r.reason, j.state FROM lease_revoked r JOIN job j "
                          "ON j.id = r.job WHERE r.node = $1 ORDER BY r.id",
                          node_));
        for (const store::Row& row : revoked) {
            const auto lease = row.id<LeaseId>("id");
            present.insert(lease.value);
            if (!told_.contains(lease.value)) {
                never_started.push_back(lease);
            } else if (stopped_.insert(lease.value).second) {
                messages.push_back(stop_message(
                    row.id<TaskId>("task"), lease,
                    row.text("state") == "cancelled" ? kCancelGraceMs : 0, row.text("reason")));
            }
        }
        return {};
    }));
    const auto is_gone = [&](std::int64_t lease) { return !present.contains(lease); };
    std::erase_if(told_, is_gone);
    std::erase_if(stopped_, is_gone);
    if (!never_started.empty()) {
        // Taken back before the agent heard of them: nothing can be running.
        HOLD_TRY(core_.store->call(
            {.procedure = "confirm_revoked", .who = name_, .cause = "never started"},
            [&](store::Tx& tx) -> Result<> {
                for (const LeaseId lease : never_started) {
                    HOLD_TRY(services::confirm_revoked(tx, lease));
                }
                return {};
            }));
    }
    return messages;
}

}  // namespace holdfast::server
