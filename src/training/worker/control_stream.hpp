// SPDX-License-Identifier: Apache-2.0
// The worker's line to the coordinator: Training.Attach, dialled again for ever when it breaks,
// while training goes on.
//
// Two threads: one dials and reads, one writes reports and a heartbeat every 100 ms, so that
// neither a long matrix product nor a burst of data silences the worker. The heartbeat vouches for
// the event loop too: it stops when the loop has not turned for some seconds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include <holdfast/env.hpp>
#include <holdfast/log.hpp>

#include "mailbox.hpp"
#include "worker_config.hpp"

namespace holdfast::training {

struct ControlOptions {
    std::int64_t heartbeat_us = 100'000;
    std::int64_t loop_silence_us = 5'000'000;
    std::int64_t redial_min_us = 50'000;
    std::int64_t redial_max_us = 500'000;
};

class ControlStream {
  public:
    /// Errors: as rpc::make_channel.
    static Result<std::unique_ptr<ControlStream>> start(const WorkerConfig& config, Secret secret,
                                                        Mailbox& mailbox, Env& env,
                                                        ControlOptions options = {});
    ~ControlStream();
    ControlStream(const ControlStream&) = delete;
    ControlStream& operator=(const ControlStream&) = delete;

    /// Queues for the present stream; dropped if there is none (the state machine says it again
    /// after the next one).
    void send(WorkerReport report);
    /// The event loop turned.
    void loop_turned();
    /// Waits, up to `wait_us`, until what was queued has been written.
    void flush(std::int64_t wait_us);

  private:
    struct Stream;
    ControlStream(const WorkerConfig& config, Secret secret, Mailbox& mailbox, Env& env,
                  ControlOptions options);

    void dial_and_read();
    bool run_stream();
    void write_and_beat();
    void pause_before_redial(std::int64_t& backoff_us);

    const WorkerConfig config_;
    const Secret secret_;
    Mailbox& mailbox_;
    Env& env_;
    const ControlOptions options_;
    std::shared_ptr<grpc::Channel> channel_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::shared_ptr<Stream> stream_;  ///< null: none
    std::deque<WorkerReport> queue_;
    bool writing_ = false;
    bool stop_ = false;
    std::atomic<std::int64_t> loop_turned_us_{0};
    std::thread reader_;
    std::thread writer_;
};

}  // namespace holdfast::training
