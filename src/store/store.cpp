// SPDX-License-Identifier: Apache-2.0
/// The writer: queue, group commit, durability, history, publication; and the pool of readers.
///
/// A batch is one SQLite transaction; each call in it is a savepoint. `synchronous` is chosen
/// before BEGIN, since it cannot change inside: FULL when any call of the batch is durable. A call
/// that fails takes back its savepoint and nothing else. Only when SQLite itself ends the
/// transaction (disk full, I/O error, interrupted) do the batch's earlier calls fail with it,
/// marked retryable: nothing of them was kept.
///
/// After a failed COMMIT with an I/O error the kernel may have dropped dirty pages it will not
/// report again, so that a later sync would vouch for data that is gone: the store then refuses all
/// further writes until it is opened again.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include <holdfast/log.hpp>
#include <holdfast/metrics.hpp>
#include <holdfast/store.hpp>

#include "connection.hpp"
#include "delta_capture.hpp"
#include "history.hpp"
#include "migrations.hpp"
#include "publisher.hpp"

namespace holdfast::store {

namespace {

constexpr std::size_t kKeyBytesMax = 256;
constexpr std::size_t kAnswerBytesMax = 1024 * 1024;
constexpr int kFindingsMax = 10;

/// A call on its way: lives on the caller's stack until `is_done`.
struct Request {
    CallInfo info;
    std::function<Result<>(Tx&)> work;
    Result<> answer;
    bool is_done = false;
    std::mutex mutex;
    std::condition_variable done;

    void finish() {
        // Notified under the lock: the caller cannot take this object away before.
        const std::lock_guard lock(mutex);
        is_done = true;
        done.notify_one();
    }

    void wait() {
        std::unique_lock lock(mutex);
        done.wait(lock, [this] { return is_done; });
    }
};

struct StoreMetrics {
    Counter& calls_ok = Metrics::global().counter("holdfast_store_calls_total",
                                                  "Transactions asked for", {{"status", "ok"}});
    Counter& calls_failed = Metrics::global().counter(
        "holdfast_store_calls_total", "Transactions asked for", {{"status", "failed"}});
    Counter& commits_durable = Metrics::global().counter(
        "holdfast_store_commits_total", "Group commits", {{"durability", "durable"}});
    Counter& commits_relaxed = Metrics::global().counter(
        "holdfast_store_commits_total", "Group commits", {{"durability", "relaxed"}});
    Counter& deltas =
        Metrics::global().counter("holdfast_store_deltas_total", "Row changes committed");
    Histogram& commit_seconds = Metrics::global().histogram(
        "holdfast_store_commit_seconds", "From BEGIN to the end of COMMIT, per group",
        latency_bounds_s());

    static StoreMetrics& get() {
        static StoreMetrics metrics;
        return metrics;
    }
};

}  // namespace

struct Store::State {
    StoreOptions options;
    Env* env = nullptr;
    std::string path;
    std::unique_ptr<FileLock> lock;
    std::shared_ptr<Publisher> publisher;
    int version = 0;

    // The writer's own.
    DeltaCapture capture;
    std::unique_ptr<Connection> writer;
    Counters counters;
    bool is_syncing = true;
    std::optional<Error> broken;  ///< set after an I/O error of COMMIT

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Request*> queue;
    bool is_stopping = false;
    StoreStats stats;
    std::thread thread;
    bool is_in_call = false;  ///< in memory: a call or read is running

    std::mutex readers_mutex;
    std::condition_variable reader_is_free;
    std::vector<std::unique_ptr<Connection>> readers;
    std::size_t readers_open = 0;

    ~State() { stop(); }

    void stop() {
        {
            const std::lock_guard guard(mutex);
            is_stopping = true;
            changed.notify_all();
        }
        if (thread.joinable()) {
            thread.join();
        }
        if (publisher != nullptr) {
            publisher->stop();
        }
    }

    void work();
    std::size_t run_batch(std::span<Request* const> batch);
    void run_call(Request& request, std::vector<std::vector<Delta>>& published);
    [[nodiscard]] Result<> run_work(Request& request, std::int64_t now_us);
    void undo_call(Request& request, std::int64_t now_us, std::int64_t started_us,
                   const Counters& before);
    [[nodiscard]] Result<> begin(bool is_durable);
    [[nodiscard]] Result<> commit();
    void count_batch(std::span<Request* const> batch, bool is_durable, std::size_t deltas);
    [[nodiscard]] Result<> run_inline(Request& request);
    [[nodiscard]] Result<std::unique_ptr<Connection>> take_reader();
    void return_reader(std::unique_ptr<Connection> reader);
    [[nodiscard]] Result<> with_reader(const std::function<Result<>(Connection&)>& work_on);
};

Result<> Store::State::begin(bool is_durable) {
    if (broken) {
        return fail(*broken);
    }
    if (is_durable != is_syncing && !options.in_memory) {
        HOLD_TRY(
            writer->script(is_durable ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL",
                           Access::store));
        is_syncing = is_durable;
    }
    HOLD_TRY(writer->run("BEGIN IMMEDIATE"));
    return {};
}

Result<> Store::State::commit() {
    auto committed = writer->run("COMMIT");
    if (committed) {
        return {};
    }
    if (!writer->is_outside_transaction()) {
        (void)writer->run("ROLLBACK");  // the commit's error is the one to report
    }
    Error error = std::move(committed).error();
    if (error.code == Errc::store_io || error.code == Errc::store_corrupt) {
        broken = make_error(error.code, "store is closed to writes after a failed commit: {}",
                            error.message)
                     .advise("check the disk, then restart the server");
        HOLD_EVENT(error, "store_commit_failed", {"error", error}, {"path", path});
        error.message += "; whether the call was kept is known after the next start";
    }
    return fail(std::move(error));
}

Result<> Store::State::run_work(Request& request, std::int64_t now_us) {
    Tx tx(*writer, now_us, request.info, env->random);
    try {
        return request.work(tx);
    } catch (const std::exception& error) {
        return fail(Errc::internal, "procedure {}: {}", request.info.procedure, error.what());
    }
}

void Store::State::undo_call(Request& request, std::int64_t now_us, std::int64_t started_us,
                             const Counters& before) {
    const bool had_written = capture.mark() > 0;
    capture.clear();
    counters = before;
    if (writer->is_outside_transaction()) {
        return;
    }
    auto undone = writer->run("ROLLBACK TO hold_call");
    if (undone) {
        undone = writer->run("RELEASE hold_call");
    }
    if (!undone) {
        // Never seen; without the savepoint the batch is not to be trusted.
        (void)writer->run("ROLLBACK");
        return;
    }
    const Errc code = request.answer.error().code;
    if (had_written && code != Errc::store_full && code != Errc::store_io) {
        const CallRecord record{.info = request.info,
                                .at_us = now_us,
                                .duration_us = env->clock.steady_us() - started_us,
                                .status = to_string(code)};
        if (!write_failed_invocation(*writer, counters, record)) {
            counters = before;  // the caller gets its own error; the record of it is lost
        }
    }
}

void Store::State::run_call(Request& request, std::vector<std::vector<Delta>>& published) {
    const Counters before = counters;
    const std::int64_t now_us = env->clock.wall_us();
    const std::int64_t started_us = env->clock.steady_us();
    if (auto begun = writer->run("SAVEPOINT hold_call"); !begun) {
        request.answer = fail(std::move(begun).error());
        return;
    }
    writer->set_deadline(env->clock, started_us + options.call_budget_us);
    request.answer = run_work(request, now_us);
    writer->set_deadline(env->clock, kNoLimit);
    std::vector<Delta> deltas;
    if (request.answer && writer->is_outside_transaction()) {
        request.answer = fail(Errc::internal, "procedure {}: it went on after SQLite had undone it",
                              request.info.procedure);
    }
    if (request.answer) {
        const CallRecord record{.info = request.info,
                                .at_us = now_us,
                                .duration_us = env->clock.steady_us() - started_us};
        auto written = write_history(*writer, counters, capture.take(), record);
        auto released = written ? writer->run("RELEASE hold_call") : Result<std::int64_t>(0);
        if (!written || !released) {
            request.answer =
                fail(written ? std::move(released).error() : std::move(written).error());
        } else {
            deltas = std::move(*written);
        }
    }
    if (!request.answer) {
        undo_call(request, now_us, started_us, before);
        return;
    }
    if (!deltas.empty()) {
        published.push_back(std::move(deltas));
    }
}

/// Runs calls as one transaction and answers them; returns how many were used up (at least one).
std::size_t Store::State::run_batch(std::span<Request* const> batch) {
    const std::int64_t started_us = env->clock.steady_us();
    const bool is_durable = std::any_of(batch.begin(), batch.end(), [](const Request* request) {
        return request->info.durability == Durability::durable;
    });
    const Counters before = counters;
    std::vector<std::vector<Delta>> published;
    Result<> done = begin(is_durable);
    std::size_t used = 0;
    while (done && used < batch.size()) {
        Request& request = *batch[used++];
        run_call(request, published);
        if (writer->is_outside_transaction()) {
            done = fail(
                make_error(Errc::unavailable, "undone with another call of the same commit: {}",
                           request.answer ? "SQLite ended it" : request.answer.error().message)
                    .may_retry());
            if (request.answer) {
                request.answer = fail(done.error());
            }
        }
    }
    if (done) {
        done = commit();
    } else if (used == 0) {
        used = batch.size();  // BEGIN failed: for all of them
    }
    if (!done) {
        counters = before;
        capture.clear();
        published.clear();
        for (Request* request : batch.first(used)) {
            if (request->answer) {
                request->answer = fail(done.error());
            }
        }
    }
    std::size_t deltas = 0;
    for (std::vector<Delta>& call : published) {
        deltas += call.size();
        publisher->push(std::move(call));
    }
    StoreMetrics::get().commit_seconds.observe(
        static_cast<double>(env->clock.steady_us() - started_us) / 1e6);
    count_batch(batch.first(used), is_durable, deltas);
    return used;
}

void Store::State::count_batch(std::span<Request* const> batch, bool is_durable,
                               std::size_t deltas) {
    const auto failed = static_cast<std::uint64_t>(std::count_if(
        batch.begin(), batch.end(), [](const Request* request) { return !request->answer; }));
    StoreMetrics& metrics = StoreMetrics::get();
    metrics.calls_ok.add(batch.size() - failed);
    metrics.calls_failed.add(failed);
    (is_durable ? metrics.commits_durable : metrics.commits_relaxed).add();
    metrics.deltas.add(deltas);
    const std::lock_guard guard(mutex);
    stats.calls += static_cast<std::int64_t>(batch.size());
    stats.failed_calls += static_cast<std::int64_t>(failed);
    stats.commits += 1;
    stats.deltas += static_cast<std::int64_t>(deltas);
    stats.last_txn = counters.txn;
    stats.last_seq = counters.seq;
}

void Store::State::work() {
    std::vector<Request*> batch;
    while (true) {
        publisher->wait_for_room();
        {
            std::unique_lock guard(mutex);
            changed.wait(guard, [this] { return !queue.empty() || is_stopping; });
            if (queue.empty()) {
                return;
            }
            const std::size_t count = std::min(queue.size(), options.batch_max);
            batch.assign(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
            queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
        }
        std::span<Request* const> left(batch);
        while (!left.empty()) {
            const std::size_t used = run_batch(left);
            for (Request* request : left.first(used)) {
                request->finish();
            }
            left = left.subspan(used);
        }
    }
}

Result<> Store::State::run_inline(Request& request) {
    if (is_in_call) {
        return fail(Errc::bad_state, "procedure {}: called inside another call",
                    request.info.procedure);
    }
    is_in_call = true;
    Request* const only = &request;
    run_batch(std::span(&only, 1));
    is_in_call = false;
    publisher->deliver_inline();
    return std::move(request.answer);
}

Store::Store(std::unique_ptr<State> state) : state_(std::move(state)) {}

Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::open(StoreOptions options) {
    auto state = std::make_unique<State>();
    state->env = options.env == nullptr ? &real_env() : options.env;
    state->options = std::move(options);
    const StoreOptions& wanted = state->options;
    state->publisher = std::make_shared<Publisher>(
        wanted.in_memory ? Publisher::Mode::inline_calls : Publisher::Mode::threaded,
        wanted.deltas_pending_max);
    if (!wanted.in_memory) {
        Files& files = state->env->files;
        HOLD_TRY(files.make_directories(wanted.directory, 0700));
        HOLD_TRY(state->lock, files.lock_file(fmt::format("{}/{}", wanted.directory, kLockFile)));
        state->path = fmt::format("{}/{}", wanted.directory, kDatabaseFile);
    }
    HOLD_TRY(state->writer,
             Connection::open(state->path, wanted.in_memory ? Connection::Kind::memory
                                                            : Connection::Kind::writer));
    if (!wanted.image.empty()) {
        HOLD_CHECK(wanted.in_memory, "an image is for a store in memory");
        HOLD_TRY(state->writer->load_image(wanted.image));
        state->options.image.clear();
    }
    state->writer->set_capture(&state->capture);
    HOLD_TRY(state->version, migrate(*state->writer, state->capture, state->counters,
                                     wanted.migrations, state->env->clock.wall_us()));
    state->stats.last_txn = state->counters.txn;
    state->stats.last_seq = state->counters.seq;
    if (!wanted.in_memory) {
        state->thread = std::thread([raw = state.get()] { raw->work(); });
    }
    return std::unique_ptr<Store>(new Store(std::move(state)));
}

Result<> Store::run(CallInfo info, std::function<Result<>(Tx&)> fn) {
    State& state = *state_;
    Request request;
    request.info = std::move(info);
    request.work = std::move(fn);
    if (state.options.in_memory) {
        return state.run_inline(request);
    }
    if (state.thread.get_id() == std::this_thread::get_id()) {
        return fail(Errc::bad_state, "procedure {}: called inside another call",
                    request.info.procedure);
    }
    const Publisher::HandlerCall handler_call(*state.publisher);
    {
        const std::lock_guard guard(state.mutex);
        if (state.is_stopping || state.queue.size() >= state.options.queue_max) {
            return fail(make_error(Errc::unavailable, "procedure {}: {}", request.info.procedure,
                                   state.is_stopping ? "the store is closing"
                                                     : "too many calls are waiting")
                            .may_retry());
        }
        state.queue.push_back(&request);
        state.changed.notify_one();
    }
    request.wait();
    return std::move(request.answer);
}

Result<std::string> Store::call_once(CallInfo info, std::function<Result<std::string>(Tx&)> fn) {
    if (info.idempotency_key.empty()) {
        return call(std::move(info), fn);
    }
    if (info.idempotency_key.size() > kKeyBytesMax) {
        return fail(Errc::too_large, "procedure {}: the idempotency key has more than {} bytes",
                    info.procedure, kKeyBytesMax);
    }
    Connection& writer = *state_->writer;
    return call(std::move(info), [&](Tx& tx) -> Result<std::string> {
        const CallInfo& call_info = tx.info();
        HOLD_TRY(const std::vector<Row> known,
                 writer.ask("SELECT procedure, answer FROM idempotency WHERE who = $1 AND key = $2",
                            call_info.who, call_info.idempotency_key));
        if (!known.empty()) {
            if (known[0].text(0) != call_info.procedure) {
                return fail(Errc::conflict, "procedure {}: its idempotency key was used for {}",
                            call_info.procedure, known[0].text(0));
            }
            const Blob& answer = known[0].blob(1);
            std::string text(answer.size(), '\0');
            std::transform(answer.begin(), answer.end(), text.begin(),
                           [](std::byte byte) { return static_cast<char>(byte); });
            return text;
        }
        HOLD_TRY(std::string answer, fn(tx));
        if (answer.size() > kAnswerBytesMax) {
            return fail(Errc::too_large,
                        "procedure {}: the answer has {} bytes, at most {} are kept",
                        call_info.procedure, answer.size(), kAnswerBytesMax);
        }
        const auto bytes = std::as_bytes(std::span(answer));
        HOLD_TRY(
            writer.run("INSERT INTO idempotency(who, key, procedure, answer, at_us) VALUES "
                       "($1, $2, $3, $4, $5)",
                       call_info.who, call_info.idempotency_key, call_info.procedure,
                       Blob(bytes.begin(), bytes.end()), tx.now_us()));
        return answer;
    });
}

Result<std::int64_t> Store::forget_answers_before(std::int64_t wall_us) {
    Connection& writer = *state_->writer;
    return call({.procedure = "forget_answers", .who = "system", .durability = Durability::relaxed},
                [&](Tx&) -> Result<std::int64_t> {
                    return writer.run("DELETE FROM idempotency WHERE at_us < $1", wall_us);
                });
}

Result<std::unique_ptr<Connection>> Store::State::take_reader() {
    std::unique_lock guard(readers_mutex);
    reader_is_free.wait(guard,
                        [this] { return !readers.empty() || readers_open < options.readers_max; });
    if (!readers.empty()) {
        std::unique_ptr<Connection> reader = std::move(readers.back());
        readers.pop_back();
        return reader;
    }
    ++readers_open;
    guard.unlock();
    auto opened = Connection::open(path, Connection::Kind::reader);
    if (!opened) {
        return_reader(nullptr);
    }
    return opened;
}

void Store::State::return_reader(std::unique_ptr<Connection> reader) {
    const std::lock_guard guard(readers_mutex);
    if (reader == nullptr) {
        --readers_open;
    } else {
        readers.push_back(std::move(reader));
    }
    reader_is_free.notify_one();
}

Result<> Store::State::with_reader(const std::function<Result<>(Connection&)>& work_on) {
    if (options.in_memory) {
        if (is_in_call) {
            return fail(Errc::bad_state, "read: called inside a call; use its Tx");
        }
        is_in_call = true;
        Result<> done = work_on(*writer);
        is_in_call = false;
        return done;
    }
    HOLD_TRY(std::unique_ptr<Connection> reader, take_reader());
    Result<> done = work_on(*reader);
    return_reader(std::move(reader));
    return done;
}

Result<> Store::run_read(const std::function<void(ReadTx&)>& fn) {
    /// ReadTx's destructor is protected: only Tx and this may be made.
    struct Snapshot final : ReadTx {
        using ReadTx::ReadTx;
    };

    State& state = *state_;
    return state.with_reader([&](Connection& connection) -> Result<> {
        HOLD_TRY(connection.run("BEGIN"));
        Result<> done;
        try {
            Snapshot snapshot(connection, state.env->clock.wall_us());
            fn(snapshot);
        } catch (const std::exception& error) {
            done = fail(Errc::internal, "read: {}", error.what());
        }
        if (!connection.is_outside_transaction()) {
            HOLD_TRY(connection.run("ROLLBACK"));
        }
        return done;
    });
}

Subscription Store::subscribe(std::set<std::string> tables, DeltaHandler handler) {
    return state_->publisher->subscribe(std::move(tables), std::move(handler));
}

void Store::wait_published() {
    state_->publisher->wait_idle();
}

Result<> Store::backup(const std::string& path) {
    State& state = *state_;
    if (state.env->files.exists(path)) {
        return fail(Errc::conflict, "back up to {}: it exists", path);
    }
    Result<> done =
        state.with_reader([&](Connection& connection) { return connection.copy_to(path); });
    if (!done) {
        (void)state.env->files.remove(path);  // half a copy; its absence is fine, too
    }
    return done;
}

Result<> Store::check() {
    return state_->with_reader([&](Connection& connection) -> Result<> {
        std::vector<std::string> findings;
        HOLD_TRY(const std::vector<Row> integrity,
                 connection.ask(fmt::format("PRAGMA integrity_check({})", kFindingsMax)));
        for (const Row& row : integrity) {
            if (row.text(0) != "ok") {
                findings.push_back(row.text(0));
            }
        }
        HOLD_TRY(const std::vector<Row> orphans, connection.ask("PRAGMA foreign_key_check"));
        for (const Row& row : orphans) {
            if (findings.size() < kFindingsMax) {
                findings.push_back(fmt::format("table {}: a row refers to a missing row of {}",
                                               row.text(0), row.text(2)));
            }
        }
        if (findings.empty()) {
            return {};
        }
        return fail(make_error(Errc::store_corrupt, "check store: {}", fmt::join(findings, "; "))
                        .advise("restore a backup with `hold store restore`"));
    });
}

Result<std::string> Store::image() {
    if (!state_->options.in_memory) {
        return fail(Errc::bad_state, "image: only a store in memory has one");
    }
    return state_->writer->save_image();
}

int Store::schema_version() const {
    return state_->version;
}

StoreStats Store::stats() const {
    const std::lock_guard guard(state_->mutex);
    return state_->stats;
}

}  // namespace holdfast::store
