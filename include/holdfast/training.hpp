// SPDX-License-Identifier: Apache-2.0
/// Training that goes on when workers die, without spares.
///
/// A job is D pipelines × P stages; worker "d:s" holds stage s of pipeline d. The workers of one
/// stage in different pipelines hold equal parameters, so when one dies its microbatches run at its
/// peers. Three pure parts live here:
///   - make_plan: who runs what, in which order, for a set of dead workers (every worker computes
///     it for itself);
///   - Coordinator: one job's membership: epochs, deaths, returns, commits. The server embeds it
///     and stores its records;
///   - messages: what workers and coordinator say to each other (training_messages.hpp).
/// The worker's own state machine and its transport are internal (src/training).
///
/// Source: ReCycle (arXiv 2405.14009), adaptive pipelining. Not here: checkpoints; a stage whose
/// last copy is gone ends the job, unless no step was made yet.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <holdfast/ids.hpp>
#include <holdfast/result.hpp>
#include <holdfast/training_messages.hpp>

namespace holdfast::training {

// ---- plan

enum class OpKind : std::uint8_t { forward = 0, backward = 1 };

/// Backward is the coupled one: input gradient, then weight gradient.
struct Op {
    OpKind kind = OpKind::forward;
    std::int32_t pipeline = 0;  ///< of the microbatch, whoever runs it
    std::int32_t microbatch = 0;
    bool operator==(const Op&) const = default;
};

struct Plan {
    Shape shape;
    std::set<WorkerName> live;
    std::map<WorkerName, std::vector<Op>> ops;  ///< per live worker, in the order it must run them
    std::int64_t makespan = 0;  ///< slots of one iteration with forward = 1 and backward = 2
    /// The pipeline whose worker of `stage` runs this microbatch.
    [[nodiscard]] std::int32_t route(std::int32_t pipeline, std::int32_t microbatch,
                                     std::int32_t stage) const;
    std::vector<std::int32_t> routes;  ///< [stage][pipeline][microbatch]
};

/// Errors: invalid_argument for a shape out of range or a dead worker outside it; bad_state for a
/// stage with no live worker, naming it. Deterministic: the same arguments give the same plan
/// everywhere. Cost: 3 × 4 × 6 in < 1 ms.
Result<Plan> make_plan(Shape shape, const std::set<WorkerName>& dead);
/// Every microbatch once per stage at its routed live worker, backward after forward at the same
/// worker, in-flight microbatches ≤ P - s, and the orders of all workers together free of deadlock.
/// Errors: bad_state naming the first.
Result<> validate(const Plan& plan);

/// The most microbatches between forward and backward at a stage: 1F1B's memory.
inline std::int32_t in_flight_max(Shape shape, std::int32_t stage) {
    return shape.stages - stage;
}

// ---- coordinator

/// Names one Training.Attach stream; the embedder numbers them from 1 and never reuses a number
/// within a Coordinator.
using StreamId = std::int64_t;

/// A stream's first message. The embedder has checked the secret: this caller holds hello.lease,
/// granted for that worker.
struct Attached {
    StreamId stream = 0;
    WorkerHello hello;
};

struct Reported {
    StreamId stream = 0;
    WorkerReport report;
};

/// The stream ended from the worker's side. (Never sent for streams that the server itself ends to
/// shut down.)
struct Closed {
    StreamId stream = 0;
};

/// A worker was placed again. Its old lease no longer holds.
struct LeaseGranted {
    WorkerName worker;
    LeaseId lease;
};

/// The agent or the server knows that the worker's process or node is gone, whatever its stream
/// looks like.
struct WorkerLost {
    WorkerName worker;
    LeaseId lease;
    std::string why;
};

struct CancelTraining {
    std::string why;
};

using CoordinatorEvent =
    std::variant<Attached, Reported, Closed, LeaseGranted, WorkerLost, CancelTraining>;

// Effects. The embedder stores all records of one call in one transaction, then does its sends and
// closes, in order.
struct SendCommand {
    StreamId stream = 0;
    WorkerName worker;
    CoordinatorCommand command;
};

struct CloseStream {  ///< after what was sent has left
    StreamId stream = 0;
};

/// Record. The lease is void from here on (fence it); the membership of `epoch` is interrupted.
struct WorkerDied {
    WorkerName worker;
    LeaseId lease;
    std::int64_t epoch = 0;
    std::string why;
};

/// Record. A membership: `live` begin at `version`. redone: iterations begun before and run again
/// (0 or 1).
struct EpochBegan {
    std::int64_t epoch = 0;
    std::int64_t version = 0;
    std::set<WorkerName> live;
    std::int32_t redone_iterations = 0;
};

/// Record, in step order without gaps: every live worker holds version step + 1.
struct StepCommitted {
    std::int64_t step = 0;
    std::int64_t epoch = 0;
    double loss = 0;           ///< sum in (pipeline, microbatch) order / (D × M)
    bool has_loss = false;     ///< false: every worker that knew the loss died before it was stored
    std::int64_t step_us = 0;  ///< the slowest reporting worker's
    std::map<std::int32_t, std::uint64_t> parameter_hash;  ///< by stage
};

/// Record: a returned worker is in the pipeline of this epoch.
struct WorkerRejoined {
    WorkerName worker;
    LeaseId lease;
    std::int64_t epoch = 0;
};

struct JobFinished {  ///< record
    std::int64_t version = 0;
};

struct JobFailed {  ///< record
    std::string why;
};

/// Relaxed record: what the job is doing, for people: "running", "stalled: waiting for ...".
struct PhaseChanged {
    std::string text;
};

struct WorkerSuspected {  ///< relaxed record
    WorkerName worker;
    std::string why;
};

using CoordinatorEffect =
    std::variant<SendCommand, CloseStream, WorkerDied, EpochBegan, StepCommitted, WorkerRejoined,
                 JobFinished, JobFailed, PhaseChanged, WorkerSuspected>;
using CoordinatorEffects = std::vector<CoordinatorEffect>;

struct CoordinatorOptions {
    /// Silence before a worker is suspected.
    std::int64_t suspect_us = 500'000;
    /// Silence, or unresolved suspicion, before a worker is declared dead.
    std::int64_t dead_us = 1'500'000;
    /// After restore: how long workers may take to attach again.
    std::int64_t restore_grace_us = 10'000'000;
    /// Longest wait for Stopped from a worker that heart-beats: it finishes one computation.
    std::int64_t answer_us = 60'000'000;
    /// Longest wait for Ready from a worker that heart-beats: it may copy a state.
    std::int64_t ready_us = 600'000'000;
    /// Secret, ≥ 16 random bytes, new per start of the server: the epochs' cluster keys come from
    /// it.
    std::string key_seed;
};

/// What the rows say after a server restart.
struct CoordinatorRows {
    struct Worker {
        LeaseId lease;          ///< 0: none (dead, not placed again)
        bool in_epoch = false;  ///< in EpochBegan.live of `epoch` and no WorkerDied since
    };

    std::int64_t epoch = 0;            ///< of the last EpochBegan; 0: none
    bool interrupted = false;          ///< a WorkerDied of that epoch exists
    bool finished = false;             ///< JobFinished was stored: late workers are sent home
    std::int64_t committed_steps = 0;  ///< last StepCommitted.step + 1
    std::map<WorkerName, Worker> workers;
};

/// One job's membership. Pure: no I/O, no clock, no threads; one thread at a time.
class Coordinator {
  public:
    /// Errors: invalid_argument for a spec out of range, leases that don't name all D × P workers,
    /// or a short key_seed.
    static Result<Coordinator> start(TrainingSpec spec, std::map<WorkerName, LeaseId> leases,
                                     CoordinatorOptions options);
    /// As `start`; then waits up to restore_grace_us (from the first tick) for the workers
    /// of the epoch.
    static Result<Coordinator> restore(TrainingSpec spec, const CoordinatorRows& rows,
                                       CoordinatorOptions options);
    Coordinator(Coordinator&&) noexcept;
    Coordinator& operator=(Coordinator&&) noexcept;
    ~Coordinator();

    /// now_us: monotonic. Late, repeated and old-epoch events are ignored.
    CoordinatorEffects handle(const CoordinatorEvent& event, std::int64_t now_us);
    /// Call at least every 100 ms.
    CoordinatorEffects tick(std::int64_t now_us);

    [[nodiscard]] std::int64_t epoch() const;
    [[nodiscard]] std::int64_t committed_steps() const;
    [[nodiscard]] std::string phase() const;  ///< as in PhaseChanged
    [[nodiscard]] bool ended() const;         ///< finished, failed or cancelled

  private:
    struct State;
    explicit Coordinator(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace holdfast::training
