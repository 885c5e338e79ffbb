// SPDX-License-Identifier: Apache-2.0
#include "jobs_service.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include <pwd.h>

#include <holdfast/log.hpp>
#include <holdfast/services.hpp>

#include "cluster_view.hpp"
#include "convert.hpp"
#include "job_reader.hpp"
#include "log_reader.hpp"
#include "placement_loop.hpp"

namespace holdfast::server {
namespace {

/// How often a call that waits looks whether its client is still there (gRPC's synchronous API
/// tells nobody). Rows are not read then.
constexpr std::chrono::milliseconds kClientCheck{500};
constexpr std::int32_t kListDefault = 1000;
constexpr std::int32_t kListMax = 10'000;
constexpr std::size_t kListBytesMax = 3 << 20;

bool is_root(const std::string& user) {
    if (user == "root") {
        return true;
    }
    std::array<char, 4096> buffer{};
    passwd entry{};
    passwd* found = nullptr;
    return getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found) == 0 &&
           found != nullptr && found->pw_uid == 0;
}

/// The user a job runs as. Jobs never run as root: what root may do belongs in no queue.
Result<std::string> run_as(const Caller& caller, const std::string& asked) {
    if (!asked.empty()) {
        HOLD_TRY(check_user_name(asked));
    }
    const std::string& user = asked.empty() ? caller.user : asked;
    if (user != caller.user && !caller.is_admin()) {
        return fail(make_error(Errc::denied, "submit as {}: {} is not an admin", user, caller.user)
                        .at("user"));
    }
    if (is_root(user)) {
        return fail(make_error(Errc::denied, "submit as {}: jobs do not run as root", user)
                        .at("user")
                        .advise("name the user to run as: --user NAME"));
    }
    return user;
}

/// Counts calls that hold a thread while they wait, so that no user can take all of them.
class WaitingPlace {
  public:
    WaitingPlace(Core& core, std::string user) : core_(core), user_(std::move(user)) {
        const std::lock_guard lock(core_.waiting_mutex);
        of_user_ = ++core_.waiting[user_];
        in_all_ = ++core_.waiting_in_all;
    }

    ~WaitingPlace() {
        const std::lock_guard lock(core_.waiting_mutex);
        --core_.waiting_in_all;
        if (--core_.waiting[user_] == 0) {
            core_.waiting.erase(user_);
        }
    }

    WaitingPlace(const WaitingPlace&) = delete;
    WaitingPlace& operator=(const WaitingPlace&) = delete;

    /// Errors: unavailable when there are too many.
    [[nodiscard]] Result<> check() const {
        if (of_user_ <= Core::kWaitingPerUserMax && in_all_ <= Core::kWaitingMax) {
            return {};
        }
        return fail(make_error(Errc::unavailable, "too many calls wait already ({}; {} of {})",
                               in_all_ - 1, of_user_ - 1, user_)
                        .advise("try again later")
                        .may_retry());
    }

  private:
    Core& core_;
    std::string user_;
    int of_user_ = 0;
    int in_all_ = 0;
};

Error stopping_error() {
    return make_error(Errc::unavailable, "the server is stopping").may_retry();
}

}  // namespace

grpc::Status JobsService::Submit(grpc::ServerContext* context, const v1::SubmitRequest* request,
                                 v1::SubmitResponse* response) {
    return serve(core_, context, Verb::jobs_submit,
                 [&](const Caller& caller) { return submit(caller, *request, *response); });
}

Result<> JobsService::submit(const Caller& caller, const v1::SubmitRequest& request,
                             v1::SubmitResponse& response) {
    if (request.idempotency_key().size() > 256) {
        return fail(make_error(Errc::too_large, "the idempotency key has more than 256 bytes")
                        .at("idempotency_key"));
    }
    HOLD_TRY(const std::string user, run_as(caller, request.user()));
    HOLD_TRY(services::JobSpec raw, from_proto(request.spec()));
    HOLD_TRY(const services::JobSpec spec, services::checked(std::move(raw)));
    const placement::PendingJob as_pending = pending_of(spec, user);
    if (request.dry_run()) {
        HOLD_TRY(const placement::ClusterView view,
                 core_.store->read([](store::ReadTx& tx) { return read_cluster(tx); }));
        const placement::Decision decision =
            placement::decide(view, {as_pending}, placement::fifo_first_fit(), {});
        for (const placement::Placed& placed : decision.placed) {
            response.mutable_warnings()->Add(placed.warnings.begin(), placed.warnings.end());
            for (const auto& at : placed.tasks) {
                const auto node =
                    std::find_if(view.nodes.begin(), view.nodes.end(),
                                 [&](const auto& candidate) { return candidate.id == at.node; });
                response.add_node_names(node == view.nodes.end() ? "" : node->name);
            }
        }
        for (const placement::Waiting& waiting : decision.waiting) {
            response.set_reason(waiting.reason);
            response.mutable_warnings()->Add(waiting.warnings.begin(), waiting.warnings.end());
        }
        return {};
    }
    // Advice on the nodes as they are; the placement loop's own look is what counts.
    HOLD_TRY(const auto nodes, core_.placement->nodes_for_advice());
    const placement::Waiting waiting = placement::explain(*nodes, as_pending);
    const bool is_hopeless = std::any_of(waiting.findings.begin(), waiting.findings.end(),
                                         [](const auto& finding) { return finding.never; });
    store::CallInfo info = call_info(caller, Verb::jobs_submit);
    info.idempotency_key = request.idempotency_key();
    HOLD_TRY(const std::string bytes, core_.store->call_once(info, [&](store::Tx& tx) {
        return services::submit(tx, spec, user).map([&](const services::Submitted& submitted) {
            v1::SubmitResponse answer;
            answer.set_job(submitted.job);
            answer.mutable_warnings()->Add(waiting.warnings.begin(), waiting.warnings.end());
            if (is_hopeless) {
                answer.set_reason(waiting.reason);
            }
            return answer.SerializeAsString();
        });
    }));
    HOLD_CHECK(response.ParseFromString(bytes), "we stored the answer ourselves");
    return {};
}

grpc::Status JobsService::Get(grpc::ServerContext* context, const v1::JobRef* request,
                              v1::Job* response) {
    return serve(core_, context, Verb::jobs_get, [&](const Caller& caller) -> Result<> {
        HOLD_TRY(*response, core_.store->read([&](store::ReadTx& tx) {
            return read_job(tx, request->job(), caller);
        }));
        return {};
    });
}

grpc::Status JobsService::List(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                               v1::ListJobsResponse* response) {
    return serve(core_, context, Verb::jobs_list, [&](const Caller&) -> Result<> {
        if (request->limit() < 0 || request->limit() > kListMax || request->states_size() > 8) {
            return fail(make_error(Errc::invalid_argument,
                                   "list jobs: 0 to {} rows and at most 8 states", kListMax)
                            .at("limit"));
        }
        return core_.store->read([&](store::ReadTx& tx) -> Result<> {
            std::vector<services::JobRow> rows;
            if (request->array() != 0) {
                HOLD_TRY(rows, rows_named(tx, request->array()));
                std::erase_if(rows, [&](const services::JobRow& row) {
                    return row.array_parent != request->array();
                });
            } else {
                services::JobFilter filter;
                filter.states.assign(request->states().begin(), request->states().end());
                filter.user = request->user();
                filter.ended = request->ended();
                filter.limit = request->limit() == 0 ? kListDefault : request->limit();
                HOLD_TRY(rows, services::list_jobs(tx, filter));
            }
            std::vector<v1::Job*> jobs;
            std::size_t bytes = 0;
            for (const services::JobRow& row : rows) {
                v1::Job* job = response->add_jobs();
                *job = to_proto(row);
                jobs.push_back(job);
            }
            HOLD_TRY(add_progress(tx, jobs));
            int kept = 0;
            for (v1::Job* job : jobs) {
                // A list names the gang's shape only: a thousand whole specs would not fit.
                v1::JobSpec shape;
                shape.set_tasks(job->spec().tasks());
                shape.set_tasks_per_node(job->spec().tasks_per_node());
                *job->mutable_spec() = shape;
                bytes += job->ByteSizeLong() + 8;
                kept += bytes <= kListBytesMax ? 1 : 0;
            }
            response->mutable_jobs()->DeleteSubrange(kept, response->jobs_size() - kept);
            return {};
        });
    });
}

/// Acts on every job that `id` names, of one owner, in one transaction.
Result<> JobsService::change(const Caller& caller, Verb verb, std::int64_t id, v1::Job& response,
                             const std::function<Result<>(store::Tx&, JobId)>& act) {
    HOLD_TRY(response,
             core_.store->call(call_info(caller, verb), [&](store::Tx& tx) -> Result<v1::Job> {
                 HOLD_TRY(const auto rows, rows_named(tx, id));
                 int changed = 0;
                 for (const services::JobRow& row : rows) {
                     HOLD_TRY(check_owner(caller, verb, row.user));
                     // Of an array, the elements for which it is too late stay as they are.
                     if (rows.size() > 1 && is_ended(row.state)) {
                         continue;
                     }
                     HOLD_TRY(act(tx, row.id));
                     ++changed;
                 }
                 if (changed == 0) {
                     return fail(Errc::bad_state, "{} {}: it has ended", rule_of(verb).name, id);
                 }
                 return read_job(tx, id, caller);
             }));
    return {};
}

grpc::Status JobsService::Cancel(grpc::ServerContext* context, const v1::CancelRequest* request,
                                 v1::Job* response) {
    return serve(core_, context, Verb::jobs_cancel, [&](const Caller& caller) -> Result<> {
        if (request->reason().size() > 1024) {
            return fail(
                make_error(Errc::too_large, "the reason has more than 1024 bytes").at("reason"));
        }
        const std::string reason = request->reason().empty()
                                       ? fmt::format("cancelled by {}", caller.user)
                                       : request->reason();
        return change(caller, Verb::jobs_cancel, request->job(), *response,
                      [&](store::Tx& tx, JobId job) { return services::cancel(tx, job, reason); });
    });
}

grpc::Status JobsService::Pause(grpc::ServerContext* context, const v1::JobRef* request,
                                v1::Job* response) {
    return serve(core_, context, Verb::jobs_pause, [&](const Caller& caller) {
        return change(caller, Verb::jobs_pause, request->job(), *response, services::pause);
    });
}

grpc::Status JobsService::Resume(grpc::ServerContext* context, const v1::JobRef* request,
                                 v1::Job* response) {
    return serve(core_, context, Verb::jobs_resume, [&](const Caller& caller) {
        return change(caller, Verb::jobs_resume, request->job(), *response, services::resume);
    });
}

grpc::Status JobsService::Wait(grpc::ServerContext* context, const v1::WaitRequest* request,
                               v1::Job* response) {
    return serve(core_, context, Verb::jobs_wait, [&](const Caller& caller) -> Result<> {
        const WaitingPlace place(core_, caller.user);
        HOLD_TRY(place.check());
        if (request->timeout_ms() < 0) {
            return fail(make_error(Errc::invalid_argument, "{} ms is no time to wait",
                                   request->timeout_ms())
                            .at("timeout_ms"));
        }
        HOLD_TRY(const auto ids, core_.store->read([&](store::ReadTx& tx) {
            return services::jobs_named(tx, request->job());
        }));
        std::vector<Bells::Topic> topics;
        std::transform(ids.begin(), ids.end(), std::back_inserter(topics),
                       [](JobId id) { return Bells::of(id); });
        Bells::Listening listening(core_.bells, std::move(topics));
        const std::int64_t begun_us = core_.env.clock.steady_us();
        const std::int64_t timeout_us =
            std::min(request->timeout_ms(), std::int64_t{1} << 40) * 1000;
        while (true) {
            HOLD_TRY(*response, core_.store->read([&](store::ReadTx& tx) {
                return read_job(tx, request->job(), caller);
            }));
            if (is_ended(response->state())) {
                return {};
            }
            std::chrono::microseconds limit = kClientCheck;
            if (timeout_us != 0) {
                const std::int64_t left_us = begun_us + timeout_us - core_.env.clock.steady_us();
                if (left_us <= 0) {
                    return fail(Errc::timed_out, "job {} is still {} after {} ms", request->job(),
                                response->state(), request->timeout_ms());
                }
                limit = std::min(limit, std::chrono::microseconds(left_us));
            }
            listening.wait(limit);
            if (context->IsCancelled()) {
                return fail(Errc::cancelled, "wait for job {}: the client left", request->job());
            }
            if (core_.stopping) {
                return fail(stopping_error());
            }
        }
    });
}

grpc::Status JobsService::Why(grpc::ServerContext* context, const v1::JobRef* request,
                              v1::WhyResponse* response) {
    return serve(core_, context, Verb::jobs_why, [&](const Caller&) -> Result<> {
        HOLD_TRY(*response,
                 core_.store->read([&](store::ReadTx& tx) { return why(tx, request->job()); }));
        return {};
    });
}

grpc::Status JobsService::Logs(grpc::ServerContext* context, const v1::LogsRequest* request,
                               grpc::ServerWriter<v1::LogChunk>* writer) {
    return serve(core_, context, Verb::jobs_logs, [&](const Caller& caller) -> Result<> {
        if (request->rank() < -1 || request->tail_bytes() < 0) {
            return fail(make_error(Errc::invalid_argument,
                                   "logs: rank is -1 (all) or more, tail_bytes 0 or more")
                            .at(request->rank() < -1 ? "rank" : "tail_bytes"));
        }
        const WaitingPlace place(core_, caller.user);
        if (request->follow()) {
            HOLD_TRY(place.check());
        }
        HOLD_TRY(LogReader reader, core_.store->read([&](store::ReadTx& tx) -> Result<LogReader> {
            HOLD_TRY(const auto rows, rows_named(tx, request->job()));
            for (const services::JobRow& row : rows) {
                HOLD_TRY(check_owner(caller, Verb::jobs_logs, row.user));
            }
            return LogReader::open(tx, rows, request->rank(), request->tail_bytes());
        }));
        Bells::Listening listening(core_.bells, reader.topics());
        while (true) {
            HOLD_TRY(LogReader::Batch batch,
                     core_.store->read([&](store::ReadTx& tx) { return reader.next(tx); }));
            for (const v1::LogChunk& chunk : batch.chunks) {
                if (!writer->Write(chunk)) {
                    return fail(Errc::cancelled, "logs of job {}: the client left", request->job());
                }
            }
            if (core_.stopping) {
                return fail(stopping_error());
            }
            if (batch.is_all && (!request->follow() || batch.is_ended)) {
                return {};
            }
            if (batch.is_all) {
                listening.wait(kClientCheck);
            }
            if (context->IsCancelled()) {
                return fail(Errc::cancelled, "logs of job {}: the client left", request->job());
            }
        }
    });
}

}  // namespace holdfast::server
