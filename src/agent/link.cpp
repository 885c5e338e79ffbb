// SPDX-License-Identifier: Apache-2.0
#include "link.hpp"

#include <algorithm>
#include <chrono>

#include "machine.hpp"

namespace holdfast::agent {
namespace {

constexpr std::size_t kOutboxMax = 512;
constexpr std::size_t kInboxMax = 1024;
constexpr std::int64_t kRetryMinUs = 100'000;
constexpr std::int64_t kRetryMaxUs = 2 * kSecondUs;
constexpr std::int64_t kRegisterWaitUs = 10 * kSecondUs;
constexpr std::int64_t kSilenceMinUs = 3 * kSecondUs;
constexpr int kSilentHeartbeats = 6;
constexpr std::int64_t kEnrolWaitUs = 20 * kSecondUs;

Error error_of(const v1::Error& wire, const std::string& what) {
    Error error;
    error.code = errc_from(wire.code());
    error.message = what + ": " + wire.message();
    error.where = wire.where();
    error.hint = wire.hint();
    return error;
}

}  // namespace

bool is_final_refusal(Errc code) {
    switch (code) {
        case Errc::conflict:
        case Errc::bad_state:  // the node was removed
        case Errc::denied:
        case Errc::unauthenticated:
        case Errc::invalid_argument:
        case Errc::not_found:
        case Errc::unsupported:
        case Errc::too_large:
            return true;
        default:
            return false;
    }
}

std::int64_t retry_wait_us(int attempt, Random& random) {
    const std::int64_t full_us = std::min(kRetryMinUs << std::min(attempt, 8), kRetryMaxUs);
    return full_us / 2 +
           static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(full_us / 2 + 1)));
}

Result<std::string> enrol(const rpc::Endpoint& endpoint, const std::string& node,
                          const std::string& enrolment_token, Clock& clock) {
    HOLD_TRY(const auto channel, rpc::make_channel(endpoint));
    const auto stub = v1::Agents::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::time_point(
        std::chrono::microseconds(clock.wall_us() + kEnrolWaitUs)));
    v1::EnrolRequest request;
    request.set_node(node);
    request.set_enrolment_token(enrolment_token);
    v1::EnrolResponse response;
    const grpc::Status status = stub->Enrol(&context, request, &response);
    if (!status.ok()) {
        return fail(rpc::error_from(status, context, "enrol node " + node, endpoint));
    }
    if (response.node_token().empty()) {
        return fail(Errc::internal, "enrol node {}: the server sent no token", node);
    }
    return response.node_token();
}

Link::Link(rpc::Endpoint endpoint, Env& env, std::function<void()> wake,
           std::function<bool(const Error&)> is_final)
    : endpoint_(std::move(endpoint)),
      env_(env),
      wake_(std::move(wake)),
      is_final_(std::move(is_final)) {}

Link::~Link() {
    stop();
}

void Link::start() {
    thread_ = std::thread([this] { run(); });
}

void Link::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        session_open_ = false;
        if (context_ != nullptr) {
            context_->TryCancel();
        }
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

std::vector<Link::Event> Link::take() {
    std::vector<Event> events;
    {
        const std::lock_guard lock(mutex_);
        events.assign(std::make_move_iterator(inbox_.begin()),
                      std::make_move_iterator(inbox_.end()));
        inbox_.clear();
    }
    changed_.notify_all();
    return events;
}

void Link::register_as(std::uint64_t session, v1::RegisterNode registration) {
    v1::AgentMessage message;
    *message.mutable_registration() = std::move(registration);
    send(session, std::move(message));
}

bool Link::send(std::uint64_t session, v1::AgentMessage message) {
    {
        const std::lock_guard lock(mutex_);
        if (session != session_ || !session_open_ || outbox_.size() >= kOutboxMax) {
            return false;
        }
        outbox_.push_back(std::move(message));
    }
    changed_.notify_all();
    return true;
}

bool Link::is_drained() {
    const std::lock_guard lock(mutex_);
    return outbox_.empty() && !writing_;
}

/// Waits for room: a server that sends faster than the loop works is slowed down, not buffered.
bool Link::push(Event event) {
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return inbox_.size() < kInboxMax || stopping_; });
        if (stopping_) {
            return false;
        }
        inbox_.push_back(std::move(event));
    }
    wake_();
    return true;
}

bool Link::wait_before_retry(std::int64_t wait_us) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, std::chrono::microseconds(wait_us),
                              [this] { return stopping_; });
}

void Link::run() {
    int attempt = 0;
    for (std::uint64_t session = 1;; ++session) {
        Closed closed = run_session(session);
        bool was_registered = false;
        {
            const std::lock_guard lock(mutex_);
            was_registered = registered_;
            session_open_ = false;
            registered_ = false;
            outbox_.clear();
            if (stopping_) {
                return;
            }
        }
        const bool is_final = closed.is_final;
        if (!push({session, std::move(closed)}) || is_final) {
            return;
        }
        attempt = was_registered ? 0 : attempt + 1;
        if (!wait_before_retry(retry_wait_us(attempt, env_.random))) {
            return;
        }
    }
}

Link::Closed Link::run_session(std::uint64_t session) {
    // A channel per attempt: one that failed would first sit out a waiting time of its own, and the
    // CA file may have been renewed.
    const auto channel = rpc::make_channel(endpoint_);
    if (!channel) {
        return {channel.error(), is_final_(channel.error())};
    }
    const auto stub = v1::Agents::NewStub(*channel);
    grpc::ClientContext context;
    rpc::authorize(context, endpoint_);
    {
        const std::lock_guard lock(mutex_);
        if (stopping_) {
            return {};
        }
        session_ = session;
        session_open_ = true;
        registered_ = false;
        silence_counts_ = false;
        heard_us_ = env_.clock.steady_us();
        refusal_.reset();
        outbox_.clear();
        context_ = &context;
    }
    const auto stream = stub->Connect(&context);
    if (push({session, WantsRegistration{}})) {
        std::thread reader([&] { read_all(session, *stream); });
        write_until_closed(context, *stream);
        reader.join();
    }
    const grpc::Status status = stream->Finish();
    std::optional<Error> refusal;
    {
        const std::lock_guard lock(mutex_);
        context_ = nullptr;
        refusal = std::move(refusal_);
    }
    Error error = refusal ? std::move(*refusal)
                  : status.ok()
                      ? make_error(Errc::unavailable, "the server closed the connection")
                      : rpc::error_from(status, context, "connect to the server", endpoint_);
    const bool is_final = is_final_(error);
    return {std::move(error), is_final};
}

void Link::read_all(std::uint64_t session, Stream& stream) {
    v1::ServerMessage message;
    while (stream.Read(&message)) {
        {
            const std::lock_guard lock(mutex_);
            heard_us_ = env_.clock.steady_us();
            if (message.has_registered()) {
                registered_ = true;
                const std::int64_t interval_ms = message.registered().heartbeat_interval_ms();
                heartbeat_us_ = std::clamp<std::int64_t>(interval_ms, 50, 60'000) * 1000;
            }
            if (message.has_refused()) {
                refusal_ = error_of(message.refused(), "register this node");
                continue;
            }
            if (message.has_heartbeat()) {
                silence_counts_ = true;
                continue;
            }
        }
        if (!push({session, std::move(message)})) {
            break;
        }
        message.Clear();
    }
    {
        const std::lock_guard lock(mutex_);
        session_open_ = false;
    }
    changed_.notify_all();
}

void Link::watch_silence() {
    const std::lock_guard lock(mutex_);
    if (context_ == nullptr || !session_open_ || (registered_ && !silence_counts_)) {
        return;
    }
    const std::int64_t limit_us =
        registered_ ? std::max(kSilenceMinUs, heartbeat_us_ * kSilentHeartbeats) : kRegisterWaitUs;
    if (env_.clock.steady_us() - heard_us_ > limit_us) {
        session_open_ = false;
        context_->TryCancel();
        changed_.notify_all();
    }
}

void Link::write_until_closed(grpc::ClientContext& context, Stream& stream) {
    std::int64_t next_heartbeat_us = 0;
    std::unique_lock lock(mutex_);
    while (session_open_) {
        const std::int64_t now_us = env_.clock.steady_us();
        v1::AgentMessage message;
        if (registered_ && now_us >= next_heartbeat_us) {
            next_heartbeat_us = now_us + heartbeat_us_;
            message.mutable_heartbeat()->set_sent_us(env_.clock.wall_us());
            message.mutable_heartbeat()->set_load1(load_of_one_minute());
            message.mutable_heartbeat()->set_memory_available_bytes(memory_available_bytes());
        } else if (!outbox_.empty()) {
            message = std::move(outbox_.front());
            outbox_.pop_front();
        } else {
            const std::int64_t wait_us =
                registered_ ? std::max<std::int64_t>(next_heartbeat_us - now_us, 1000) : 100'000;
            changed_.wait_for(lock, std::chrono::microseconds(wait_us));
            continue;
        }
        writing_ = true;
        lock.unlock();
        const bool written = stream.Write(message);
        lock.lock();
        writing_ = false;
        if (!written) {
            break;
        }
    }
    session_open_ = false;
    lock.unlock();
    // Ends a reader that still waits; after an answer of the server it does nothing.
    context.TryCancel();
}

}  // namespace holdfast::agent
