// SPDX-License-Identifier: Apache-2.0
// Who is in a training job, and what everybody does next.
//
// Problem: D × P processes train together and any of them may die at any moment, also while the
// others recover from an earlier death, also while this server is away. Nothing may be lost or
// counted twice, and nobody may wait for ever.
//
// Idea: membership comes in epochs. One epoch is one fixed set of workers that begin at one version
// (a version is the number of optimizer steps in the parameters). Any change goes through the same
// four steps:
//     everybody stops  ->  one version T is chosen  ->  EpochPlan, Ready from all  ->  Go.
// A death stops them in the middle of an iteration (AbortEpoch: it is dropped and redone); a return
// stops them at an agreed iteration boundary (PauseAt: nothing is redone). A frame or message of an
// old epoch means nothing.
//
// Versions of one epoch differ by at most 1. All begin at T. A worker of stage s makes version k+2
// only after it has the gradient sums of every live peer of stage s for iteration k+1, so every
// microbatch has run backward at stage s in that iteration. A microbatch's backward at s comes
// after its forward at every stage before s and its backward at every stage after s, all in
// iteration k+1. Every live worker is routed at least its own pipeline's microbatches (M ≥ 1), so
// every live worker has begun iteration k+1: it has version k+1. During recovery workers only move
// between the two versions that the stop found (roll back, or fetch from a peer), so it stays so.
// form_epoch checks it.
//
// T is the largest version that every stage can still reach: some live worker has it or can roll
// back to it. Those who cannot reach it fetch it from one who can. A committed step is one that
// every live worker has made; T never lies below, since no worker gives up a version that all have
// reached.
//
// After a server restart the rows say who was in the epoch. If all are back, still running, nothing
// changed: they trained on alone meanwhile and report late. Otherwise the epoch is stopped and
// formed anew.
#include <algorithm>
#include <cmath>
#include <optional>

#include <holdfast/training.hpp>

#include "crypto.hpp"

namespace holdfast::training {

namespace {

enum class Phase {
    gathering,  ///< until all D × P have attached for the first time
    preparing,  ///< plans are out, not all are Ready
    running,
    pausing,    ///< running towards an agreed boundary
    stopping,   ///< AbortEpoch is out, not all have Stopped
    stalled,    ///< a stage has no worker, and nothing is lost yet
    restoring,  ///< after a restart: not all of the epoch have attached again
    finished,
    failed,
    cancelled,
};

struct Member {
    LeaseId lease;                  ///< 0: dead, not placed again
    std::int64_t fenced_lease = 0;  ///< this lease and all before are void
    StreamId stream = 0;            ///< 0: not attached
    bool in_epoch = false;
    std::string address;
    std::int64_t told_epoch = 0;  ///< the last epoch it was told or told us
    std::int64_t version = -1;
    std::int64_t previous = -1;
    std::int64_t commit_seen = -1;  ///< highest commit on this stream
    bool running = false;           ///< it had the Go of told_epoch
    bool stopped = false;
    bool ready = false;
    bool pause_accepted = false;
    bool suspected = false;
    std::int64_t heard_us = 0;
    std::int64_t owes_since_us = -1;  ///< an answer (Stopped, Ready); -1: none

    [[nodiscard]] bool attached() const { return stream != 0; }

    [[nodiscard]] bool can_reach(std::int64_t target) const {
        return version == target || (target >= 0 && previous == target) ||
               (target == 0 && version == -1);  // the seed makes version 0
    }
};

struct PendingStep {
    std::optional<double> loss;
    std::int64_t step_us = 0;
    std::map<std::int32_t, std::uint64_t> hashes;
};

struct Suspicion {
    WorkerName by;
    std::int64_t since_us = 0;
    std::string why;
};

/// Steps reported but not committed: more would mean versions that cannot be.
constexpr std::size_t kPendingStepsMax = 1 << 17;
constexpr std::size_t kKeySeedBytesMin = 16;
constexpr std::size_t kWhyBytesMax = 512;

Result<> check_start(const TrainingSpec& spec, const CoordinatorOptions& options) {
    HOLD_TRY(make_plan(spec.shape(), {}));
    if (spec.steps < 1) {
        return fail(make_error(Errc::invalid_argument, "{} steps: need at least 1", spec.steps)
                        .at("training.steps"));
    }
    if (options.key_seed.size() < kKeySeedBytesMin) {
        return fail(Errc::invalid_argument, "coordinator: key seed of {} bytes, need at least {}",
                    options.key_seed.size(), kKeySeedBytesMin);
    }
    return {};
}

}  // namespace

struct Coordinator::State {
    TrainingSpec spec;
    CoordinatorOptions options;
    std::map<WorkerName, Member> members;
    Phase phase = Phase::gathering;
    std::string phase_text;
    std::int64_t epoch = 0;
    bool interrupted = false;
    bool redo = false;               ///< an iteration was in progress when the epoch stopped
    std::int64_t epoch_version = 0;  ///< what the present epoch began at
    std::int64_t committed = 0;
    std::map<std::int64_t, PendingStep> pending;
    std::map<WorkerName, Suspicion> suspicions;  ///< by suspect
    std::int64_t pause_at = 0;
    std::int64_t pause_margin = 2;
    std::string data_hash;
    std::string last_death;
    std::int64_t restore_deadline_us = -1;
    std::int64_t ticked_us = -1;
    std::int64_t now = 0;
    CoordinatorEffects out;

    // ---- small parts

    [[nodiscard]] bool ended() const {
        return phase == Phase::finished || phase == Phase::failed || phase == Phase::cancelled;
    }

    [[nodiscard]] bool in_some_epoch() const {
        return phase == Phase::preparing || phase == Phase::running || phase == Phase::pausing;
    }

    void send(WorkerName worker, const Member& member, CoordinatorCommand command) {
        if (member.attached()) {
            out.emplace_back(SendCommand{member.stream, worker, std::move(command)});
        }
    }

    void refuse(StreamId stream, WorkerName worker, std::string why) {
        out.emplace_back(SendCommand{stream, worker, Fenced{std::move(why)}});
        out.emplace_back(CloseStream{stream});
    }

    void enter(Phase next, std::string text) {
        phase = next;
        if (text != phase_text) {
            phase_text = std::move(text);
            out.emplace_back(PhaseChanged{phase_text});
        }
    }

    Member* member_of(StreamId stream, WorkerName* worker) {
        for (auto& [name, member] : members) {
            if (stream != 0 && member.stream == stream) {
                *worker = name;
                return &member;
            }
        }
        return nullptr;
    }

    template <typename Predicate>
    [[nodiscard]] bool all_in_epoch(Predicate predicate) const {
        return std::all_of(members.begin(), members.end(), [&](const auto& entry) {
            return !entry.second.in_epoch || predicate(entry.second);
        });
    }

    // ---- ends

    void end_job(Phase how, const std::string& text) {
        for (auto& [name, member] : members) {
            if (!member.attached()) {
                continue;
            }
            if (how == Phase::finished) {
                send(name, member, Finish{spec.steps});
            } else {
                refuse(member.stream, name, text);
                member.stream = 0;
            }
        }
        enter(how, text);
    }

    void fail_job(std::string why) {
        out.emplace_back(JobFailed{why});
        end_job(Phase::failed, "failed: " + why);
    }

    void finish_if_done() {
        if (ended() || committed < spec.steps) {
            return;
        }
        out.emplace_back(JobFinished{spec.steps});
        end_job(Phase::finished, "finished");
    }

    // ---- commits

    /// Stores steps that every member of the epoch has made, in order. `final`: no commit is on its
    /// way any more, so a loss that is not here is lost.
    void record_commits(bool final) {
        std::int64_t floor = spec.steps;
        for (const auto& [name, member] : members) {
            floor = member.in_epoch ? std::min(floor, member.version) : floor;
        }
        record_commits_below(floor, final);
    }

    void record_commits_below(std::int64_t floor, bool final) {
        const std::int64_t before = committed;
        for (; committed < floor; ++committed) {
            const auto found = pending.find(committed);
            const bool has_loss = found != pending.end() && found->second.loss.has_value();
            if (!final && !all_is_reported(committed)) {
                break;
            }
            StepCommitted record;
            record.step = committed;
            record.epoch = epoch;
            if (found != pending.end()) {
                record.loss = found->second.loss.value_or(0);
                record.has_loss = has_loss;
                record.step_us = found->second.step_us;
                record.parameter_hash = found->second.hashes;
                pending.erase(found);
            }
            out.emplace_back(std::move(record));
        }
        if (committed > before) {
            for (const auto& [name, member] : members) {
                if (member.in_epoch) {
                    send(name, member, CommitAck{committed - 1});
                }
            }
        }
    }

    /// Every stage has reported the step, or all its workers have gone past it in their reports: no
    /// report of it is on its way. (After a restart a worker's hello says its version before its
    /// commits come.)
    [[nodiscard]] bool all_is_reported(std::int64_t step) const {
        const auto found = pending.find(step);
        return std::all_of(members.begin(), members.end(), [&](const auto& entry) {
            const auto& [name, member] = entry;
            const bool reported =
                found != pending.end() && found->second.hashes.contains(name.stage);
            return !member.in_epoch || reported || member.commit_seen > step;
        });
    }

    [[nodiscard]] std::optional<double> mean_loss(std::vector<MicrobatchLoss> losses) const {
        const auto key = [](const MicrobatchLoss& loss) {
            return std::pair{loss.pipeline, loss.microbatch};
        };
        std::sort(losses.begin(), losses.end(),
                  [&](const auto& a, const auto& b) { return key(a) < key(b); });
        if (losses.size() != static_cast<std::size_t>(spec.pipelines) *
                                 static_cast<std::size_t>(spec.microbatches)) {
            return std::nullopt;
        }
        double sum = 0;
        for (std::size_t i = 0; i < losses.size(); ++i) {
            const auto pipeline = static_cast<std::int32_t>(i) / spec.microbatches;
            const auto microbatch = static_cast<std::int32_t>(i) % spec.microbatches;
            if (key(losses[i]) != std::pair{pipeline, microbatch}) {
                return std::nullopt;
            }
            sum += losses[i].loss;
        }
        return sum / static_cast<double>(losses.size());
    }

    void on_report(WorkerName worker, Member& member, const StepCommit& commit) {
        if (!member.in_epoch || commit.epoch > epoch || commit.step < 0 ||
            commit.step >= spec.steps) {
            return;
        }
        member.commit_seen = std::max(member.commit_seen, commit.step);
        if (commit.step + 1 > member.version) {
            member.version = commit.step + 1;
            member.previous = commit.step;
        }
        if (commit.step < committed || pending.size() >= kPendingStepsMax) {
            return;
        }
        PendingStep& step = pending[commit.step];
        step.step_us = std::max(step.step_us, commit.step_us);
        const auto [hash, fresh] = step.hashes.emplace(worker.stage, commit.parameter_hash);
        if (!fresh && hash->second != commit.parameter_hash) {
            fail_job(fmt::format("after step {} the parameters of worker {} differ from its peers'",
                                 commit.step, to_string(worker)));
            return;
        }
        if (worker.stage + 1 == spec.stages) {
            const std::optional<double> loss = mean_loss(commit.losses);
            if (!loss) {
                declare_dead(worker, "it sent a step commit without all losses");
                return;
            }
            step.loss = loss;
        }
        if (phase == Phase::running || phase == Phase::pausing) {
            record_commits(false);
            finish_if_done();
        }
    }

    // ---- deaths

    /// Also settles what follows from it.
    void declare_dead(WorkerName worker, const std::string& why) {
        if (bury(worker, why)) {
            after_deaths();
        }
    }

    /// True if the membership of the epoch changed.
    bool bury(WorkerName worker, const std::string& why) {
        Member& member = members.at(worker);
        if (!member.lease.is_set()) {
            return false;
        }
        const std::string reason = why.substr(0, kWhyBytesMax);
        out.emplace_back(WorkerDied{worker, member.lease, epoch, reason});
        if (member.attached()) {
            refuse(member.stream, worker, "declared dead: " + reason);
        }
        last_death = fmt::format("worker {}: {}", to_string(worker), reason);
        const bool was_in_epoch = member.in_epoch;
        Member fresh;
        fresh.fenced_lease = std::max(member.fenced_lease, member.lease.value);
        member = fresh;
        suspicions.erase(worker);
        std::erase_if(suspicions, [&](const auto& entry) { return entry.second.by == worker; });
        interrupted = interrupted || was_in_epoch;
        return was_in_epoch || phase == Phase::stopping || phase == Phase::restoring;
    }

    void after_deaths() {
        if (in_some_epoch()) {
            stop_all();
        } else if (phase == Phase::stopping) {
            form_when_stopped();
        } else if (phase == Phase::restoring) {
            resume_when_all_back();
        } else if (phase == Phase::stalled) {
            form_epoch();
        }
    }

    // ---- stopping

    void stop_all() {
        redo = redo || phase == Phase::running || phase == Phase::pausing;
        suspicions.clear();
        enter(Phase::stopping, "recovering");
        for (auto& [name, member] : members) {
            if (member.attached()) {
                stop_one(name, member);
            }
        }
        form_when_stopped();
    }

    void stop_one(WorkerName name, Member& member) {
        member.stopped = member.told_epoch == 0;
        member.pause_accepted = false;
        member.owes_since_us = -1;
        if (!member.stopped) {
            member.owes_since_us = now;
            send(name, member, AbortEpoch{member.told_epoch});
        }
    }

    void form_when_stopped() {
        const bool all = std::all_of(members.begin(), members.end(), [](const auto& entry) {
            return !entry.second.attached() || entry.second.stopped;
        });
        if (phase == Phase::stopping && all) {
            form_epoch();
        }
    }

    void on_report(WorkerName, Member& member, const Stopped& stopped) {
        if (stopped.epoch != member.told_epoch || member.told_epoch == 0) {
            return;
        }
        if (phase == Phase::pausing && stopped.version != pause_at) {
            return;  // stopped for an earlier boundary, since moved
        }
        if (phase != Phase::stopping && phase != Phase::pausing && phase != Phase::running) {
            return;
        }
        member.version = stopped.version;
        member.previous = stopped.previous_version;
        member.owes_since_us = -1;
        member.stopped = true;
        if (phase == Phase::running) {
            stop_all();  // it follows an agreement that we no longer know of
        } else if (phase == Phase::stopping) {
            form_when_stopped();
        } else if (all_in_epoch([](const Member& each) { return each.stopped; })) {
            form_epoch();
        }
    }

    // ---- pausing

    /// Lets a returned worker in at a boundary that nobody has passed yet.
    void pause_for_newcomers() {
        const bool waiting = std::any_of(members.begin(), members.end(), [](const auto& entry) {
            return entry.second.attached() && !entry.second.in_epoch;
        });
        if (phase != Phase::running || !waiting) {
            return;
        }
        pause_margin = 2;
        propose_pause();
    }

    void propose_pause() {
        std::int64_t highest = 0;
        for (const auto& [name, member] : members) {
            highest = member.in_epoch ? std::max(highest, member.version) : highest;
        }
        const bool moved = phase == Phase::pausing;
        pause_at = std::min(highest + pause_margin, spec.steps);
        if (pause_at == spec.steps) {
            // Too near the end to be worth it. A boundary at the end is none, but it frees those
            // who wait at an earlier one; their Stopped may still be on its way, so this stays
            // `pausing`.
            if (!moved) {
                return;
            }
            enter(Phase::pausing, "running");
        } else {
            enter(Phase::pausing,
                  fmt::format("pausing at step {} for a returning worker", pause_at));
        }
        for (auto& [name, member] : members) {
            if (member.in_epoch) {
                member.stopped = false;
                member.pause_accepted = false;
                send(name, member, PauseAt{epoch, pause_at});
            }
        }
    }

    void on_report(WorkerName, Member& member, const PauseAnswer& answer) {
        if (phase != Phase::pausing || !member.in_epoch || answer.epoch != epoch ||
            answer.at_step != pause_at) {
            return;
        }
        member.version = std::max(member.version, answer.version);
        member.pause_accepted = answer.accepted;
        if (!answer.accepted) {
            pause_margin = std::min(pause_margin * 2, std::int64_t{1} << 20);
            propose_pause();
        }
    }

    // ---- forming an epoch

    /// The largest version that some worker of every stage can reach, or nothing.
    [[nodiscard]] std::optional<std::int64_t> reachable_version() const {
        std::int64_t highest = 0;
        for (const auto& [name, member] : members) {
            highest = member.attached() ? std::max(highest, member.version) : highest;
        }
        for (std::int64_t target = highest; target >= std::max(committed, highest - 1); --target) {
            std::set<std::int32_t> stages;
            for (const auto& [name, member] : members) {
                if (member.attached() && member.can_reach(target)) {
                    stages.insert(name.stage);
                }
            }
            if (std::ssize(stages) == spec.stages) {
                return target;
            }
        }
        return std::nullopt;
    }

    [[nodiscard]] bool versions_are_close() const {
        std::int64_t lowest = spec.steps;
        std::int64_t highest = 0;
        for (const auto& [name, member] : members) {
            if (member.attached() && member.version >= 0) {
                lowest = std::min(lowest, member.version);
                highest = std::max(highest, member.version);
            }
        }
        return highest - lowest <= 1;
    }

    /// No version can be reached by all stages: wait where nothing is lost, else end.
    void stall_or_fail() {
        std::optional<std::int32_t> empty;
        bool at_start = committed == 0;
        for (std::int32_t stage = spec.stages - 1; stage >= 0; --stage) {
            bool any = false;
            for (const auto& [name, member] : members) {
                if (name.stage == stage && member.attached()) {
                    any = true;
                    at_start = at_start && member.can_reach(0);
                }
            }
            empty = any ? empty : std::optional(stage);
        }
        if (empty && at_start) {
            enter(Phase::stalled, fmt::format("stalled: waiting for a worker of stage {}", *empty));
            return;
        }
        fail_job(
            fmt::format("all copies of stage {}'s parameters are lost after step {} and no "
                        "checkpoint exists yet ({})",
                        empty ? *empty : stage_without(committed), committed, last_death));
    }

    [[nodiscard]] std::int32_t stage_without(std::int64_t version) const {
        for (std::int32_t stage = 0; stage < spec.stages; ++stage) {
            const bool any = std::any_of(members.begin(), members.end(), [&](const auto& entry) {
                return entry.first.stage == stage && entry.second.attached() &&
                       entry.second.version >= version;
            });
            if (!any) {
                return stage;
            }
        }
        return 0;
    }

    void form_epoch() {
        if (!versions_are_close()) {
            fail_job("the workers' versions differ by more than one step: a bug in Holdfast");
            return;
        }
        const std::optional<std::int64_t> target = reachable_version();
        if (!target) {
            stall_or_fail();
            return;
        }
        if (*target >= spec.steps) {
            record_commits_below(*target, true);
            finish_if_done();
            return;
        }
        pending.erase(pending.lower_bound(*target), pending.end());  // will be made again
        epoch_version = *target;
        ++epoch;
        EpochBegan record{
            .epoch = epoch, .version = *target, .live = {}, .redone_iterations = redo ? 1 : 0};
        std::vector<WorkerName> returned;
        for (auto& [name, member] : members) {
            if (!member.attached()) {
                continue;
            }
            record.live.insert(name);
            if (!member.in_epoch && epoch > 1) {
                returned.push_back(name);
            }
        }
        out.emplace_back(record);
        for (const WorkerName& name : returned) {
            out.emplace_back(WorkerRejoined{name, members.at(name).lease, epoch});
        }
        interrupted = false;
        redo = false;
        suspicions.clear();
        enter(Phase::preparing, "preparing");
        send_plans(*target);
    }

    void send_plans(std::int64_t target) {
        EpochPlan plan;
        plan.epoch = epoch;
        plan.spec = spec;
        plan.version = target;
        plan.cluster_key =
            hmac_sha256(options.key_seed, fmt::format("holdfast training epoch {}", epoch));
        std::map<std::int32_t, std::vector<std::int32_t>> sources;  // by stage
        for (const auto& [name, member] : members) {
            if (member.attached()) {
                plan.live.push_back({name, member.address});
                if (member.can_reach(target)) {
                    sources[name.stage].push_back(name.pipeline);
                }
            }
        }
        std::size_t next = 0;
        for (auto& [name, member] : members) {
            if (!member.attached()) {
                continue;
            }
            EpochPlan own = plan;
            if (!member.can_reach(target)) {
                const std::vector<std::int32_t>& holders = sources[name.stage];
                own.state_from_pipeline = holders[next++ % holders.size()];
            }
            member.in_epoch = true;
            member.told_epoch = epoch;
            member.ready = false;
            member.running = false;
            member.stopped = false;
            member.owes_since_us = now;
            send(name, member, std::move(own));
        }
    }

    void on_report(WorkerName worker, Member& member, const Ready& ready) {
        if (phase != Phase::preparing || !member.in_epoch || ready.epoch != epoch) {
            return;
        }
        member.ready = true;
        member.version = ready.version;
        member.previous = -1;
        member.owes_since_us = -1;
        std::erase_if(suspicions, [&](const auto& entry) { return entry.second.by == worker; });
        if (all_in_epoch([](const Member& each) { return each.ready; })) {
            // Not earlier: while one has yet to fetch this version, its only holder may die.
            record_commits_below(epoch_version, true);
            go();
        }
    }

    void go() {
        enter(Phase::running, "running");
        for (auto& [name, member] : members) {
            if (member.in_epoch && !member.running) {
                member.running = true;
                send(name, member, Go{epoch});
            }
        }
        pause_for_newcomers();
    }

    // ---- attaching

    void on_event(const Attached& event) {
        const WorkerHello& hello = event.hello;
        const auto found = members.find(hello.worker);
        if (found == members.end()) {
            refuse(event.stream, hello.worker, "this job has no such worker");
            return;
        }
        if (phase == Phase::finished) {
            out.emplace_back(SendCommand{event.stream, hello.worker, Finish{spec.steps}});
            out.emplace_back(CloseStream{event.stream});
            return;
        }
        Member& member = found->second;
        if (ended() || hello.lease.value <= member.fenced_lease || hello.lease < member.lease) {
            refuse(
                event.stream, hello.worker,
                ended() ? phase_text : fmt::format("lease {} no longer holds", hello.lease.value));
            return;
        }
        on_event(LeaseGranted{hello.worker, hello.lease});
        if (ended()) {
            refuse(event.stream, hello.worker, phase_text);
            return;
        }
        if (member.attached() && member.stream != event.stream) {
            out.emplace_back(CloseStream{member.stream});  // it dialled again before we saw the end
        }
        if (!same_text(hello)) {
            member.stream = event.stream;
            fail_job(
                fmt::format("worker {} has another training text than the others: put the same "
                            "bytes at {} on every node",
                            to_string(hello.worker), spec.data));
            return;
        }
        admit(event.stream, hello, member);
    }

    bool same_text(const WorkerHello& hello) {
        if (data_hash.empty()) {
            data_hash = hello.data_hash;
        }
        return data_hash == hello.data_hash;
    }

    void admit(StreamId stream, const WorkerHello& hello, Member& member) {
        member.stream = stream;
        member.address = hello.data_address;
        member.told_epoch = hello.epoch;
        member.version = hello.version;
        member.previous = hello.previous_version;
        member.running = hello.running;
        member.ready = false;
        member.stopped = hello.epoch == 0;
        member.commit_seen = -1;
        member.suspected = false;
        member.heard_us = now;
        member.owes_since_us = -1;
        epoch = std::max(epoch, hello.epoch);  // never behind a worker
        if (committed > 0 && hello.epoch > 0) {
            send(hello.worker, member, CommitAck{committed - 1});
        }
        switch (phase) {
            case Phase::gathering:
                gather();
                break;
            case Phase::restoring:
                resume_when_all_back();
                break;
            case Phase::stalled:
                stop_all();
                break;
            case Phase::stopping:
                stop_one(hello.worker, member);
                form_when_stopped();
                break;
            default:
                if (member.in_epoch &&
                    (!hello.running || hello.epoch != epoch || phase != Phase::running)) {
                    stop_all();  // we no longer know what it has heard
                } else {
                    pause_for_newcomers();
                }
                break;
        }
    }

    void gather() {
        const auto here = std::count_if(members.begin(), members.end(),
                                        [](const auto& entry) { return entry.second.attached(); });
        if (here == std::ssize(members)) {
            stop_all();  // nobody has begun anything: forms epoch 1
            return;
        }
        enter(Phase::gathering,
              fmt::format("waiting for workers: {} of {} are here", here, members.size()));
    }

    void resume_when_all_back() {
        if (!all_in_epoch([](const Member& each) { return each.attached(); })) {
            return;
        }
        restore_deadline_us = -1;
        const bool undisturbed = !interrupted && all_in_epoch([&](const Member& each) {
            return each.running && each.told_epoch == epoch;
        });
        if (!undisturbed) {
            redo = redo || std::any_of(members.begin(), members.end(),
                                       [](const auto& entry) { return entry.second.running; });
            stop_all();
            return;
        }
        go();
        record_commits(false);
        finish_if_done();
    }

    // ---- other events

    void on_event(const Reported& event) {
        WorkerName worker;
        Member* member = member_of(event.stream, &worker);
        if (member == nullptr || ended()) {
            return;
        }
        member->heard_us = now;
        member->suspected = false;
        std::visit([&](const auto& report) { on_report(worker, *member, report); }, event.report);
    }

    void on_report(WorkerName, Member&, const WorkerHello&) {}  // only a stream's first message

    void on_report(WorkerName, Member&, const WorkerHeartbeat&) {}

    void on_report(WorkerName worker, Member& member, const Suspect& suspect) {
        const auto found = members.find(suspect.worker);
        const bool meaningful = member.in_epoch && suspect.epoch == epoch &&
                                (in_some_epoch() || phase == Phase::restoring);
        if (!meaningful || found == members.end() || !found->second.in_epoch ||
            suspect.worker == worker) {
            return;
        }
        const std::string why = fmt::format("worker {} lost it: {}", to_string(worker),
                                            suspect.why.substr(0, kWhyBytesMax));
        if (suspicions.emplace(suspect.worker, Suspicion{worker, now, why}).second) {
            out.emplace_back(WorkerSuspected{suspect.worker, why});
        }
    }

    void on_report(WorkerName worker, Member&, const WorkerFailed& failed) {
        declare_dead(worker, "it gave up: " + failed.why);
    }

    void on_event(const Closed& event) {
        WorkerName worker;
        if (Member* member = member_of(event.stream, &worker); member != nullptr) {
            member->stream = 0;
            if (!ended()) {
                declare_dead(worker, "its connection ended");
            }
        }
    }

    void on_event(const LeaseGranted& event) {
        const auto found = members.find(event.worker);
        if (found == members.end() || ended() || event.lease <= found->second.lease ||
            event.lease.value <= found->second.fenced_lease) {
            return;
        }
        if (found->second.lease.is_set()) {
            declare_dead(event.worker, "it was placed again");
        }
        found->second.lease = event.lease;
    }

    void on_event(const WorkerLost& event) {
        const auto found = members.find(event.worker);
        if (found != members.end() && !ended() && found->second.lease == event.lease) {
            declare_dead(event.worker, event.why);
        }
    }

    void on_event(const CancelTraining& event) {
        if (!ended()) {
            end_job(Phase::cancelled, "cancelled: " + event.why.substr(0, kWhyBytesMax));
        }
    }

    // ---- time

    /// Silence while nobody listened (a busy or stopped server) is not the workers' silence.
    void forgive_own_absence() {
        const std::int64_t gap = ticked_us < 0 ? 0 : now - ticked_us;
        ticked_us = now;
        if (gap <= options.suspect_us) {
            return;
        }
        for (auto& [name, member] : members) {
            member.heard_us += gap;
            member.owes_since_us += member.owes_since_us < 0 ? 0 : gap;
        }
        for (auto& [name, suspicion] : suspicions) {
            suspicion.since_us += gap;
        }
    }

    void check_silence() {
        const std::int64_t answer_us =
            phase == Phase::preparing ? options.ready_us : options.answer_us;
        bool changed = false;
        for (auto& [name, member] : members) {
            if (!member.attached()) {
                continue;
            }
            const std::int64_t silence = now - member.heard_us;
            const bool owes_too_long =
                member.owes_since_us >= 0 && now - member.owes_since_us >= answer_us;
            if (silence >= options.dead_us || owes_too_long) {
                const std::string why =
                    silence >= options.dead_us
                        ? fmt::format("no heartbeat for {} ms", silence / 1000)
                        : fmt::format("no answer for {} ms although it heart-beats",
                                      answer_us / 1000);
                changed = bury(name, why) || changed;
            } else if (silence >= options.suspect_us && !member.suspected) {
                member.suspected = true;
                out.emplace_back(
                    WorkerSuspected{name, fmt::format("no heartbeat for {} ms", silence / 1000)});
            }
        }
        if (changed) {
            after_deaths();
        }
    }

    void check_suspicions() {
        for (const auto& [name, suspicion] : suspicions) {
            // After a restart all will be stopped anyway: whoever is back has only lost its epoch.
            const bool back = phase == Phase::restoring && members.at(name).attached();
            if (!back && now - suspicion.since_us >= options.dead_us) {
                const WorkerName worker = name;
                const std::string why = suspicion.why;
                declare_dead(worker,
                             why);  // and no other: of two who suspect each other one must live
                return;
            }
        }
    }

    void check_restored() {
        if (phase != Phase::restoring) {
            return;
        }
        if (restore_deadline_us < 0) {
            restore_deadline_us = now + options.restore_grace_us;
        }
        if (now < restore_deadline_us) {
            return;
        }
        bool changed = false;
        for (auto& [name, member] : members) {
            if (member.in_epoch && !member.attached()) {
                changed =
                    bury(name, "it did not attach again after the server's restart") || changed;
            }
        }
        if (changed) {
            after_deaths();
        }
    }
};

Coordinator::Coordinator(std::unique_ptr<State> state) : state_(std::move(state)) {}

Coordinator::Coordinator(Coordinator&&) noexcept = default;
Coordinator& Coordinator::operator=(Coordinator&&) noexcept = default;
Coordinator::~Coordinator() = default;

Result<Coordinator> Coordinator::start(TrainingSpec spec, std::map<WorkerName, LeaseId> leases,
                                       CoordinatorOptions options) {
    CoordinatorRows rows;
    for (const auto& [worker, lease] : leases) {
        if (!lease.is_set()) {
            return fail(Errc::invalid_argument, "coordinator: worker {} has no lease",
                        to_string(worker));
        }
        rows.workers[worker].lease = lease;
    }
    return restore(std::move(spec), rows, std::move(options));
}

Result<Coordinator> Coordinator::restore(TrainingSpec spec, const CoordinatorRows& rows,
                                         CoordinatorOptions options) {
    HOLD_TRY(check_start(spec, options));
    auto state = std::make_unique<State>();
    for (std::int32_t d = 0; d < spec.pipelines; ++d) {
        for (std::int32_t s = 0; s < spec.stages; ++s) {
            const auto row = rows.workers.find({d, s});
            if (row == rows.workers.end()) {
                return fail(Errc::invalid_argument, "coordinator: no row for worker {}",
                            to_string(WorkerName{d, s}));
            }
            Member& member = state->members[{d, s}];
            member.lease = row->second.lease;
            member.in_epoch = row->second.in_epoch && row->second.lease.is_set();
        }
    }
    if (rows.workers.size() != state->members.size()) {
        return fail(Errc::invalid_argument, "coordinator: {} workers for a job of {} × {}",
                    rows.workers.size(), spec.pipelines, spec.stages);
    }
    state->spec = std::move(spec);
    state->options = std::move(options);
    state->epoch = rows.epoch;
    state->interrupted = rows.interrupted;
    state->committed = rows.committed_steps;
    state->phase = rows.epoch == 0 ? Phase::gathering : Phase::restoring;
    state->phase_text = rows.epoch == 0 ? fmt::format("waiting for workers: 0 of {} are here",
                                                      state->members.size())
                                        : "waiting for workers to attach again";
    if (rows.finished) {
        state->enter(Phase::finished, "finished");
        state->out.clear();  // nothing new: the rows say so already
    }
    return Coordinator(std::move(state));
}

CoordinatorEffects Coordinator::handle(const CoordinatorEvent& event, std::int64_t now_us) {
    state_->now = now_us;
    std::visit([&](const auto& each) { state_->on_event(each); }, event);
    return std::exchange(state_->out, {});
}

CoordinatorEffects Coordinator::tick(std::int64_t now_us) {
    state_->now = now_us;
    state_->forgive_own_absence();
    if (!state_->ended()) {
        state_->check_restored();
    }
    if (!state_->ended()) {
        state_->check_silence();
    }
    if (!state_->ended()) {
        state_->check_suspicions();
    }
    return std::exchange(state_->out, {});
}

std::int64_t Coordinator::epoch() const {
    return state_->epoch;
}

std::int64_t Coordinator::committed_steps() const {
    return state_->committed;
}

std::string Coordinator::phase() const {
    return state_->phase_text;
}

bool Coordinator::ended() const {
    return state_->ended();
}

}  // namespace holdfast::training
