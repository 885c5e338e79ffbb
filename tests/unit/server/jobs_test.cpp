// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <fstream>
#include <set>

#include "fixture.hpp"

namespace holdfast::server::testing {
namespace {

using JobsTest = ServerTest;

TEST_F(JobsTest, SubmitIsIdempotentByKey) {
    v1::SubmitRequest request;
    *request.mutable_spec() = sleeper();
    request.set_user("nobody");
    request.set_idempotency_key("k1");
    std::set<std::int64_t> ids;
    for (int i = 0; i < 3; ++i) {
        v1::SubmitResponse response;
        Call call;
        ASSERT_TRUE(jobs_->Submit(&call.context, request, &response).ok());
        ids.insert(response.job());
    }
    EXPECT_EQ(ids.size(), 1U);
    restart();
    v1::SubmitResponse response;
    Call call;
    ASSERT_TRUE(jobs_->Submit(&call.context, request, &response).ok());
    ids.insert(response.job());
    EXPECT_EQ(ids.size(), 1U);
    EXPECT_EQ(count("SELECT count(*) FROM job"), 1);
    request.set_idempotency_key("");
    Call again;
    ASSERT_TRUE(jobs_->Submit(&again.context, request, &response).ok());
    EXPECT_EQ(count("SELECT count(*) FROM job"), 2);
}

TEST_F(JobsTest, ConcurrentSubmitsAllLand) {
    constexpr int kThreads = 4;
    constexpr int kEach = 50;
    std::mutex mutex;
    std::set<std::int64_t> ids;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&] {
            const auto stub = v1::Jobs::NewStub(connect());
            for (int i = 0; i < kEach; ++i) {
                v1::SubmitRequest request;
                *request.mutable_spec() = sleeper();
                request.set_user("nobody");
                v1::SubmitResponse response;
                Call call;
                ASSERT_TRUE(stub->Submit(&call.context, request, &response).ok());
                const std::lock_guard lock(mutex);
                ids.insert(response.job());
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(ids.size(), static_cast<std::size_t>(kThreads * kEach));
    EXPECT_EQ(count("SELECT count(*) FROM job"), kThreads * kEach);
}

TEST_F(JobsTest, RestartKeepsJobs) {
    const std::int64_t first = submit(sleeper());
    restart();
    EXPECT_EQ(job(first).state(), "pending");
    EXPECT_EQ(job(first).spec().run(), "sleep 1000");
    EXPECT_GT(submit(sleeper()), first);
}

TEST_F(JobsTest, BadSpecsAreRefusedByField) {
    const auto refused = [&](const std::function<void(v1::JobSpec&)>& spoil) {
        v1::SubmitRequest request;
        *request.mutable_spec() = sleeper();
        spoil(*request.mutable_spec());
        request.set_user("nobody");
        v1::SubmitResponse response;
        Call call;
        const auto status = jobs_->Submit(&call.context, request, &response);
        const Error error = rpc::error_from(status, call.context, "", {});
        return std::pair(code_of(status, call.context), error.where);
    };
    const auto is = [](const char* code, const char* where) {
        return std::pair<std::string, std::string>(code, where);
    };
    EXPECT_EQ(refused([](auto& spec) { spec.set_name(std::string("a\0b", 3)); }),
              is("invalid_argument", "name"));
    EXPECT_EQ(refused([](auto& spec) { spec.set_run(std::string(300 << 10, 'x')); }),
              is("too_large", "run"));
    EXPECT_EQ(refused([](auto& spec) { (*spec.mutable_env())["A=B"] = "x"; }),
              is("invalid_argument", "env"));
    EXPECT_EQ(refused([](auto& spec) { spec.set_tasks(-1); }).first, "invalid_argument");
    EXPECT_EQ(count("SELECT count(*) FROM job"), 0);
}

TEST_F(JobsTest, AJobThatNoNodeCanRunSaysSo) {
    FakeAgent agent(*agents_, {.cpus = 4});
    ASSERT_TRUE(agent.registered());
    v1::JobSpec spec = sleeper();
    spec.mutable_per_task()->set_cpus(64);
    v1::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_user("nobody");
    v1::SubmitResponse response;
    Call call;
    ASSERT_TRUE(jobs_->Submit(&call.context, request, &response).ok());
    EXPECT_NE(response.reason().find("64"), std::string::npos) << response.reason();
    v1::JobRef ref;
    ref.set_job(response.job());
    v1::WhyResponse why;
    Call ask;
    ASSERT_TRUE(jobs_->Why(&ask.context, ref, &why).ok());
    EXPECT_EQ(why.state(), "pending");
    EXPECT_NE(why.summary().find("64"), std::string::npos) << why.summary();
    EXPECT_FALSE(why.fixes().empty());
    // The row says the same, once the loop has looked.
    const v1::Job row =
        job_when(response.job(), [](const v1::Job& found) { return !found.reason().empty(); });
    EXPECT_NE(row.reason().find("64"), std::string::npos) << row.reason();
}

TEST_F(JobsTest, DryRunPlacesAndWritesNothing) {
    FakeAgent agent(*agents_, {.name = "big", .cpus = 4});
    ASSERT_TRUE(agent.registered());
    v1::SubmitRequest request;
    *request.mutable_spec() = sleeper(2);
    request.set_user("nobody");
    request.set_dry_run(true);
    v1::SubmitResponse response;
    Call call;
    ASSERT_TRUE(jobs_->Submit(&call.context, request, &response).ok());
    EXPECT_EQ(response.job(), 0);
    ASSERT_EQ(response.node_names_size(), 2);
    EXPECT_EQ(response.node_names(0), "big");
    request.mutable_spec()->set_tasks(5);
    v1::SubmitResponse waits;
    Call again;
    ASSERT_TRUE(jobs_->Submit(&again.context, request, &waits).ok());
    EXPECT_TRUE(waits.node_names().empty());
    EXPECT_FALSE(waits.reason().empty());
    EXPECT_EQ(count("SELECT count(*) FROM job"), 0);
}

TEST_F(JobsTest, WaitEndsWithTheJob) {
    const std::int64_t id = submit(sleeper());
    v1::WaitRequest request;
    request.set_job(id);
    request.set_timeout_ms(20);
    v1::Job answer;
    Call early;
    const auto timed_out = jobs_->Wait(&early.context, request, &answer);
    EXPECT_EQ(code_of(timed_out, early.context), "timed_out");
    std::thread canceller([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        v1::CancelRequest cancel;
        cancel.set_job(id);
        v1::Job ignored;
        Call call;
        EXPECT_TRUE(jobs_->Cancel(&call.context, cancel, &ignored).ok());
    });
    request.set_timeout_ms(0);
    Call call;
    const auto status = jobs_->Wait(&call.context, request, &answer);
    canceller.join();
    ASSERT_TRUE(status.ok()) << message_of(status, call.context);
    EXPECT_EQ(answer.state(), "cancelled");
    v1::CancelRequest again;
    again.set_job(id);
    Call late;
    const auto too_late = jobs_->Cancel(&late.context, again, &answer);
    EXPECT_EQ(code_of(too_late, late.context), "bad_state");
}

TEST_F(JobsTest, WaitersAreToldWhenTheServerStops) {
    const std::int64_t id = submit(sleeper());
    std::string code;
    std::thread waiter([&] {
        v1::WaitRequest request;
        request.set_job(id);
        v1::Job answer;
        Call call;
        const auto status = jobs_->Wait(&call.context, request, &answer);
        code = code_of(status, call.context);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop();
    waiter.join();
    EXPECT_EQ(code, "unavailable");
}

TEST_F(JobsTest, ArraysAnswerAsOne) {
    v1::JobSpec spec = sleeper();
    for (int i = 0; i < 3; ++i) {
        spec.add_array(i);
    }
    const std::int64_t id = submit(spec);
    const v1::Job array = job(id);
    EXPECT_EQ(array.id(), id);
    EXPECT_EQ(array.state(), "pending");
    EXPECT_EQ(array.tasks_size(), 3);
    v1::ListJobsRequest request;
    request.set_array(id);
    v1::ListJobsResponse elements;
    Call list;
    ASSERT_TRUE(jobs_->List(&list.context, request, &elements).ok());
    EXPECT_EQ(elements.jobs_size(), 3);
    v1::CancelRequest cancel;
    cancel.set_job(id);
    v1::Job cancelled;
    Call call;
    ASSERT_TRUE(jobs_->Cancel(&call.context, cancel, &cancelled).ok());
    EXPECT_EQ(cancelled.state(), "cancelled");
    EXPECT_EQ(count("SELECT count(*) FROM job WHERE state = 'cancelled'"), 3);
}

TEST_F(JobsTest, UnknownJobsAreNotFound) {
    v1::JobRef ref;
    ref.set_job(999);
    v1::Job answer;
    v1::WhyResponse why;
    Call get;
    const auto a = jobs_->Get(&get.context, ref, &answer);
    EXPECT_EQ(code_of(a, get.context), "not_found");
    Call ask;
    const auto b = jobs_->Why(&ask.context, ref, &why);
    EXPECT_EQ(code_of(b, ask.context), "not_found");
    v1::WaitRequest request;
    request.set_job(999);
    Call wait;
    const auto c = jobs_->Wait(&wait.context, request, &answer);
    EXPECT_EQ(code_of(c, wait.context), "not_found");
}

TEST_F(JobsTest, LogsFollowUntilTheJobEnds) {
    FakeAgent agent(*agents_, {});
    ASSERT_TRUE(agent.registered());
    const std::int64_t id = submit(sleeper());
    const auto start = agent.next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(agent.report(*start, "running"));
    EXPECT_EQ(agent.append(*start, 0, "one\n"), 4);
    std::string followed;
    std::atomic<bool> is_half{false};
    std::thread follower([&] {
        v1::LogsRequest request;
        request.set_job(id);
        request.set_rank(-1);
        request.set_follow(true);
        Call call;
        auto reader = jobs_->Logs(&call.context, request);
        v1::LogChunk chunk;
        while (reader->Read(&chunk)) {
            followed += chunk.text();
            is_half = true;
        }
        EXPECT_TRUE(reader->Finish().ok());
    });
    while (!is_half) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(agent.append(*start, 4, "two\n"), 8);
    EXPECT_EQ(agent.append(*start, 4, "two\n"), 8);  // said again: stored once
    EXPECT_TRUE(agent.report(*start, "completed"));
    follower.join();
    EXPECT_EQ(followed, "one\ntwo\n");

    v1::LogsRequest tail;
    tail.set_job(id);
    tail.set_rank(0);
    tail.set_tail_bytes(6);
    Call call;
    auto reader = jobs_->Logs(&call.context, tail);
    std::string text;
    v1::LogChunk chunk;
    while (reader->Read(&chunk)) {
        text += chunk.text();
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(text, "e\ntwo\n");
    tail.set_rank(7);
    Call wrong;
    reader = jobs_->Logs(&wrong.context, tail);
    EXPECT_FALSE(reader->Read(&chunk));
    const auto status = reader->Finish();
    EXPECT_EQ(code_of(status, wrong.context), "not_found");
}

TEST_F(JobsTest, HistoryOfAJobNamesItsRows) {
    FakeAgent agent(*agents_, {});
    ASSERT_TRUE(agent.registered());
    const std::int64_t id = submit(sleeper());
    const auto start = agent.next_start();
    ASSERT_TRUE(start);
    ASSERT_TRUE(agent.report(*start, "running"));
    ASSERT_TRUE(agent.report(*start, "completed"));
    v1::HistoryRequest request;
    request.set_job(id);
    v1::HistoryResponse history;
    Call call;
    const auto status = system_->History(&call.context, request, &history);
    ASSERT_TRUE(status.ok()) << message_of(status, call.context);
    std::set<std::string> tables;
    std::int64_t seq = 0;
    for (const v1::Change& change : history.changes()) {
        tables.insert(change.table());
        EXPECT_GT(change.seq(), seq);
        seq = change.seq();
        EXPECT_EQ(change.before().find("\"secret\":\"0"), std::string::npos);
    }
    EXPECT_EQ(tables, (std::set<std::string>{"job", "job_spec", "lease", "task"}));
    // Plain users do not see what others run.
    Call by_anna(token("anna", "user"));
    ASSERT_TRUE(system_->History(&by_anna.context, request, &history).ok());
    for (const v1::Change& change : history.changes()) {
        EXPECT_EQ(change.after().find("sleep 1000"), std::string::npos) << change.after();
    }
}

TEST_F(JobsTest, MetricsCountCalls) {
    submit(sleeper());
    v1::MetricsResponse response;
    Call call;
    ASSERT_TRUE(system_->Metrics(&call.context, {}, &response).ok());
    EXPECT_NE(response.text().find("holdfast_server_calls_total{verb=\"Jobs.Submit\"}"),
              std::string::npos);
}

class StartTest : public ServerTest {};

TEST_F(StartTest, ASecondServerOnOneDirectoryIsRefusedByPid) {
    auto second = Server::start(options());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Errc::store_locked);
    EXPECT_NE(second.error().message.find(std::to_string(getpid())), std::string::npos)
        << second.error().message;
    EXPECT_GT(submit(sleeper()), 0);  // the first one's socket is still there
}

TEST_F(StartTest, AStaleSocketIsReplacedAndAnythingElseIsNot) {
    const std::string socket = server_->socket();
    stop();
    EXPECT_FALSE(std::filesystem::exists(socket));
    std::ofstream(socket) << "precious";
    auto refused = Server::start(options());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::conflict);
    EXPECT_TRUE(std::filesystem::exists(socket));
    std::filesystem::remove(socket);
    start();
    EXPECT_GT(submit(sleeper()), 0);
}

TEST_F(StartTest, TheFirstStartMakesOneEnrolmentToken) {
    const std::string secret = server_->first_enrolment_token().reveal();
    EXPECT_EQ(secret.substr(0, 3), "hf_");
    const auto enrol = [&](const std::string& node) {
        v1::EnrolRequest request;
        request.set_node(node);
        request.set_enrolment_token(secret);
        v1::EnrolResponse response;
        Call call;
        const auto status = agents_->Enrol(&call.context, request, &response);
        return std::pair(code_of(status, call.context), response.node_token());
    };
    const auto [code, node_token] = enrol("n1");
    EXPECT_EQ(code, "ok");
    EXPECT_FALSE(node_token.empty());
    EXPECT_EQ(enrol("n2").first, "unauthenticated");
    EXPECT_EQ(count("SELECT count(*) FROM change WHERE after_json LIKE '%" + secret + "%'"), 0);
    restart();
    EXPECT_TRUE(server_->first_enrolment_token().is_empty());
}

TEST(StartOptions, AreChecked) {
    Options options;
    EXPECT_EQ(check(options).error().where, "--data");
    options.data_dir = "/tmp/x";
    EXPECT_TRUE(check(options));
    options.listen = "nonsense";
    EXPECT_EQ(check(options).error().where, "--listen");
    options.listen = "host:70000";
    EXPECT_EQ(check(options).error().where, "--listen");
    options.listen = "a,DNS.2=evil:1";
    EXPECT_EQ(check(options).error().where, "--listen");
    options.listen = "";
    options.node_dead_ms = 600;
    EXPECT_EQ(check(options).error().where, "--node-dead-ms");
    options.node_dead_ms = 5000;
    options.worker_dead_ms = 400;
    EXPECT_EQ(check(options).error().where, "--worker-dead-ms");
}

class TlsServerTest : public ServerTest {
  protected:
    Options options() const override {
        Options options = ServerTest::options();
        options.listen = "127.0.0.1:0";
        return options;
    }
};

TEST_F(TlsServerTest, TcpNeedsTlsAndAToken) {
    const std::string address = "127.0.0.1:" + std::to_string(server_->port());
    const auto info = [&](const std::shared_ptr<grpc::Channel>& channel,
                          const std::string& secret) {
        const auto stub = v1::System::NewStub(channel);
        v1::ServerInfo answer;
        Call call(secret);
        const auto status = stub->Info(&call.context, {}, &answer);
        return status.ok() ? answer.user() : code_of(status, call.context);
    };
    rpc::Endpoint endpoint;
    endpoint.address = address;
    endpoint.ca_file = server_->ca_file();
    const auto tls = *rpc::make_channel(endpoint);
    EXPECT_EQ(info(tls, token("anna", "user")), "anna");
    EXPECT_EQ(info(tls, ""), "unauthenticated");
    EXPECT_EQ(info(tls, "hf_0"), "unauthenticated");
    const auto plain = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    EXPECT_EQ(info(plain, ""), "unavailable");
    // The CA outlives restarts: clients keep their copy.
    std::stringstream before;
    before << std::ifstream(server_->ca_file()).rdbuf();
    restart();
    std::stringstream after;
    after << std::ifstream(server_->ca_file()).rdbuf();
    EXPECT_EQ(before.str(), after.str());
    for (const char* name : {"ca.key", "server.key"}) {
        const auto mode =
            std::filesystem::status(folder_.path() + "/data/tls/" + name).permissions();
        EXPECT_EQ(mode, std::filesystem::perms(0600)) << name;
    }
}

}  // namespace
}  // namespace holdfast::server::testing
