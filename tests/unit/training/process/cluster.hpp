// SPDX-License-Identifier: Apache-2.0
// The coordinator behind a real Training service on a unix socket, and real worker processes on
// loopback.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <holdfast.grpc.pb.h>
#include <sys/types.h>

#include <holdfast/env.hpp>
#include <holdfast/training.hpp>

namespace holdfast::training {

class Cluster final : public v1::Training::Service {
  public:
    Cluster(TrainingSpec spec, std::string folder);
    ~Cluster() override;
    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;

    /// Places all workers.
    void start();
    void stop_server();
    void start_server();  ///< the first time, or restores from the rows
    void signal(WorkerName worker, int number);
    /// Lets dead workers come back, those of now and of later.
    void allow_returns();
    bool wait_for_step(std::int64_t step);  ///< until it is committed; false after three minutes
    bool wait_for_deaths(std::size_t deaths);
    bool wait_for_rejoined(int rejoined);
    bool wait_finished();
    /// Waits for a process that is no longer current, by its first placement; -1 after three
    /// minutes.
    int exit_status(pid_t pid);
    pid_t pid(WorkerName worker);
    std::string phase();

    struct Record {
        std::map<std::int64_t, double> losses;
        std::map<std::int32_t, std::uint64_t> last_hash;
        std::vector<WorkerDied> deaths;
        int rejoined = 0;
        int redone = 0;
        int epochs = 0;
        int lost_losses = 0;
        bool finished = false;
        std::string failure;
    };

    Record record();

  private:
    struct Stream {
        grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* calls = nullptr;
        grpc::ServerContext* context = nullptr;
    };

    grpc::Status Attach(
        grpc::ServerContext* context,
        grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* calls) override;
    void apply(const CoordinatorEffects& effects);

    template <typename T>
    void store(const T&) {}

    void store(const WorkerDied& died);
    void store(const EpochBegan& began);
    void store(const StepCommitted& committed);
    void store(const WorkerRejoined&);
    void store(const JobFinished&);
    void store(const JobFailed& failed);
    void place(WorkerName worker);
    void spawn(WorkerName worker, LeaseId lease);
    void run_ticks();
    template <typename Predicate>
    bool wait(Predicate predicate);
    CoordinatorOptions options();

    const TrainingSpec spec_;
    const std::string folder_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Coordinator> coordinator_;
    CoordinatorRows rows_;
    Record record_;
    std::map<StreamId, Stream> streams_;
    StreamId last_stream_ = 0;
    std::int64_t last_lease_ = 0;
    int lives_ = 0;
    std::map<WorkerName, pid_t> pids_;
    std::map<pid_t, int> children_;  ///< all, with wait status or -1
    bool returns_ = false;
    std::set<WorkerName> to_place_;
    std::unique_ptr<grpc::Server> server_;
    bool stop_ = false;
    std::thread ticks_;
};

}  // namespace holdfast::training
