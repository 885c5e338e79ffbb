// SPDX-License-Identifier: Apache-2.0
/// What every program that speaks gRPC shares: endpoints, credentials, and errors across the wire.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include <holdfast/result.hpp>

namespace holdfast::rpc {

inline constexpr const char* kDefaultEndpoint = "unix:/run/holdfast/hold.sock";
/// Trailing metadata that carries a serialised holdfast.v1.Error.
inline constexpr const char* kErrorKey = "holdfast-error-bin";
/// Both directions; larger messages are refused before they are read.
inline constexpr int kMessageBytesMax = 4 << 20;

struct Endpoint {
    std::string address = kDefaultEndpoint;  ///< `unix:/path` or `host:port` (TLS)
    std::string ca_file;                     ///< TLS: the server's CA certificate, PEM
    std::string token;                       ///< TLS: bearer token; empty on the unix socket
};

/// Errors: invalid_argument for an address of neither form, or TLS without a CA file; not_found for
/// a missing CA file.
Result<std::shared_ptr<grpc::Channel>> make_channel(const Endpoint& endpoint);

/// Puts the endpoint's token into the call. No effect without one.
void authorize(grpc::ClientContext& context, const Endpoint& endpoint);

/// An Error as a gRPC status; `context` (may be null) gets the whole Error in trailing metadata.
grpc::Status to_status(const Error& error, grpc::ServerContext* context);

/// The Error that a failed call carries; `what` says what was tried ("submit job.yaml").
Error error_from(const grpc::Status& status, const grpc::ClientContext& context,
                 const std::string& what, const Endpoint& endpoint);

}  // namespace holdfast::rpc
