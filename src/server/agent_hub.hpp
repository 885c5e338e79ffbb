// SPDX-License-Identifier: Apache-2.0
// The server's side of Agents.Connect, and the watch over nodes that fall silent.
//
// A session has two threads: gRPC's, which only reads into a bounded inbox, and its own, which
// turns what came into one store transaction per batch, answers after the commit, and sends what
// the rows say: a lease that the agent was not told of → StartTask, a revoked one → StopTask. What
// an agent runs is decided by rows only; at each registration both sides compare what they hold.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <holdfast.grpc.pb.h>

#include <holdfast/services.hpp>
#include <holdfast/store.hpp>

#include "core.hpp"

namespace holdfast::server {

using AgentStream = grpc::ServerReaderWriter<v1::ServerMessage, v1::AgentMessage>;

class AgentSession;

class AgentHub {
  public:
    explicit AgentHub(Core& core);
    ~AgentHub();
    AgentHub(const AgentHub&) = delete;
    AgentHub& operator=(const AgentHub&) = delete;

    /// Nodes that the rows call alive get a full time of silence from here on.
    Result<> start();
    void stop();

    /// Runs a whole session, in gRPC's thread.
    Result<> serve_stream(const Caller& caller, grpc::ServerContext& context, AgentStream& stream);

    /// From the publisher's thread.
    void on_deltas(const std::vector<store::Delta>& deltas);

    /// The node gave a sign of life.
    void heard(NodeId node, const v1::AgentHeartbeat* heartbeat);

  private:
    struct Heard {
        std::string name;
        std::int64_t at_us = 0;  ///< steady
        bool is_new = false;     ///< not yet in node_heartbeat
        double load1 = 0;
        std::int64_t memory_available_bytes = 0;
    };

    struct Admission {
        std::shared_ptr<AgentSession> session;
        std::vector<v1::ServerMessage> replies;
    };

    Result<Admission> admit(const Caller& caller, const v1::RegisterNode& registration,
                            grpc::ServerContext& context, AgentStream& stream);
    void leave(const std::shared_ptr<AgentSession>& session);
    void run();
    void tick();
    void flush_heartbeats();
    void evict_drained();
    void declare_dead(NodeId node, const Heard& heard, std::int64_t silent_us);

    Core& core_;
    std::mutex mutex_;
    std::map<NodeId, std::shared_ptr<AgentSession>> sessions_;
    std::map<NodeId, Heard> heard_;
    std::set<std::string> left_;  ///< nodes whose stream we saw end: their name is free at once
    std::condition_variable changed_;
    bool stopping_ = false;
    std::int64_t ticked_us_ = 0;
    std::int64_t flushed_us_ = 0;
    std::thread thread_;
};

class AgentsService final : public v1::Agents::Service {
  public:
    explicit AgentsService(Core& core) : core_(core) {}

    grpc::Status Enrol(grpc::ServerContext* context, const v1::EnrolRequest* request,
                       v1::EnrolResponse* response) override;
    grpc::Status Connect(grpc::ServerContext* context, AgentStream* stream) override;

  private:
    Core& core_;
};

}  // namespace holdfast::server
