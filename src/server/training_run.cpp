// SPDX-License-Identifier: Apache-2.0
#include "training_run.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <type_traits>

#include <holdfast/log.hpp>
#include <holdfast/training_proto.hpp>

namespace holdfast::server {
namespace {

using namespace training;  // NOLINT: this file is about nothing else

template <typename... Fs>
struct Overloaded : Fs... {
    using Fs::operator()...;
};

template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

training::TrainingSpec spec_of(const services::TrainingSpec& row) {
    training::TrainingSpec spec;
    spec.pipelines = row.pipelines;
    spec.stages = row.stages;
    spec.microbatches = row.microbatches;
    spec.model = row.model;
    spec.steps = row.steps;
    spec.exact = row.exact;
    spec.data = row.data;
    spec.seed = row.seed;
    spec.backend = row.backend;
    return spec;
}

/// What a worker has to close its stream after it was told to go.
constexpr std::chrono::seconds kTimeToGo{1};

/// Must survive a power loss before anybody acts on it.
bool is_durable(const CoordinatorEffect& effect) {
    return std::holds_alternative<WorkerDied>(effect) ||
           std::holds_alternative<EpochBegan>(effect) ||
           std::holds_alternative<JobFinished>(effect) || std::holds_alternative<JobFailed>(effect);
}

bool is_record(const CoordinatorEffect& effect) {
    return !std::holds_alternative<SendCommand>(effect) &&
           !std::holds_alternative<CloseStream>(effect) &&
           !std::holds_alternative<WorkerSuspected>(effect);
}

struct Rows {
    services::JobRow job;
    services::TrainingRunRow run;
    std::vector<services::TrainingWorkerRow> workers;
    bool is_interrupted = false;
};

Result<Rows> read_rows(store::ReadTx& tx, JobId job) {
    Rows rows;
    HOLD_TRY(rows.job, services::find_job(tx, job));
    if (!rows.job.spec.training || rows.job.state != "running") {
        return fail(Errc::bad_state, "job {} ({}) does not train now", job.value, rows.job.state);
    }
    HOLD_TRY(rows.run, services::find_training(tx, job));
    if (rows.run.state == "failed") {
        return fail(Errc::bad_state, "job {}'s training has failed", job.value);
    }
    HOLD_TRY(rows.workers, services::workers_of(tx, job));
    HOLD_TRY(const auto death,
             tx.query("SELECT 1 FROM training_event WHERE job = $1 AND kind = 'worker_dead' AND "
                      "epoch = $2 LIMIT 1",
                      job, rows.run.epoch));
    rows.is_interrupted = rows.run.epoch > 0 && !death.empty();
    return rows;
}

Result<Coordinator> coordinator_from(const Rows& rows, const CoordinatorOptions& options) {
    CoordinatorRows known;
    known.epoch = rows.run.epoch;
    known.interrupted = rows.is_interrupted;
    known.committed_steps = rows.run.step;
    known.finished = rows.run.state == "finished";
    std::map<WorkerName, LeaseId> leases;
    for (const services::TrainingWorkerRow& row : rows.workers) {
        CoordinatorRows::Worker& worker = known.workers[{row.pipeline, row.stage}];
        if (row.state == "dead" || !row.lease.is_set()) {
            continue;  // its row names the lease that it died with
        }
        worker.lease = row.lease;
        worker.in_epoch = row.state == "live";
        leases[{row.pipeline, row.stage}] = row.lease;
    }
    const training::TrainingSpec spec = spec_of(*rows.job.spec.training);
    if (rows.run.epoch == 0 && leases.size() == known.workers.size()) {
        return Coordinator::start(spec, leases, options);
    }
    return Coordinator::restore(spec, known, options);
}

/// "stalled: waiting for …" → {stalled, waiting for …}; another text is what a running job does.
std::pair<std::string, std::string> state_of(const std::string& phase) {
    constexpr std::array<std::string_view, 5> kStates = {"forming", "running", "recovering",
                                                         "pausing", "stalled"};
    const auto colon = phase.find(':');
    const std::string word = phase.substr(0, colon);
    if (std::find(kStates.begin(), kStates.end(), word) == kStates.end()) {
        return {"", phase};
    }
    if (colon == std::string::npos) {
        return {word, ""};
    }
    return {word, phase.substr(std::min(colon + 2, phase.size()))};
}

}  // namespace

void WorkerStream::send(const CoordinatorCommand& command) {
    {
        const std::lock_guard lock(mutex_);
        if (finishing_ || over_) {
            return;
        }
        if (outbox_.size() >= kOutboxMax) {
            over_ = true;  // it has not read for a thousand messages
            context_.TryCancel();
        } else {
            outbox_.push_back(to_proto(command));
        }
    }
    changed_.notify_all();
}

void WorkerStream::finish() {
    {
        const std::lock_guard lock(mutex_);
        finishing_ = true;
    }
    changed_.notify_all();
}

void WorkerStream::end() {
    {
        const std::lock_guard lock(mutex_);
        if (!over_) {  // once over, the context may be gone
            over_ = true;
            context_.TryCancel();
        }
    }
    changed_.notify_all();
}

void WorkerStream::reader_ended() {
    std::unique_lock lock(mutex_);
    over_ = true;
    changed_.notify_all();
    if (!changed_.wait_for(lock, kTimeToGo, [this] { return written_; })) {
        context_.TryCancel();
        changed_.wait(lock, [this] { return written_; });
    }
}

void WorkerStream::write() {
    std::unique_lock lock(mutex_);
    while (!over_) {
        changed_.wait(lock, [this] { return over_ || finishing_ || !outbox_.empty(); });
        if (over_) {
            break;
        }
        if (outbox_.empty()) {  // finishing: a worker that was told to go closes by itself
            if (!changed_.wait_for(lock, kTimeToGo, [this] { return over_; })) {
                over_ = true;
                context_.TryCancel();
            }
            break;
        }
        const v1::CoordinatorMessage message = std::move(outbox_.front());
        outbox_.pop_front();
        lock.unlock();
        const bool sent = stream_.Write(message);
        lock.lock();
        over_ = over_ || !sent;
    }
    written_ = true;
    changed_.notify_all();
}

Result<std::shared_ptr<TrainingRun>> TrainingRun::open(Core& core, JobId job,
                                                       const std::string& key_seed) {
    HOLD_TRY(const Rows rows,
             core.store->read([&](store::ReadTx& tx) { return read_rows(tx, job); }));
    CoordinatorOptions options;
    options.suspect_us = core.options.worker_suspect_ms * 1000;
    options.dead_us = core.options.worker_dead_ms * 1000;
    options.key_seed = key_seed;
    HOLD_TRY(Coordinator coordinator, coordinator_from(rows, options));
    auto run = std::make_shared<TrainingRun>(core, job, std::move(coordinator));
    for (const services::TrainingWorkerRow& row : rows.workers) {
        if (row.state != "dead") {
            run->leases_[{row.pipeline, row.stage}] = row.lease;
        }
    }
    HOLD_EVENT(info, "training_opened", {"job", job}, {"epoch", rows.run.epoch},
               {"step", rows.run.step}, {"interrupted", rows.is_interrupted});
    return run;
}

void TrainingRun::attached(const std::shared_ptr<WorkerStream>& stream, WorkerHello hello) {
    const std::lock_guard lock(mutex_);
    if (broken_) {
        stream->end();
        return;
    }
    streams_[stream->id()] = stream;
    leases_[hello.worker] = hello.lease;
    handle(Attached{.stream = stream->id(), .hello = std::move(hello)});
}

void TrainingRun::reported(StreamId stream, WorkerReport report) {
    const std::lock_guard lock(mutex_);
    handle(Reported{.stream = stream, .report = std::move(report)});
}

void TrainingRun::closed(StreamId stream) {
    const std::lock_guard lock(mutex_);
    // First gone, then told: the coordinator's commands must not go to a stream that is over.
    if (streams_.erase(stream) != 0) {
        handle(Closed{.stream = stream});
    }
}

void TrainingRun::granted(WorkerName worker, LeaseId lease) {
    const std::lock_guard lock(mutex_);
    leases_[worker] = lease;
    handle(LeaseGranted{.worker = worker, .lease = lease});
}

void TrainingRun::lost(WorkerName worker, LeaseId lease, const std::string& why) {
    const std::lock_guard lock(mutex_);
    handle(WorkerLost{.worker = worker, .lease = lease, .why = why});
}

void TrainingRun::cancelled(const std::string& why) {
    const std::lock_guard lock(mutex_);
    handle(CancelTraining{.why = why});
    for (const auto& [id, stream] : streams_) {
        stream->finish();
    }
}

void TrainingRun::tick() {
    const std::lock_guard lock(mutex_);
    if (!broken_) {
        apply(coordinator_.tick(core_.env.clock.steady_us()));
    }
}

bool TrainingRun::is_over() {
    const std::lock_guard lock(mutex_);
    return broken_ || (coordinator_.ended() && streams_.empty());
}

bool TrainingRun::is_broken() {
    const std::lock_guard lock(mutex_);
    return broken_;
}

void TrainingRun::handle(const CoordinatorEvent& event) {
    if (!broken_) {
        apply(coordinator_.handle(event, core_.env.clock.steady_us()));
    }
}

void TrainingRun::apply(const CoordinatorEffects& effects) {
    if (effects.empty()) {
        return;
    }
    if (auto stored = store_records(effects); !stored) {
        break_off(stored.error());
        return;
    }
    for (const CoordinatorEffect& effect : effects) {
        if (const auto* sent = std::get_if<SendCommand>(&effect)) {
            if (const auto stream = streams_.find(sent->stream); stream != streams_.end()) {
                stream->second->send(sent->command);
            }
        } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
            if (const auto stream = streams_.find(close->stream); stream != streams_.end()) {
                stream->second->finish();
            }
        } else if (const auto* suspect = std::get_if<WorkerSuspected>(&effect)) {
            HOLD_EVENT(info, "worker_suspected", {"job", job_},
                       {"worker", training::to_string(suspect->worker)}, {"why", suspect->why});
        }
    }
}

namespace {

Result<> store_epoch(store::Tx& tx, JobId job, const EpochBegan& began,
                     const std::map<WorkerName, LeaseId>& leases) {
    std::vector<services::TrainingWorkerRow> live;
    for (const WorkerName& worker : began.live) {
        services::TrainingWorkerRow& row = live.emplace_back();
        row.pipeline = worker.pipeline;
        row.stage = worker.stage;
        row.state = "live";
        row.epoch = began.epoch;
        row.at_us = tx.now_us();
        if (const auto lease = leases.find(worker); lease != leases.end()) {
            row.lease = lease->second;
        }
        HOLD_TRY(const auto node, tx.query_one("SELECT n.name FROM lease l JOIN node n ON n.id = "
                                               "l.node WHERE l.id = $1",
                                               row.lease));
        row.node = node ? node->text("name") : "";
    }
    // The epoch's key is not stored: after a restart there is a new epoch with a new key.
    return services::training_epoch(tx, job, began.epoch, began.version, live, "",
                                    began.redone_iterations);
}

Result<> store_record(store::Tx& tx, JobId job, const CoordinatorEffect& effect,
                      const std::map<WorkerName, LeaseId>& leases) {
    return std::visit(
        Overloaded{
            [&](const WorkerDied& died) {
                return services::worker_dead(tx, job, died.worker.pipeline, died.worker.stage,
                                             died.lease, died.why);
            },
            [&](const EpochBegan& began) { return store_epoch(tx, job, began, leases); },
            [&](const StepCommitted& step) {
                if (!step.has_loss) {  // all who knew it died: the step counts, its loss is lost
                    HOLD_EVENT(warn, "loss_unknown", {"job", job}, {"step", step.step});
                }
                return services::training_step(tx, job, step.epoch, step.step,
                                               step.has_loss ? step.loss : 0.0, step.step_us);
            },
            [&](const JobFinished&) { return services::training_state(tx, job, "finished", ""); },
            [&](const JobFailed& failed) {
                return services::training_state(tx, job, "failed", failed.why);
            },
            [&](const PhaseChanged& phase) -> Result<> {
                const auto [state, text] = state_of(phase.text);
                return state.empty() ? Result<>{} : services::training_state(tx, job, state, text);
            },
            [](const auto&) -> Result<> { return {}; },
        },
        effect);
}

}  // namespace

Result<> TrainingRun::store_records(const CoordinatorEffects& effects) {
    const bool has_records = std::any_of(effects.begin(), effects.end(), is_record);
    if (!has_records) {
        return {};
    }
    const bool durable = std::any_of(effects.begin(), effects.end(), is_durable);
    return core_.store->call(
        {.procedure = durable ? "training_membership" : "training_progress",
         .who = "system",
         .cause = fmt::format("coordinator of job {}", job_.value),
         .durability = durable ? store::Durability::durable : store::Durability::relaxed},
        [&](store::Tx& tx) -> Result<> {
            for (const CoordinatorEffect& effect : effects) {
                HOLD_TRY(store_record(tx, job_, effect, leases_));
            }
            return {};
        });
}

void TrainingRun::break_off(const Error& error) {
    HOLD_EVENT(warn, "training_reopened", {"job", job_}, {"why", error});
    broken_ = true;
    for (const auto& [id, stream] : streams_) {
        stream->end();
    }
    streams_.clear();
}

}  // namespace holdfast::server
