// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <sstream>

#include <holdfast/rpc.hpp>

#include "holdfast.pb.h"

namespace holdfast::rpc {
namespace {

Result<std::string> read_certificate(const std::string& path) {
    std::ifstream file(path);
    if (!file) {
        return fail(make_error(Errc::not_found, "read the CA certificate {}: cannot open it", path)
                        .advise("copy tls/ca.crt from the server's data directory"));
    }
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

grpc::ChannelArguments channel_arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
    arguments.SetMaxSendMessageSize(kMessageBytesMax);
    // Reconnect soon: a restarted server should not wait for gRPC's default of up to two minutes.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    // Also how long an attempt may take: a machine under load needs more than the backoff's 100 ms
    // to accept and greet.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    // Each client owns its connection: programs of one process (tests) must not share one.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
}

}  // namespace

Result<std::shared_ptr<grpc::Channel>> make_channel(const Endpoint& endpoint) {
    if (endpoint.address.rfind("unix:", 0) == 0) {
        return grpc::CreateCustomChannel(endpoint.address, grpc::InsecureChannelCredentials(),
                                         channel_arguments());
    }
    const auto colon = endpoint.address.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == endpoint.address.size()) {
        return fail(make_error(Errc::invalid_argument, "server address `{}` is of no known form",
                               endpoint.address)
                        .advise("write unix:/path/to/hold.sock or host:port"));
    }
    if (endpoint.ca_file.empty()) {
        return fail(make_error(Errc::invalid_argument,
                               "connect to {}: TCP needs TLS, and no CA certificate was named",
                               endpoint.address)
                        .advise("pass --ca FILE (tls/ca.crt of the server's data directory)"));
    }
    HOLD_TRY(std::string roots, read_certificate(endpoint.ca_file));
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = std::move(roots);
    return grpc::CreateCustomChannel(endpoint.address, grpc::SslCredentials(options),
                                     channel_arguments());
}

void authorize(grpc::ClientContext& context, const Endpoint& endpoint) {
    if (!endpoint.token.empty()) {
        context.AddMetadata("authorization", "Bearer " + endpoint.token);
    }
}

grpc::Status to_status(const Error& error, grpc::ServerContext* context) {
    if (context != nullptr) {
        v1::Error wire;
        wire.set_code(std::string(to_string(error.code)));
        wire.set_message(error.message);
        wire.set_where(error.where);
        wire.set_hint(error.hint);
        context->AddTrailingMetadata(kErrorKey, wire.SerializeAsString());
    }
    return {static_cast<grpc::StatusCode>(grpc_code_of(error.code)), error.message};
}

namespace {

Errc code_of(grpc::StatusCode status) {
    switch (status) {
        case grpc::StatusCode::UNAVAILABLE:
            return Errc::unavailable;
        case grpc::StatusCode::DEADLINE_EXCEEDED:
            return Errc::timed_out;
        case grpc::StatusCode::UNAUTHENTICATED:
            return Errc::unauthenticated;
        case grpc::StatusCode::PERMISSION_DENIED:
            return Errc::denied;
        case grpc::StatusCode::NOT_FOUND:
            return Errc::not_found;
        case grpc::StatusCode::INVALID_ARGUMENT:
            return Errc::invalid_argument;
        case grpc::StatusCode::UNIMPLEMENTED:
            return Errc::unsupported;
        case grpc::StatusCode::CANCELLED:
            return Errc::cancelled;
        case grpc::StatusCode::RESOURCE_EXHAUSTED:
            return Errc::too_large;
        default:
            return Errc::failed;
    }
}

}  // namespace

Error error_from(const grpc::Status& status, const grpc::ClientContext& context,
                 const std::string& what, const Endpoint& endpoint) {
    const auto& trailing = context.GetServerTrailingMetadata();
    if (const auto found = trailing.find(kErrorKey); found != trailing.end()) {
        v1::Error wire;
        if (wire.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()))) {
            Error error;
            error.code = errc_from(wire.code());
            error.message = what.empty() ? wire.message() : what + ": " + wire.message();
            error.where = wire.where();
            error.hint = wire.hint();
            return error;
        }
    }
    Error error;
    error.code = code_of(status.error_code());
    if (error.code == Errc::unavailable) {
        error.message = fmt::format("{}: no server answers at {} ({})", what, endpoint.address,
                                    status.error_message());
        error.hint = "start one with `hold server --data DIR`, or name it with --server";
        error.retryable = true;
        return error;
    }
    error.message = fmt::format("{}: {}", what, status.error_message());
    return error;
}

}  // namespace holdfast::rpc
