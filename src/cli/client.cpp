// SPDX-License-Identifier: Apache-2.0
#include "client.hpp"

#include <algorithm>

#include <grpc/support/time.h>

#include <holdfast/rpc.hpp>

#include "holdfast.grpc.pb.h"
#include "text.hpp"

namespace holdfast::cli {
namespace {

constexpr std::int64_t kCallUs = 60 * kSecondUs;       // an answer that takes longer is none
constexpr std::int64_t kWaitSliceUs = 20 * kSecondUs;  // of one Wait call
constexpr std::int64_t kBackoffMinUs = 100'000;
constexpr std::int64_t kBackoffMaxUs = 2 * kSecondUs;
constexpr std::size_t kTokenBytesMax = 4096;

bool may_retry(const Error& error) {
    return error.code == Errc::unavailable || error.code == Errc::store_busy ||
           error.code == Errc::peer_lost;
}

}  // namespace

bool is_ended(const std::string& state) {
    return state == "completed" || state == "failed" || state == "cancelled" ||
           state == "timeout" || state == "node_fail";
}

struct Client::State {
    explicit State(Env& machine) : env(machine) {}

    /// The server's own words say what was tried; only a failed transport needs ours.
    Error error_of(const grpc::Status& status, const grpc::ClientContext& context,
                   const std::string& what) const {
        const bool told = context.GetServerTrailingMetadata().count(rpc::kErrorKey) != 0;
        return rpc::error_from(status, context, told ? "" : what, endpoint);
    }

    /// `call` gets a fresh context and makes one attempt.
    template <typename Answer, typename Call>
    Result<Answer> call(const std::string& what, std::int64_t limit_us, Call&& attempt) {
        grpc::ClientContext context;
        // A span, not an instant: the wall clock may be set while we wait.
        context.set_deadline(gpr_time_from_micros(limit_us, GPR_TIMESPAN));
        rpc::authorize(context, endpoint);
        Answer answer;
        const grpc::Status status = attempt(&context, &answer);
        if (!status.ok()) {
            return fail(error_of(status, context, what));
        }
        return answer;
    }

    /// As call, again and again while the error says that a later try may succeed.
    template <typename Answer, typename Call>
    Result<Answer> call_again(const std::string& what, std::int64_t limit_us,
                              std::int64_t retry_for_us, Call&& attempt) {
        const std::int64_t give_up_us = env.clock.steady_us() + retry_for_us;
        std::int64_t pause_us = kBackoffMinUs;
        while (true) {
            Result<Answer> answer = call<Answer>(what, limit_us, attempt);
            const std::int64_t left_us = give_up_us - env.clock.steady_us();
            if (answer.has_value() || !may_retry(answer.error()) || left_us <= 0) {
                return answer;
            }
            if (notice) {
                std::exchange(notice, nullptr)(answer.error());
            }
            env.clock.sleep_us(std::min(pause_us, left_us));
            pause_us = std::min(pause_us * 2, kBackoffMaxUs);
        }
    }

    Env& env;
    rpc::Endpoint endpoint;
    std::unique_ptr<v1::Jobs::Stub> jobs;
    std::unique_ptr<v1::Nodes::Stub> nodes;
    std::unique_ptr<v1::Pools::Stub> pools;
    std::unique_ptr<v1::Tokens::Stub> tokens;
    std::unique_ptr<v1::System::Stub> system;
    std::function<void(const Error&)> notice;
};

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}

Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::open(Env& env, const ServerFlags& flags) {
    const auto choose = [](const std::optional<std::string>& flag, const char* variable) {
        return flag ? flag : environment_variable(variable);
    };
    auto state = std::make_unique<State>(env);
    state->endpoint.address =
        choose(flags.server, "HOLDFAST_SERVER").value_or(rpc::kDefaultEndpoint);
    state->endpoint.ca_file = choose(flags.ca, "HOLDFAST_CA").value_or("");
    if (const auto file = choose(flags.token_file, "HOLDFAST_TOKEN_FILE"); file) {
        auto text = env.files.read_file(*file, kTokenBytesMax);
        if (!text) {
            return fail(std::move(text).error().within("read the token file").at(*file));
        }
        state->endpoint.token = std::string(trim(*text));
    }
    HOLD_TRY(const std::shared_ptr<grpc::Channel> channel, rpc::make_channel(state->endpoint));
    state->jobs = v1::Jobs::NewStub(channel);
    state->nodes = v1::Nodes::NewStub(channel);
    state->pools = v1::Pools::NewStub(channel);
    state->tokens = v1::Tokens::NewStub(channel);
    state->system = v1::System::NewStub(channel);
    return std::unique_ptr<Client>(new Client(std::move(state)));
}

const std::string& Client::address() const {
    return state_->endpoint.address;
}

void Client::on_retry(std::function<void(const Error&)> notice) {
    state_->notice = std::move(notice);
}

// ------------------------------------------------------------------------------------------- jobs

Result<v1::SubmitResponse> Client::submit(const v1::SubmitRequest& request,
                                          std::int64_t retry_for_us) {
    return state_->call_again<v1::SubmitResponse>(
        "submit", kCallUs, retry_for_us, [&](grpc::ClientContext* context, auto* answer) {
            return state_->jobs->Submit(context, request, answer);
        });
}

namespace {

v1::JobRef reference(std::int64_t job) {
    v1::JobRef ref;
    ref.set_job(job);
    return ref;
}

}  // namespace

Result<v1::Job> Client::get_job(std::int64_t job) {
    return state_->call<v1::Job>(fmt::format("read job-{}", job), kCallUs,
                                 [&](grpc::ClientContext* context, auto* answer) {
                                     return state_->jobs->Get(context, reference(job), answer);
                                 });
}

Result<v1::ListJobsResponse> Client::list_jobs(const v1::ListJobsRequest& request) {
    return state_->call<v1::ListJobsResponse>(
        "list jobs", kCallUs, [&](grpc::ClientContext* context, auto* answer) {
            return state_->jobs->List(context, request, answer);
        });
}

Result<v1::Job> Client::cancel(std::int64_t job, const std::string& reason) {
    v1::CancelRequest request;
    request.set_job(job);
    request.set_reason(reason);
    return state_->call<v1::Job>(fmt::format("cancel job-{}", job), kCallUs,
                                 [&](grpc::ClientContext* context, auto* answer) {
                                     return state_->jobs->Cancel(context, request, answer);
                                 });
}

Result<v1::Job> Client::pause(std::int64_t job) {
    return state_->call<v1::Job>(fmt::format("pause job-{}", job), kCallUs,
                                 [&](grpc::ClientContext* context, auto* answer) {
                                     return state_->jobs->Pause(context, reference(job), answer);
                                 });
}

Result<v1::Job> Client::resume(std::int64_t job) {
    return state_->call<v1::Job>(fmt::format("resume job-{}", job), kCallUs,
                                 [&](grpc::ClientContext* context, auto* answer) {
                                     return state_->jobs->Resume(context, reference(job), answer);
                                 });
}

Result<v1::Job> Client::wait(std::int64_t job, std::int64_t timeout_us, std::int64_t retry_for_us) {
    Clock& clock = state_->env.clock;
    const std::int64_t start_us = clock.steady_us();
    const std::string what = fmt::format("wait for job-{}", job);
    while (true) {
        const std::int64_t left_us =
            timeout_us == kNoLimit ? kWaitSliceUs : timeout_us - (clock.steady_us() - start_us);
        if (left_us <= 0) {
            return fail(make_error(Errc::timed_out, "{}: it has not ended after {}", what,
                                   human_duration(timeout_us))
                            .advise(fmt::format("it goes on; see `hold why {}`", job)));
        }
        const std::int64_t slice_us = std::min(left_us, kWaitSliceUs);
        v1::WaitRequest request;
        request.set_job(job);
        request.set_timeout_ms(std::max<std::int64_t>(slice_us / 1000, 1));
        const std::int64_t asked_us = clock.steady_us();
        auto answer = state_->call_again<v1::Job>(
            what, slice_us + 10 * kSecondUs,
            timeout_us == kNoLimit ? retry_for_us : std::min(retry_for_us, left_us),
            [&](grpc::ClientContext* context, auto* job_now) {
                return state_->jobs->Wait(context, request, job_now);
            });
        if (!answer && answer.error().code != Errc::timed_out) {
            return answer;
        }
        if (answer && is_ended(answer->state())) {
            return answer;
        }
        // A server that answers early with a living job must not make us spin.
        if (clock.steady_us() - asked_us < kBackoffMinUs) {
            clock.sleep_us(kBackoffMinUs);
        }
    }
}

Result<v1::WhyResponse> Client::why(std::int64_t job) {
    return state_->call<v1::WhyResponse>(fmt::format("explain job-{}", job), kCallUs,
                                         [&](grpc::ClientContext* context, auto* answer) {
                                             return state_->jobs->Why(context, reference(job),
                                                                      answer);
                                         });
}

Result<> Client::logs(const v1::LogsRequest& request,
                      const std::function<bool(const v1::LogChunk&)>& on_chunk) {
    grpc::ClientContext context;  // no deadline: a followed job may run for days
    rpc::authorize(context, state_->endpoint);
    const auto stream = state_->jobs->Logs(&context, request);
    v1::LogChunk chunk;
    bool stopped = false;
    while (!stopped && stream->Read(&chunk)) {
        stopped = !on_chunk(chunk);
    }
    if (stopped) {
        context.TryCancel();
        (void)stream->Finish();  // we ended it ourselves: its status says only that
        return {};
    }
    const grpc::Status status = stream->Finish();
    if (!status.ok()) {
        return fail(state_->error_of(status, context,
                                     fmt::format("read the logs of job-{}", request.job())));
    }
    return {};
}

// ------------------------------------------------------------------------------------------ nodes

Result<v1::ListNodesResponse> Client::list_nodes() {
    return state_->call<v1::ListNodesResponse>(
        "list nodes", kCallUs, [&](grpc::ClientContext* context, auto* answer) {
            return state_->nodes->List(context, v1::Empty(), answer);
        });
}

Result<v1::AddNodeResponse> Client::add_node(const v1::NodeRequest& request) {
    return state_->call<v1::AddNodeResponse>(
        "add node " + request.name(), kCallUs, [&](grpc::ClientContext* context, auto* answer) {
            return state_->nodes->Add(context, request, answer);
        });
}

Result<> Client::remove_node(const v1::NodeRequest& request) {
    HOLD_TRY(state_->call<v1::Empty>("remove node " + request.name(), kCallUs,
                                     [&](grpc::ClientContext* context, auto* answer) {
                                         return state_->nodes->Remove(context, request, answer);
                                     }));
    return {};
}

Result<v1::Node> Client::drain(const v1::NodeRequest& request) {
    return state_->call<v1::Node>("drain node " + request.name(), kCallUs,
                                  [&](grpc::ClientContext* context, auto* answer) {
                                      return state_->nodes->Drain(context, request, answer);
                                  });
}

Result<v1::Node> Client::undrain(const v1::NodeRequest& request) {
    return state_->call<v1::Node>("undrain node " + request.name(), kCallUs,
                                  [&](grpc::ClientContext* context, auto* answer) {
                                      return state_->nodes->Undrain(context, request, answer);
                                  });
}

Result<v1::Node> Client::cordon(const v1::NodeRequest& request) {
    return state_->call<v1::Node>("cordon node " + request.name(), kCallUs,
                                  [&](grpc::ClientContext* context, auto* answer) {
                                      return state_->nodes->Cordon(context, request, answer);
                                  });
}

// -------------------------------------------------------------------------------- pools and tokens

Result<v1::Pool> Client::create_pool(const v1::Pool& pool) {
    return state_->call<v1::Pool>("create pool " + pool.name(), kCallUs,
                                  [&](grpc::ClientContext* context, auto* answer) {
                                      return state_->pools->Create(context, pool, answer);
                                  });
}

Result<> Client::delete_pool(const v1::Pool& pool) {
    HOLD_TRY(state_->call<v1::Empty>("delete pool " + pool.name(), kCallUs,
                                     [&](grpc::ClientContext* context, auto* answer) {
                                         return state_->pools->Delete(context, pool, answer);
                                     }));
    return {};
}

Result<v1::ListPoolsResponse> Client::list_pools() {
    return state_->call<v1::ListPoolsResponse>(
        "list pools", kCallUs, [&](grpc::ClientContext* context, auto* answer) {
            return state_->pools->List(context, v1::Empty(), answer);
        });
}

Result<v1::Token> Client::create_token(const v1::Token& token) {
    return state_->call<v1::Token>("create a token", kCallUs,
                                   [&](grpc::ClientContext* context, auto* answer) {
                                       return state_->tokens->Create(context, token, answer);
                                   });
}

Result<v1::ListTokensResponse> Client::list_tokens() {
    return state_->call<v1::ListTokensResponse>(
        "list tokens", kCallUs, [&](grpc::ClientContext* context, auto* answer) {
            return state_->tokens->List(context, v1::Empty(), answer);
        });
}

Result<> Client::revoke_token(const v1::Token& token) {
    HOLD_TRY(state_->call<v1::Empty>(fmt::format("revoke token-{}", token.id()), kCallUs,
                                     [&](grpc::ClientContext* context, auto* answer) {
                                         return state_->tokens->Revoke(context, token, answer);
                                     }));
    return {};
}

// ----------------------------------------------------------------------------------------- system

Result<v1::ServerInfo> Client::info() {
    return state_->call<v1::ServerInfo>(
        "ask the server about itself", kCallUs, [&](grpc::ClientContext* context, auto* answer) {
            return state_->system->Info(context, v1::Empty(), answer);
        });
}

Result<v1::SqlResponse> Client::sql(const v1::SqlRequest& request) {
    const std::int64_t limit_us = std::max(kCallUs, request.timeout_ms() * 1000 + 5 * kSecondUs);
    return state_->call<v1::SqlResponse>("sql", limit_us,
                                         [&](grpc::ClientContext* context, auto* answer) {
                                             return state_->system->Sql(context, request, answer);
                                         });
}

Result<v1::HistoryResponse> Client::history(const v1::HistoryRequest& request) {
    return state_->call<v1::HistoryResponse>(
        "read history", kCallUs, [&](grpc::ClientContext* context, auto* answer) {
            return state_->system->History(context, request, answer);
        });
}

}  // namespace holdfast::cli
