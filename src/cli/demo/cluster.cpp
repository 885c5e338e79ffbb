// SPDX-License-Identifier: Apache-2.0
#include "cluster.hpp"

#include <csignal>
#include <utility>

#include <pwd.h>
#include <unistd.h>

#include <holdfast/env.hpp>

namespace holdfast::cli::demo {
namespace {

constexpr std::int64_t kStartUs = 20 * kSecondUs;
constexpr std::int64_t kPollUs = 20'000;
constexpr std::int64_t kStopGraceMs = 5000;
constexpr const char* kServerPort = "7170";
constexpr std::size_t kCertificateBytesMax = 64 << 10;

std::string text_of(const v1::SqlValue& value) {
    switch (value.kind_case()) {
        case v1::SqlValue::kInteger:
            return std::to_string(value.integer());
        case v1::SqlValue::kReal:
            return fmt::format("{:.17g}",
                               value.real());  // 17 digits: reads back as the same double
        case v1::SqlValue::kText:
            return value.text();
        case v1::SqlValue::kBlob:
            return value.blob();
        default:
            return "";
    }
}

}  // namespace

std::string job_user() {
    if (geteuid() == 0) {
        return "nobody";
    }
    const passwd* entry = getpwuid(geteuid());
    return entry != nullptr ? entry->pw_name : std::to_string(geteuid());
}

Cluster::Cluster(std::string directory, std::string libexec)
    : directory_(std::move(directory)), libexec_(std::move(libexec)) {
    endpoint_.address = "unix:" + directory_ + "/hold.sock";
}

Cluster::~Cluster() {
    stop();
}

Result<> Cluster::expect_running(ChildProcess& child, const std::string& what,
                                 const std::string& log) {
    if (!child.is_running()) {
        return fail(make_error(Errc::failed, "{} ended at once", what)
                        .at(log)
                        .advise("its log says why: cat " + log));
    }
    return {};
}

Result<> Cluster::use_namespaces(std::size_t hosts) {
    HOLD_TRY(namespaces_, Namespaces::make(hosts));
    return {};
}

Result<> Cluster::start_server() {
    const std::string log = directory_ + "/server.log";
    std::vector<std::string> arguments;
    if (namespaces_) {
        arguments = namespaces_->on_server();
    }
    arguments.insert(arguments.end(),
                     {libexec_ + "/hold-server", "--data", directory_ + "/server", "--socket",
                      directory_ + "/hold.sock", "--node-dead-ms", "3000"});
    if (namespaces_) {
        arguments.insert(arguments.end(),
                         {"--listen", Namespaces::server_address() + ":" + kServerPort});
    }
    HOLD_TRY(server_, ChildProcess::start(arguments, log));
    HOLD_TRY(const auto channel, rpc::make_channel(endpoint_));
    jobs_ = v1::Jobs::NewStub(channel);
    nodes_stub_ = v1::Nodes::NewStub(channel);
    system_ = v1::System::NewStub(channel);
    Clock& clock = real_env().clock;
    const std::int64_t deadline_us = clock.steady_us() + kStartUs;
    while (true) {
        grpc::ClientContext context;
        v1::ServerInfo info;
        const grpc::Status status = system_->Info(&context, v1::Empty(), &info);
        if (status.ok()) {
            return {};
        }
        HOLD_TRY(expect_running(server_, "the server", log));
        if (clock.steady_us() > deadline_us) {
            return fail(rpc::error_from(status, context, "start the server", endpoint_));
        }
        clock.sleep_us(kPollUs);
    }
}

Result<std::vector<std::string>> Cluster::remote_flags(std::size_t index) {
    // The CA certificate is public; the server's folder is not.
    Files& files = real_env().files;
    const std::string ca = directory_ + "/ca.crt";
    HOLD_TRY(const std::string certificate,
             files.read_file(directory_ + "/server/tls/ca.crt", kCertificateBytesMax));
    HOLD_TRY(files.write_file_atomic(ca, certificate, 0644));
    std::vector<std::string> flags = {"--server",  Namespaces::server_address() + ":" + kServerPort,
                                      "--ca",      ca,
                                      "--address", Namespaces::host_address(index)};
    const std::string& name = nodes_[index].shape.name;
    const std::string token_file = directory_ + "/" + name + ".enrol";
    if (!files.exists(token_file)) {
        grpc::ClientContext context;
        v1::NodeRequest request;
        request.set_name(name);
        request.set_pool("default");
        v1::AddNodeResponse response;
        const grpc::Status status = nodes_stub_->Add(&context, request, &response);
        if (!status.ok()) {
            return fail(rpc::error_from(status, context, "add node " + name, endpoint_));
        }
        HOLD_TRY(files.write_file_atomic(token_file, response.enrolment_token(), 0600));
    }
    flags.insert(flags.end(), {"--enrolment-token-file", token_file});
    return flags;
}

Result<> Cluster::launch_agent(std::size_t index) {
    const NodeShape& shape = nodes_[index].shape;
    std::vector<std::string> arguments;
    if (namespaces_) {
        arguments = namespaces_->on_host(index);
    }
    arguments.insert(arguments.end(),
                     {libexec_ + "/hold-agent", "--state", directory_ + "/" + shape.name, "--name",
                      shape.name, "--cpus", "4", "--memory", "4G", "--kill-tasks-on-exit"});
    if (shape.gpus > 0) {
        arguments.insert(arguments.end(), {"--gpus", std::to_string(shape.gpus)});
    }
    if (namespaces_) {
        HOLD_TRY(const auto flags, remote_flags(index));
        arguments.insert(arguments.end(), flags.begin(), flags.end());
    } else {
        arguments.insert(arguments.end(), {"--server", endpoint_.address});
    }
    HOLD_TRY(nodes_[index].agent,
             ChildProcess::start(arguments, directory_ + "/" + shape.name + ".log"));
    return {};
}

Result<std::size_t> Cluster::index_of(const std::string& name) const {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].shape.name == name) {
            return i;
        }
    }
    return fail(Errc::not_found, "the demo has no node {}", name);
}

Result<> Cluster::start_node(const NodeShape& shape) {
    nodes_.push_back(Node{shape, {}});
    return launch_agent(nodes_.size() - 1);
}

Result<> Cluster::revive_node(const std::string& name) {
    HOLD_TRY(const std::size_t index, index_of(name));
    return namespaces_ ? namespaces_->set_link(index, true) : launch_agent(index);
}

Result<> Cluster::wait_for_nodes(std::size_t count) {
    Clock& clock = real_env().clock;
    const std::int64_t deadline_us = clock.steady_us() + kStartUs;
    while (true) {
        grpc::ClientContext context;
        v1::ListNodesResponse response;
        const grpc::Status status = nodes_stub_->List(&context, v1::Empty(), &response);
        std::size_t up = 0;
        for (const v1::Node& node : response.nodes()) {
            up += node.state() == "up" ? 1 : 0;
        }
        if (status.ok() && up >= count) {
            return {};
        }
        for (Node& node : nodes_) {
            HOLD_TRY(expect_running(node.agent, "the agent of " + node.shape.name,
                                    directory_ + "/" + node.shape.name + ".log"));
        }
        if (clock.steady_us() > deadline_us) {
            return fail(Errc::timed_out, "start the agents: {} of {} nodes are up after {} s", up,
                        count, kStartUs / kSecondUs);
        }
        clock.sleep_us(kPollUs);
    }
}

Result<std::int64_t> Cluster::submit(const v1::JobSpec& spec) {
    grpc::ClientContext context;
    v1::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_user(job_user());
    v1::SubmitResponse response;
    const grpc::Status status = jobs_->Submit(&context, request, &response);
    if (!status.ok()) {
        return fail(rpc::error_from(status, context, "submit " + spec.name(), endpoint_));
    }
    return response.job();
}

Result<v1::Job> Cluster::job(std::int64_t id) {
    grpc::ClientContext context;
    v1::JobRef request;
    request.set_job(id);
    v1::Job response;
    const grpc::Status status = jobs_->Get(&context, request, &response);
    if (!status.ok()) {
        return fail(rpc::error_from(status, context, "read job " + std::to_string(id), endpoint_));
    }
    return response;
}

Result<std::vector<std::vector<std::string>>> Cluster::sql(const std::string& query) {
    grpc::ClientContext context;
    v1::SqlRequest request;
    request.set_sql(query);
    v1::SqlResponse response;
    const grpc::Status status = system_->Sql(&context, request, &response);
    if (!status.ok()) {
        return fail(rpc::error_from(status, context, "query the cluster", endpoint_));
    }
    std::vector<std::vector<std::string>> rows;
    for (const v1::SqlRow& row : response.rows()) {
        std::vector<std::string>& cells = rows.emplace_back();
        for (const v1::SqlValue& value : row.values()) {
            cells.push_back(text_of(value));
        }
    }
    return rows;
}

Result<Cluster::Killed> Cluster::kill_node(const std::string& name) {
    // The processes are read from the database, like everything else.
    HOLD_TRY(const auto tasks,
             sql(fmt::format("SELECT pid, worker FROM task WHERE node = '{}' AND state = 'running' "
                             "ORDER BY worker",
                             name)));
    HOLD_TRY(const std::size_t index, index_of(name));
    Killed killed;
    killed.node = name;
    killed.at_us = real_env().clock.wall_us();
    if (namespaces_) {
        HOLD_TRY(namespaces_->set_link(index, false));
    } else {
        // The agent first, so that it cannot report what happens next.
        nodes_[index].agent.kill_now();
    }
    for (const auto& task : tasks) {
        const auto group = static_cast<pid_t>(std::stol(task.at(0)));
        if (!namespaces_ && group > 1) {
            kill(-group, SIGKILL);
        }
        if (!task.at(1).empty()) {
            killed.workers.push_back(task.at(1));
        }
    }
    return killed;
}

void Cluster::stop() {
    for (Node& node : nodes_) {
        node.agent.stop(kStopGraceMs);
    }
    nodes_.clear();
    server_.stop(kStopGraceMs);
    namespaces_.reset();
}

}  // namespace holdfast::cli::demo
