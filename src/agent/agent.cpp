// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <holdfast/agent.hpp>
#include <holdfast/env.hpp>
#include <holdfast/log.hpp>

#include "agent_loop.hpp"
#include "link.hpp"
#include "machine.hpp"
#include "state_dir.hpp"

namespace holdfast::agent {
namespace {

constexpr std::size_t kTokenBytesMax = 4096;

Result<Secret> secret_in(const std::string& path, Env& env) {
    auto text = env.files.read_file(path, kTokenBytesMax);
    if (!text) {
        return fail(std::move(text.error()).within("read the token file " + path));
    }
    while (!text->empty() && (text->back() == '\n' || text->back() == ' ')) {
        text->pop_back();
    }
    if (text->empty()) {
        return fail(Errc::invalid_argument, "the token file {} is empty", path);
    }
    return Secret(std::move(*text));
}

Error no_token(const std::string& name) {
    return make_error(Errc::unauthenticated, "this node has no token for the server")
        .advise(fmt::format("run `hold node add {}` on the server and pass the token it prints "
                            "with --enrolment-token-file FILE",
                            name));
}

/// For ever while the server is away; anything else it says is final.
Result<Secret> enrol_patiently(const AgentOptions& options, const rpc::Endpoint& endpoint,
                               StateDir& state, Env& env) {
    HOLD_TRY(const Secret once, secret_in(options.enrolment_token_file, env));
    for (int attempt = 0;; ++attempt) {
        auto token = enrol(endpoint, options.name, once.reveal(), env.clock);
        if (token) {
            const Secret kept(std::move(*token));
            HOLD_TRY(state.keep_token(kept));
            HOLD_EVENT(info, "node_enrolled", {"node", options.name});
            return kept;
        }
        if (token.error().code != Errc::unavailable) {
            return fail(std::move(token.error())
                            .advise("an enrolment token works once; make another with "
                                    "`hold node add`"));
        }
        if (attempt == 0) {
            HOLD_EVENT(warn, "link_lost", {"server", options.server}, {"error", token.error()});
        }
        env.clock.sleep_us(retry_wait_us(attempt, env.random));
    }
}

/// Named file, then the kept token, then enrolment. On a unix socket the kernel vouches for us.
Result<Secret> find_token(const AgentOptions& options, const rpc::Endpoint& endpoint,
                          StateDir& state, Env& env) {
    if (!options.token_file.empty()) {
        return secret_in(options.token_file, env);
    }
    HOLD_TRY(Secret kept, state.token());
    if (!kept.is_empty()) {
        return kept;
    }
    if (!options.enrolment_token_file.empty()) {
        return enrol_patiently(options, endpoint, state, env);
    }
    if (endpoint.address.rfind("unix:", 0) == 0) {
        return Secret();
    }
    return fail(no_token(options.name));
}

Machine offered(const AgentOptions& options) {
    Machine machine = this_machine();
    machine.cpus = options.cpus > 0 ? options.cpus : machine.cpus;
    machine.memory_bytes = options.memory_bytes > 0 ? options.memory_bytes : machine.memory_bytes;
    machine.gpus = options.gpus >= 0 ? options.gpus : machine.gpus;
    machine.gpu_type = options.gpu_type.empty() ? machine.gpu_type : options.gpu_type;
    return machine;
}

/// Every task costs the agent a few descriptors; returns the limit that was, for the jobs.
std::int64_t raise_open_files() {
    rlimit files = {};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0) {
        return 0;
    }
    const rlim_t before = files.rlim_cur;
    files.rlim_cur = files.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0 || before == RLIM_INFINITY) {
        return 0;
    }
    return static_cast<std::int64_t>(before);
}

void block_signals() {
    sigset_t mask;
    ::sigemptyset(&mask);
    for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) {
        ::sigaddset(&mask, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

Result<> run_agent(const AgentOptions& options, Env& env) {
    block_signals();
    ::umask(022);
    HOLD_TRY(const auto state, StateDir::open(options.state_dir, env));
    rpc::Endpoint endpoint;
    endpoint.address = options.server;
    endpoint.ca_file = options.ca_file;
    // A wrong address or CA file is found now, not in a loop.
    HOLD_TRY(const auto channel, rpc::make_channel(endpoint));
    HOLD_TRY(const Secret token, find_token(options, endpoint, *state, env));
    endpoint.token = token.reveal();
    const Machine machine = offered(options);
    HOLD_EVENT(info, "agent_started", {"node", options.name}, {"server", options.server},
               {"state", state->path()}, {"cpus", machine.cpus},
               {"memory_bytes", machine.memory_bytes}, {"gpus", machine.gpus},
               {"gpu_type", machine.gpu_type});
    AgentLoop loop(options, *state, machine, raise_open_files(), env);
    HOLD_TRY(loop.prepare());
    return loop.run(endpoint);
}

}  // namespace holdfast::agent
