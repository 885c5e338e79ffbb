// SPDX-License-Identifier: Apache-2.0
// One agent's stream: see agent_hub.hpp.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <holdfast.pb.h>

#include <holdfast/services.hpp>

#include "agent_hub.hpp"

namespace holdfast::server {

class AgentSession {
  public:
    static constexpr std::size_t kInboxMax = 1024;
    static constexpr std::size_t kBatchMax = 256;

    AgentSession(Core& core, grpc::ServerContext& context, AgentStream& stream,
                 const services::NodeRow& node, TokenId token)
        : core_(core),
          context_(context),
          stream_(stream),
          node_(node.id),
          name_(node.name),
          instance_(node.instance),
          token_(token) {}

    [[nodiscard]] NodeId node() const { return node_; }

    [[nodiscard]] const std::string& name() const { return name_; }

    [[nodiscard]] const std::string& instance() const { return instance_; }

    [[nodiscard]] TokenId token() const { return token_; }

    /// Leases that the agent reported, or was told of, in this session.
    void knows(LeaseId lease) { told_.insert(lease.value); }

    /// Sends `first`, then works until the stream ends. Runs in a thread of its own.
    void work(const std::vector<v1::ServerMessage>& first);
    /// Reads until the stream ends; in gRPC's thread.
    void read();
    /// Leases of this node changed.
    void wake();
    /// Ends the stream from our side: both threads return.
    void end();
    /// Returns when work() has, which a peer that does not read cannot prevent.
    void wait_for_work();

  private:
    struct Batch {
        std::vector<v1::AgentMessage> messages;
        bool is_woken = false;
        bool is_over = false;
    };

    void converse(const std::vector<v1::ServerMessage>& first);
    Batch take();
    bool send(const std::vector<v1::ServerMessage>& messages);
    Result<std::vector<v1::ServerMessage>> store_messages(
        const std::vector<v1::AgentMessage>& messages);
    Result<> store_task(store::Tx& tx, const v1::TaskStatus& status,
                        std::vector<v1::ServerMessage>& replies);
    Result<> store_log(store::Tx& tx, const v1::LogAppend& log,
                       std::vector<v1::ServerMessage>& replies);
    Result<std::vector<v1::ServerMessage>> news();

    Core& core_;
    grpc::ServerContext& context_;
    AgentStream& stream_;
    const NodeId node_;
    const std::string name_;
    const std::string instance_;
    const TokenId token_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<v1::AgentMessage> inbox_;
    bool woken_ = true;  ///< the first look at the rows needs no delta
    bool over_ = false;
    bool worked_ = false;  ///< work() is through

    // Of the working thread only (and of the hub before it starts).
    std::set<std::int64_t> told_;
    std::set<std::int64_t> stopped_;
};

/// What the server makes of an agent's word on one task, in a transaction: task_started or
/// task_ended, and what to answer. Only leases of `node` count; others are an answer of `denied`.
Result<> apply_status(store::Tx& tx, NodeId node, const v1::TaskStatus& status,
                      std::vector<v1::ServerMessage>& replies);

v1::ServerMessage stop_message(TaskId task, LeaseId lease, std::int64_t grace_ms,
                               const std::string& reason);

}  // namespace holdfast::server
