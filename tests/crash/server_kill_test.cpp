// SPDX-License-Identifier: Apache-2.0
// Goal: a server killed with SIGKILL at any moment loses no acknowledged submit, doubles none, and
// leaves no orphan. Method: real server and agents as processes; clients submit under load with
// idempotency keys and retry until they are answered; the server is killed and started again on its
// own data, HOLDFAST_CRASH_ROUNDS times (default 6; the long run of 50 is `./dev crash`). Then
// every job must be there once, have completed, and have run exactly once.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <holdfast/env.hpp>
#include <holdfast/rpc.hpp>

#include "child_process.hpp"
#include "holdfast.grpc.pb.h"

namespace holdfast {
namespace {

using cli::demo::ChildProcess;
namespace fs = std::filesystem;

constexpr int kClients = 4;
constexpr std::int64_t kSettleUs = 120 * kSecondUs;

int rounds() {
    const auto text = environment_variable("HOLDFAST_CRASH_ROUNDS");
    return text ? std::stoi(*text) : 6;
}

/// Processes whose command line names the directory.
std::vector<std::string> processes_of(const std::string& directory) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
        std::ifstream file(entry.path() / "cmdline", std::ios::binary);
        std::string line((std::istreambuf_iterator<char>(file)), {});
        if (line.find(directory) != std::string::npos) {
            std::replace(line.begin(), line.end(), '\0', ' ');
            found.push_back(entry.path().filename().string() + ": " + line);
        }
    }
    return found;
}

class ServerKill : public testing::Test {
  protected:
    void SetUp() override {
        std::string path = (fs::temp_directory_path() / "holdfast-crash-XXXXXX").string();
        ASSERT_NE(mkdtemp(path.data()), nullptr);
        directory_ = path;
        chmod(path.c_str(), 0711);
        fs::create_directory(directory_ + "/out");
        chmod((directory_ + "/out").c_str(), 01777);
        endpoint_.address = "unix:" + directory_ + "/hold.sock";
    }

    void TearDown() override {
        for (ChildProcess& agent : agents_) {
            agent.stop(5000);
        }
        server_.stop(5000);
        if (!HasFailure()) {
            fs::remove_all(directory_);
        }
    }

    void start_server() {
        auto started =
            ChildProcess::start({HOLDFAST_LIBEXEC_DIR "/hold-server", "--data",
                                 directory_ + "/server", "--socket", directory_ + "/hold.sock"},
                                directory_ + "/server.log");
        ASSERT_TRUE(started) << started.error().describe();
        server_ = std::move(*started);
    }

    void start_agent(int index) {
        const std::string name = "node-" + std::to_string(index);
        auto started = ChildProcess::start(
            {HOLDFAST_LIBEXEC_DIR "/hold-agent", "--server", endpoint_.address, "--state",
             directory_ + "/" + name, "--name", name, "--cpus", "4", "--kill-tasks-on-exit"},
            directory_ + "/" + name + ".log");
        ASSERT_TRUE(started) << started.error().describe();
        agents_.push_back(std::move(*started));
    }

    /// Submits until answered; the key makes the repeats one job.
    std::int64_t submit(v1::Jobs::Stub& stub, const std::string& name) {
        while (true) {
            grpc::ClientContext context;
            context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
            context.set_wait_for_ready(true);
            v1::SubmitRequest request;
            request.set_idempotency_key(name);
            request.set_user("nobody");
            v1::JobSpec& spec = *request.mutable_spec();
            spec.set_name(name);
            spec.set_run("echo $SLURM_JOB_ID >> " + directory_ + "/out/" + name);
            spec.set_tasks(1);
            spec.mutable_per_task()->set_cpus(1);
            spec.set_pool("default");
            v1::SubmitResponse response;
            const grpc::Status status = stub.Submit(&context, request, &response);
            if (status.ok()) {
                return response.job();
            }
            const auto code = status.error_code();
            if (code != grpc::StatusCode::UNAVAILABLE &&
                code != grpc::StatusCode::DEADLINE_EXCEEDED) {
                ADD_FAILURE() << name << ": " << status.error_message();
                return 0;
            }
        }
    }

    void client(int number, std::map<std::string, std::int64_t>& acknowledged) {
        auto channel = rpc::make_channel(endpoint_);
        ASSERT_TRUE(channel);
        const auto stub = v1::Jobs::NewStub(*channel);
        for (int i = 0; !stop_.load(); ++i) {
            const std::string name = "c" + std::to_string(number) + "-" + std::to_string(i);
            acknowledged[name] = submit(*stub, name);
            real_env().clock.sleep_us(60'000);
        }
    }

    std::vector<v1::Job> all_jobs() {
        auto channel = rpc::make_channel(endpoint_);
        const auto stub = v1::Jobs::NewStub(*channel);
        v1::ListJobsRequest request;
        request.set_ended(true);
        request.set_limit(10'000);
        v1::ListJobsResponse response;
        grpc::ClientContext context;
        context.set_wait_for_ready(true);
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
        const grpc::Status status = stub->List(&context, request, &response);
        EXPECT_TRUE(status.ok()) << status.error_message();
        return {response.jobs().begin(), response.jobs().end()};
    }

    std::vector<v1::Job> jobs_when_settled() {
        Clock& clock = real_env().clock;
        const std::int64_t deadline_us = clock.steady_us() + kSettleUs;
        while (true) {
            std::vector<v1::Job> jobs = all_jobs();
            const bool busy = std::any_of(jobs.begin(), jobs.end(), [](const v1::Job& job) {
                return job.state() == "pending" || job.state() == "running";
            });
            if (!busy || clock.steady_us() > deadline_us) {
                return jobs;
            }
            clock.sleep_us(200'000);
        }
    }

    std::string directory_;
    rpc::Endpoint endpoint_;
    ChildProcess server_;
    std::vector<ChildProcess> agents_;
    std::atomic<bool> stop_{false};
};

TEST_F(ServerKill, NoAcknowledgedSubmitIsLostDoubledOrOrphaned) {
    start_server();
    start_agent(1);
    start_agent(2);
    std::vector<std::map<std::string, std::int64_t>> acknowledged(kClients);
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i) {
        clients.emplace_back([this, i, &acknowledged] { client(i, acknowledged[i]); });
    }
    for (int round = 0; round < rounds(); ++round) {
        real_env().clock.sleep_us(
            static_cast<std::int64_t>(300'000 + real_env().random.below(700'000)));
        server_.kill_now();
        start_server();
    }
    real_env().clock.sleep_us(500'000);
    stop_.store(true);
    for (std::thread& thread : clients) {
        thread.join();
    }

    std::map<std::string, std::int64_t> expected;
    for (const auto& part : acknowledged) {
        expected.insert(part.begin(), part.end());
    }
    std::map<std::string, int> seen;
    for (const v1::Job& job : jobs_when_settled()) {
        ++seen[job.name()];
        EXPECT_EQ(job.state(), "completed") << job.name() << ": " << job.reason();
        ASSERT_TRUE(expected.contains(job.name())) << job.name() << " was never acknowledged";
        EXPECT_EQ(job.id(), expected[job.name()]) << job.name();
    }
    EXPECT_EQ(seen.size(), expected.size());
    for (const auto& [name, id] : expected) {
        EXPECT_EQ(seen[name], 1) << name;
        std::ifstream file(directory_ + "/out/" + name);
        std::vector<std::string> lines;
        for (std::string line; std::getline(file, line);) {
            lines.push_back(line);
        }
        EXPECT_EQ(lines, std::vector<std::string>{std::to_string(id)}) << name << " ran not once";
    }
    for (ChildProcess& agent : agents_) {
        agent.stop(5000);
    }
    server_.stop(5000);
    EXPECT_EQ(processes_of(directory_), std::vector<std::string>{});
    RecordProperty("kills", rounds());
    RecordProperty("acknowledged", static_cast<int>(expected.size()));
    std::printf("%d kills, %zu submits acknowledged: 0 lost, 0 doubled, 0 orphans\n", rounds(),
                expected.size());
}

}  // namespace
}  // namespace holdfast
