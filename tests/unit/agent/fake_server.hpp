// SPDX-License-Identifier: Apache-2.0
/// The Agents service as a test needs it: it remembers what agents say, answers as a good server
/// does, or does not where the test asks so.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "holdfast.grpc.pb.h"

namespace holdfast::agent {

class FakeServer final : public v1::Agents::Service {
  public:
    explicit FakeServer(std::string socket);
    ~FakeServer() override;

    void start();
    /// As a server that is killed: streams break.
    void stop();

    void send(const v1::ServerMessage& message);
    void start_task(v1::StartTask start);
    void stop_task(std::int64_t task, std::int64_t lease, std::int64_t grace_ms,
                   const std::string& reason);

    /// Waits for the n-th registration (1 is the first) of this object's life.
    v1::RegisterNode registration(std::size_t n);
    /// Waits for a status of that lease with that state.
    v1::TaskStatus status(std::int64_t task, std::int64_t lease, const std::string& state);
    /// How often that state was said, in messages of its own.
    int times_said(std::int64_t task, std::int64_t lease, const std::string& state);
    /// Waits until the stream has at least these bytes and returns it.
    std::string output(std::int64_t task, std::int64_t lease, const std::string& stream,
                       std::size_t bytes);
    bool wait_for(const std::function<bool()>& condition);
    /// In order: "task-lease state".
    std::vector<std::string> said();
    [[nodiscard]] int heartbeats();
    [[nodiscard]] int log_gaps();

    /// What the test chooses.
    struct Behaviour {
        bool acknowledge_tasks = true;
        bool answer_heartbeats = true;
        std::string refuse_code = {};      ///< not empty: every registration is refused with it
        std::string enrolment_token = {};  ///< good for one Enrol
        std::string node_token = {};       ///< not empty: Connect wants it
    };

    void behave(Behaviour behaviour);

    grpc::Status Enrol(grpc::ServerContext* context, const v1::EnrolRequest* request,
                       v1::EnrolResponse* response) override;
    grpc::Status Connect(
        grpc::ServerContext* context,
        grpc::ServerReaderWriter<v1::ServerMessage, v1::AgentMessage>* stream) override;

  private:
    using Stream = grpc::ServerReaderWriter<v1::ServerMessage, v1::AgentMessage>;

    Behaviour behaviour();
    void take(const v1::AgentMessage& message, Stream& stream);

    const std::string socket_;
    std::unique_ptr<grpc::Server> server_;
    std::mutex mutex_;
    std::mutex write_mutex_;
    std::condition_variable changed_;
    Behaviour behaviour_;
    Stream* stream_ = nullptr;
    std::vector<v1::RegisterNode> registrations_;
    std::vector<v1::TaskStatus> statuses_;
    std::map<std::string, std::string> outputs_;
    int heartbeats_ = 0;
    int log_gaps_ = 0;
};

}  // namespace holdfast::agent
