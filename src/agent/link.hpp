// SPDX-License-Identifier: Apache-2.0
/// The agent's connection to the server: kept up for ever, with threads of its own, so that neither
/// a silent server nor a full network ever stops the loop that looks after the tasks.
///
/// Each connection is a numbered session. The loop hands over its registration, then messages; it
/// takes what came in. What was queued for a session that broke is dropped: the loop holds the
/// truth and says it again at the next one. Queues are bounded; `send` says when there is no room.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <holdfast/env.hpp>
#include <holdfast/result.hpp>
#include <holdfast/rpc.hpp>

#include "holdfast.grpc.pb.h"

namespace holdfast::agent {

class Link {
  public:
    /// Connected to a server; it wants the registration now.
    struct WantsRegistration {};

    struct Closed {
        Error error;
        bool is_final = false;  ///< the server refused this node; no further attempt is made
    };

    struct Event {
        std::uint64_t session = 0;
        std::variant<WantsRegistration, v1::ServerMessage, Closed> what;
    };

    /// `wake` is called from the link's threads whenever `take` has something. `is_final` says
    /// whether a refusal ends the attempts; it is called from the link's thread.
    Link(rpc::Endpoint endpoint, Env& env, std::function<void()> wake,
         std::function<bool(const Error&)> is_final);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    void start();
    /// Closes the connection and ends the threads.
    void stop();

    /// Everything that happened since the last call, in order.
    [[nodiscard]] std::vector<Event> take();
    /// The first message of the session.
    void register_as(std::uint64_t session, v1::RegisterNode registration);
    /// False if the session is over or the queue is full; nothing was queued then.
    bool send(std::uint64_t session, v1::AgentMessage message);
    /// Whether everything that was queued has been written.
    [[nodiscard]] bool is_drained();
    /// Breaks a session whose server has been silent for too long. To be called now and then: the
    /// link's own threads may both be stuck in a network that takes nothing.
    void watch_silence();

  private:
    using Stream = grpc::ClientReaderWriter<v1::AgentMessage, v1::ServerMessage>;

    void run();
    Closed run_session(std::uint64_t session);
    void read_all(std::uint64_t session, Stream& stream);
    void write_until_closed(grpc::ClientContext& context, Stream& stream);
    bool push(Event event);
    bool wait_before_retry(std::int64_t wait_us);

    const rpc::Endpoint endpoint_;
    Env& env_;
    const std::function<void()> wake_;
    const std::function<bool(const Error&)> is_final_;
    std::thread thread_;

    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false;
    std::uint64_t session_ = 0;    ///< the present one
    bool session_open_ = false;    ///< its stream still works
    bool registered_ = false;      ///< the server accepted this session
    bool silence_counts_ = false;  ///< the server answers heartbeats: its silence means something
    std::int64_t heartbeat_us_ = 500'000;
    std::int64_t heard_us_ = 0;  ///< last message from the server
    std::deque<v1::AgentMessage> outbox_;
    std::deque<Event> inbox_;
    std::optional<Error> refusal_;            ///< the server's word before it ended the session
    grpc::ClientContext* context_ = nullptr;  ///< of the running session, for stop()
    bool writing_ = false;
};

/// Whether trying again with the same words is pointless.
[[nodiscard]] bool is_final_refusal(Errc code);

/// How long to wait before attempt `attempt` (0, 1, …): doubles from 0.1 s to 2 s, of which a
/// random half, so that a thousand agents do not return in step.
[[nodiscard]] std::int64_t retry_wait_us(int attempt, Random& random);

/// Trades the one-time token for the node's own. Errors: unauthenticated, unavailable, …
[[nodiscard]] Result<std::string> enrol(const rpc::Endpoint& endpoint, const std::string& node,
                                        const std::string& enrolment_token, Clock& clock);

}  // namespace holdfast::agent
