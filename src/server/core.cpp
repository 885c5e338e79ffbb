// SPDX-License-Identifier: Apache-2.0
#include "core.hpp"

#include <array>
#include <optional>

#include <holdfast/log.hpp>
#include <holdfast/services.hpp>

namespace holdfast::server {
namespace {

/// The token of `authorization: Bearer …`; nothing without such metadata; empty, which is nobody's
/// token, for metadata of another form: who shows a broken token is not taken for the socket's
/// peer.
std::optional<std::string> bearer_token(const grpc::ServerContext& context) {
    constexpr std::string_view kPrefix = "Bearer ";
    constexpr std::size_t kBytesMax = 512;
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("authorization");
    if (found == metadata.end()) {
        return std::nullopt;
    }
    const std::string_view value(found->second.data(), found->second.size());
    if (metadata.count("authorization") != 1 || value.size() > kBytesMax ||
        value.substr(0, kPrefix.size()) != kPrefix) {
        return "";
    }
    return std::string(value.substr(kPrefix.size()));
}

Result<Caller> caller_by_token(Core& core, const std::string& secret) {
    if (secret.empty()) {
        return fail(make_error(Errc::unauthenticated, "the call carries no token")
                        .advise("name a file that holds one with --token-file"));
    }
    HOLD_TRY(const services::TokenRow token, core.store->read([&](store::ReadTx& tx) {
        return services::authenticate(tx, secret, core.env.clock.wall_us());
    }));
    auto role = role_from(token.role);
    if (!role) {  // an enrolment token is good for Agents.Enrol only, where it stands in the
                  // message
        return fail(Errc::unauthenticated, "a token of role {} names nobody", token.role);
    }
    Caller caller;
    caller.user = token.user;
    caller.role = *role;
    caller.token = token.id;
    return caller;
}

Result<Caller> identify(Core& core, const grpc::ServerContext& context, Verb verb) {
    if ((rule_of(verb).roles & kBearer) != 0) {
        // The secret stands in the first message; the handler checks it before anything else.
        Caller caller;
        caller.user = "bearer";
        caller.role = Role::bearer;
        return caller;
    }
    // A token also works on the socket: agents, scripts.
    if (const auto secret = bearer_token(context)) {
        return caller_by_token(core, *secret);
    }
    auto local = core.peers.find(context.peer());
    if (!local && local.error().code == Errc::not_found) {
        return caller_by_token(core, "");
    }
    return local;
}

struct VerbMetrics {
    Counter* calls = nullptr;
    Counter* failures = nullptr;
    Histogram* seconds = nullptr;
};

const VerbMetrics& metrics_of(Verb verb) {
    static const auto table = [] {
        std::array<VerbMetrics, kVerbs.size()> made;
        Metrics& registry = Metrics::global();
        for (std::size_t i = 0; i < kVerbs.size(); ++i) {
            const Labels labels = {{"verb", std::string(kVerbs[i].name)}};
            made[i].calls = &registry.counter("holdfast_server_calls_total", "API calls", labels);
            made[i].failures = &registry.counter("holdfast_server_failed_calls_total",
                                                 "API calls that ended with an error", labels);
            made[i].seconds = &registry.histogram(
                "holdfast_server_call_seconds", "Time of an API call", latency_bounds_s(), labels);
        }
        return made;
    }();
    return table[static_cast<std::size_t>(verb)];
}

bool is_our_fault(Errc code) {
    return code == Errc::internal || code == Errc::store_io || code == Errc::store_corrupt ||
           code == Errc::store_full;
}

}  // namespace

Result<Caller> authorize(Core& core, const grpc::ServerContext& context, Verb verb) {
    if (core.stopping) {
        return fail(make_error(Errc::unavailable, "the server is stopping").may_retry());
    }
    HOLD_TRY(Caller caller, identify(core, context, verb));
    HOLD_TRY(check_role(caller, verb));
    return caller;
}

CallRecord::CallRecord(Core& core, Verb verb)
    : core_(core), verb_(verb), begun_us_(core.env.clock.steady_us()) {
    core_.calls.fetch_add(1, std::memory_order_relaxed);
}

CallRecord::~CallRecord() {
    core_.calls.fetch_sub(1, std::memory_order_acq_rel);
}

grpc::Status CallRecord::finish(const Result<>& result, grpc::ServerContext* context) {
    const VerbMetrics& metrics = metrics_of(verb_);
    metrics.calls->add();
    metrics.seconds->observe(static_cast<double>(core_.env.clock.steady_us() - begun_us_) / 1e6);
    if (result) {
        return grpc::Status::OK;
    }
    metrics.failures->add();
    const Error& error = result.error();
    if (is_our_fault(error.code)) {
        HOLD_EVENT(error, "call_failed", {"verb", rule_of(verb_).name},
                   {"code", to_string(error.code)}, {"why", error.message});
    } else if (error.code == Errc::denied || error.code == Errc::unauthenticated) {
        HOLD_EVENT(info, "call_refused", {"verb", rule_of(verb_).name}, {"peer", context->peer()},
                   {"why", error.message});
    }
    return rpc::to_status(error, context);
}

store::CallInfo call_info(const Caller& caller, Verb verb) {
    return {.procedure = std::string(rule_of(verb).name),
            .who = caller.user,
            .cause = caller.local ? "api (unix socket)" : "api (token)"};
}

}  // namespace holdfast::server
