// SPDX-License-Identifier: Apache-2.0
// Nodes, Pools, Tokens and System.
#pragma once

#include <holdfast.grpc.pb.h>

#include "core.hpp"

namespace holdfast::server {

class NodesService final : public v1::Nodes::Service {
  public:
    explicit NodesService(Core& core) : core_(core) {}

    grpc::Status List(grpc::ServerContext* context, const v1::Empty* request,
                      v1::ListNodesResponse* response) override;
    grpc::Status Add(grpc::ServerContext* context, const v1::NodeRequest* request,
                     v1::AddNodeResponse* response) override;
    grpc::Status Remove(grpc::ServerContext* context, const v1::NodeRequest* request,
                        v1::Empty* response) override;
    grpc::Status Drain(grpc::ServerContext* context, const v1::NodeRequest* request,
                       v1::Node* response) override;
    grpc::Status Undrain(grpc::ServerContext* context, const v1::NodeRequest* request,
                         v1::Node* response) override;
    grpc::Status Cordon(grpc::ServerContext* context, const v1::NodeRequest* request,
                        v1::Node* response) override;

  private:
    grpc::Status set_state(grpc::ServerContext* context, Verb verb, const v1::NodeRequest& request,
                           const std::string& state, v1::Node& response);

    Core& core_;
};

class PoolsService final : public v1::Pools::Service {
  public:
    explicit PoolsService(Core& core) : core_(core) {}

    grpc::Status Create(grpc::ServerContext* context, const v1::Pool* request,
                        v1::Pool* response) override;
    grpc::Status Delete(grpc::ServerContext* context, const v1::Pool* request,
                        v1::Empty* response) override;
    grpc::Status List(grpc::ServerContext* context, const v1::Empty* request,
                      v1::ListPoolsResponse* response) override;

  private:
    Core& core_;
};

class TokensService final : public v1::Tokens::Service {
  public:
    explicit TokensService(Core& core) : core_(core) {}

    /// A user makes tokens for itself, an operator also operator ones, an admin any: nobody gives
    /// what they do not hold.
    grpc::Status Create(grpc::ServerContext* context, const v1::Token* request,
                        v1::Token* response) override;
    grpc::Status List(grpc::ServerContext* context, const v1::Empty* request,
                      v1::ListTokensResponse* response) override;
    grpc::Status Revoke(grpc::ServerContext* context, const v1::Token* request,
                        v1::Empty* response) override;

  private:
    Core& core_;
};

class SystemService final : public v1::System::Service {
  public:
    explicit SystemService(Core& core) : core_(core) {}

    grpc::Status Info(grpc::ServerContext* context, const v1::Empty* request,
                      v1::ServerInfo* response) override;
    grpc::Status Sql(grpc::ServerContext* context, const v1::SqlRequest* request,
                     v1::SqlResponse* response) override;
    grpc::Status History(grpc::ServerContext* context, const v1::HistoryRequest* request,
                         v1::HistoryResponse* response) override;
    grpc::Status Metrics(grpc::ServerContext* context, const v1::Empty* request,
                         v1::MetricsResponse* response) override;

  private:
    Core& core_;
};

/// A secret fit for a token: "hf_" and 256 bits.
std::string make_token_secret(Env& env);

}  // namespace holdfast::server
