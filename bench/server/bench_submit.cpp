// SPDX-License-Identifier: Apache-2.0
// Durable submits through the API: N clients, each on a connection of its own, against a server in
// this process (or, with --server, another) on a directory of the disk that matters. A submit
// counts when its answer has come, which is after the disk's sync. Prints one line per round:
// submits/s and the latency at p50, p99 and the most.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <holdfast.grpc.pb.h>
#include <unistd.h>

#include <holdfast/env.hpp>
#include <holdfast/log.hpp>
#include <holdfast/rpc.hpp>
#include <holdfast/server.hpp>

namespace {

using namespace holdfast;  // NOLINT: a program of one file

struct Flags {
    std::string data;
    std::string server;
    int clients = 16;
    int seconds = 5;
    int rounds = 5;
};

struct Round {
    std::vector<std::int64_t> latencies_us;
    std::int64_t failed = 0;
    std::int64_t duration_us = 0;
};

void submit_until(const rpc::Endpoint& endpoint, std::int64_t end_us, Round& out) {
    const auto channel = rpc::make_channel(endpoint);
    const auto stub = v1::Jobs::NewStub(*channel);
    Clock& clock = real_env().clock;
    v1::SubmitRequest request;
    request.mutable_spec()->set_name("bench");
    request.mutable_spec()->set_run("true");
    request.set_user("nobody");
    std::int64_t number = 0;
    const std::string key = real_env().random.hex(8);
    while (clock.steady_us() < end_us) {
        request.set_idempotency_key(key + std::to_string(++number));
        grpc::ClientContext context;
        v1::SubmitResponse response;
        const std::int64_t begun_us = clock.steady_us();
        const grpc::Status status = stub->Submit(&context, request, &response);
        if (status.ok()) {
            out.latencies_us.push_back(clock.steady_us() - begun_us);
        } else if (++out.failed == 1) {
            fmt::print(stderr, "a submit failed: {}\n",
                       rpc::error_from(status, context, "submit", endpoint).describe());
        }
    }
}

Round run_round(const rpc::Endpoint& endpoint, const Flags& flags) {
    std::vector<Round> parts(static_cast<std::size_t>(flags.clients));
    std::vector<std::thread> threads;
    Clock& clock = real_env().clock;
    const std::int64_t begun_us = clock.steady_us();
    const std::int64_t end_us = begun_us + flags.seconds * kSecondUs;
    for (Round& part : parts) {
        threads.emplace_back([&endpoint, end_us, &part] { submit_until(endpoint, end_us, part); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    Round all;
    all.duration_us = clock.steady_us() - begun_us;
    for (const Round& part : parts) {
        all.latencies_us.insert(all.latencies_us.end(), part.latencies_us.begin(),
                                part.latencies_us.end());
        all.failed += part.failed;
    }
    std::sort(all.latencies_us.begin(), all.latencies_us.end());
    return all;
}

double milliseconds_at(const Round& round, double part) {
    if (round.latencies_us.empty()) {
        return 0;
    }
    const auto last = static_cast<double>(round.latencies_us.size() - 1);
    return static_cast<double>(round.latencies_us[static_cast<std::size_t>(part * last)]) / 1000;
}

int run(const Flags& flags) {
    LogOptions log;
    log.level = Level::warn;
    if (!configure_logging(log)) {
        return 1;
    }
    std::unique_ptr<server::Server> server;
    rpc::Endpoint endpoint{.address = flags.server, .ca_file = "", .token = ""};
    std::string folder = flags.data;
    if (flags.server.empty()) {
        if (folder.empty()) {
            folder = (std::filesystem::temp_directory_path() / "holdfast-bench-XXXXXX").string();
            if (mkdtemp(folder.data()) == nullptr) {
                return 1;
            }
        }
        server::Options options;
        options.data_dir = folder;
        auto started = server::Server::start(options);
        if (!started) {
            fmt::print(stderr, "{}\n", started.error().describe());
            return 1;
        }
        server = std::move(*started);
        endpoint.address = "unix:" + server->socket();
    }
    fmt::print("clients {}, {} s a round, directory {}\n", flags.clients, flags.seconds, folder);
    for (int i = 0; i < flags.rounds; ++i) {
        const Round round = run_round(endpoint, flags);
        fmt::print("{:8.0f} submits/s  p50 {:.2f} ms  p99 {:.2f} ms  max {:.2f} ms  failed {}\n",
                   static_cast<double>(round.latencies_us.size()) * 1e6 /
                       static_cast<double>(round.duration_us),
                   milliseconds_at(round, 0.5), milliseconds_at(round, 0.99),
                   milliseconds_at(round, 1.0), round.failed);
        std::fflush(stdout);
    }
    server.reset();
    if (flags.server.empty() && flags.data.empty()) {
        std::filesystem::remove_all(folder);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Durable submits a second through the API"};
    Flags flags;
    app.add_option("--data", flags.data, "data directory (default: a temporary one, removed)");
    app.add_option("--server", flags.server, "an endpoint instead of a server in this process");
    app.add_option("--clients", flags.clients)->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--seconds", flags.seconds)->check(CLI::Range(1, 3600))->capture_default_str();
    app.add_option("--rounds", flags.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    return run(flags);
}
