// SPDX-License-Identifier: Apache-2.0
// The server's API as plain calls. gRPC stays in client.cpp.
//
// A call that changes something is tried again only where that is safe: submit carries an
// idempotency key, wait and logs change nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <holdfast/env.hpp>
#include <holdfast/result.hpp>

#include "holdfast.pb.h"

namespace holdfast::cli {

/// As given on the command line; unset ones come from HOLDFAST_SERVER, HOLDFAST_TOKEN_FILE and
/// HOLDFAST_CA.
struct ServerFlags {
    std::optional<std::string> server;
    std::optional<std::string> token_file;
    std::optional<std::string> ca;
};

class Client {
  public:
    /// Errors: invalid_argument, not_found (a file that was named). No connection is made yet.
    static Result<std::unique_ptr<Client>> open(Env& env, const ServerFlags& flags);
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    [[nodiscard]] const std::string& address() const;
    /// Called once when a call is going to be tried again.
    void on_retry(std::function<void(const Error&)> notice);

    /// Tried again while no server answers, for `retry_for_us`.
    Result<v1::SubmitResponse> submit(const v1::SubmitRequest& request, std::int64_t retry_for_us);
    Result<v1::Job> get_job(std::int64_t job);
    Result<v1::ListJobsResponse> list_jobs(const v1::ListJobsRequest& request);
    Result<v1::Job> cancel(std::int64_t job, const std::string& reason);
    Result<v1::Job> pause(std::int64_t job);
    Result<v1::Job> resume(std::int64_t job);
    /// Returns when the job has ended; survives a server that is away for `retry_for_us`.
    /// Errors: timed_out after `timeout_us` (kNoLimit: none).
    Result<v1::Job> wait(std::int64_t job, std::int64_t timeout_us, std::int64_t retry_for_us);
    Result<v1::WhyResponse> why(std::int64_t job);
    /// Until the stream ends or `on_chunk` says false.
    Result<> logs(const v1::LogsRequest& request,
                  const std::function<bool(const v1::LogChunk&)>& on_chunk);

    Result<v1::ListNodesResponse> list_nodes();
    Result<v1::AddNodeResponse> add_node(const v1::NodeRequest& request);
    Result<> remove_node(const v1::NodeRequest& request);
    Result<v1::Node> drain(const v1::NodeRequest& request);
    Result<v1::Node> undrain(const v1::NodeRequest& request);
    Result<v1::Node> cordon(const v1::NodeRequest& request);

    Result<v1::Pool> create_pool(const v1::Pool& pool);
    Result<> delete_pool(const v1::Pool& pool);
    Result<v1::ListPoolsResponse> list_pools();
    Result<v1::Token> create_token(const v1::Token& token);
    Result<v1::ListTokensResponse> list_tokens();
    Result<> revoke_token(const v1::Token& token);

    Result<v1::ServerInfo> info();
    Result<v1::SqlResponse> sql(const v1::SqlRequest& request);
    Result<v1::HistoryResponse> history(const v1::HistoryRequest& request);

  private:
    struct State;
    explicit Client(std::unique_ptr<State> state);

    std::unique_ptr<State> state_;
};

/// completed, failed, cancelled, timeout or node_fail.
[[nodiscard]] bool is_ended(const std::string& job_state);

}  // namespace holdfast::cli
