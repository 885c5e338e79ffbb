// SPDX-License-Identifier: Apache-2.0
// hold-server: flags, signals, and a Server between them.
#include <csignal>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include <holdfast/log.hpp>
#include <holdfast/server.hpp>

#ifndef HOLDFAST_VERSION
#error "the build passes HOLDFAST_VERSION"
#endif

namespace {

using namespace holdfast;  // NOLINT: a program of one file

struct Flags {
    server::Options options;
    std::string log_format = "json";
    std::string log_level = "info";
    bool check_config = false;
    bool print_config = false;
};

void describe(CLI::App& app, Flags& flags) {
    server::Options& options = flags.options;
    app.set_version_flag("--version", "hold-server " HOLDFAST_VERSION);
    app.set_config("--config", "", "read flags from this file: `name = value`, one a line");
    app.allow_config_extras(false);
    app.add_option("--data", options.data_dir, "directory that holds everything")
        ->required()
        ->envname("HOLDFAST_DATA");
    app.add_option("--socket", options.socket, "unix socket (default DATA/hold.sock)");
    app.add_option("--listen", options.listen, "also TCP, with TLS: HOST:PORT");
    app.add_option("--libexec", options.libexec, "where hold-sql is (default: beside this program)")
        ->envname("HOLDFAST_LIBEXEC");
    app.add_option("--heartbeat-interval-ms", options.heartbeat_interval_ms,
                   "how often agents say that they live")
        ->capture_default_str();
    app.add_option("--node-dead-ms", options.node_dead_ms, "silence after which a node is down")
        ->capture_default_str();
    app.add_option("--worker-suspect-ms", options.worker_suspect_ms,
                   "silence after which a training worker is suspected")
        ->capture_default_str();
    app.add_option("--worker-dead-ms", options.worker_dead_ms,
                   "silence after which a training worker is dead")
        ->capture_default_str();
    app.add_option("--log-format", flags.log_format, "json or human")
        ->check(CLI::IsMember({"json", "human"}))
        ->capture_default_str();
    app.add_option("--log-level", flags.log_level, "debug, info, warn, error or off")
        ->capture_default_str();
    app.add_flag("--check-config", flags.check_config, "check the flags, start nothing")
        ->configurable(false);
    app.add_flag("--print-config", flags.print_config, "print every flag's value, start nothing")
        ->configurable(false);
}

int report(const Error& error) {
    fmt::print(stderr, "hold server: {}\n", error.describe());
    return exit_code_of(error.code);
}

/// Signals are taken by sigwait in the main thread; blocked here, before any other thread starts.
sigset_t block_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    return set;
}

int run(const Flags& flags) {
    LogOptions log;
    log.format = flags.log_format == "human" ? LogFormat::human : LogFormat::json;
    const auto level = level_from(flags.log_level);
    if (!level) {
        return report(level.error());
    }
    log.level = *level;
    if (auto configured = configure_logging(log); !configured) {
        return report(configured.error());
    }
    if (auto fine = server::check(flags.options); !fine) {
        return report(fine.error());
    }
    if (flags.check_config) {
        return 0;
    }
    const sigset_t signals = block_signals();
    auto server = server::Server::start(flags.options);
    if (!server) {
        return report(server.error());
    }
    if (!(*server)->first_enrolment_token().is_empty()) {
        // Printed once, stored nowhere: for `hold agent --enrolment-token-file`, within a day.
        fmt::print(stderr, "one-time enrolment token for the first node: {}\n",
                   (*server)->first_enrolment_token().reveal());
    }
    int signal = 0;
    do {
        sigwait(&signals, &signal);
    } while (signal == SIGHUP);  // a terminal that closes must not end the cluster
    HOLD_EVENT(info, "server_stopping", {"signal", signal});
    (*server)->stop();
    HOLD_EVENT(info, "server_stopped");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Holdfast's server: keeps the cluster's state, serves its API, places jobs"};
    Flags flags;
    describe(app, flags);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    if (flags.print_config) {
        fmt::print("{}", app.config_to_str(true));
        return 0;
    }
    return run(flags);
}
