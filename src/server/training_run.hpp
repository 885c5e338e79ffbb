// SPDX-License-Identifier: Apache-2.0
// One training job's coordinator and its workers' streams.
//
// Everything happens under one mutex: an event goes into the coordinator, its records into one
// store transaction, and only then its commands into the streams' outboxes. When the transaction
// fails, the coordinator knows more than the rows: the run is broken, its streams end, and the hub
// opens a new one from the rows, to which the workers attach again.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <holdfast/services.hpp>
#include <holdfast/training.hpp>

#include "training_hub.hpp"

namespace holdfast::server {

/// A worker's stream: commands go through a bounded outbox and a writing thread of its own, so that
/// a worker that does not read (stopped, host gone) holds nobody up.
class WorkerStream {
  public:
    WorkerStream(training::StreamId id, grpc::ServerContext& context, TrainingStream& stream)
        : id_(id), context_(context), stream_(stream) {}

    [[nodiscard]] training::StreamId id() const { return id_; }

    void send(const training::CoordinatorCommand& command);
    /// Ends the stream after what was sent has left and the worker has had time to go.
    void finish();
    /// Ends it at once.
    void end();
    /// The writing thread's body.
    void write();
    /// The reader is through; returns when write() has, which a peer that does not read cannot
    /// prevent.
    void reader_ended();

  private:
    static constexpr std::size_t kOutboxMax = 1024;

    const training::StreamId id_;
    grpc::ServerContext& context_;
    TrainingStream& stream_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<v1::CoordinatorMessage> outbox_;
    bool finishing_ = false;
    bool over_ = false;
    bool written_ = false;  ///< write() is through
};

class TrainingRun {
  public:
    /// Reads the job's rows. Errors: bad_state for a job that does not train now.
    static Result<std::shared_ptr<TrainingRun>> open(Core& core, JobId job,
                                                     const std::string& key_seed);

    TrainingRun(Core& core, JobId job, training::Coordinator coordinator)
        : core_(core), job_(job), coordinator_(std::move(coordinator)) {}

    [[nodiscard]] JobId job() const { return job_; }

    void attached(const std::shared_ptr<WorkerStream>& stream, training::WorkerHello hello);
    void reported(training::StreamId stream, training::WorkerReport report);
    void closed(training::StreamId stream);
    void granted(training::WorkerName worker, LeaseId lease);
    void lost(training::WorkerName worker, LeaseId lease, const std::string& why);
    void cancelled(const std::string& why);
    void tick();

    /// Broken, or ended with no stream left: to be forgotten.
    [[nodiscard]] bool is_over();
    /// The rows may still call it running: to be opened again.
    [[nodiscard]] bool is_broken();

  private:
    void handle(const training::CoordinatorEvent& event);
    void apply(const training::CoordinatorEffects& effects);
    Result<> store_records(const training::CoordinatorEffects& effects);
    void break_off(const Error& error);

    Core& core_;
    const JobId job_;
    std::mutex mutex_;
    training::Coordinator coordinator_;
    std::map<training::StreamId, std::shared_ptr<WorkerStream>> streams_;
    std::map<training::WorkerName, LeaseId> leases_;
    bool broken_ = false;
};

}  // namespace holdfast::server
