// SPDX-License-Identifier: Apache-2.0
#include "control_stream.hpp"

#include <chrono>

#include <holdfast.grpc.pb.h>

#include <holdfast/training_proto.hpp>

namespace holdfast::training {

namespace {

/// Commits are the only reports that pile up, and the state machine bounds those.
constexpr std::size_t kQueueMax = 1 << 18;
constexpr std::int64_t kConnectUs = 200'000;

/// Statuses that no retry mends: the lease or the job is gone, or this is not the worker it says.
bool is_final(grpc::StatusCode code) {
    return code == grpc::StatusCode::UNAUTHENTICATED ||
           code == grpc::StatusCode::PERMISSION_DENIED ||
           code == grpc::StatusCode::FAILED_PRECONDITION || code == grpc::StatusCode::NOT_FOUND ||
           code == grpc::StatusCode::INVALID_ARGUMENT;
}

}  // namespace

struct ControlStream::Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> calls;
};

ControlStream::ControlStream(const WorkerConfig& config, Secret secret, Mailbox& mailbox, Env& env,
                             ControlOptions options)
    : config_(config), secret_(std::move(secret)), mailbox_(mailbox), env_(env), options_(options) {
    loop_turned_us_ = env.clock.steady_us();
}

Result<std::unique_ptr<ControlStream>> ControlStream::start(const WorkerConfig& config,
                                                            Secret secret, Mailbox& mailbox,
                                                            Env& env, ControlOptions options) {
    std::unique_ptr<ControlStream> control(
        new ControlStream(config, std::move(secret), mailbox, env, options));
    HOLD_TRY(control->channel_, rpc::make_channel(config.server));
    control->reader_ = std::thread([raw = control.get()] { raw->dial_and_read(); });
    control->writer_ = std::thread([raw = control.get()] { raw->write_and_beat(); });
    return control;
}

ControlStream::~ControlStream() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        if (stream_) {
            stream_->context.TryCancel();
        }
    }
    changed_.notify_all();
    for (std::thread* thread : {&reader_, &writer_}) {
        if (thread->joinable()) {
            thread->join();
        }
    }
}

void ControlStream::send(WorkerReport report) {
    {
        const std::lock_guard lock(mutex_);
        if (!stream_ || queue_.size() >= kQueueMax) {
            return;
        }
        queue_.push_back(std::move(report));
    }
    changed_.notify_all();
}

void ControlStream::loop_turned() {
    loop_turned_us_ = env_.clock.steady_us();
}

void ControlStream::flush(std::int64_t wait_us) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::microseconds(wait_us),
                      [&] { return !stream_ || (queue_.empty() && !writing_); });
}

// ---- dialling and reading

void ControlStream::dial_and_read() {
    std::int64_t backoff_us = options_.redial_min_us;
    while (true) {
        {
            const std::lock_guard lock(mutex_);
            if (stop_) {
                return;
            }
        }
        const auto deadline = std::chrono::system_clock::time_point(
            std::chrono::microseconds(env_.clock.wall_us() + kConnectUs));
        if (channel_->WaitForConnected(deadline)) {
            if (run_stream()) {
                backoff_us = options_.redial_min_us;
            }
        }
        pause_before_redial(backoff_us);
    }
}

/// Grows, with jitter, so that a restarted server is not met by all workers at once.
void ControlStream::pause_before_redial(std::int64_t& backoff_us) {
    const auto jitter =
        static_cast<std::int64_t>(env_.random.below(static_cast<std::uint64_t>(backoff_us)));
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::microseconds(backoff_us / 2 + jitter),
                      [&] { return stop_; });
    backoff_us = std::min(backoff_us * 2, options_.redial_max_us);
}

/// One stream from its beginning to its end; true if the coordinator said anything on it.
bool ControlStream::run_stream() {
    auto stream = std::make_shared<Stream>();
    const auto stub = v1::Training::NewStub(channel_);
    stream->calls = stub->Attach(&stream->context);
    {
        const std::lock_guard lock(mutex_);
        if (stop_) {
            stream->context.TryCancel();
        }
        queue_.clear();
        stream_ = stream;
    }
    mailbox_.post(ControlAttached{});
    bool heard = false;
    v1::CoordinatorMessage message;
    while (stream->calls->Read(&message)) {
        heard = true;
        if (auto command = from_proto(message)) {
            mailbox_.post(CommandReceived{*std::move(command)});
        } else {
            stream->context.TryCancel();  // not our server: start over
        }
    }
    {
        std::unique_lock lock(mutex_);
        stream_.reset();
        queue_.clear();
        stream->context.TryCancel();  // a writer in the middle of it comes back
        changed_.wait(lock, [&] { return !writing_; });
    }
    changed_.notify_all();
    const grpc::Status status = stream->calls->Finish();
    mailbox_.post(ControlDetached{});
    if (is_final(status.error_code())) {
        const Error error =
            rpc::error_from(status, stream->context, "attach to the coordinator", config_.server);
        mailbox_.post(CommandReceived{Fenced{error.describe()}});
    }
    return heard;
}

// ---- writing

void ControlStream::write_and_beat() {
    std::unique_lock lock(mutex_);
    std::int64_t beat_at = 0;
    while (!stop_) {
        const std::int64_t now = env_.clock.steady_us();
        const bool loop_lives = now - loop_turned_us_ < options_.loop_silence_us;
        v1::WorkerMessage message;
        if (stream_ && !queue_.empty()) {
            message = to_proto(queue_.front());
            queue_.pop_front();
            if (message.has_hello()) {
                message.mutable_hello()->set_job(config_.job.value);
                message.mutable_hello()->set_task(config_.task.value);
                message.mutable_hello()->set_secret(secret_.reveal());
                beat_at = now + options_.heartbeat_us;  // hello is the first message
            }
        } else if (stream_ && now >= beat_at && beat_at > 0 && loop_lives) {
            message.mutable_heartbeat()->set_sent_us(env_.clock.wall_us());
            beat_at = now + options_.heartbeat_us;
        } else {
            if (!stream_) {
                beat_at = 0;
            }
            changed_.wait_for(lock, std::chrono::microseconds(options_.heartbeat_us / 2));
            continue;
        }
        const std::shared_ptr<Stream> stream = stream_;
        writing_ = true;
        lock.unlock();
        static_cast<void>(stream->calls->Write(message));  // the reader hears of a broken stream
        lock.lock();
        writing_ = false;
        changed_.notify_all();
    }
}

}  // namespace holdfast::training
