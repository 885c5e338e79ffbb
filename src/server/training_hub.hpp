// SPDX-License-Identifier: Apache-2.0
// The server's side of Training.Attach: one training::Coordinator per running training job, fed by
// the workers' streams and by deltas, its records stored before its commands are sent.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <holdfast.grpc.pb.h>

#include <holdfast/store.hpp>
#include <holdfast/training.hpp>

#include "core.hpp"

namespace holdfast::server {

using TrainingStream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>;

class TrainingRun;
class WorkerStream;

class TrainingHub {
  public:
    explicit TrainingHub(Core& core);
    ~TrainingHub();
    TrainingHub(const TrainingHub&) = delete;
    TrainingHub& operator=(const TrainingHub&) = delete;

    /// Takes up every training job that the rows call running.
    Result<> start();
    void stop();

    /// Runs a worker's whole stream, in gRPC's thread.
    Result<> serve_stream(grpc::ServerContext& context, TrainingStream& stream);

    /// From the publisher's thread: only notes what changed.
    void on_deltas(const std::vector<store::Delta>& deltas);

  private:
    /// What a row said, to be told to the job's coordinator.
    struct Note {
        enum class Kind : std::uint8_t { granted, lost, ended } kind = Kind::granted;
        JobId job;
        training::WorkerName worker;
        LeaseId lease;
        std::string why;
    };

    void run();
    void tick();
    void tell(const Note& note);
    /// The job's run, opened from the rows if it is not there.
    Result<std::shared_ptr<TrainingRun>> find_or_open(JobId job);
    std::shared_ptr<TrainingRun> find(JobId job);
    std::vector<std::shared_ptr<TrainingRun>> all();

    Core& core_;
    std::string key_seed_;   ///< new per start of the server
    std::mutex open_mutex_;  ///< held while a run is opened: never two coordinators of one job
    std::mutex mutex_;
    std::map<JobId, std::shared_ptr<TrainingRun>> runs_;
    std::condition_variable changed_;
    std::deque<Note> notes_;
    bool stopping_ = false;
    std::int64_t streams_ = 0;
    std::thread thread_;
};

class TrainingService final : public v1::Training::Service {
  public:
    explicit TrainingService(Core& core) : core_(core) {}

    grpc::Status Attach(grpc::ServerContext* context, TrainingStream* stream) override;

  private:
    Core& core_;
};

}  // namespace holdfast::server
