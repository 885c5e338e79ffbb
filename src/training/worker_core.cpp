// SPDX-License-Identifier: Apache-2.0
#include "worker_core.hpp"

#include <algorithm>

namespace holdfast::training {

namespace {

void put_commit(Bytes& out, const StepCommit& commit) {
    put(out, commit.epoch);
    put(out, commit.step);
    put(out, commit.step_us);
    put(out, commit.parameter_hash);
    put(out, static_cast<std::uint32_t>(commit.losses.size()));
    for (const MicrobatchLoss& loss : commit.losses) {
        put(out, loss.pipeline);
        put(out, loss.microbatch);
        put(out, loss.loss);
    }
}

Result<MicrobatchLoss> take_loss(ByteReader& reader) {
    MicrobatchLoss loss;
    HOLD_TRY(loss.pipeline, reader.take<std::int32_t>());
    HOLD_TRY(loss.microbatch, reader.take<std::int32_t>());
    HOLD_TRY(loss.loss, reader.take<double>());
    return loss;
}

Result<std::vector<MicrobatchLoss>> take_losses(ByteReader& reader) {
    HOLD_TRY(const std::uint32_t count, reader.take<std::uint32_t>());
    std::vector<MicrobatchLoss> losses;
    for (std::uint32_t i = 0; i < count; ++i) {  // grows only with bytes that are there
        HOLD_TRY(losses.emplace_back(), take_loss(reader));
    }
    return losses;
}

Result<StepCommit> take_commit(ByteReader& reader) {
    StepCommit commit;
    HOLD_TRY(commit.epoch, reader.take<std::int64_t>());
    HOLD_TRY(commit.step, reader.take<std::int64_t>());
    HOLD_TRY(commit.step_us, reader.take<std::int64_t>());
    HOLD_TRY(commit.parameter_hash, reader.take<std::uint64_t>());
    HOLD_TRY(commit.losses, take_losses(reader));
    return commit;
}

}  // namespace

WorkerCore::WorkerCore(WorkerOptions options) : options_(std::move(options)) {}

WorkerActions WorkerCore::handle(WorkerEvent event, std::int64_t now_us) {
    now_ = now_us;
    if (mode_ != Mode::exited) {
        std::visit([&](auto& each) { on(each); }, event);
        pump();
    }
    return std::exchange(out_, {});
}

// ---- reports

void WorkerCore::report(WorkerReport report) {
    if (attached_) {
        out_.emplace_back(SendReport{std::move(report)});
    }
}

void WorkerCore::send_hello() {
    WorkerHello hello;
    hello.lease = options_.lease;
    hello.worker = options_.self;
    hello.epoch = epoch_;
    hello.version = version_;
    hello.previous_version = reachable_previous();
    hello.running =
        had_go_ && (mode_ == Mode::running || mode_ == Mode::paused || mode_ == Mode::done);
    hello.data_address = options_.data_address;
    hello.data_hash = options_.data_hash;
    hello.pid = options_.pid;
    report(std::move(hello));
}

void WorkerCore::report_suspect() {
    if (suspect_) {
        report(*suspect_);
    }
}

void WorkerCore::interrupt(WorkerName peer, const std::string& why) {
    mode_ = Mode::interrupted;
    suspect_ = Suspect{epoch_, peer, why};
    report_suspect();
}

void WorkerCore::give_up(const std::string& why) {
    if (mode_ == Mode::exited) {
        return;
    }
    report(WorkerFailed{why});
    out_.emplace_back(ExitWorker{1, why});
    mode_ = Mode::exited;
}

std::int64_t WorkerCore::reachable_previous() const {
    return previous_ >= 0 ? previous_ : undo_version_;
}

// ---- control events

void WorkerCore::on(const ControlAttached&) {
    attached_ = true;
    send_hello();
    for (const StepCommit& commit : commits_) {
        report(commit);
    }
    if (mode_ == Mode::interrupted || mode_ == Mode::adopting) {
        report_suspect();
    }
}

void WorkerCore::on(const ControlDetached&) {
    attached_ = false;
    pause_at_.reset();  // whoever comes back knows of no such agreement
    if (mode_ == Mode::paused) {
        resume();
    }
}

void WorkerCore::on(CommandReceived& event) {
    std::visit([&](auto& command) { obey(command); }, event.command);
}

void WorkerCore::obey(EpochPlan& plan) {
    if (plan.epoch <= epoch_) {
        return;
    }
    std::set<WorkerName> dead;
    for (std::int32_t d = 0; d < options_.spec.pipelines; ++d) {
        for (std::int32_t s = 0; s < options_.spec.stages; ++s) {
            dead.insert({d, s});
        }
    }
    for (const PeerAddress& peer : plan.live) {
        dead.erase(peer.worker);
    }
    if (plan.spec != options_.spec || dead.contains(options_.self)) {
        give_up(fmt::format("epoch {} is of another job", plan.epoch));
        return;
    }
    auto made = make_plan(options_.spec.shape(), dead);
    if (!made) {
        give_up(made.error().describe());
        return;
    }
    plan_ = std::move(*made);
    epoch_ = plan.epoch;
    mode_ = Mode::adopting;
    had_go_ = false;
    target_ = plan.version;
    state_from_ = plan.state_from_pipeline;
    state_requested_ = false;
    incoming_state_ = {};
    state_requests_.clear();
    suspect_.reset();
    pause_at_.reset();
    peers_ = needed_peers();
    up_.clear();
    connect_deadline_us_ = now_ + options_.connect_us;
    std::erase_if(commits_, [&](const StepCommit& commit) { return commit.step >= target_; });
    forget_iteration();
    OpenEpoch open{epoch_, std::move(plan.cluster_key), {}};
    std::copy_if(plan.live.begin(), plan.live.end(), std::back_inserter(open.peers),
                 [&](const PeerAddress& peer) { return peers_.contains(peer.worker); });
    out_.emplace_back(std::move(open));
}

std::set<WorkerName> WorkerCore::needed_peers() const {
    std::set<WorkerName> needed;
    const auto [own_pipeline, stage] = options_.self;
    for (std::int32_t d = 0; d < options_.spec.pipelines; ++d) {
        if (plan_.live.contains({d, stage})) {
            needed.insert({d, stage});
        }
        for (std::int32_t m = 0; m < options_.spec.microbatches; ++m) {
            if (plan_.route(d, m, stage) != own_pipeline) {
                continue;
            }
            if (stage > 0) {
                needed.insert({plan_.route(d, m, stage - 1), stage - 1});
            }
            if (!last_stage()) {
                needed.insert({plan_.route(d, m, stage + 1), stage + 1});
            }
        }
    }
    needed.erase(options_.self);
    return needed;
}

void WorkerCore::obey(const AbortEpoch& abort) {
    if (abort.epoch != epoch_ || epoch_ == 0) {
        return;
    }
    if (mode_ != Mode::stopped && mode_ != Mode::stopping) {
        out_.emplace_back(CloseEpoch{});
        up_.clear();
        pause_at_.reset();
        suspect_.reset();
        incoming_state_ = {};
        state_requests_.clear();
        forget_iteration();
    }
    mode_ = Mode::stopping;  // pump answers Stopped once nothing is in progress
}

void WorkerCore::obey(const PauseAt& pause) {
    const bool can_answer = mode_ == Mode::running || mode_ == Mode::paused || mode_ == Mode::done;
    if (pause.epoch != epoch_ || !can_answer) {
        return;
    }
    const bool at_boundary = mode_ == Mode::paused && version_ == pause.at_step;
    const bool accepted =
        pause.at_step >= options_.spec.steps || version_ < pause.at_step || at_boundary;
    report(PauseAnswer{epoch_, pause.at_step, accepted, version_});
    if (!accepted || mode_ == Mode::done) {
        return;
    }
    pause_at_.reset();
    if (pause.at_step < options_.spec.steps) {
        pause_at_ = pause.at_step;  // pump reports Stopped there, also if it is there already
    }
    if (mode_ == Mode::paused) {
        resume();
    }
}

void WorkerCore::obey(const Go& go) {
    if (go.epoch == epoch_ && mode_ == Mode::ready) {
        mode_ = Mode::running;
        had_go_ = true;
        undo_ = {};  // all have the version: nobody will be asked to go below it
        undo_version_ = -1;
    }
}

void WorkerCore::obey(const Finish& finish) {
    out_.emplace_back(ExitWorker{0, fmt::format("finished at step {}", finish.version)});
    mode_ = Mode::exited;
}

void WorkerCore::obey(const Fenced& fenced) {
    out_.emplace_back(ExitWorker{3, "fenced: " + fenced.why});
    mode_ = Mode::exited;
}

void WorkerCore::obey(const CommitAck& ack) {
    std::erase_if(commits_, [&](const StepCommit& commit) { return commit.step <= ack.step; });
}

/// On from a boundary where it had paused.
void WorkerCore::resume() {
    mode_ = Mode::running;
    for (const WorkerName& peer : peers_) {
        if (!up_.contains(peer)) {
            interrupt(peer, "the data connection ended while paused");
            return;
        }
    }
}

// ---- data events

void WorkerCore::on(const PeerUp& event) {
    if (event.epoch == epoch_ && peers_.contains(event.peer)) {
        up_.insert(event.peer);
    }
}

void WorkerCore::on(const PeerDown& event) {
    if (event.epoch != epoch_ || up_.erase(event.peer) == 0) {
        return;
    }
    if (mode_ == Mode::adopting || mode_ == Mode::ready || mode_ == Mode::running) {
        interrupt(event.peer, event.why);
    }
}

void WorkerCore::on(const Tick&) {
    if (task_ && now_ - task_began_us_ >= options_.compute_us) {
        // Heartbeats come from another thread: without this it would hold up the job for ever.
        give_up(
            fmt::format("a computation took longer than {} s", options_.compute_us / 1'000'000));
        return;
    }
    if (mode_ != Mode::adopting || now_ < connect_deadline_us_ || suspect_) {
        return;
    }
    for (const WorkerName& peer : peers_) {
        if (!up_.contains(peer)) {
            suspect_ = Suspect{epoch_, peer, "no data connection to it"};
            report_suspect();
            return;
        }
    }
}

void WorkerCore::on(FrameReceived& event) {
    Frame& frame = event.frame;
    const bool listening = mode_ == Mode::adopting || mode_ == Mode::ready ||
                           mode_ == Mode::running || mode_ == Mode::paused;
    if (frame.epoch != epoch_ || !listening) {
        return;
    }
    if (auto accepted = accept(frame); !accepted) {
        interrupt(frame.source, accepted.error().describe());
    }
}

Result<> WorkerCore::accept(Frame& frame) {
    if (frame.target != options_.self || !peers_.contains(frame.source)) {
        return fail(Errc::wire_corrupt, "frame from {} to {} came to {}", to_string(frame.source),
                    to_string(frame.target), to_string(options_.self));
    }
    switch (frame.type) {
        case FrameType::activation:
        case FrameType::gradient:
            return accept_tensor(frame);
        case FrameType::reduce:
            return accept_reduce(frame);
        case FrameType::state_request:
            if (frame.source.stage != options_.self.stage || frame.iteration != target_) {
                return fail(Errc::wire_corrupt, "state of version {} wanted, epoch {} begins at {}",
                            frame.iteration, epoch_, target_);
            }
            state_requests_.insert(frame.source);
            return {};
        case FrameType::state:
            return accept_state(frame);
        default:
            return fail(Errc::wire_corrupt, "handshake frame on an open connection");
    }
}

Result<> WorkerCore::accept_tensor(Frame& frame) {
    const Op& op = frame.op;
    const bool forward = frame.type == FrameType::activation;
    const std::int32_t stage = options_.self.stage;
    const std::int32_t from_stage = stage + (forward ? -1 : 1);
    const bool in_job = op.pipeline < options_.spec.pipelines &&
                        op.microbatch < options_.spec.microbatches && frame.op_stage == stage &&
                        op.kind == (forward ? OpKind::forward : OpKind::backward);
    if (!in_job || frame.source.stage != from_stage ||
        plan_.route(op.pipeline, op.microbatch, stage) != options_.self.pipeline ||
        plan_.route(op.pipeline, op.microbatch, from_stage) != frame.source.pipeline) {
        return fail(Errc::wire_corrupt, "microbatch {}:{} from {} is not in the plan", op.pipeline,
                    op.microbatch, to_string(frame.source));
    }
    // One iteration ahead at most: see the argument in coordinator.cpp.
    if (frame.iteration < version_ || frame.iteration > version_ + 1) {
        return fail(Errc::wire_corrupt, "microbatch of iteration {} at version {}", frame.iteration,
                    version_);
    }
    const InboxKey key{frame.iteration, op.kind, op.pipeline, op.microbatch};
    if (!inbox_.emplace(key, std::move(frame.payload)).second) {
        return fail(Errc::wire_corrupt, "microbatch {}:{} came twice", op.pipeline, op.microbatch);
    }
    return {};
}

Result<> WorkerCore::accept_reduce(const Frame& frame) {
    if (frame.source.stage != options_.self.stage || frame.iteration < version_ ||
        frame.iteration > version_ + 1) {
        return fail(Errc::wire_corrupt, "gradient sums of iteration {} from {} at version {}",
                    frame.iteration, to_string(frame.source), version_);
    }
    return append_piece(reduce_[{frame.iteration, frame.source.pipeline}], frame.payload);
}

Result<> WorkerCore::accept_state(const Frame& frame) {
    if (mode_ != Mode::adopting || !state_requested_ ||
        frame.source != WorkerName{state_from_, options_.self.stage}) {
        return fail(Errc::wire_corrupt, "state from {} that was not asked for",
                    to_string(frame.source));
    }
    return append_piece(incoming_state_, frame.payload);
}

/// A piece is total, offset, bytes; pieces come in order.
Result<> WorkerCore::append_piece(Pieces& pieces, ByteView payload) const {
    ByteReader reader(payload);
    HOLD_TRY(const std::uint64_t total, reader.take<std::uint64_t>());
    HOLD_TRY(const std::uint64_t offset, reader.take<std::uint64_t>());
    const std::uint64_t size = reader.left();
    if (pieces.started && (total != pieces.total || pieces.whole())) {
        return fail(Errc::wire_corrupt, "piece of {} bytes after one of {}", total, pieces.total);
    }
    if (total > options_.blob_bytes_max || offset != pieces.bytes.size() || size > total - offset) {
        return fail(Errc::wire_corrupt, "piece of {} bytes at {} of {}", size, offset, total);
    }
    pieces.started = true;
    pieces.total = total;
    HOLD_TRY(const ByteView bytes, reader.take_bytes(size));
    put_bytes(pieces.bytes, bytes);
    return {};
}

void WorkerCore::send_pieces(FrameType type, WorkerName peer, const Bytes& blob) {
    std::size_t offset = 0;
    do {
        const std::size_t size = std::min(options_.piece_bytes, blob.size() - offset);
        Frame frame;
        frame.type = type;
        frame.epoch = epoch_;
        frame.iteration = version_;
        frame.source = options_.self;
        frame.target = peer;
        frame.op_stage = options_.self.stage;
        frame.payload.reserve(16 + size);
        put<std::uint64_t>(frame.payload, blob.size());
        put<std::uint64_t>(frame.payload, offset);
        put_bytes(frame.payload, ByteView(blob).subspan(offset, size));
        out_.emplace_back(SendFrame{std::move(frame)});
        offset += size;
    } while (offset < blob.size());
}

// ---- computing

void WorkerCore::start(ComputeKind kind, MicrobatchKey key, Bytes input,
                       std::vector<Bytes> inputs) {
    HOLD_CHECK(!task_, "one compute task at a time");
    task_ = ++task_ids_;
    task_began_us_ = now_;
    out_.emplace_back(StartCompute{{*task_, kind, key, std::move(input), std::move(inputs)}});
}

void WorkerCore::on(Computed& event) {
    ComputeResult& result = event.result;
    if (task_ != result.id) {
        return;
    }
    task_.reset();
    if (result.error) {
        give_up(result.error->describe());
        return;
    }
    built_ = true;
    blank_ = (blank_ && result.kind != ComputeKind::load) || result.kind == ComputeKind::build;
    version_ = blank_ ? -1 : result.version;
    previous_ = result.previous_version;
    const bool in_place = mode_ == Mode::running && in_iteration_ && result.key.step == version_;
    switch (result.kind) {
        case ComputeKind::forward:
            if (in_place) {
                forward_done(result);
            }
            break;
        case ComputeKind::backward_input:
            if (in_place) {
                backward_input_done(result);
            }
            break;
        case ComputeKind::backward_weight:
            next_op_ += in_place ? 1 : 0;
            break;
        case ComputeKind::sums:
            if (in_place) {
                sums_done(result);
            }
            break;
        case ComputeKind::step:
            step_done(result);
            break;
        case ComputeKind::drop:
            drop_wanted_ = false;
            break;
        case ComputeKind::save:
            save_done(result);
            break;
        case ComputeKind::load:
            load_done();
            break;
        case ComputeKind::build:
        case ComputeKind::roll_back:
            break;
    }
}

void WorkerCore::pump() {
    if (mode_ == Mode::exited || task_) {
        return;
    }
    if (drop_wanted_) {
        if (built_) {
            start(ComputeKind::drop);
            return;
        }
        drop_wanted_ = false;
    }
    switch (mode_) {
        case Mode::stopping:
            mode_ = Mode::stopped;
            report(Stopped{epoch_, version_, reachable_previous()});
            break;
        case Mode::adopting:
            pump_adopting();
            break;
        case Mode::ready:
            serve_state();
            break;
        case Mode::running:
            pump_running();
            break;
        default:
            break;
    }
}

// ---- reaching the epoch's version

void WorkerCore::pump_adopting() {
    if (!built_) {
        start(ComputeKind::build);
        return;
    }
    if (blank_ && target_ == 0) {
        blank_ = false;
        version_ = 0;
    }
    if (version_ != target_) {
        reach_target();
        return;
    }
    if (serve_state() || up_ != peers_) {
        return;
    }
    mode_ = Mode::ready;
    report(Ready{epoch_, version_});
}

void WorkerCore::reach_target() {
    if (previous_ == target_) {
        start(ComputeKind::roll_back);
        return;
    }
    if (undo_version_ == target_) {
        loading_undo_ = {};
        loading_undo_version_ = -1;
        start(ComputeKind::load, {}, std::exchange(undo_, {}));
        return;
    }
    if (state_from_ < 0) {
        give_up(fmt::format("epoch {} begins at version {}: this worker has {} and can undo to {}",
                            epoch_, target_, version_, reachable_previous()));
        return;
    }
    const WorkerName source{state_from_, options_.self.stage};
    if (!state_requested_ && up_.contains(source)) {
        state_requested_ = true;
        Frame request;
        request.type = FrameType::state_request;
        request.epoch = epoch_;
        request.iteration = target_;
        request.source = options_.self;
        request.target = source;
        request.op_stage = options_.self.stage;
        out_.emplace_back(SendFrame{std::move(request)});
    }
    if (incoming_state_.whole()) {
        if (auto unpacked = unpack_state(); !unpacked) {
            give_up(unpacked.error().describe());
        }
    }
}

/// True if it started a task.
bool WorkerCore::serve_state() {
    if (state_requests_.empty()) {
        return false;
    }
    start(ComputeKind::save);
    return true;
}

void WorkerCore::save_done(ComputeResult& result) {
    if (result.undo_version >= 0) {
        undo_ = std::move(result.undo);
        undo_version_ = result.undo_version;
    }
    if (mode_ != Mode::adopting && mode_ != Mode::ready) {
        return;
    }
    const Bytes blob = pack_state(result.output);
    for (const WorkerName& peer : std::exchange(state_requests_, {})) {
        send_pieces(FrameType::state, peer, blob);
    }
}

Bytes WorkerCore::pack_state(const Bytes& state) const {
    Bytes blob;
    put_blob(blob, state);
    put(blob, undo_version_);
    put_blob(blob, undo_);
    put(blob, static_cast<std::uint32_t>(commits_.size()));
    for (const StepCommit& commit : commits_) {
        put_commit(blob, commit);
    }
    return blob;
}

Result<> WorkerCore::unpack_state() {
    const Bytes blob = std::exchange(incoming_state_, {}).bytes;
    ByteReader reader(blob);
    HOLD_TRY(const ByteView state, reader.take_blob());
    HOLD_TRY(const std::int64_t undo_version, reader.take<std::int64_t>());
    HOLD_TRY(const ByteView undo, reader.take_blob());
    HOLD_TRY(const std::uint32_t commits, reader.take<std::uint32_t>());
    // A step that only the sender knows of must not be forgotten with it.
    std::map<std::int64_t, StepCommit> merged;
    for (StepCommit& commit : commits_) {
        merged.emplace(commit.step, std::move(commit));
    }
    for (std::uint32_t i = 0; i < commits; ++i) {
        HOLD_TRY(StepCommit commit, take_commit(reader));
        if (commit.step < target_) {
            merged.emplace(commit.step, std::move(commit));
        }
    }
    commits_.clear();
    for (auto& [step, commit] : merged) {
        commits_.push_back(std::move(commit));
    }
    loading_undo_.assign(undo.begin(), undo.end());
    loading_undo_version_ = undo_version;
    start(ComputeKind::load, {}, Bytes(state.begin(), state.end()));
    return {};
}

void WorkerCore::load_done() {
    undo_ = std::exchange(loading_undo_, {});
    undo_version_ = loading_undo_version_;
    if (mode_ == Mode::adopting && version_ != target_) {
        give_up(fmt::format("a state of version {} came, epoch {} begins at {}", version_, epoch_,
                            target_));
    }
}

// ---- an iteration

void WorkerCore::pump_running() {
    if (!in_iteration_ && !begin_iteration()) {
        return;
    }
    if (weight_due_) {
        start(ComputeKind::backward_weight, *std::exchange(weight_due_, std::nullopt));
        return;
    }
    if (next_op_ < plan_.ops.at(options_.self).size()) {
        run_next_op();
    } else {
        reduce();
    }
}

bool WorkerCore::begin_iteration() {
    if (version_ >= options_.spec.steps) {
        mode_ = Mode::done;
        return false;
    }
    if (pause_at_ && version_ >= *pause_at_) {
        mode_ = Mode::paused;
        report(Stopped{epoch_, version_, reachable_previous()});
        return false;
    }
    if (commits_.size() >= options_.commits_max) {
        return false;  // until the server has stored some
    }
    in_iteration_ = true;
    iteration_began_us_ = now_;
    next_op_ = 0;
    sums_sent_ = false;
    losses_.clear();
    return true;
}

void WorkerCore::run_next_op() {
    const Op& op = plan_.ops.at(options_.self)[next_op_];
    const bool forward = op.kind == OpKind::forward;
    const bool has_input = forward ? options_.self.stage > 0 : !last_stage();
    Bytes input;
    if (has_input) {
        const auto found = inbox_.find({version_, op.kind, op.pipeline, op.microbatch});
        if (found == inbox_.end()) {
            return;
        }
        input = std::move(found->second);
        inbox_.erase(found);
    }
    start(forward ? ComputeKind::forward : ComputeKind::backward_input,
          {version_, op.pipeline, op.microbatch}, std::move(input));
}

void WorkerCore::forward_done(ComputeResult& result) {
    ++next_op_;
    if (last_stage()) {
        losses_.push_back({result.key.pipeline, result.key.microbatch, result.loss});
        return;
    }
    const std::int32_t stage = options_.self.stage + 1;
    Frame frame;
    frame.type = FrameType::activation;
    frame.epoch = epoch_;
    frame.iteration = version_;
    frame.source = options_.self;
    frame.target = {plan_.route(result.key.pipeline, result.key.microbatch, stage), stage};
    frame.op = {OpKind::forward, result.key.pipeline, result.key.microbatch};
    frame.op_stage = stage;
    frame.payload = std::move(result.output);
    out_.emplace_back(SendFrame{std::move(frame)});
}

void WorkerCore::backward_input_done(ComputeResult& result) {
    weight_due_ = result.key;
    if (options_.self.stage == 0) {
        return;
    }
    const std::int32_t stage = options_.self.stage - 1;
    Frame frame;
    frame.type = FrameType::gradient;
    frame.epoch = epoch_;
    frame.iteration = version_;
    frame.source = options_.self;
    frame.target = {plan_.route(result.key.pipeline, result.key.microbatch, stage), stage};
    frame.op = {OpKind::backward, result.key.pipeline, result.key.microbatch};
    frame.op_stage = stage;
    frame.payload = std::move(result.output);
    out_.emplace_back(SendFrame{std::move(frame)});
}

void WorkerCore::reduce() {
    if (!sums_sent_) {
        start(ComputeKind::sums, {version_, 0, 0});
        return;
    }
    std::vector<Bytes> sums;
    losses_.clear();  // all, own too, are in the blobs
    for (std::int32_t d = 0; d < options_.spec.pipelines; ++d) {
        if (!plan_.live.contains({d, options_.self.stage})) {
            continue;
        }
        const auto found = reduce_.find({version_, d});
        if (found == reduce_.end() || !found->second.whole()) {
            return;
        }
    }
    for (std::int32_t d = 0; d < options_.spec.pipelines; ++d) {
        const auto found = reduce_.find({version_, d});
        if (found == reduce_.end()) {
            continue;
        }
        if (auto unpacked = unpack_reduce(found->second.bytes, sums); !unpacked) {
            interrupt({d, options_.self.stage}, unpacked.error().describe());
            return;
        }
        reduce_.erase(found);
    }
    committing_ = StepCommit{epoch_, version_, std::exchange(losses_, {}), 0, 0};
    start(ComputeKind::step, {version_, 0, 0}, {}, std::move(sums));
}

Bytes WorkerCore::pack_reduce(const Bytes& sums) const {
    Bytes blob;
    put(blob, static_cast<std::uint32_t>(losses_.size()));
    for (const MicrobatchLoss& loss : losses_) {
        put(blob, loss.pipeline);
        put(blob, loss.microbatch);
        put(blob, loss.loss);
    }
    put_bytes(blob, sums);
    return blob;
}

Result<> WorkerCore::unpack_reduce(const Bytes& blob, std::vector<Bytes>& sums) {
    ByteReader reader(blob);
    HOLD_TRY(const std::vector<MicrobatchLoss> losses, take_losses(reader));
    losses_.insert(losses_.end(), losses.begin(), losses.end());
    HOLD_TRY(const ByteView rest, reader.take_bytes(reader.left()));
    sums.emplace_back(rest.begin(), rest.end());
    return {};
}

void WorkerCore::sums_done(ComputeResult& result) {
    sums_sent_ = true;
    const Bytes blob = pack_reduce(result.output);
    for (const WorkerName& peer : peers_) {
        if (peer.stage == options_.self.stage) {
            send_pieces(FrameType::reduce, peer, blob);
        }
    }
    reduce_[{version_, options_.self.pipeline}] = {blob.size(), blob, true};
}

void WorkerCore::step_done(const ComputeResult& result) {
    // Also when an abort came meanwhile: the step was made, so it is reported.
    committing_.step_us = now_ - iteration_began_us_;
    committing_.parameter_hash = result.parameter_hash;
    undo_ = {};
    undo_version_ = -1;
    in_iteration_ = false;
    StepDone done{committing_.step, std::nullopt, committing_.step_us};
    if (last_stage()) {
        auto& losses = committing_.losses;
        std::sort(losses.begin(), losses.end(), [](const auto& a, const auto& b) {
            return std::pair{a.pipeline, a.microbatch} < std::pair{b.pipeline, b.microbatch};
        });
        double sum = 0;
        for (const MicrobatchLoss& loss : losses) {
            sum += loss.loss;
        }
        done.loss = sum / static_cast<double>(std::max<std::size_t>(losses.size(), 1));
    }
    out_.emplace_back(done);
    commits_.push_back(std::move(committing_));
    report(commits_.back());
}

void WorkerCore::forget_iteration() {
    drop_wanted_ = true;
    in_iteration_ = false;
    next_op_ = 0;
    weight_due_.reset();
    sums_sent_ = false;
    inbox_.clear();
    reduce_.clear();
    losses_.clear();
}

std::string WorkerCore::describe() const {
    static constexpr std::array kNames{"idle", "adopting",    "ready",    "running", "paused",
                                       "done", "interrupted", "stopping", "stopped", "exited"};
    return fmt::format(
        "worker {} {} epoch {} version {} (undo {}), operation {}, {} unacknowledged{}",
        to_string(options_.self), kNames[static_cast<std::size_t>(mode_)], epoch_, version_,
        reachable_previous(), next_op_, commits_.size(), task_ ? ", computing" : "");
}

}  // namespace holdfast::training
