// SPDX-License-Identifier: Apache-2.0
#include "training_hub.hpp"

#include <algorithm>
#include <chrono>

#include <openssl/crypto.h>

#include <holdfast/log.hpp>
#include <holdfast/training_proto.hpp>

#include "training_run.hpp"

namespace holdfast::server {
namespace {

bool is_same_secret(const std::string& a, const std::string& b) {
    return !a.empty() && a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

/// The lease that a worker's first message claims. Errors: stale_lease, unauthenticated.
Result<> check_claim(store::ReadTx& tx, const v1::WorkerHello& hello) {
    auto lease = services::check_lease(tx, TaskId(hello.task()), LeaseId(hello.lease()));
    if (!lease) {
        return fail(lease.error().code == Errc::not_found
                        ? make_error(Errc::stale_lease, "{}", lease.error().message)
                        : lease.error());
    }
    HOLD_TRY(const auto task, tx.query_one("SELECT worker FROM task WHERE id = $1", hello.task()));
    const training::WorkerName claimed{hello.pipeline(), hello.stage()};
    if (!is_same_secret(lease->secret, hello.secret()) || lease->job != JobId(hello.job()) ||
        !task || task->text("worker") != training::to_string(claimed)) {
        return fail(Errc::unauthenticated,
                    "attach to job {}: the secret does not prove task {}'s lease {}", hello.job(),
                    hello.task(), hello.lease());
    }
    return {};
}

}  // namespace

TrainingHub::TrainingHub(Core& core) : core_(core), key_seed_(core.env.random.hex(32)) {}

TrainingHub::~TrainingHub() {
    stop();
}

Result<> TrainingHub::start() {
    HOLD_TRY(const auto jobs, core_.store->read([](store::ReadTx& tx) {
        return tx.query(
            "SELECT r.job FROM training_run r JOIN job j ON j.id = r.job WHERE j.state "
            "= 'running' AND r.state != 'failed'");
    }));
    for (const store::Row& row : jobs) {
        const auto job = row.id<JobId>("job");
        if (auto run = find_or_open(job); !run) {
            HOLD_EVENT(error, "training_not_opened", {"job", job}, {"why", run.error()});
        }
    }
    thread_ = std::thread([this] { run(); });
    return {};
}

void TrainingHub::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

std::shared_ptr<TrainingRun> TrainingHub::find(JobId job) {
    const std::lock_guard lock(mutex_);
    const auto found = runs_.find(job);
    return found == runs_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<TrainingRun>> TrainingHub::all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<TrainingRun>> runs;
    for (const auto& [job, run] : runs_) {
        runs.push_back(run);
    }
    return runs;
}

Result<std::shared_ptr<TrainingRun>> TrainingHub::find_or_open(JobId job) {
    const std::lock_guard opening(open_mutex_);
    auto run = find(job);
    if (run != nullptr && !run->is_over()) {
        return run;
    }
    HOLD_TRY(run, TrainingRun::open(core_, job, key_seed_));
    const std::lock_guard lock(mutex_);
    runs_[job] = run;
    return run;
}

void TrainingHub::on_deltas(const std::vector<store::Delta>& deltas) {
    std::vector<Note> notes;
    for (const store::Delta& delta : deltas) {
        if (!delta.after) {
            continue;
        }
        const store::Row& row = *delta.after;
        if (delta.table == "training_worker") {
            const std::string& state = row.text("state");
            const bool is_granted = state == "waiting" && row.integer("lease") != 0;
            if (!is_granted && state != "dead") {
                continue;
            }
            notes.push_back({.kind = is_granted ? Note::Kind::granted : Note::Kind::lost,
                             .job = row.id<JobId>("job"),
                             .worker = {static_cast<std::int32_t>(row.integer("pipeline")),
                                        static_cast<std::int32_t>(row.integer("stage"))},
                             .lease = row.id<LeaseId>("lease"),
                             .why = row.text("why")});
        } else if (delta.table == "job" && row.text("state") != "running") {
            Note note;
            note.kind = Note::Kind::ended;
            note.job = row.id<JobId>("id");
            note.why = row.text("reason");
            notes.push_back(std::move(note));
        }
    }
    if (notes.empty()) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        for (Note& note : notes) {
            if (note.kind != Note::Kind::ended || runs_.contains(note.job)) {
                notes_.push_back(std::move(note));
            }
        }
    }
    changed_.notify_all();
}

void TrainingHub::tell(const Note& note) {
    if (note.kind == Note::Kind::granted) {
        auto run = find_or_open(note.job);
        if (run) {
            (*run)->granted(note.worker, note.lease);
        } else if (run.error().code != Errc::bad_state) {
            HOLD_EVENT(error, "training_not_opened", {"job", note.job}, {"why", run.error()});
        }
        return;
    }
    const auto run = find(note.job);
    if (run == nullptr) {
        return;
    }
    if (note.kind == Note::Kind::lost) {
        run->lost(note.worker, note.lease, note.why);
    } else {
        run->cancelled(note.why.empty() ? "the job has ended" : note.why);
    }
}

void TrainingHub::run() {
    const std::int64_t period_us =
        std::clamp<std::int64_t>(core_.options.worker_suspect_ms * 1000 / 5, 5'000, 50'000);
    const std::int64_t away_us =
        std::max<std::int64_t>(core_.options.worker_suspect_ms * 500, 4 * period_us);
    std::int64_t ticked_us = core_.env.clock.steady_us();
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        changed_.wait_for(lock, std::chrono::microseconds(period_us),
                          [this] { return stopping_ || !notes_.empty(); });
        std::deque<Note> notes;
        notes.swap(notes_);
        lock.unlock();
        for (const Note& note : notes) {
            tell(note);
        }
        const std::int64_t now_us = core_.env.clock.steady_us();
        if (now_us - ticked_us > away_us) {
            // We were stopped ourselves: let the streams' threads read what the workers said
            // meanwhile before anybody is called silent.
            core_.env.clock.sleep_us(period_us);
        }
        if (now_us - ticked_us >= period_us || now_us < ticked_us) {
            tick();
            ticked_us = core_.env.clock.steady_us();
        }
        lock.lock();
    }
}

void TrainingHub::tick() {
    for (const auto& run : all()) {
        run->tick();
        if (!run->is_over()) {
            continue;
        }
        {
            const std::lock_guard lock(mutex_);
            if (const auto found = runs_.find(run->job());
                found != runs_.end() && found->second == run) {
                runs_.erase(found);
            }
        }
        if (!run->is_broken()) {
            continue;
        }
        if (auto again = find_or_open(run->job()); !again &&
                                                   again.error().code != Errc::bad_state &&
                                                   again.error().code != Errc::not_found) {
            HOLD_EVENT(error, "training_not_opened", {"job", run->job()}, {"why", again.error()});
        }
    }
}

Result<> TrainingHub::serve_stream(grpc::ServerContext& context, TrainingStream& stream) {
    v1::WorkerMessage first;
    if (!stream.Read(&first)) {
        return fail(Errc::cancelled, "the worker left without a word");
    }
    if (!first.has_hello()) {
        return fail(Errc::invalid_argument, "a worker's first message is its hello");
    }
    auto fenced = [&](const Error& why) -> Result<> {
        stream.Write(to_proto(training::CoordinatorCommand(training::Fenced{why.message})));
        return fail(why);
    };
    auto claim =
        core_.store->read([&](store::ReadTx& tx) { return check_claim(tx, first.hello()); });
    if (!claim) {
        return claim.error().code == Errc::stale_lease ? fenced(claim.error()) : claim;
    }
    HOLD_TRY(training::WorkerReport hello, training::from_proto(first));
    auto run = find_or_open(JobId(first.hello().job()));
    if (!run) {
        return run.error().code == Errc::bad_state ? fenced(run.error())
                                                   : Result<>(fail(run.error()));
    }
    training::StreamId id = 0;
    {
        const std::lock_guard lock(mutex_);
        id = ++streams_;
    }
    const auto worker = std::make_shared<WorkerStream>(id, context, stream);
    std::thread writer([&] { worker->write(); });
    (*run)->attached(worker, std::get<training::WorkerHello>(std::move(hello)));
    Result<> outcome = {};
    v1::WorkerMessage message;
    while (stream.Read(&message)) {
        auto report = training::from_proto(message);
        if (!report) {
            outcome = fail(report.error());
            break;
        }
        (*run)->reported(id, std::move(*report));
    }
    if (core_.stopping) {
        outcome = fail(make_error(Errc::unavailable, "the server is stopping").may_retry());
    } else {
        (*run)->closed(id);
    }
    worker->reader_ended();
    writer.join();
    return outcome;
}

grpc::Status TrainingService::Attach(grpc::ServerContext* context, TrainingStream* stream) {
    return serve(core_, context, Verb::training_attach,
                 [&](const Caller&) { return core_.training->serve_stream(*context, *stream); });
}

}  // namespace holdfast::server
