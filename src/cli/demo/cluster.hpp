// SPDX-License-Identifier: Apache-2.0
// The demo's cluster: one server and its agents as child processes, and the few calls the demo
// makes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <holdfast/result.hpp>
#include <holdfast/rpc.hpp>

#include "child_process.hpp"
#include "holdfast.grpc.pb.h"
#include "namespaces.hpp"

namespace holdfast::cli::demo {

struct NodeShape {
    std::string name;
    std::int64_t gpus = 0;
};

class Cluster {
  public:
    /// `directory` exists and is ours; `libexec` holds the programs.
    Cluster(std::string directory, std::string libexec);
    ~Cluster();
    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;

    /// Before start_server(): every node becomes a host of its own, which speaks TLS with an
    /// enrolment token.
    Result<> use_namespaces(std::size_t hosts);
    /// Starts the server and waits until it answers.
    Result<> start_server();
    Result<> start_node(const NodeShape& shape);
    /// Waits until `count` nodes are up.
    Result<> wait_for_nodes(std::size_t count);

    Result<std::int64_t> submit(const v1::JobSpec& spec);
    Result<v1::Job> job(std::int64_t id);
    /// Rows of a read-only query; NULL is "".
    Result<std::vector<std::vector<std::string>>> sql(const std::string& query);

    struct Killed {
        std::string node;
        std::vector<std::string> workers;  ///< "pipeline:stage"
        std::int64_t at_us = 0;            ///< wall clock, just before the fault
        std::int64_t step = 0;
    };

    /// SIGKILL to a node's agent and to every process group of its tasks; with namespaces its link
    /// goes down.
    Result<Killed> kill_node(const std::string& name);
    /// Starts the node's agent again on its own state; with namespaces its link comes up.
    Result<> revive_node(const std::string& name);

    [[nodiscard]] const std::string& endpoint() const { return endpoint_.address; }

    /// Stops the agents with their tasks, then the server.
    void stop();

  private:
    struct Node {
        NodeShape shape;
        ChildProcess agent;
    };

    Result<> launch_agent(std::size_t index);
    Result<std::vector<std::string>> remote_flags(std::size_t index);
    Result<std::size_t> index_of(const std::string& name) const;
    Result<> expect_running(ChildProcess& child, const std::string& what, const std::string& log);

    std::string directory_;
    std::string libexec_;
    rpc::Endpoint endpoint_;
    ChildProcess server_;
    std::vector<Node> nodes_;
    std::optional<Namespaces> namespaces_;
    std::unique_ptr<v1::Jobs::Stub> jobs_;
    std::unique_ptr<v1::Nodes::Stub> nodes_stub_;
    std::unique_ptr<v1::System::Stub> system_;
};

/// The user that jobs run as: ours, or `nobody` for root, since jobs never run as root.
std::string job_user();

}  // namespace holdfast::cli::demo
