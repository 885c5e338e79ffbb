// SPDX-License-Identifier: Apache-2.0
// A training worker without its sockets, threads and numbers: events in, actions out.
//
// The same code runs in hold-train (one thread calls handle; worker_main.cpp carries out the
// actions) and, D × P of it in one thread under a seeded network, in the tests. Rules it keeps:
//   - one compute task at a time; an abort waits for the one in progress, so the reported version
//   is the real one;
//   - operations run strictly in the plan's order, inputs wait in an inbox keyed by (iteration,
//   kind, microbatch);
//   - a frame of another epoch is dropped; one that the plan does not foresee ends the epoch
//   (Suspect);
//   - training does not need the coordinator: without one, commits queue up and pauses are
//   forgotten.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include <holdfast/training.hpp>

#include "compute.hpp"
#include "wire.hpp"

namespace holdfast::training {

// ---- events

struct ControlAttached {};  ///< a control stream is up

struct ControlDetached {};

struct CommandReceived {
    CoordinatorCommand command;
};

struct PeerUp {  ///< an authenticated connection of this epoch
    std::int64_t epoch = 0;
    WorkerName peer;
};

struct PeerDown {
    std::int64_t epoch = 0;
    WorkerName peer;
    std::string why;
};

struct FrameReceived {
    Frame frame;
};

struct Computed {
    ComputeResult result;
};

struct Tick {};

using WorkerEvent = std::variant<ControlAttached, ControlDetached, CommandReceived, PeerUp,
                                 PeerDown, FrameReceived, Computed, Tick>;

// ---- actions

struct SendReport {
    WorkerReport report;
};

/// Close all data connections, then dial and accept those of this epoch: one per peer.
struct OpenEpoch {
    std::int64_t epoch = 0;
    std::string cluster_key;
    std::vector<PeerAddress> peers;
};

struct CloseEpoch {};

struct SendFrame {
    Frame frame;
};

struct StartCompute {
    ComputeTask task;
};

struct StepDone {
    std::int64_t step = 0;
    std::optional<double> loss;  ///< last stage: the step's mean
    std::int64_t step_us = 0;
};

struct ExitWorker {
    int code = 0;
    std::string why;
};

using WorkerAction =
    std::variant<SendReport, OpenEpoch, CloseEpoch, SendFrame, StartCompute, StepDone, ExitWorker>;
using WorkerActions = std::vector<WorkerAction>;

struct WorkerOptions {
    TrainingSpec spec;
    WorkerName self;
    LeaseId lease;
    std::string data_address;
    std::string data_hash;
    std::int64_t pid = 0;
    std::int64_t connect_us = 5'000'000;  ///< a peer that is not up by then is suspected
    std::int64_t compute_us =
        600'000'000;  ///< one computation; a worker that hangs in one gives up
    std::size_t commits_max =
        1 << 16;  ///< unacknowledged steps before training waits for the server
    std::size_t piece_bytes = 1 << 20;          ///< of sums and states per frame
    std::uint64_t blob_bytes_max = 1ULL << 36;  ///< of sums or a state in all
};

class WorkerCore {
  public:
    explicit WorkerCore(WorkerOptions options);

    WorkerActions handle(WorkerEvent event, std::int64_t now_us);

    [[nodiscard]] std::int64_t version() const { return version_; }

    [[nodiscard]] std::int64_t epoch() const { return epoch_; }

    [[nodiscard]] bool exited() const { return mode_ == Mode::exited; }

    /// For people and tests: "running iteration 7, operation 3 of 12".
    [[nodiscard]] std::string describe() const;

  private:
    enum class Mode {
        idle,      ///< no epoch yet
        adopting,  ///< has a plan; reaches its version and its peers
        ready,     ///< waits for Go
        running,
        paused,       ///< at an agreed boundary
        done,         ///< all steps made
        interrupted,  ///< lost a peer; waits for the coordinator's word
        stopping,     ///< AbortEpoch came; drops the iteration
        stopped,
        exited,
    };
    using InboxKey = std::tuple<std::int64_t, OpKind, std::int32_t, std::int32_t>;

    struct Pieces {
        std::uint64_t total = 0;
        Bytes bytes;
        bool started = false;

        [[nodiscard]] bool whole() const { return started && bytes.size() == total; }
    };

    // events
    void on(const ControlAttached&);
    void on(const ControlDetached&);
    void on(CommandReceived& event);
    void on(const PeerUp& event);
    void on(const PeerDown& event);
    void on(FrameReceived& event);
    void on(Computed& event);
    void on(const Tick&);
    // commands
    void obey(EpochPlan& plan);
    void obey(const AbortEpoch& abort);
    void obey(const PauseAt& pause);
    void obey(const Go& go);
    void obey(const Finish& finish);
    void obey(const Fenced& fenced);
    void obey(const CommitAck& ack);

    void pump();
    void pump_adopting();
    void reach_target();
    bool serve_state();
    void pump_running();
    bool begin_iteration();
    void run_next_op();
    void reduce();

    void forward_done(ComputeResult& result);
    void backward_input_done(ComputeResult& result);
    void sums_done(ComputeResult& result);
    void step_done(const ComputeResult& result);
    void save_done(ComputeResult& result);
    void load_done();

    Result<> accept(Frame& frame);
    Result<> accept_tensor(Frame& frame);
    Result<> accept_reduce(const Frame& frame);
    Result<> accept_state(const Frame& frame);
    Result<> append_piece(Pieces& pieces, ByteView payload) const;
    Result<> unpack_state();
    Result<> unpack_reduce(const Bytes& blob, std::vector<Bytes>& sums);
    [[nodiscard]] Bytes pack_state(const Bytes& state) const;
    [[nodiscard]] Bytes pack_reduce(const Bytes& sums) const;
    void send_pieces(FrameType type, WorkerName peer, const Bytes& blob);

    void start(ComputeKind kind, MicrobatchKey key = {}, Bytes input = {},
               std::vector<Bytes> inputs = {});
    void report(WorkerReport report);
    void report_suspect();
    void interrupt(WorkerName peer, const std::string& why);
    void resume();
    void send_hello();
    void give_up(const std::string& why);
    void forget_iteration();
    [[nodiscard]] std::int64_t reachable_previous() const;
    [[nodiscard]] std::set<WorkerName> needed_peers() const;

    [[nodiscard]] bool last_stage() const {
        return options_.self.stage + 1 == options_.spec.stages;
    }

    WorkerOptions options_;
    std::int64_t now_ = 0;
    WorkerActions out_;

    std::int64_t epoch_ = 0;
    Plan plan_;
    std::int64_t target_ = 0;  ///< the epoch's first version
    Pieces incoming_state_;
    Bytes loading_undo_;
    std::int64_t loading_undo_version_ = -1;
    std::set<WorkerName> state_requests_;
    std::set<WorkerName> peers_;
    std::set<WorkerName> up_;
    std::int64_t connect_deadline_us_ = 0;
    std::optional<Suspect> suspect_;

    std::int64_t version_ = -1;
    std::int64_t previous_ = -1;  ///< what the module itself can undo to
    Bytes undo_;                  ///< a state one step back that the module cannot undo to
    std::int64_t undo_version_ = -1;

    std::int64_t task_ids_ = 0;
    std::optional<std::int64_t> task_;  ///< in progress
    std::int64_t task_began_us_ = 0;

    std::optional<std::int64_t> pause_at_;
    std::int64_t iteration_began_us_ = 0;
    std::size_t next_op_ = 0;
    std::optional<MicrobatchKey> weight_due_;
    std::map<InboxKey, Bytes> inbox_;
    std::map<std::pair<std::int64_t, std::int32_t>, Pieces> reduce_;  ///< by (iteration, pipeline)
    std::vector<MicrobatchLoss> losses_;  ///< of this iteration; last stage: own, then all
    StepCommit committing_;               ///< of the step in progress
    std::deque<StepCommit> commits_;      ///< not acknowledged, by step

    // The small ones, together: less padding.
    Mode mode_ = Mode::idle;
    std::int32_t state_from_ = -1;
    bool attached_ = false;
    bool had_go_ = false;
    bool state_requested_ = false;
    bool built_ = false;
    bool blank_ = false;  ///< built from the seed and not yet of any epoch: counts as no version
    bool drop_wanted_ = false;
    bool in_iteration_ = false;
    bool sums_sent_ = false;
};

}  // namespace holdfast::training
