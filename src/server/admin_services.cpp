// SPDX-License-Identifier: Apache-2.0
#include "admin_services.hpp"

#include <unistd.h>

#include <holdfast/log.hpp>
#include <holdfast/services.hpp>

#include "convert.hpp"
#include "history_reader.hpp"
#include "sql_runner.hpp"

#ifndef HOLDFAST_VERSION
#error "the build passes HOLDFAST_VERSION"
#endif

namespace holdfast::server {
namespace {

constexpr std::int64_t kEnrolmentLifeUs = 24 * 3600 * kSecondUs;

/// Names of nodes and pools stand in paths, environment variables and host lists.
Result<> check_name(const std::string& name, const char* field) {
    const auto is_fine = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '.' || c == '-';
    };
    bool good = !name.empty() && name.size() <= 253 && name[0] != '-' && name[0] != '.';
    for (const char c : name) {
        good = good && is_fine(c);
    }
    if (good) {
        return {};
    }
    return fail(
        make_error(Errc::invalid_argument, "`{}` is no name: 1 to 253 letters, digits, _ . -", name)
            .at(field));
}

Result<> check_reason(const std::string& reason) {
    if (reason.size() > 1024) {
        return fail(
            make_error(Errc::too_large, "the reason has more than 1024 bytes").at("reason"));
    }
    return {};
}

}  // namespace

std::string make_token_secret(Env& env) {
    return "hf_" + env.random.hex(32);
}

grpc::Status NodesService::List(grpc::ServerContext* context, const v1::Empty* /*request*/,
                                v1::ListNodesResponse* response) {
    return serve(core_, context, Verb::nodes_list, [&](const Caller&) -> Result<> {
        HOLD_TRY(const auto nodes,
                 core_.store->read([](store::ReadTx& tx) { return services::list_nodes(tx); }));
        for (const services::NodeRow& node : nodes) {
            *response->add_nodes() = to_proto(node);
        }
        return {};
    });
}

grpc::Status NodesService::Add(grpc::ServerContext* context, const v1::NodeRequest* request,
                               v1::AddNodeResponse* response) {
    return serve(core_, context, Verb::nodes_add, [&](const Caller& caller) -> Result<> {
        HOLD_TRY(check_name(request->name(), "name"));
        const std::string pool = request->pool().empty() ? "default" : request->pool();
        const std::string secret = make_token_secret(core_.env);
        HOLD_TRY(
            core_.store->call(call_info(caller, Verb::nodes_add), [&](store::Tx& tx) -> Result<> {
                HOLD_TRY(services::announce_node(tx, request->name(), pool));
                services::TokenRow token;
                token.user = request->name();
                token.role = "enrol";
                token.description = "enrolment of node " + request->name();
                token.created_us = tx.now_us();
                token.expires_us = tx.now_us() + kEnrolmentLifeUs;
                HOLD_TRY(services::create_token(tx, token, secret));
                return {};
            }));
        response->set_name(request->name());
        response->set_enrolment_token(secret);
        return {};
    });
}

grpc::Status NodesService::Remove(grpc::ServerContext* context, const v1::NodeRequest* request,
                                  v1::Empty* /*response*/) {
    return serve(core_, context, Verb::nodes_remove, [&](const Caller& caller) -> Result<> {
        return core_.store->call(call_info(caller, Verb::nodes_remove), [&](store::Tx& tx) {
            return services::remove_node(tx, request->name());
        });
    });
}

grpc::Status NodesService::set_state(grpc::ServerContext* context, Verb verb,
                                     const v1::NodeRequest& request, const std::string& state,
                                     v1::Node& response) {
    return serve(core_, context, verb, [&](const Caller& caller) -> Result<> {
        HOLD_TRY(check_reason(request.reason()));
        constexpr std::int64_t kDeadlineMaxS = 366 * 86'400;
        if (request.deadline_s() < 0 || request.deadline_s() > kDeadlineMaxS) {
            return fail(make_error(Errc::invalid_argument, "a deadline of {} s: 0 to {}",
                                   request.deadline_s(), kDeadlineMaxS)
                            .at("deadline_s"));
        }
        HOLD_TRY(const services::NodeRow node,
                 core_.store->call(call_info(caller, verb), [&](store::Tx& tx) {
                     const std::int64_t deadline_us =
                         request.deadline_s() == 0 ? 0
                                                   : tx.now_us() + request.deadline_s() * kSecondUs;
                     return services::set_node_state(tx, request.name(), state, request.reason(),
                                                     deadline_us);
                 }));
        response = to_proto(node);
        return {};
    });
}

grpc::Status NodesService::Drain(grpc::ServerContext* context, const v1::NodeRequest* request,
                                 v1::Node* response) {
    return set_state(context, Verb::nodes_drain, *request, "draining", *response);
}

grpc::Status NodesService::Undrain(grpc::ServerContext* context, const v1::NodeRequest* request,
                                   v1::Node* response) {
    return set_state(context, Verb::nodes_undrain, *request, "up", *response);
}

grpc::Status NodesService::Cordon(grpc::ServerContext* context, const v1::NodeRequest* request,
                                  v1::Node* response) {
    return set_state(context, Verb::nodes_cordon, *request, "cordoned", *response);
}

grpc::Status PoolsService::Create(grpc::ServerContext* context, const v1::Pool* request,
                                  v1::Pool* response) {
    return serve(core_, context, Verb::pools_create, [&](const Caller& caller) -> Result<> {
        HOLD_TRY(check_name(request->name(), "name"));
        HOLD_TRY(check_reason(request->description()));
        HOLD_TRY(core_.store->call(call_info(caller, Verb::pools_create), [&](store::Tx& tx) {
            return services::create_pool(tx, request->name(), request->description());
        }));
        response->set_name(request->name());
        response->set_description(request->description());
        return {};
    });
}

grpc::Status PoolsService::Delete(grpc::ServerContext* context, const v1::Pool* request,
                                  v1::Empty* /*response*/) {
    return serve(core_, context, Verb::pools_delete, [&](const Caller& caller) -> Result<> {
        return core_.store->call(call_info(caller, Verb::pools_delete), [&](store::Tx& tx) {
            return services::delete_pool(tx, request->name());
        });
    });
}

grpc::Status PoolsService::List(grpc::ServerContext* context, const v1::Empty* /*request*/,
                                v1::ListPoolsResponse* response) {
    return serve(core_, context, Verb::pools_list, [&](const Caller&) -> Result<> {
        HOLD_TRY(const auto pools,
                 core_.store->read([](store::ReadTx& tx) { return services::list_pools(tx); }));
        for (const services::PoolRow& pool : pools) {
            v1::Pool* out = response->add_pools();
            out->set_name(pool.name);
            out->set_description(pool.description);
            out->set_nodes(pool.nodes);
        }
        return {};
    });
}

namespace {

/// Nobody gives what they do not hold.
Result<> check_grant(const Caller& caller, const std::string& user, const std::string& role) {
    if (caller.is_admin()) {
        return {};
    }
    const bool holds = role == "user" || (role == "operator" && caller.role == Role::operator_);
    if (user != caller.user || !holds) {
        return fail(
            make_error(Errc::denied, "{} (role {}) makes a token of role {} for {}", caller.user,
                       to_string(caller.role), role, user)
                .advise("make one for yourself with a role that you hold, or ask an admin"));
    }
    return {};
}

}  // namespace

grpc::Status TokensService::Create(grpc::ServerContext* context, const v1::Token* request,
                                   v1::Token* response) {
    return serve(core_, context, Verb::tokens_create, [&](const Caller& caller) -> Result<> {
        services::TokenRow token;
        token.role = request->role().empty() ? "user" : request->role();
        const bool is_for_any_node = token.role == "enrol" && request->user().empty();
        token.user = request->user().empty() && !is_for_any_node ? caller.user : request->user();
        if (token.role != "enrol") {
            HOLD_TRY(role_from(token.role));
        }
        if (!is_for_any_node) {
            HOLD_TRY(token.role == "node" || token.role == "enrol" ? check_name(token.user, "user")
                                                                   : check_user_name(token.user));
        }
        HOLD_TRY(check_reason(request->description()));
        HOLD_TRY(check_grant(caller, token.user, token.role));
        if (request->expires_us() < 0 ||
            (request->expires_us() != 0 && request->expires_us() <= core_.env.clock.wall_us())) {
            return fail(make_error(Errc::invalid_argument, "the token would have expired already")
                            .at("expires_us"));
        }
        token.description = request->description();
        token.expires_us = request->expires_us();
        const std::string secret = make_token_secret(core_.env);
        HOLD_TRY(token.id,
                 core_.store->call(call_info(caller, Verb::tokens_create), [&](store::Tx& tx) {
                     token.created_us = tx.now_us();
                     if (token.role == "enrol" && token.expires_us == 0) {
                         token.expires_us = tx.now_us() + kEnrolmentLifeUs;
                     }
                     return services::create_token(tx, token, secret);
                 }));
        *response = to_proto(token);
        response->set_secret(secret);
        return {};
    });
}

grpc::Status TokensService::List(grpc::ServerContext* context, const v1::Empty* /*request*/,
                                 v1::ListTokensResponse* response) {
    return serve(core_, context, Verb::tokens_list, [&](const Caller& caller) -> Result<> {
        HOLD_TRY(const auto tokens,
                 core_.store->read([](store::ReadTx& tx) { return services::list_tokens(tx); }));
        for (const services::TokenRow& token : tokens) {
            if (caller.is_admin() || token.user == caller.user) {
                *response->add_tokens() = to_proto(token);
            }
        }
        return {};
    });
}

grpc::Status TokensService::Revoke(grpc::ServerContext* context, const v1::Token* request,
                                   v1::Empty* /*response*/) {
    return serve(core_, context, Verb::tokens_revoke, [&](const Caller& caller) -> Result<> {
        const TokenId id(request->id());
        return core_.store->call(
            call_info(caller, Verb::tokens_revoke), [&](store::Tx& tx) -> Result<> {
                HOLD_TRY(const auto row, tx.query_one("SELECT user FROM token WHERE id = $1", id));
                // Whose id it is, is nobody else's business: other people's tokens are "not found".
                if (!row || (!caller.is_admin() && row->text("user") != caller.user)) {
                    return fail(Errc::not_found, "no token {} of yours", id.value);
                }
                return services::revoke_token(tx, id);
            });
    });
}

grpc::Status SystemService::Info(grpc::ServerContext* context, const v1::Empty* /*request*/,
                                 v1::ServerInfo* response) {
    return serve(core_, context, Verb::system_info, [&](const Caller& caller) -> Result<> {
        response->set_version(HOLDFAST_VERSION);
        response->set_started_us(core_.started_us);
        response->set_pid(getpid());
        response->set_schema_version(core_.store->schema_version());
        response->set_user(caller.user);
        response->set_role(std::string(to_string(caller.role)));
        if (caller.is_operator()) {
            response->set_data_dir(core_.options.data_dir);
        }
        return {};
    });
}

grpc::Status SystemService::Sql(grpc::ServerContext* context, const v1::SqlRequest* request,
                                v1::SqlResponse* response) {
    // Plain users read too: what the cluster does and why is everybody's business. hold-sql keeps
    // secrets from all, and other people's output, commands and environments from plain users.
    return serve(core_, context, Verb::system_sql, [&](const Caller& caller) -> Result<> {
        const std::int64_t begun_us = core_.env.clock.steady_us();
        HOLD_EVENT(info, "sql_read", {"user", caller.user}, {"sql", request->sql()});
        HOLD_TRY(sql::Answer answer, core_.sql->run(request->sql(), request->rows_max(),
                                                    request->timeout_ms(), !caller.is_operator()));
        *response = to_proto(std::move(answer));
        response->set_elapsed_us(core_.env.clock.steady_us() - begun_us);
        return {};
    });
}

grpc::Status SystemService::History(grpc::ServerContext* context, const v1::HistoryRequest* request,
                                    v1::HistoryResponse* response) {
    return serve(core_, context, Verb::system_history, [&](const Caller& caller) -> Result<> {
        HOLD_TRY(*response, core_.store->read([&](store::ReadTx& tx) {
            return read_history(tx, *request, caller);
        }));
        return {};
    });
}

grpc::Status SystemService::Metrics(grpc::ServerContext* context, const v1::Empty* /*request*/,
                                    v1::MetricsResponse* response) {
    return serve(core_, context, Verb::system_metrics, [&](const Caller&) -> Result<> {
        response->set_text(holdfast::Metrics::global().text());
        return {};
    });
}

}  // namespace holdfast::server
