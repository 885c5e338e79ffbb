// SPDX-License-Identifier: Apache-2.0
#include "fixture.hpp"

#include <cstdlib>

namespace holdfast::server::testing {

TemporaryFolder::TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "holdfast-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
        std::abort();
    }
    path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string code_of(const grpc::Status& status, const grpc::ClientContext& context) {
    if (status.ok()) {
        return "ok";
    }
    return std::string(to_string(rpc::error_from(status, context, "", {}).code));
}

std::string message_of(const grpc::Status& status, const grpc::ClientContext& context) {
    return rpc::error_from(status, context, "", {}).describe();
}

Options ServerTest::options() const {
    Options options;
    options.data_dir = folder_.path() + "/data";
    options.libexec = HOLDFAST_TEST_LIBEXEC;
    return options;
}

void ServerTest::start() {
    auto server = Server::start(options());
    ASSERT_TRUE(server) << server.error().describe();
    server_ = std::move(*server);
    channel_ = connect();
    jobs_ = v1::Jobs::NewStub(channel_);
    nodes_ = v1::Nodes::NewStub(channel_);
    pools_ = v1::Pools::NewStub(channel_);
    tokens_ = v1::Tokens::NewStub(channel_);
    system_ = v1::System::NewStub(channel_);
    agents_ = v1::Agents::NewStub(channel_);
    training_ = v1::Training::NewStub(channel_);
}

void ServerTest::stop() {
    server_.reset();
}

std::shared_ptr<grpc::Channel> ServerTest::connect() const {
    rpc::Endpoint endpoint;
    endpoint.address = "unix:" + server_->socket();
    return *rpc::make_channel(endpoint);
}

v1::JobSpec ServerTest::sleeper(int tasks) {
    v1::JobSpec spec;
    spec.set_name("sleeper");
    spec.set_run("sleep 1000");
    spec.set_tasks(tasks);
    return spec;
}

std::int64_t ServerTest::submit(const v1::JobSpec& spec) {
    v1::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_user("nobody");
    v1::SubmitResponse response;
    Call call;
    const auto status = jobs_->Submit(&call.context, request, &response);
    EXPECT_TRUE(status.ok()) << message_of(status, call.context);
    return response.job();
}

v1::Job ServerTest::job(std::int64_t id) {
    v1::JobRef request;
    request.set_job(id);
    v1::Job response;
    Call call;
    const auto status = jobs_->Get(&call.context, request, &response);
    EXPECT_TRUE(status.ok()) << message_of(status, call.context);
    return response;
}

v1::Job ServerTest::job_when(std::int64_t id, const std::function<bool(const v1::Job&)>& is_there) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (true) {
        v1::Job found = job(id);
        if (is_there(found) || std::chrono::steady_clock::now() > until) {
            EXPECT_TRUE(is_there(found)) << found.ShortDebugString();
            return found;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

std::string ServerTest::token(const std::string& user, const std::string& role) {
    v1::Token request;
    request.set_user(user);
    request.set_role(role);
    v1::Token response;
    Call call;
    const auto status = tokens_->Create(&call.context, request, &response);
    EXPECT_TRUE(status.ok()) << message_of(status, call.context);
    return response.secret();
}

v1::Node ServerTest::node(const std::string& name) {
    v1::ListNodesResponse response;
    Call call;
    const auto status = nodes_->List(&call.context, {}, &response);
    EXPECT_TRUE(status.ok()) << message_of(status, call.context);
    for (const v1::Node& found : response.nodes()) {
        if (found.name() == name) {
            return found;
        }
    }
    return {};
}

v1::SqlResponse ServerTest::sql(const std::string& statement) {
    v1::SqlRequest request;
    request.set_sql(statement);
    v1::SqlResponse response;
    Call call;
    const auto status = system_->Sql(&call.context, request, &response);
    EXPECT_TRUE(status.ok()) << message_of(status, call.context);
    return response;
}

std::int64_t ServerTest::count(const std::string& statement) {
    const v1::SqlResponse response = sql(statement);
    if (response.rows_size() != 1 || response.rows(0).values_size() != 1) {
        ADD_FAILURE() << statement << ": " << response.ShortDebugString();
        return -1;
    }
    return response.rows(0).values(0).integer();
}

FakeAgent::FakeAgent(v1::Agents::Stub& agents, const Setup& setup)
    : conversation_([&](grpc::ClientContext* context) { return agents.Connect(context); }) {
    v1::AgentMessage message;
    v1::RegisterNode& registration = *message.mutable_registration();
    registration.set_name(setup.name);
    registration.set_instance(setup.instance);
    registration.set_address("127.0.0.1");
    registration.set_version("test");
    registration.mutable_capacity()->set_cpus(setup.cpus);
    registration.mutable_capacity()->set_memory_bytes(std::int64_t{8} << 30);
    registration.mutable_capacity()->set_gpus(setup.gpus);
    for (const v1::TaskStatus& task : setup.tasks) {
        *registration.add_tasks() = task;
    }
    conversation_.send(message);
}

std::optional<v1::Registered> FakeAgent::registered() {
    const auto message = conversation_.next([](const auto& candidate) {
        return candidate.has_registered() || candidate.has_refused();
    });
    if (!message || !message->has_registered()) {
        return std::nullopt;
    }
    return message->registered();
}

std::optional<v1::StartTask> FakeAgent::next_start() {
    const auto message =
        conversation_.next([](const auto& candidate) { return candidate.has_start(); });
    return message ? std::optional(message->start()) : std::nullopt;
}

std::optional<v1::StopTask> FakeAgent::next_stop() {
    const auto message =
        conversation_.next([](const auto& candidate) { return candidate.has_stop(); });
    return message ? std::optional(message->stop()) : std::nullopt;
}

v1::TaskStatus FakeAgent::status_of(const v1::StartTask& start, const std::string& state,
                                    int exit_code) {
    v1::TaskStatus status;
    status.set_task(start.task());
    status.set_job(start.job());
    status.set_lease(start.lease());
    status.set_state(state);
    status.set_pid(4711);
    status.set_exit_code(exit_code);
    return status;
}

bool FakeAgent::report(const v1::StartTask& start, const std::string& state, int exit_code) {
    return report(status_of(start, state, exit_code));
}

bool FakeAgent::report(const v1::TaskStatus& status) {
    v1::AgentMessage message;
    *message.mutable_task() = status;
    conversation_.send(message);
    return conversation_
        .next([&](const auto& candidate) {
            return candidate.has_task_ack() && candidate.task_ack().lease() == status.lease() &&
                   candidate.task_ack().state() == status.state();
        })
        .has_value();
}

std::int64_t FakeAgent::append(const v1::StartTask& start, std::int64_t offset,
                               const std::string& text) {
    v1::AgentMessage message;
    message.mutable_log()->set_task(start.task());
    message.mutable_log()->set_lease(start.lease());
    message.mutable_log()->set_stream("stdout");
    message.mutable_log()->set_offset(offset);
    message.mutable_log()->set_text(text);
    conversation_.send(message);
    const auto answer =
        conversation_.next([&](const auto& candidate) { return candidate.has_log_ack(); });
    return answer ? answer->log_ack().offset() : -1;
}

bool FakeAgent::heartbeat() {
    v1::AgentMessage message;
    message.mutable_heartbeat()->set_sent_us(1);
    if (!conversation_.send(message)) {
        return false;
    }
    return conversation_.next([](const auto& candidate) { return candidate.has_heartbeat(); })
        .has_value();
}

}  // namespace holdfast::server::testing
