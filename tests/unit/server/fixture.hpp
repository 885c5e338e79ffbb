// SPDX-License-Identifier: Apache-2.0
// A real server in a temporary directory, spoken to over its unix socket.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <holdfast.grpc.pb.h>

#include <holdfast/log.hpp>
#include <holdfast/rpc.hpp>
#include <holdfast/server.hpp>

namespace holdfast::server::testing {

constexpr std::chrono::seconds kPatience{30};  // for what must happen; never for what must not

class TemporaryFolder {
  public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

/// A client context with a deadline and, if given, a token.
struct Call {
    explicit Call(const std::string& token = "") {
        context.set_deadline(std::chrono::system_clock::now() + kPatience);
        if (!token.empty()) {
            context.AddMetadata("authorization", "Bearer " + token);
        }
    }

    grpc::ClientContext context;
};

/// The Holdfast code that a failed call carries; "ok" for none.
std::string code_of(const grpc::Status& status, const grpc::ClientContext& context);
std::string message_of(const grpc::Status& status, const grpc::ClientContext& context);

class ServerTest : public ::testing::Test {
  protected:
    void SetUp() override { start(); }

    void TearDown() override { stop(); }

    virtual Options options() const;
    void start();
    void stop();

    void restart() {
        stop();
        start();
    }

    [[nodiscard]] std::shared_ptr<grpc::Channel> connect() const;

    /// Submits `spec` as user "nobody"; fails the test on an error.
    std::int64_t submit(const v1::JobSpec& spec);
    static v1::JobSpec sleeper(int tasks = 1);
    v1::Job job(std::int64_t id);
    /// Polls until the predicate holds.
    v1::Job job_when(std::int64_t id, const std::function<bool(const v1::Job&)>& is_there);

    v1::Job job_in(std::int64_t id, const std::string& state) {
        return job_when(id, [&](const v1::Job& found) { return found.state() == state; });
    }

    std::string token(const std::string& user, const std::string& role);
    v1::Node node(const std::string& name);
    v1::SqlResponse sql(const std::string& statement);
    std::int64_t count(const std::string& statement);

    TemporaryFolder folder_;
    std::unique_ptr<Server> server_;
    std::shared_ptr<grpc::Channel> channel_;
    std::unique_ptr<v1::Jobs::Stub> jobs_;
    std::unique_ptr<v1::Nodes::Stub> nodes_;
    std::unique_ptr<v1::Pools::Stub> pools_;
    std::unique_ptr<v1::Tokens::Stub> tokens_;
    std::unique_ptr<v1::System::Stub> system_;
    std::unique_ptr<v1::Agents::Stub> agents_;
    std::unique_ptr<v1::Training::Stub> training_;
};

/// A stream whose messages are read by a thread of its own and taken in order.
template <typename Out, typename In>
class Conversation {
  public:
    using Stream = grpc::ClientReaderWriter<Out, In>;

    template <typename Open>
    explicit Conversation(Open&& open) {
        context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
        stream_ = open(&context_);
        reader_ = std::thread([this] {
            In message;
            while (stream_->Read(&message)) {
                const std::lock_guard lock(mutex_);
                inbox_.push_back(message);
                changed_.notify_all();
            }
            const std::lock_guard lock(mutex_);
            is_over_ = true;
            changed_.notify_all();
        });
    }

    ~Conversation() { hang_up(); }

    bool send(const Out& message) { return stream_->Write(message); }

    /// The next message that `wanted` accepts; others before it are dropped. Nothing when the
    /// stream ends or patience does.
    std::optional<In> next(const std::function<bool(const In&)>& wanted) {
        std::unique_lock lock(mutex_);
        std::optional<In> found;
        changed_.wait_for(lock, kPatience, [&] {
            while (!inbox_.empty() && !found) {
                if (wanted(inbox_.front())) {
                    found = inbox_.front();
                }
                inbox_.pop_front();
            }
            return found.has_value() || is_over_;
        });
        return found;
    }

    /// Waits for the server to end the stream.
    grpc::Status wait_for_end() {
        {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, kPatience, [&] { return is_over_; });
        }
        return finish(false);
    }

    /// As a killed process: the connection just ends.
    void hang_up() { finish(true); }

    [[nodiscard]] const grpc::ClientContext& context() const { return context_; }

  private:
    grpc::Status finish(bool cancel) {
        if (reader_.joinable()) {
            if (cancel) {
                context_.TryCancel();
            }
            reader_.join();
            status_ = stream_->Finish();
        }
        return status_;
    }

    grpc::ClientContext context_;
    std::unique_ptr<Stream> stream_;
    std::thread reader_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<In> inbox_;
    bool is_over_ = false;
    grpc::Status status_;
};

/// What the tests' agents do: they say what they are told to say.
class FakeAgent {
  public:
    struct Setup {
        std::string name = "n1";
        std::string instance = "i1";
        std::int64_t cpus = 4;
        std::int64_t gpus = 0;
        std::vector<v1::TaskStatus> tasks = {};
    };

    FakeAgent(v1::Agents::Stub& agents, const Setup& setup);

    /// The answer to the registration. Nothing when it was refused.
    std::optional<v1::Registered> registered();
    std::optional<v1::StartTask> next_start();
    std::optional<v1::StopTask> next_stop();
    /// Reports and waits for the acknowledgement.
    bool report(const v1::StartTask& start, const std::string& state, int exit_code = 0);
    bool report(const v1::TaskStatus& status);
    /// Appends output and waits until it is stored.
    std::int64_t append(const v1::StartTask& start, std::int64_t offset, const std::string& text);
    bool heartbeat();

    void hang_up() { conversation_.hang_up(); }

    grpc::Status wait_for_end() { return conversation_.wait_for_end(); }

    [[nodiscard]] const grpc::ClientContext& context() const { return conversation_.context(); }

    std::optional<v1::ServerMessage> next(
        const std::function<bool(const v1::ServerMessage&)>& wanted) {
        return conversation_.next(wanted);
    }

    static v1::TaskStatus status_of(const v1::StartTask& start, const std::string& state,
                                    int exit_code = 0);

  private:
    Conversation<v1::AgentMessage, v1::ServerMessage> conversation_;
};

}  // namespace holdfast::server::testing
