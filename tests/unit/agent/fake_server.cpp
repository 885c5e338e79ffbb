// SPDX-License-Identifier: Apache-2.0
#include "fake_server.hpp"

#include <chrono>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

constexpr std::chrono::seconds kPatience{30};

std::string key_of(std::int64_t task, std::int64_t lease, const std::string& stream) {
    return fmt::format("{}-{} {}", task, lease, stream);
}

}  // namespace

FakeServer::FakeServer(std::string socket) : socket_(std::move(socket)) {}

FakeServer::~FakeServer() {
    stop();
}

void FakeServer::behave(Behaviour behaviour) {
    const std::lock_guard lock(mutex_);
    behaviour_ = std::move(behaviour);
}

FakeServer::Behaviour FakeServer::behaviour() {
    const std::lock_guard lock(mutex_);
    return behaviour_;
}

void FakeServer::start() {
    ::unlink(socket_.c_str());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
}

void FakeServer::stop() {
    if (server_) {
        server_->Shutdown(std::chrono::system_clock::now());
        server_->Wait();
        server_.reset();
    }
}

grpc::Status FakeServer::Enrol(grpc::ServerContext* /*context*/, const v1::EnrolRequest* request,
                               v1::EnrolResponse* response) {
    const std::lock_guard lock(mutex_);
    std::string& token = behaviour_.enrolment_token;
    if (request->enrolment_token() != token || token.empty()) {
        return {grpc::StatusCode::UNAUTHENTICATED, "no such enrolment token"};
    }
    token.clear();
    response->set_node_token(behaviour_.node_token);
    return grpc::Status::OK;
}

grpc::Status FakeServer::Connect(grpc::ServerContext* context, Stream* stream) {
    const Behaviour chosen = behaviour();
    const auto& metadata = context->client_metadata();
    const auto given = metadata.find("authorization");
    if (!chosen.node_token.empty() &&
        (given == metadata.end() || given->second != "Bearer " + chosen.node_token)) {
        return {grpc::StatusCode::UNAUTHENTICATED, "not a token of a node"};
    }
    v1::AgentMessage message;
    if (!stream->Read(&message) || !message.has_registration()) {
        return {grpc::StatusCode::INVALID_ARGUMENT, "the first message must be a registration"};
    }
    v1::ServerMessage answer;
    if (!chosen.refuse_code.empty()) {
        answer.mutable_refused()->set_code(chosen.refuse_code);
        answer.mutable_refused()->set_message("another agent holds this name");
        stream->Write(answer);
        return grpc::Status::OK;
    }
    answer.mutable_registered()->set_node(1);
    answer.mutable_registered()->set_epoch(1);
    answer.mutable_registered()->set_heartbeat_interval_ms(100);
    {
        const std::lock_guard write(write_mutex_);
        stream->Write(answer);
        const std::lock_guard lock(mutex_);
        registrations_.push_back(message.registration());
        for (const v1::TaskStatus& status : message.registration().tasks()) {
            statuses_.push_back(status);
        }
        stream_ = stream;
    }
    changed_.notify_all();
    while (stream->Read(&message)) {
        take(message, *stream);
    }
    const std::lock_guard write(write_mutex_);
    const std::lock_guard lock(mutex_);
    if (stream_ == stream) {
        stream_ = nullptr;
    }
    return grpc::Status::OK;
}

void FakeServer::take(const v1::AgentMessage& message, Stream& stream) {
    v1::ServerMessage answer;
    {
        const std::lock_guard lock(mutex_);
        if (message.has_heartbeat()) {
            ++heartbeats_;
            if (behaviour_.answer_heartbeats) {
                answer.mutable_heartbeat()->set_sent_us(message.heartbeat().sent_us());
            }
        } else if (message.has_task()) {
            statuses_.push_back(message.task());
            if (behaviour_.acknowledge_tasks) {
                answer.mutable_task_ack()->set_task(message.task().task());
                answer.mutable_task_ack()->set_lease(message.task().lease());
                answer.mutable_task_ack()->set_state(message.task().state());
            }
        } else if (message.has_log()) {
            const v1::LogAppend& log = message.log();
            std::string& output = outputs_[key_of(log.task(), log.lease(), log.stream())];
            const auto offset = static_cast<std::size_t>(log.offset());
            if (offset > output.size()) {
                ++log_gaps_;
            } else if (offset + log.text().size() > output.size()) {
                output.append(log.text().substr(output.size() - offset));
            }
            answer.mutable_log_ack()->set_task(log.task());
            answer.mutable_log_ack()->set_lease(log.lease());
            answer.mutable_log_ack()->set_stream(log.stream());
            answer.mutable_log_ack()->set_offset(static_cast<std::int64_t>(output.size()));
        }
    }
    changed_.notify_all();
    if (answer.kind_case() != v1::ServerMessage::KIND_NOT_SET) {
        const std::lock_guard write(write_mutex_);
        stream.Write(answer);
    }
}

void FakeServer::send(const v1::ServerMessage& message) {
    ASSERT_TRUE(wait_for([this] { return stream_ != nullptr; }));
    const std::lock_guard write(write_mutex_);
    if (stream_ != nullptr) {
        stream_->Write(message);
    }
}

void FakeServer::start_task(v1::StartTask start) {
    v1::ServerMessage message;
    *message.mutable_start() = std::move(start);
    send(message);
}

void FakeServer::stop_task(std::int64_t task, std::int64_t lease, std::int64_t grace_ms,
                           const std::string& reason) {
    v1::ServerMessage message;
    message.mutable_stop()->set_task(task);
    message.mutable_stop()->set_lease(lease);
    message.mutable_stop()->set_grace_ms(grace_ms);
    message.mutable_stop()->set_reason(reason);
    send(message);
}

bool FakeServer::wait_for(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, condition);
}

v1::RegisterNode FakeServer::registration(std::size_t n) {
    EXPECT_TRUE(wait_for([&] { return registrations_.size() >= n; })) << "registration " << n;
    const std::lock_guard lock(mutex_);
    return registrations_.size() >= n ? registrations_[n - 1] : v1::RegisterNode();
}

v1::TaskStatus FakeServer::status(std::int64_t task, std::int64_t lease, const std::string& state) {
    v1::TaskStatus found;
    EXPECT_TRUE(wait_for([&] {
        for (const v1::TaskStatus& status : statuses_) {
            if (status.task() == task && status.lease() == lease && status.state() == state) {
                found = status;
                return true;
            }
        }
        return false;
    })) << "task "
        << task << " lease " << lease << " never said " << state;
    return found;
}

int FakeServer::times_said(std::int64_t task, std::int64_t lease, const std::string& state) {
    const std::lock_guard lock(mutex_);
    int count = 0;
    for (const v1::TaskStatus& status : statuses_) {
        count += status.task() == task && status.lease() == lease && status.state() == state;
    }
    return count;
}

std::string FakeServer::output(std::int64_t task, std::int64_t lease, const std::string& stream,
                               std::size_t bytes) {
    const std::string key = key_of(task, lease, stream);
    EXPECT_TRUE(wait_for([&] { return outputs_[key].size() >= bytes; }))
        << key << " has only " << outputs_[key].size() << " bytes";
    const std::lock_guard lock(mutex_);
    return outputs_[key];
}

std::vector<std::string> FakeServer::said() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    for (const v1::TaskStatus& status : statuses_) {
        lines.push_back(fmt::format("{}-{} {}", status.task(), status.lease(), status.state()));
    }
    return lines;
}

int FakeServer::heartbeats() {
    const std::lock_guard lock(mutex_);
    return heartbeats_;
}

int FakeServer::log_gaps() {
    const std::lock_guard lock(mutex_);
    return log_gaps_;
}

}  // namespace holdfast::agent
