// SPDX-License-Identifier: Apache-2.0
/// hold-agent, which `hold agent` runs: flags in, exit code out.
#include <climits>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <holdfast/agent.hpp>
#include <holdfast/env.hpp>
#include <holdfast/log.hpp>
#include <holdfast/rpc.hpp>

#include "machine.hpp"

namespace holdfast::agent {
namespace {

constexpr int kUsage = 2;

struct Flags {
    AgentOptions agent;
    std::string memory;
    std::string log_format = "json";
    std::string log_level = "info";
};

std::string host_name() {
    char name[HOST_NAME_MAX + 1] = {};
    return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

/// Beside this program, unless HOLDFAST_LIBEXEC says otherwise.
std::string libexec_dir() {
    if (const auto chosen = environment_variable("HOLDFAST_LIBEXEC")) {
        return *chosen;
    }
    char path[PATH_MAX];
    const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
    const std::string self(path, length > 0 ? static_cast<std::size_t>(length) : 0);
    return self.substr(0, self.rfind('/'));
}

void declare(CLI::App& app, Flags& flags) {
    AgentOptions& agent = flags.agent;
    agent.server = environment_variable("HOLDFAST_SERVER").value_or(rpc::kDefaultEndpoint);
    agent.ca_file = environment_variable("HOLDFAST_CA").value_or("");
    agent.name = host_name();
    app.add_option("--server", agent.server, "unix:/path/to.sock or host:port")
        ->capture_default_str();
    app.add_option("--state", agent.state_dir, "directory of this agent's own")->required();
    app.add_option("--name", agent.name, "name of the node")->capture_default_str();
    app.add_option("--pool", agent.pool, "pool of the node");
    app.add_option("--cpus", agent.cpus, "cores to offer (default: all usable)")
        ->check(CLI::Range(1, 65536));
    app.add_option("--memory", flags.memory, "memory to offer, as in 4G (default: all)");
    app.add_option("--gpus", agent.gpus, "GPU slots to offer (default: what the driver has)")
        ->check(CLI::Range(0, 1024));
    app.add_option("--gpu-type", agent.gpu_type, "their type, as in h100");
    app.add_option("--address", agent.address, "host by which other nodes reach this one");
    app.add_option("--token-file", agent.token_file, "file with the node's token");
    app.add_option("--enrolment-token-file", agent.enrolment_token_file,
                   "file with a one-time token, from `hold node add`");
    app.add_option("--ca", agent.ca_file, "the server's CA certificate (TLS)");
    app.add_flag("--kill-tasks-on-exit", agent.kill_tasks_on_exit,
                 "end the tasks when the agent is stopped (default: they go on)");
    app.add_option("--log-format", flags.log_format, "json or human")
        ->check(CLI::IsMember({"json", "human"}));
    app.add_option("--log-level", flags.log_level, "debug, info, warn or error");
    app.set_version_flag("--version", "hold-agent " HOLDFAST_VERSION);
    app.footer(
        "Stopping the agent leaves its tasks running; the next agent on the same --state takes "
        "them over.\n\nExamples:\n"
        "  hold agent --server unix:/var/lib/holdfast/hold.sock --state /var/lib/holdfast-agent\n"
        "  hold agent --server ctl:7070 --ca ca.crt --state /var/lib/holdfast-agent "
        "--enrolment-token-file once");
}

Result<> complete(Flags& flags) {
    AgentOptions& agent = flags.agent;
    if (!flags.memory.empty()) {
        auto bytes = bytes_from(flags.memory);
        if (!bytes) {
            return fail(std::move(bytes.error()).at("--memory"));
        }
        agent.memory_bytes = *bytes;
    }
    if (agent.name.empty() || agent.name.size() > 253) {
        return fail(make_error(Errc::invalid_argument, "`{}` cannot be a node's name", agent.name)
                        .at("--name"));
    }
    if (agent.address.empty()) {
        agent.address = agent.server.rfind("unix:", 0) == 0 ? "127.0.0.1" : host_name();
    }
    agent.libexec_dir = libexec_dir();
    HOLD_TRY(const Level level, level_from(flags.log_level));
    LogOptions log;
    log.level = level;
    log.format = flags.log_format == "human" ? LogFormat::human : LogFormat::json;
    log.program = "hold-agent";
    return configure_logging(log);
}

int run(int count, char** arguments) {
    CLI::App app("Runs the tasks of this node.", "hold agent");
    Flags flags;
    declare(app, flags);
    try {
        app.parse(count, arguments);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : kUsage;
    }
    auto done = complete(flags);
    if (done) {
        done = run_agent(flags.agent, real_env());
    }
    if (!done) {
        fmt::print(stderr, "hold agent: {}\n", done.error().describe());
        return exit_code_of(done.error().code);
    }
    return 0;
}

}  // namespace
}  // namespace holdfast::agent

int main(int count, char** arguments) {
    return holdfast::agent::run(count, arguments);
}
