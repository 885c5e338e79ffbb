// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

#include <grpcpp/server_posix.h>
#include <sys/stat.h>
#include <unistd.h>

#include <holdfast/server.hpp>
#include <holdfast/services.hpp>

#include "admin_services.hpp"
#include "agent_hub.hpp"
#include "core.hpp"
#include "jobs_service.hpp"
#include "placement_loop.hpp"
#include "sql_runner.hpp"
#include "tls.hpp"
#include "training_hub.hpp"

namespace holdfast::server {
namespace {

constexpr int kThreadsMax = 4096;  ///< a stream or a waiting call holds one
constexpr std::chrono::milliseconds kGraceForCalls{500};
constexpr std::int64_t kEnrolmentLifeUs = 24 * 3600 * kSecondUs;

struct HostPort {
    std::string host;
    int port = 0;
};

Result<HostPort> split(const std::string& listen) {
    const auto bad = [&](const char* why) {
        return fail(
            make_error(Errc::invalid_argument, "`{}` is no address to listen on: {}", listen, why)
                .at("--listen")
                .advise("write HOST:PORT, for example 0.0.0.0:7070"));
    };
    const auto colon = listen.rfind(':');
    if (colon == std::string::npos || colon == 0) {
        return bad("no host");
    }
    HostPort out;
    out.host = listen.substr(0, colon);
    if (out.host.front() == '[' && out.host.back() == ']') {
        out.host = out.host.substr(1, out.host.size() - 2);
    }
    const auto is_fine = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '-' || c == ':';
    };
    if (out.host.empty() || out.host.size() > 253 ||
        !std::all_of(out.host.begin(), out.host.end(), is_fine)) {
        return bad("a host has letters, digits, `.` and `-`");
    }
    const char* begin = listen.data() + colon + 1;
    const char* end = listen.data() + listen.size();
    const auto [stop, code] = std::from_chars(begin, end, out.port);
    if (code != std::errc{} || stop != end || out.port < 0 || out.port > 65535) {
        return bad("a port is a number from 0 to 65535");
    }
    return out;
}

std::string own_folder() {
    std::array<char, 4096> buffer{};
    const ssize_t size = readlink("/proc/self/exe", buffer.data(), buffer.size());
    const std::string path(buffer.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
    return path.substr(0, path.rfind('/'));
}

Result<> check_range(std::int64_t value, std::int64_t least, std::int64_t most, const char* flag) {
    if (value >= least && value <= most) {
        return {};
    }
    return fail(make_error(Errc::invalid_argument, "{} is {}; it must be {} to {}", flag, value,
                           least, most)
                    .at(flag));
}

/// Mode 0700: the database, keys and socket in it are the server's alone.
Result<> prepare_folder(Env& env, const std::string& folder) {
    HOLD_TRY(env.files.make_directories(folder, 0700));
    struct stat status{};
    if (stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
        return fail(make_error(Errc::invalid_argument, "data directory {} is no directory", folder)
                        .at("--data"));
    }
    if ((status.st_mode & 022) != 0) {
        return fail(make_error(Errc::denied,
                               "data directory {} can be written by others (mode {:o})", folder,
                               status.st_mode & 0777)
                        .at("--data")
                        .advise(fmt::format("chmod 700 {}", folder)));
    }
    return {};
}

}  // namespace

Result<> check(const Options& options) {
    if (options.data_dir.empty()) {
        return fail(make_error(Errc::invalid_argument, "no data directory").at("--data"));
    }
    HOLD_TRY(check_range(options.heartbeat_interval_ms, 10, 60'000, "--heartbeat-interval-ms"));
    HOLD_TRY(check_range(options.node_dead_ms, 50, 3'600'000, "--node-dead-ms"));
    HOLD_TRY(check_range(options.worker_suspect_ms, 20, 600'000, "--worker-suspect-ms"));
    HOLD_TRY(check_range(options.worker_dead_ms, 40, 3'600'000, "--worker-dead-ms"));
    if (options.node_dead_ms < 2 * options.heartbeat_interval_ms) {
        return fail(
            make_error(Errc::invalid_argument,
                       "nodes would be dead after {} ms, but say something every {} ms only",
                       options.node_dead_ms, options.heartbeat_interval_ms)
                .at("--node-dead-ms")
                .advise("at least two heartbeats must fit"));
    }
    if (options.worker_dead_ms <= options.worker_suspect_ms) {
        return fail(make_error(Errc::invalid_argument,
                               "workers would be dead ({} ms) before they are suspected ({} ms)",
                               options.worker_dead_ms, options.worker_suspect_ms)
                        .at("--worker-dead-ms"));
    }
    if (!options.listen.empty()) {
        HOLD_TRY(split(options.listen));
    }
    return {};
}

Core::Core(Options chosen) : options(std::move(chosen)), env(*options.env) {}

Core::~Core() = default;

struct Server::State {
    explicit State(Options options)
        : core(std::move(options)),
          jobs(core),
          nodes(core),
          pools(core),
          tokens(core),
          system(core),
          agents(core),
          training(core) {}

    Result<> open_store();
    Result<> make_first_token();
    Result<> serve();
    Result<> add_tcp(grpc::ServerBuilder& builder);
    void on_deltas(const std::vector<store::Delta>& deltas);
    void stop();

    Core core;
    std::string socket;
    int port = 0;
    std::string ca_file;
    Secret first_token;
    JobsService jobs;
    NodesService nodes;
    PoolsService pools;
    TokensService tokens;
    SystemService system;
    AgentsService agents;
    TrainingService training;
    store::Subscription subscription;
    std::unique_ptr<grpc::Server> grpc_server;
    LocalListener listener;
    bool stopped = false;
};

Result<> Server::State::open_store() {
    Options& options = core.options;
    HOLD_TRY(prepare_folder(core.env, options.data_dir));
    store::StoreOptions store_options;
    store_options.directory = options.data_dir;
    store_options.migrations = store::shipped_migrations();
    store_options.env = options.env;
    HOLD_TRY(core.store, store::Store::open(store_options));
    core.started_us = core.env.clock.wall_us();
    const std::string database = options.data_dir + "/" + std::string(store::Store::kDatabaseFile);
    const std::string folder = options.libexec.empty() ? own_folder() : options.libexec;
    core.sql = std::make_unique<SqlRunner>(core.env, folder + "/hold-sql", database);
    core.placement = std::make_unique<PlacementLoop>(core);
    core.agents = std::make_unique<AgentHub>(core);
    core.training = std::make_unique<TrainingHub>(core);
    return make_first_token();
}

/// A data directory that has never seen a token gets one for its first node. Only its hash is
/// stored: if nobody read it, `hold node add` makes another.
Result<> Server::State::make_first_token() {
    const std::string secret = make_token_secret(core.env);
    HOLD_TRY(const bool is_first,
             core.store->call({.procedure = "first_start", .who = "system", .cause = "start"},
                              [&](store::Tx& tx) -> Result<bool> {
                                  HOLD_TRY(const auto known, services::list_tokens(tx));
                                  if (!known.empty()) {
                                      return false;
                                  }
                                  services::TokenRow token;
                                  token.role = "enrol";
                                  token.description = "made at the first start, for one node";
                                  token.created_us = tx.now_us();
                                  token.expires_us = tx.now_us() + kEnrolmentLifeUs;
                                  HOLD_TRY(services::create_token(tx, token, secret));
                                  return true;
                              }));
    if (is_first) {
        first_token = Secret(secret);
    }
    return {};
}

void Server::State::on_deltas(const std::vector<store::Delta>& deltas) {
    core.placement->on_deltas(deltas);
    core.agents->on_deltas(deltas);
    core.training->on_deltas(deltas);
    for (const store::Delta& delta : deltas) {
        if (delta.table == "job") {
            core.bells.ring(Bells::of(delta.row().id<JobId>("id")));
        } else if (delta.table == "log_chunk") {
            core.bells.ring(Bells::output_of(delta.row().id<TaskId>("task")));
        }
    }
}

Result<> Server::State::add_tcp(grpc::ServerBuilder& builder) {
    HOLD_TRY(const HostPort address, split(core.options.listen));
    const std::string folder = core.options.data_dir + "/tls";
    std::vector<std::string> hosts = {"localhost", "127.0.0.1"};
    if (address.host != "0.0.0.0" && address.host != "::" && address.host != hosts[0] &&
        address.host != hosts[1]) {
        hosts.push_back(address.host);
    } else {
        std::array<char, 256> name{};
        if (gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' &&
            hosts[0] != name.data()) {
            hosts.emplace_back(name.data());
        }
    }
    HOLD_TRY(const TlsFiles files, ensure_tls(core.env, folder, hosts));
    grpc::SslServerCredentialsOptions tls;
    tls.pem_key_cert_pairs.push_back({files.key_pem, files.certificate_pem});
    builder.AddListeningPort(core.options.listen, grpc::SslServerCredentials(tls), &port);
    ca_file = folder + "/ca.crt";
    return {};
}

Result<> Server::State::serve() {
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("holdfast");
    quota.SetMaxThreads(kThreadsMax);
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(rpc::kMessageBytesMax);
    builder.SetMaxSendMessageSize(rpc::kMessageBytesMax);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 4);
    // Two servers must not share a port unnoticed, and clients on dead hosts must not hold threads.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
    if (!core.options.listen.empty()) {
        HOLD_TRY(add_tcp(builder));
    }
    for (grpc::Service* service : std::initializer_list<grpc::Service*>{
             &jobs, &nodes, &pools, &tokens, &system, &agents, &training}) {
        builder.RegisterService(service);
    }
    grpc_server = builder.BuildAndStart();
    if (grpc_server == nullptr || (!core.options.listen.empty() && port == 0)) {
        return fail(make_error(Errc::conflict, "listen on {}: the address is taken or not ours",
                               core.options.listen)
                        .at("--listen"));
    }
    socket =
        core.options.socket.empty() ? core.options.data_dir + "/hold.sock" : core.options.socket;
    return listener.start(socket, core.peers, [this](int fd) {
        grpc::AddInsecureChannelFromFd(grpc_server.get(), fd);
    });
}

void Server::State::stop() {
    if (std::exchange(stopped, true)) {
        return;
    }
    core.stopping = true;
    core.bells.ring_all();
    listener.stop();
    if (core.sql != nullptr) {
        core.sql->stop();
    }
    if (core.training != nullptr) {
        core.training->stop();
        core.agents->stop();
        core.placement->stop();
    }
    if (grpc_server != nullptr) {
        // Calls under way may end; streams are then cut: clients see `unavailable`.
        grpc_server->Shutdown(std::chrono::system_clock::now() + kGraceForCalls);
        grpc_server->Wait();
        HOLD_CHECK(core.calls.load(std::memory_order_acquire) == 0,
                   "gRPC's Wait returns after the last handler");
    }
    subscription.cancel();
    core.store.reset();
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() {
    stop();
}

Result<std::unique_ptr<Server>> Server::start(Options options) {
    HOLD_TRY(check(options));
    if (options.env == nullptr) {
        options.env = &real_env();
    }
    // From here on ~Server undoes whatever was begun.
    std::unique_ptr<Server> server(new Server(std::make_unique<State>(std::move(options))));
    State& state = *server->state_;
    HOLD_TRY(state.open_store());
    state.subscription = state.core.store->subscribe(
        {"job", "task", "node", "lease", "lease_revoked", "log_chunk", "token", "training_worker"},
        [raw = &state](const std::vector<store::Delta>& deltas) { raw->on_deltas(deltas); });
    HOLD_TRY(state.core.training->start());
    HOLD_TRY(state.core.agents->start());
    HOLD_TRY(state.serve());
    state.core.placement->start();
    HOLD_EVENT(info, "server_started", {"data", state.core.options.data_dir},
               {"socket", state.socket}, {"port", state.port});
    return server;
}

void Server::stop() {
    state_->stop();
}

const std::string& Server::socket() const {
    return state_->socket;
}

int Server::port() const {
    return state_->port;
}

std::string Server::ca_file() const {
    return state_->ca_file;
}

const Secret& Server::first_enrolment_token() const {
    return state_->first_token;
}

}  // namespace holdfast::server
