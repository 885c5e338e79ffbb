// SPDX-License-Identifier: Apache-2.0
#include "agent_hub.hpp"

#include <algorithm>
#include <chrono>

#include <holdfast/log.hpp>
#include <holdfast/metrics.hpp>

#include "admin_services.hpp"
#include "agent_session.hpp"
#include "training_hub.hpp"

namespace holdfast::server {
namespace {

constexpr int kReportedTasksMax = 100'000;
constexpr std::int64_t kFlushUs = kSecondUs;
constexpr std::int64_t kAnswersLifeUs = 24 * 3600 * kSecondUs;
constexpr std::int64_t kForgetEveryUs = 600 * kSecondUs;

Gauge& sessions_gauge() {
    static Gauge& gauge =
        Metrics::global().gauge("holdfast_server_agent_sessions", "Agents whose stream is open");
    return gauge;
}

services::NodeRegistration registration_of(const v1::RegisterNode& wire) {
    services::NodeRegistration node;
    node.name = wire.name();
    if (!wire.pool().empty()) {
        node.pool = wire.pool();
    }
    node.address = wire.address();
    node.version = wire.version();
    node.instance = wire.instance();
    node.capacity.cpus = wire.capacity().cpus();
    node.capacity.memory_bytes = wire.capacity().memory_bytes();
    node.capacity.gpus = wire.capacity().gpus();
    node.capacity.gpu_type = wire.capacity().gpu_type();
    return node;
}

struct Reconciled {
    services::NodeRow node;
    std::vector<v1::ServerMessage> replies;
    std::vector<LeaseId> known;  ///< the agent runs them
};

/// Both sides agree on what the node runs: reported → started or ended; running by the rows but
/// unknown to the agent → lost; revoked and unknown → confirmed; reported but not held → stop.
Result<> reconcile(store::Tx& tx, const v1::RegisterNode& registration, Reconciled& out) {
    std::set<std::int64_t> reported;
    for (const v1::TaskStatus& status : registration.tasks()) {
        reported.insert(status.lease());
        if (status.state() == "running") {
            out.known.emplace_back(status.lease());
        }
        auto applied = apply_status(tx, out.node.id, status, out.replies);
        if (!applied && applied.error().code != Errc::denied) {
            return applied;
        }
        if (!applied) {
            out.replies.push_back(stop_message(TaskId(status.task()), LeaseId(status.lease()), 0,
                                               applied.error().message));
        }
    }
    HOLD_TRY(const auto leases, services::leases_of_node(tx, out.node.id));
    for (const services::LeaseRow& lease : leases) {
        if (reported.contains(lease.id.value)) {
            continue;
        }
        HOLD_TRY(const auto task, tx.query_one("SELECT state FROM task WHERE id = $1", lease.task));
        if (task && task->text("state") == "running") {
            HOLD_TRY(services::lease_lost(
                tx, lease.task, lease.id,
                fmt::format("the agent of {} came back without it", out.node.name)));
        }
    }
    HOLD_TRY(const auto revoked, services::revoked_of_node(tx, out.node.id));
    for (const services::LeaseRow& lease : revoked) {
        if (!reported.contains(lease.id.value)) {
            HOLD_TRY(services::confirm_revoked(tx, lease.id));
        }
    }
    return {};
}

}  // namespace

AgentHub::AgentHub(Core& core) : core_(core) {}

AgentHub::~AgentHub() {
    stop();
}

Result<> AgentHub::start() {
    HOLD_TRY(const auto nodes,
             core_.store->read([](store::ReadTx& tx) { return services::list_nodes(tx); }));
    const std::int64_t now_us = core_.env.clock.steady_us();
    for (const services::NodeRow& node : nodes) {
        if (node.state != "down" && node.state != "removed") {
            heard_[node.id] = {.name = node.name, .at_us = now_us};
        }
    }
    ticked_us_ = now_us;
    thread_ = std::thread([this] { run(); });
    return {};
}

void AgentHub::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

Result<AgentHub::Admission> AgentHub::admit(const Caller& caller,
                                            const v1::RegisterNode& registration,
                                            grpc::ServerContext& context, AgentStream& stream) {
    if (caller.role == Role::node && caller.user != registration.name()) {
        return fail(Errc::denied, "register node {}: the token is node {}'s", registration.name(),
                    caller.user);
    }
    if (registration.tasks_size() > kReportedTasksMax || registration.instance().empty() ||
        registration.instance().size() > 128) {
        return fail(make_error(Errc::invalid_argument,
                               "register node {}: at most {} tasks, and an instance of 1 to 128 "
                               "bytes",
                               registration.name(), kReportedTasksMax));
    }
    bool is_name_free = false;
    {
        const std::lock_guard lock(mutex_);
        is_name_free = left_.contains(registration.name());
        for (const auto& [node, session] : sessions_) {
            if (session->name() == registration.name()) {
                is_name_free = session->instance() == registration.instance();
            }
        }
    }
    Reconciled reconciled;
    HOLD_TRY(core_.store->call(
        {.procedure = "register_node", .who = registration.name(), .cause = "agent"},
        [&](store::Tx& tx) -> Result<> {
            HOLD_TRY(reconciled.node,
                     services::register_node(tx, registration_of(registration),
                                             is_name_free ? 0 : core_.options.node_dead_ms * 1000));
            return reconcile(tx, registration, reconciled);
        }));
    auto session =
        std::make_shared<AgentSession>(core_, context, stream, reconciled.node, caller.token);
    for (const LeaseId lease : reconciled.known) {
        session->knows(lease);
    }
    Admission admission{.session = session, .replies = {}};
    v1::Registered& registered = *admission.replies.emplace_back().mutable_registered();
    registered.set_node(reconciled.node.id.value);
    registered.set_epoch(reconciled.node.epoch);
    registered.set_heartbeat_interval_ms(core_.options.heartbeat_interval_ms);
    admission.replies.insert(admission.replies.end(), reconciled.replies.begin(),
                             reconciled.replies.end());
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [node, former] : sessions_) {
            if (former->name() == session->name()) {
                former->end();  // it is in the map, so its handler, and with it its stream, lives
            }
        }
        sessions_[session->node()] = session;
        left_.erase(session->name());
        heard_[session->node()] = {
            .name = session->name(), .at_us = core_.env.clock.steady_us(), .is_new = true};
        sessions_gauge().set(static_cast<double>(sessions_.size()));
    }
    HOLD_EVENT(info, "node_registered", {"node", session->name()}, {"epoch", reconciled.node.epoch},
               {"tasks", registration.tasks_size()});
    return admission;
}

void AgentHub::leave(const std::shared_ptr<AgentSession>& session) {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(session->node());
    if (found == sessions_.end() || found->second != session) {
        return;  // replaced by a newer one
    }
    sessions_.erase(found);
    left_.insert(session->name());
    sessions_gauge().set(static_cast<double>(sessions_.size()));
    HOLD_EVENT(info, "node_disconnected", {"node", session->name()});
}

Result<> AgentHub::serve_stream(const Caller& caller, grpc::ServerContext& context,
                                AgentStream& stream) {
    v1::AgentMessage first;
    if (!stream.Read(&first)) {
        return fail(Errc::cancelled, "the agent left without a word");
    }
    if (!first.has_registration()) {
        return fail(Errc::invalid_argument, "an agent's first message is its registration");
    }
    auto admission = admit(caller, first.registration(), context, stream);
    if (!admission) {
        v1::ServerMessage refused;
        refused.mutable_refused()->set_code(std::string(to_string(admission.error().code)));
        refused.mutable_refused()->set_message(admission.error().message);
        refused.mutable_refused()->set_where(admission.error().where);
        refused.mutable_refused()->set_hint(admission.error().hint);
        stream.Write(refused);
        return fail(admission.error());
    }
    const std::shared_ptr<AgentSession> session = admission->session;
    std::thread worker([&] { session->work(admission->replies); });
    session->read();
    session->wait_for_work();
    worker.join();
    leave(session);
    if (core_.stopping) {
        return fail(make_error(Errc::unavailable, "the server is stopping").may_retry());
    }
    return {};
}

void AgentHub::on_deltas(const std::vector<store::Delta>& deltas) {
    std::set<NodeId> woken;
    std::set<NodeId> removed;
    std::set<TokenId> revoked;
    for (const store::Delta& delta : deltas) {
        if (delta.table == "lease" || delta.table == "lease_revoked") {
            woken.insert(delta.row().id<NodeId>("node"));
        } else if (delta.table == "node" && delta.row().text("state") == "removed") {
            removed.insert(delta.row().id<NodeId>("id"));
        } else if (delta.table == "token" && delta.row().integer("revoked_us") != 0) {
            revoked.insert(delta.row().id<TokenId>("id"));
        }
    }
    if (woken.empty() && removed.empty() && revoked.empty()) {
        return;
    }
    const std::lock_guard lock(mutex_);
    for (const NodeId node : removed) {
        heard_.erase(node);
    }
    for (const auto& [node, session] : sessions_) {
        if (woken.contains(node)) {
            session->wake();
        }
        if (removed.contains(node) ||
            (session->token().is_set() && revoked.contains(session->token()))) {
            session->end();
        }
    }
}

void AgentHub::heard(NodeId node, const v1::AgentHeartbeat* heartbeat) {
    const std::lock_guard lock(mutex_);
    const auto found = heard_.find(node);
    if (found == heard_.end()) {
        return;  // declared dead: it must register again
    }
    found->second.at_us = core_.env.clock.steady_us();
    found->second.is_new = true;
    if (heartbeat != nullptr) {
        found->second.load1 = heartbeat->load1();
        found->second.memory_available_bytes = heartbeat->memory_available_bytes();
    }
}

void AgentHub::run() {
    const std::int64_t period_ms =
        std::clamp<std::int64_t>(core_.options.node_dead_ms / 20, 10, 250);
    std::int64_t forgot_us = 0;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(period_ms),
                              [this] { return stopping_; })) {
        lock.unlock();
        tick();
        const std::int64_t now_us = core_.env.clock.steady_us();
        if (now_us - flushed_us_ >= kFlushUs) {
            flushed_us_ = now_us;
            flush_heartbeats();
            evict_drained();
        }
        if (now_us - forgot_us >= kForgetEveryUs) {
            forgot_us = now_us;
            if (auto done =
                    core_.store->forget_answers_before(core_.env.clock.wall_us() - kAnswersLifeUs);
                !done) {
                HOLD_EVENT(warn, "answers_not_forgotten", {"why", done.error()});
            }
        }
        lock.lock();
    }
}

void AgentHub::tick() {
    const std::int64_t now_us = core_.env.clock.steady_us();
    const std::int64_t dead_us = core_.options.node_dead_ms * 1000;
    std::map<NodeId, Heard> silent;
    {
        const std::lock_guard lock(mutex_);
        // If we were stopped ourselves (SIGSTOP, a suspended machine), what the nodes said
        // meanwhile still waits to be read: let it be.
        const bool was_away = now_us - ticked_us_ > dead_us / 2;
        ticked_us_ = now_us;
        for (auto& [node, heard] : heard_) {
            if (was_away) {
                heard.at_us = std::max(heard.at_us, now_us - dead_us / 2);
            }
            if (now_us - heard.at_us >= dead_us) {
                silent[node] = heard;
            }
        }
    }
    for (const auto& [node, heard] : silent) {
        declare_dead(node, heard, now_us - heard.at_us);
    }
}

void AgentHub::declare_dead(NodeId node, const Heard& heard, std::int64_t silent_us) {
    const std::string why =
        fmt::format("node {} was silent for {} ms", heard.name, silent_us / 1000);
    auto done =
        core_.store->call({.procedure = "node_down", .who = "system", .cause = why},
                          [&](store::Tx& tx) { return services::node_down(tx, node, why); });
    if (!done && done.error().code != Errc::bad_state && done.error().code != Errc::not_found) {
        HOLD_EVENT(warn, "node_down_not_stored", {"node", heard.name}, {"why", done.error()});
        return;  // the next tick tries again
    }
    HOLD_EVENT(warn, "node_down", {"node", heard.name}, {"silent_ms", silent_us / 1000});
    const std::lock_guard lock(mutex_);
    heard_.erase(node);
    left_.insert(heard.name);
    if (const auto session = sessions_.find(node); session != sessions_.end()) {
        session->second->end();  // alive after all? then it registers again
    }
}

void AgentHub::flush_heartbeats() {
    std::map<NodeId, Heard> fresh;
    {
        const std::lock_guard lock(mutex_);
        for (auto& [node, heard] : heard_) {
            if (std::exchange(heard.is_new, false)) {
                fresh[node] = heard;
            }
        }
    }
    if (fresh.empty()) {
        return;
    }
    auto done = core_.store->call(
        {.procedure = "heartbeats",
         .who = "system",
         .cause = "agents",
         .durability = store::Durability::relaxed},
        [&](store::Tx& tx) -> Result<> {
            for (const auto& [node, heard] : fresh) {
                HOLD_TRY(services::heartbeat(tx, node, heard.load1, heard.memory_available_bytes));
            }
            return {};
        });
    if (!done) {
        HOLD_EVENT(warn, "heartbeats_not_stored", {"why", done.error()});
    }
}

void AgentHub::evict_drained() {
    const std::int64_t now_us = core_.env.clock.wall_us();
    auto due = core_.store->read([&](store::ReadTx& tx) {
        return tx.query(
            "SELECT id, name FROM node WHERE state = 'draining' AND drain_deadline_us "
            "> 0 AND drain_deadline_us <= $1 AND EXISTS (SELECT 1 FROM lease WHERE "
            "lease.node = node.id)",
            now_us);
    });
    if (!due) {
        HOLD_EVENT(warn, "drains_not_read", {"why", due.error()});
        return;
    }
    for (const store::Row& row : *due) {
        const std::string why =
            fmt::format("node {} is drained, its deadline passed", row.text("name"));
        auto done = core_.store->call(
            {.procedure = "evict_node", .who = "system", .cause = why},
            [&](store::Tx& tx) { return services::evict_node(tx, row.id<NodeId>("id"), why); });
        if (!done) {
            HOLD_EVENT(warn, "node_not_evicted", {"node", row.text("name")}, {"why", done.error()});
        }
    }
}

grpc::Status AgentsService::Enrol(grpc::ServerContext* context, const v1::EnrolRequest* request,
                                  v1::EnrolResponse* response) {
    return serve(core_, context, Verb::agents_enrol, [&](const Caller&) -> Result<> {
        if (request->enrolment_token().empty() || request->enrolment_token().size() > 512 ||
            request->node().empty()) {
            return fail(Errc::unauthenticated, "enrol a node: no enrolment token or no name");
        }
        const std::string secret = make_token_secret(core_.env);
        HOLD_TRY(core_.store->call(
            {.procedure = "Agents.Enrol", .who = request->node(), .cause = "enrolment token"},
            [&](store::Tx& tx) {
                return services::enrol_node(tx, request->enrolment_token(), request->node(),
                                            secret);
            }));
        response->set_node_token(secret);
        return {};
    });
}

grpc::Status AgentsService::Connect(grpc::ServerContext* context, AgentStream* stream) {
    return serve(core_, context, Verb::agents_connect, [&](const Caller& caller) {
        return core_.agents->serve_stream(caller, *context, *stream);
    });
}

}  // namespace holdfast::server
