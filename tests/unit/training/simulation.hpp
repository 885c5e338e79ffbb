// SPDX-License-Identifier: Apache-2.0
// A whole training job in one thread and virtual time: the coordinator, its rows, D × P worker
// cores, their streams and data connections, all with random delays from one seed. Disturbances:
// kill, freeze (SIGSTOP), cut of a data connection, server crash and restart; killed workers come
// back by chance.
#pragma once

#include <functional>
#include <queue>
#include <random>

#include <gtest/gtest.h>

#include "fake_stage.hpp"
#include "worker_core.hpp"

namespace holdfast::training {

struct SimulationOptions {
    Shape shape{2, 3, 3};
    std::int64_t steps = 12;
    std::uint64_t seed = 1;
    int kills = 0;
    int freezes = 0;
    int cuts = 0;
    int server_crashes = 0;
    int rejoin_percent = 80;
    std::int64_t disturb_within_us = 3'000'000;
    int kill_in_recovery_percent = 0;  ///< after each epoch's beginning, while it is being formed
    bool keep_one_per_stage = true;    ///< disturb only where a copy of the stage surely remains
    std::size_t commits_max = 1 << 16;
};

struct SimulationResult {
    bool finished = false;
    std::string failure;
    std::string stuck;
    std::map<std::int64_t, double> losses;
    std::map<std::int64_t, std::map<std::int32_t, std::uint64_t>> hashes;
    int deaths = 0;
    int rejoined = 0;
    int redone = 0;
    int restarts = 0;
    int lost_losses = 0;
    std::int64_t epochs = 0;
    std::uint64_t trace = 0;
    std::int64_t took_us = 0;
};

class Simulation {
  public:
    explicit Simulation(SimulationOptions options) : options_(options), random_(options.seed) {
        spec_.pipelines = options.shape.pipelines;
        spec_.stages = options.shape.stages;
        spec_.microbatches = options.shape.microbatches;
        spec_.steps = options.steps;
        spec_.model = "fake";
        spec_.exact = true;
        spec_.seed = 5;
    }

    SimulationResult run() {
        std::map<WorkerName, LeaseId> leases;
        for (std::int32_t d = 0; d < spec_.pipelines; ++d) {
            for (std::int32_t s = 0; s < spec_.stages; ++s) {
                leases[{d, s}] = LeaseId(++last_lease_);
                rows_.workers[{d, s}].lease = leases[{d, s}];
            }
        }
        coordinator_ = Coordinator::start(spec_, leases, coordinator_options()).value();
        for (const auto& [name, lease] : leases) {
            after(any(1, 300'000), [this, name = name, lease = lease] { spawn(name, lease); });
        }
        server_tick();
        plan_disturbances();
        while (!events_.empty() && !ended_ && now_ < kTimeLimitUs) {
            Event event = events_.top();
            events_.pop();
            now_ = event.at;
            event.act();
        }
        if (!ended_) {
            result_.stuck = coordinator_ ? coordinator_->phase() : "no server";
            for (const auto& [id, process] : processes_) {
                if (process->alive) {
                    result_.stuck += "\n  " + process->core->describe();
                }
            }
        }
        result_.took_us = now_;
        return result_;
    }

    /// For directed tests: runs `act` at a virtual time.
    void at(std::int64_t at_us, std::function<void(Simulation&)> act) {
        events_.push({at_us, ++sequence_, [this, act = std::move(act)] { act(*this); }});
    }

    void kill(WorkerName name) {
        if (Process* process = current(name)) {
            kill(*process);
        }
    }

    void crash_server() {
        if (!coordinator_) {
            return;
        }
        note(3, 0);
        coordinator_.reset();
        ++server_life_;
        ++result_.restarts;
        for (auto& [id, process] : processes_) {
            drop_stream(*process);
        }
        streams_.clear();
        after(any(10'000, 3'000'000), [this] { restart_server(); });
    }

  private:
    static constexpr std::int64_t kTimeLimitUs = 600'000'000;

    struct Event {
        std::int64_t at = 0;
        std::int64_t sequence = 0;
        std::function<void()> act;

        bool operator<(const Event& other) const {  // the earliest on top
            return std::tie(other.at, other.sequence) < std::tie(at, sequence);
        }
    };

    struct Process {
        int id = 0;
        WorkerName name;
        LeaseId lease;
        bool alive = true;
        std::int64_t frozen_until = 0;
        std::unique_ptr<WorkerCore> core;
        std::unique_ptr<StageRunner> runner;
        StreamId stream = 0;
        bool dialling = false;
        std::int64_t open_epoch = 0;
        std::set<WorkerName> open_peers;
        std::map<int, std::int64_t> links;  ///< other process → the epoch of the connection
    };

    CoordinatorOptions coordinator_options() {
        CoordinatorOptions options;
        options.key_seed = "0123456789abcdef" + std::to_string(server_life_);
        return options;
    }

    std::int64_t any(std::int64_t low, std::int64_t high) {
        return low +
               static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
    }

    void after(std::int64_t delay, std::function<void()> act) {
        events_.push({now_ + delay, ++sequence_, std::move(act)});
    }

    /// Messages of one channel arrive in order, whenever.
    void deliver(std::int64_t channel, std::function<void()> act) {
        std::int64_t& last = channels_[channel];
        last = std::max(last + 1, now_ + any(20, random_() % 20 == 0 ? 20'000 : 800));
        events_.push({last, ++sequence_, std::move(act)});
    }

    void note(std::uint64_t kind, std::uint64_t value) {
        result_.trace = mix(mix(result_.trace, kind), mix(value, static_cast<std::uint64_t>(now_)));
    }

    Process* current(WorkerName name) {
        const auto found = by_name_.find(name);
        return found != by_name_.end() && found->second->alive ? found->second : nullptr;
    }

    // ---- processes

    void spawn(WorkerName name, LeaseId lease) {
        auto process = std::make_unique<Process>();
        process->id = static_cast<int>(processes_.size()) + 1;
        process->name = name;
        process->lease = lease;
        WorkerOptions options;
        options.spec = spec_;
        options.self = name;
        options.lease = lease;
        options.data_address = to_string(name);
        options.data_hash = "text";
        options.piece_bytes = 16;  // many pieces
        options.commits_max = options_.commits_max;
        process->core = std::make_unique<WorkerCore>(options);
        process->runner = std::make_unique<StageRunner>(
            [this, name]() -> Result<std::unique_ptr<StageModule>> {
                return std::make_unique<FakeStage>(name.stage, spec_.stages, spec_.pipelines,
                                                   spec_.microbatches, spec_.seed);
            },
            name.stage + 1 == spec_.stages);
        Process& started = *process;
        processes_[started.id] = std::move(process);
        by_name_[name] = &started;
        dial(started);
        heartbeat(started);
        tick(started);
    }

    void give(Process& process, WorkerEvent event) {
        if (!process.alive) {
            return;
        }
        if (process.frozen_until > now_) {
            auto kept = std::make_shared<WorkerEvent>(std::move(event));
            events_.push({process.frozen_until, ++sequence_,
                          [this, &process, kept] { give(process, std::move(*kept)); }});
            return;
        }
        for (WorkerAction& action : process.core->handle(std::move(event), now_)) {
            std::visit([&](auto& each) { act(process, each); }, action);
        }
    }

    void kill(Process& process) {
        if (!process.alive) {
            return;
        }
        note(1, static_cast<std::uint64_t>(process.id));
        process.alive = false;
        close_links(process, "killed");
        close_stream(process);
    }

    void heartbeat(Process& process) {
        if (!process.alive) {
            return;
        }
        if (process.stream != 0 && process.frozen_until <= now_) {
            to_server(process, WorkerHeartbeat{});
        }
        after(100'000, [this, &process] { heartbeat(process); });
    }

    void tick(Process& process) {
        if (process.alive) {
            give(process, Tick{});
            after(200'000, [this, &process] { tick(process); });
        }
    }

    // ---- control streams

    void dial(Process& process) {
        process.dialling = false;
        if (!process.alive || process.stream != 0) {
            return;
        }
        if (!coordinator_ || process.frozen_until > now_) {
            process.dialling = true;
            after(any(20'000, 400'000), [this, &process] { dial(process); });
            return;
        }
        process.stream = ++last_stream_;
        streams_[process.stream] = &process;
        first_[process.stream] = true;
        give(process, ControlAttached{});
    }

    void to_server(Process& process, const WorkerReport& report) {
        const StreamId stream = process.stream;
        deliver(stream * 4, [this, stream, report, life = server_life_] {
            if (!coordinator_ || life != server_life_ || !first_.contains(stream)) {
                return;
            }
            if (const auto* hello = std::get_if<WorkerHello>(&report)) {
                first_[stream] = false;
                apply(coordinator_->handle(Attached{stream, *hello}, now_));
            } else {
                apply(coordinator_->handle(Reported{stream, report}, now_));
            }
        });
    }

    /// The worker's end goes: the server hears of it after what was sent before.
    void close_stream(Process& process) {
        const StreamId stream = std::exchange(process.stream, 0);
        if (stream == 0) {
            return;
        }
        streams_.erase(stream);
        deliver(stream * 4, [this, stream, life = server_life_] {
            first_.erase(stream);
            if (coordinator_ && life == server_life_) {
                apply(coordinator_->handle(Closed{stream}, now_));
            }
        });
    }

    /// The server's end goes.
    void drop_stream(Process& process) {
        const StreamId stream = process.stream;
        if (stream == 0) {
            return;
        }
        deliver(stream * 4 + 1, [this, &process, stream] {
            if (process.stream != stream) {
                return;
            }
            process.stream = 0;
            give(process, ControlDetached{});
            if (process.alive && !process.dialling) {
                process.dialling = true;
                after(any(20'000, 400'000), [this, &process] { dial(process); });
            }
        });
    }

    void act(Process& process, SendReport& action) {
        if (process.stream != 0) {
            to_server(process, action.report);
        }
    }

    // ---- server

    void server_tick() {
        if (coordinator_) {
            apply(coordinator_->tick(now_));
        }
        after(50'000, [this] { server_tick(); });
    }

    void restart_server() {
        note(4, 0);
        coordinator_ = Coordinator::restore(spec_, rows_, coordinator_options()).value();
    }

    void apply(CoordinatorEffects effects) {
        for (CoordinatorEffect& effect : effects) {
            std::visit([&](auto& each) { store(each); }, effect);
        }
        for (CoordinatorEffect& effect : effects) {
            if (auto* send = std::get_if<SendCommand>(&effect)) {
                deliver(send->stream * 4 + 1,
                        [this, stream = send->stream, command = send->command] {
                            if (const auto found = streams_.find(stream); found != streams_.end()) {
                                give(*found->second, CommandReceived{command});
                            }
                        });
            } else if (auto* close = std::get_if<CloseStream>(&effect)) {
                first_.erase(close->stream);
                if (const auto found = streams_.find(close->stream); found != streams_.end()) {
                    drop_stream(*found->second);
                }
            }
        }
    }

    template <typename T>
    void store(T&) {}

    void store(WorkerDied& died) {
        note(5, static_cast<std::uint64_t>(died.worker.pipeline * 64 + died.worker.stage));
        ++result_.deaths;
        rows_.workers[died.worker] = {};
        rows_.interrupted = true;
        if (any(1, 100) <= options_.rejoin_percent) {
            after(any(50'000, 1'500'000), [this, name = died.worker] { place_again(name); });
        }
    }

    void place_again(WorkerName name) {
        if (ended_) {
            return;
        }
        if (!coordinator_) {
            after(100'000, [this, name] { place_again(name); });
            return;
        }
        const LeaseId lease(++last_lease_);
        rows_.workers[name] = {lease, false};
        apply(coordinator_->handle(LeaseGranted{name, lease}, now_));
        after(any(1'000, 200'000), [this, name, lease] { spawn(name, lease); });
    }

    void store(EpochBegan& began) {
        note(6, static_cast<std::uint64_t>(began.version));
        rows_.epoch = began.epoch;
        rows_.interrupted = false;
        for (auto& [name, row] : rows_.workers) {
            row.in_epoch = began.live.contains(name);
        }
        doomed_.clear();
        ++result_.epochs;
        result_.redone += began.redone_iterations;
        EXPECT_GE(began.version, rows_.committed_steps);
        if (began.epoch > 1 && any(1, 100) <= options_.kill_in_recovery_percent) {
            after(any(0, 12'000), [this] { kill_any(); });
            after(any(0, 12'000), [this] { kill_any(); });
        }
    }

    void store(StepCommitted& committed) {
        note(7, static_cast<std::uint64_t>(committed.step));
        EXPECT_EQ(committed.step, rows_.committed_steps);
        rows_.committed_steps = committed.step + 1;
        result_.losses[committed.step] = committed.loss;
        result_.hashes[committed.step] = committed.parameter_hash;
        result_.lost_losses += committed.has_loss ? 0 : 1;
    }

    void store(WorkerRejoined&) { ++result_.rejoined; }

    void store(JobFinished&) {
        result_.finished = true;
        ended_ = true;
    }

    void store(JobFailed& failed) {
        result_.failure = failed.why;
        ended_ = true;
    }

    // ---- data connections

    std::int64_t data_channel(int from, int to) { return -(std::int64_t{from} * 100'000 + to) * 2; }

    void act(Process& process, OpenEpoch& open) {
        close_links(process, "new epoch");
        process.open_epoch = open.epoch;
        process.open_peers.clear();
        for (const PeerAddress& peer : open.peers) {
            process.open_peers.insert(peer.worker);
            after(any(100, 5'000), [this, &process, peer = peer.worker, epoch = open.epoch] {
                connect(process, peer, epoch);
            });
        }
    }

    void connect(Process& process, WorkerName name, std::int64_t epoch) {
        Process* peer = current(name);
        if (!process.alive || process.open_epoch != epoch || peer == nullptr ||
            peer->open_epoch != epoch || process.links.contains(peer->id) ||
            !peer->open_peers.contains(process.name)) {
            return;
        }
        process.links[peer->id] = epoch;
        peer->links[process.id] = epoch;
        deliver(data_channel(peer->id, process.id),
                [this, &process, name, epoch] { give(process, PeerUp{epoch, name}); });
        deliver(data_channel(process.id, peer->id),
                [this, peer, name = process.name, epoch] { give(*peer, PeerUp{epoch, name}); });
    }

    void close_links(Process& process, const std::string& why) {
        process.open_epoch = 0;
        for (const auto& [id, epoch] : std::exchange(process.links, {})) {
            Process& peer = *processes_[id];
            peer.links.erase(process.id);
            deliver(data_channel(process.id, id),
                    [this, &peer, name = process.name, epoch = epoch, why] {
                        give(peer, PeerDown{epoch, name, why});
                    });
        }
    }

    void act(Process& process, CloseEpoch&) { close_links(process, "epoch ended"); }

    void act(Process& process, SendFrame& action) {
        Process* peer = current(action.frame.target);
        if (peer == nullptr) {
            return;
        }
        const auto link = process.links.find(peer->id);
        if (link == process.links.end() || link->second != action.frame.epoch) {
            return;
        }
        deliver(data_channel(process.id, peer->id), [this, peer, bytes = encode(action.frame)] {
            FrameParser parser(kPayloadBytesMax);
            EXPECT_TRUE(parser.feed(bytes));
            give(*peer, FrameReceived{*parser.next()});
        });
    }

    void act(Process& process, StartCompute& action) {
        auto result = std::make_shared<ComputeResult>(process.runner->run(action.task));
        EXPECT_FALSE(result->error) << result->error->message;
        after(any(50, random_() % 30 == 0 ? 60'000 : 3'000),
              [this, &process, result] { give(process, Computed{*result}); });
    }

    void act(Process&, StepDone&) {}

    void act(Process& process, ExitWorker& action) {
        note(8, static_cast<std::uint64_t>(action.code));
        if (action.code == 1) {
            ADD_FAILURE() << "worker " << to_string(process.name) << " gave up: " << action.why;
        }
        kill(process);
    }

    // ---- disturbances

    void plan_disturbances() {
        const auto plan = [this](int count, void (Simulation::*what)()) {
            for (int i = 0; i < count; ++i) {
                after(any(100'000, options_.disturb_within_us), [this, what] { (this->*what)(); });
            }
        };
        plan(options_.kills, &Simulation::kill_any);
        plan(options_.freezes, &Simulation::freeze_any);
        plan(options_.cuts, &Simulation::cut_any);
        plan(options_.server_crashes, &Simulation::crash_server);
        for (int i = 0; i < options_.kills / 2; ++i) {  // some right after another one
            after(any(100'000, options_.disturb_within_us), [this] {
                kill_any();
                after(any(0, 30'000), [this] { kill_any(); });
            });
        }
    }

    /// A live member of the epoch, with state, that no disturbance has touched.
    bool holds_stage(WorkerName name) {
        const Process* process = current(name);
        const auto& row = rows_.workers[name];
        return process != nullptr && row.in_epoch && row.lease == process->lease &&
               !doomed_.contains(name) && process->core->version() >= 0 &&
               process->frozen_until <= now_;
    }

    bool stage_is_safe_without(WorkerName victim, WorkerName other) {
        for (std::int32_t d = 0; d < spec_.pipelines; ++d) {
            const WorkerName peer{d, victim.stage};
            if (peer != victim && peer != other && holds_stage(peer)) {
                return true;
            }
        }
        return !options_.keep_one_per_stage;
    }

    std::optional<WorkerName> pick() {
        const WorkerName name{static_cast<std::int32_t>(any(0, spec_.pipelines - 1)),
                              static_cast<std::int32_t>(any(0, spec_.stages - 1))};
        return current(name) != nullptr && rows_.epoch > 0 ? std::optional(name) : std::nullopt;
    }

    void kill_any() {
        if (const auto name = pick(); name && stage_is_safe_without(*name, *name)) {
            doomed_.insert(*name);
            kill(*name);
        }
    }

    void freeze_any() {
        const auto name = pick();
        if (name && stage_is_safe_without(*name, *name)) {
            doomed_.insert(*name);
            note(2, 0);
            current(*name)->frozen_until = now_ + any(200'000, 4'000'000);
        }
    }

    void cut_any() {
        const auto name = pick();
        if (!name || current(*name)->links.empty()) {
            return;
        }
        Process& one = *current(*name);
        auto link = one.links.begin();
        std::advance(link, any(0, std::ssize(one.links) - 1));
        Process& other = *processes_[link->first];
        if (!stage_is_safe_without(one.name, other.name) ||
            !stage_is_safe_without(other.name, one.name)) {
            return;
        }
        note(9, 0);
        doomed_.insert(one.name);
        doomed_.insert(other.name);
        const std::int64_t epoch = link->second;
        one.links.erase(other.id);
        other.links.erase(one.id);
        deliver(data_channel(one.id, other.id), [this, &other, name = one.name, epoch] {
            give(other, PeerDown{epoch, name, "cut"});
        });
        deliver(data_channel(other.id, one.id), [this, &one, name = other.name, epoch] {
            give(one, PeerDown{epoch, name, "cut"});
        });
    }

    SimulationOptions options_;
    std::mt19937_64 random_;
    TrainingSpec spec_;
    std::int64_t now_ = 0;
    std::int64_t sequence_ = 0;
    std::priority_queue<Event> events_;
    std::map<std::int64_t, std::int64_t> channels_;
    std::map<int, std::unique_ptr<Process>> processes_;
    std::map<WorkerName, Process*> by_name_;
    std::set<WorkerName> doomed_;
    std::optional<Coordinator> coordinator_;
    CoordinatorRows rows_;
    int server_life_ = 0;
    std::int64_t last_lease_ = 0;
    StreamId last_stream_ = 0;
    std::map<StreamId, Process*> streams_;
    std::map<StreamId, bool> first_;
    bool ended_ = false;
    SimulationResult result_;
};

}  // namespace holdfast::training
