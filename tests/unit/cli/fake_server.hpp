// SPDX-License-Identifier: Apache-2.0
// A server of canned rows on a unix socket, and a `hold` that runs in this process against it.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include <holdfast/env.hpp>
#include <holdfast/rpc.hpp>

#include "app.hpp"
#include "holdfast.grpc.pb.h"

namespace holdfast::cli::testing {

inline constexpr std::int64_t kNowUs = 1'700'000'000'000'000;  // 2023-11-14T22:13:20Z

/// Virtual: sleeping moves it.
class TestClock : public Clock {
  public:
    std::int64_t wall_us() override { return kNowUs; }

    std::int64_t steady_us() override { return now_us_; }

    void sleep_us(std::int64_t duration_us) override { now_us_ += duration_us; }

  private:
    std::atomic<std::int64_t> now_us_{1};
};

class TestRandom : public Random {
  public:
    std::uint64_t next() override { return ++last_; }

    void fill(std::span<std::byte> bytes) override {
        for (std::byte& byte : bytes) {
            byte = static_cast<std::byte>(++last_);
        }
    }

  private:
    std::uint64_t last_ = 0;
};

v1::Job running_job();   ///< 42, on n01 n02 n03
v1::Job pending_job();   ///< 43
v1::Job training_job();  ///< 45
v1::Job element_job();   ///< 48 = 44_3, failed

class FakeJobs : public v1::Jobs::Service {
  public:
    grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest*,
                        v1::SubmitResponse*) override;
    grpc::Status Get(grpc::ServerContext*, const v1::JobRef*, v1::Job*) override;
    grpc::Status List(grpc::ServerContext*, const v1::ListJobsRequest*,
                      v1::ListJobsResponse*) override;
    grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest*, v1::Job*) override;
    grpc::Status Pause(grpc::ServerContext*, const v1::JobRef*, v1::Job*) override;
    grpc::Status Resume(grpc::ServerContext*, const v1::JobRef*, v1::Job*) override;
    grpc::Status Wait(grpc::ServerContext*, const v1::WaitRequest*, v1::Job*) override;
    grpc::Status Why(grpc::ServerContext*, const v1::JobRef*, v1::WhyResponse*) override;
    grpc::Status Logs(grpc::ServerContext*, const v1::LogsRequest*,
                      grpc::ServerWriter<v1::LogChunk>*) override;

    v1::SubmitRequest submitted;
    v1::SubmitResponse answer;
    std::vector<std::string> keys;  ///< of every attempt
    int refuse_submits = 0;         ///< so many attempts get `unavailable`
    std::string end_state = "completed";
    v1::Job ended;  ///< what run's job becomes
    std::string cancel_reason;
    v1::LogsRequest logs_request;
    int breaks = 0;  ///< so many log streams break half-way
};

class FakeNodes : public v1::Nodes::Service {
  public:
    grpc::Status List(grpc::ServerContext*, const v1::Empty*, v1::ListNodesResponse*) override;
    grpc::Status Add(grpc::ServerContext*, const v1::NodeRequest*, v1::AddNodeResponse*) override;
    grpc::Status Remove(grpc::ServerContext*, const v1::NodeRequest*, v1::Empty*) override;
    grpc::Status Drain(grpc::ServerContext*, const v1::NodeRequest*, v1::Node*) override;
    grpc::Status Undrain(grpc::ServerContext*, const v1::NodeRequest*, v1::Node*) override;
    grpc::Status Cordon(grpc::ServerContext*, const v1::NodeRequest*, v1::Node*) override;

    std::vector<v1::NodeRequest> requests;
};

class FakePools : public v1::Pools::Service {
  public:
    grpc::Status Create(grpc::ServerContext*, const v1::Pool*, v1::Pool*) override;
    grpc::Status Delete(grpc::ServerContext*, const v1::Pool*, v1::Empty*) override;
    grpc::Status List(grpc::ServerContext*, const v1::Empty*, v1::ListPoolsResponse*) override;
};

class FakeTokens : public v1::Tokens::Service {
  public:
    grpc::Status Create(grpc::ServerContext*, const v1::Token*, v1::Token*) override;
    grpc::Status List(grpc::ServerContext*, const v1::Empty*, v1::ListTokensResponse*) override;
    grpc::Status Revoke(grpc::ServerContext*, const v1::Token*, v1::Empty*) override;
};

class FakeSystem : public v1::System::Service {
  public:
    grpc::Status Info(grpc::ServerContext*, const v1::Empty*, v1::ServerInfo*) override;
    grpc::Status Sql(grpc::ServerContext*, const v1::SqlRequest*, v1::SqlResponse*) override;
    grpc::Status History(grpc::ServerContext*, const v1::HistoryRequest*,
                         v1::HistoryResponse*) override;

    v1::HistoryRequest history;
    v1::SqlRequest sql;
};

/// The services, listening on a socket in a folder of their own.
class FakeServer {
  public:
    FakeServer();
    ~FakeServer();

    [[nodiscard]] std::string endpoint() const;

    std::filesystem::path folder;
    FakeJobs jobs;
    FakeNodes nodes;
    FakePools pools;
    FakeTokens tokens;
    FakeSystem system;

  private:
    std::unique_ptr<grpc::Server> server_;
};

struct Ran {
    int status = 0;
    std::string out;
    std::string err;
    std::string program;  ///< that would replace `hold`, and its arguments
    std::vector<std::string> arguments;
};

/// Runs `hold` with these arguments; `input` is its standard input.
Ran hold(const std::vector<std::string>& arguments, const std::string& input = "");

}  // namespace holdfast::cli::testing
