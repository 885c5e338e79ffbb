// SPDX-License-Identifier: Apache-2.0
#include <holdfast/training_proto.hpp>

namespace holdfast::training {

namespace {

constexpr std::size_t kTextBytesMax = 64 << 10;
constexpr std::size_t kKeyBytes = 32;

Result<WorkerName> worker_from(std::int32_t pipeline, std::int32_t stage) {
    if (pipeline < 0 || pipeline >= kPipelinesMax || stage < 0 || stage >= kStagesMax) {
        return fail(Errc::wire_corrupt, "training message: no worker can be {}:{}", pipeline,
                    stage);
    }
    return WorkerName{pipeline, stage};
}

Result<std::string> text_from(const std::string& text, std::string_view field) {
    if (text.size() > kTextBytesMax) {
        return fail(Errc::wire_corrupt, "training message: {} of {} bytes, at most {} allowed",
                    field, text.size(), kTextBytesMax);
    }
    return text;
}

// ---- worker → coordinator

void fill(v1::WorkerMessage& out, const WorkerHello& hello) {
    v1::WorkerHello& wire = *out.mutable_hello();
    wire.set_lease(hello.lease.value);
    wire.set_pipeline(hello.worker.pipeline);
    wire.set_stage(hello.worker.stage);
    wire.set_epoch(hello.epoch);
    wire.set_version(hello.version);
    wire.set_previous_version(hello.previous_version);
    wire.set_running(hello.running);
    wire.set_data_address(hello.data_address);
    wire.set_data_hash(hello.data_hash);
    wire.set_pid(hello.pid);
}

void fill(v1::WorkerMessage& out, const WorkerHeartbeat&) {
    out.mutable_heartbeat();
}

void fill(v1::WorkerMessage& out, const StepCommit& commit) {
    v1::StepCommit& wire = *out.mutable_commit();
    wire.set_epoch(commit.epoch);
    wire.set_step(commit.step);
    wire.set_step_us(commit.step_us);
    wire.set_parameter_hash(commit.parameter_hash);
    for (const MicrobatchLoss& loss : commit.losses) {
        v1::MicrobatchLoss& entry = *wire.add_losses();
        entry.set_pipeline(loss.pipeline);
        entry.set_microbatch(loss.microbatch);
        entry.set_loss(loss.loss);
    }
}

void fill(v1::WorkerMessage& out, const Stopped& stopped) {
    v1::Stopped& wire = *out.mutable_stopped();
    wire.set_epoch(stopped.epoch);
    wire.set_version(stopped.version);
    wire.set_previous_version(stopped.previous_version);
}

void fill(v1::WorkerMessage& out, const PauseAnswer& answer) {
    v1::PauseAnswer& wire = *out.mutable_pause_answer();
    wire.set_epoch(answer.epoch);
    wire.set_at_step(answer.at_step);
    wire.set_accepted(answer.accepted);
    wire.set_version(answer.version);
}

void fill(v1::WorkerMessage& out, const Ready& ready) {
    v1::Ready& wire = *out.mutable_ready();
    wire.set_epoch(ready.epoch);
    wire.set_version(ready.version);
}

void fill(v1::WorkerMessage& out, const Suspect& suspect) {
    v1::Suspect& wire = *out.mutable_suspect();
    wire.set_epoch(suspect.epoch);
    wire.set_pipeline(suspect.worker.pipeline);
    wire.set_stage(suspect.worker.stage);
    wire.set_why(suspect.why);
}

void fill(v1::WorkerMessage& out, const WorkerFailed& failed) {
    out.mutable_failed()->set_why(failed.why);
}

Result<WorkerReport> hello_from(const v1::WorkerHello& wire) {
    WorkerHello hello;
    hello.lease = LeaseId(wire.lease());
    HOLD_TRY(hello.worker, worker_from(wire.pipeline(), wire.stage()));
    if (wire.epoch() < 0 || wire.version() < -1 || wire.previous_version() < -1) {
        return fail(Errc::wire_corrupt, "training message: hello with epoch {}, version {}",
                    wire.epoch(), wire.version());
    }
    hello.epoch = wire.epoch();
    hello.version = wire.version();
    hello.previous_version = wire.previous_version();
    hello.running = wire.running();
    HOLD_TRY(hello.data_address, text_from(wire.data_address(), "data_address"));
    HOLD_TRY(hello.data_hash, text_from(wire.data_hash(), "data_hash"));
    hello.pid = wire.pid();
    return hello;
}

Result<WorkerReport> commit_from(const v1::StepCommit& wire) {
    StepCommit commit;
    commit.epoch = wire.epoch();
    commit.step = wire.step();
    commit.step_us = wire.step_us();
    commit.parameter_hash = wire.parameter_hash();
    if (wire.losses_size() > kOperationsMax) {
        return fail(Errc::wire_corrupt, "training message: {} losses in one step",
                    wire.losses_size());
    }
    commit.losses.reserve(static_cast<std::size_t>(wire.losses_size()));
    for (const v1::MicrobatchLoss& loss : wire.losses()) {
        commit.losses.push_back({loss.pipeline(), loss.microbatch(), loss.loss()});
    }
    return commit;
}

Result<WorkerReport> suspect_from(const v1::Suspect& wire) {
    Suspect suspect;
    suspect.epoch = wire.epoch();
    HOLD_TRY(suspect.worker, worker_from(wire.pipeline(), wire.stage()));
    HOLD_TRY(suspect.why, text_from(wire.why(), "why"));
    return suspect;
}

// ---- coordinator → worker

void fill(v1::CoordinatorMessage& out, const EpochPlan& plan) {
    v1::EpochPlan& wire = *out.mutable_plan();
    wire.set_epoch(plan.epoch);
    *wire.mutable_spec() = to_proto(plan.spec);
    for (const PeerAddress& peer : plan.live) {
        v1::Peer& entry = *wire.add_live();
        entry.set_pipeline(peer.worker.pipeline);
        entry.set_stage(peer.worker.stage);
        entry.set_data_address(peer.data_address);
    }
    wire.set_version(plan.version);
    wire.set_state_from_pipeline(plan.state_from_pipeline);
    wire.set_cluster_key(plan.cluster_key);
}

void fill(v1::CoordinatorMessage& out, const AbortEpoch& abort) {
    out.mutable_abort()->set_epoch(abort.epoch);
}

void fill(v1::CoordinatorMessage& out, const PauseAt& pause) {
    out.mutable_pause()->set_epoch(pause.epoch);
    out.mutable_pause()->set_at_step(pause.at_step);
}

void fill(v1::CoordinatorMessage& out, const Go& go) {
    out.mutable_go()->set_epoch(go.epoch);
}

void fill(v1::CoordinatorMessage& out, const Finish& finish) {
    out.mutable_finish()->set_version(finish.version);
}

void fill(v1::CoordinatorMessage& out, const Fenced& fenced) {
    out.mutable_fenced()->set_why(fenced.why);
}

void fill(v1::CoordinatorMessage& out, const CommitAck& ack) {
    out.mutable_commit_ack()->set_step(ack.step);
}

Result<CoordinatorCommand> plan_from(const v1::EpochPlan& wire) {
    EpochPlan plan;
    plan.epoch = wire.epoch();
    plan.spec = from_proto(wire.spec());
    if (wire.live_size() > kPipelinesMax * kStagesMax || wire.cluster_key().size() != kKeyBytes) {
        return fail(Errc::wire_corrupt,
                    "training message: plan with {} workers and a key of {} bytes",
                    wire.live_size(), wire.cluster_key().size());
    }
    for (const v1::Peer& peer : wire.live()) {
        PeerAddress entry;
        HOLD_TRY(entry.worker, worker_from(peer.pipeline(), peer.stage()));
        HOLD_TRY(entry.data_address, text_from(peer.data_address(), "data_address"));
        plan.live.push_back(std::move(entry));
    }
    plan.version = wire.version();
    plan.state_from_pipeline = wire.state_from_pipeline();
    if (plan.version < 0 || plan.state_from_pipeline < -1 ||
        plan.state_from_pipeline >= kPipelinesMax) {
        return fail(Errc::wire_corrupt,
                    "training message: plan from version {}, state of pipeline {}", plan.version,
                    plan.state_from_pipeline);
    }
    plan.cluster_key = wire.cluster_key();
    return plan;
}

}  // namespace

v1::TrainingSpec to_proto(const TrainingSpec& spec) {
    v1::TrainingSpec wire;
    wire.set_pipelines(spec.pipelines);
    wire.set_stages(spec.stages);
    wire.set_microbatches(spec.microbatches);
    wire.set_model(spec.model);
    wire.set_steps(spec.steps);
    wire.set_exact(spec.exact);
    wire.set_data(spec.data);
    wire.set_seed(spec.seed);
    wire.set_backend(spec.backend);
    return wire;
}

TrainingSpec from_proto(const v1::TrainingSpec& spec) {
    return {.pipelines = spec.pipelines(),
            .stages = spec.stages(),
            .microbatches = spec.microbatches(),
            .model = spec.model(),
            .steps = spec.steps(),
            .exact = spec.exact(),
            .data = spec.data(),
            .seed = spec.seed(),
            .backend = spec.backend()};
}

v1::WorkerMessage to_proto(const WorkerReport& report) {
    v1::WorkerMessage out;
    std::visit([&](const auto& each) { fill(out, each); }, report);
    return out;
}

v1::CoordinatorMessage to_proto(const CoordinatorCommand& command) {
    v1::CoordinatorMessage out;
    std::visit([&](const auto& each) { fill(out, each); }, command);
    return out;
}

Result<WorkerReport> from_proto(const v1::WorkerMessage& message) {
    switch (message.kind_case()) {
        case v1::WorkerMessage::kHello:
            return hello_from(message.hello());
        case v1::WorkerMessage::kHeartbeat:
            return WorkerHeartbeat{};
        case v1::WorkerMessage::kCommit:
            return commit_from(message.commit());
        case v1::WorkerMessage::kStopped:
            return Stopped{message.stopped().epoch(), message.stopped().version(),
                           message.stopped().previous_version()};
        case v1::WorkerMessage::kPauseAnswer:
            return PauseAnswer{message.pause_answer().epoch(), message.pause_answer().at_step(),
                               message.pause_answer().accepted(), message.pause_answer().version()};
        case v1::WorkerMessage::kReady:
            return Ready{message.ready().epoch(), message.ready().version()};
        case v1::WorkerMessage::kSuspect:
            return suspect_from(message.suspect());
        case v1::WorkerMessage::kFailed: {
            HOLD_TRY(std::string why, text_from(message.failed().why(), "why"));
            return WorkerFailed{std::move(why)};
        }
        case v1::WorkerMessage::KIND_NOT_SET:
            break;
    }
    return fail(Errc::wire_corrupt, "training message of a worker: of no known kind");
}

Result<CoordinatorCommand> from_proto(const v1::CoordinatorMessage& message) {
    switch (message.kind_case()) {
        case v1::CoordinatorMessage::kPlan:
            return plan_from(message.plan());
        case v1::CoordinatorMessage::kAbort:
            return AbortEpoch{message.abort().epoch()};
        case v1::CoordinatorMessage::kPause:
            return PauseAt{message.pause().epoch(), message.pause().at_step()};
        case v1::CoordinatorMessage::kGo:
            return Go{message.go().epoch()};
        case v1::CoordinatorMessage::kFinish:
            return Finish{message.finish().version()};
        case v1::CoordinatorMessage::kFenced:
            return Fenced{message.fenced().why()};
        case v1::CoordinatorMessage::kCommitAck:
            return CommitAck{message.commit_ack().step()};
        case v1::CoordinatorMessage::KIND_NOT_SET:
            break;
    }
    return fail(Errc::wire_corrupt, "training message of the coordinator: of no known kind");
}

}  // namespace holdfast::training
