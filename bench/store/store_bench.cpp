// SPDX-License-Identifier: Apache-2.0
/// What one call costs, with everything on: history, deltas, idempotency, durable commit.
///
/// One call submits a job: a number, three rows in two tables, an answer kept under a key; a
/// subscriber receives the deltas. Read `CPU` (of the whole process, per call) as the software's
/// own figure; wall times depend on the disk, whose fdatasync is measured in the same run
/// (FdatasyncOf4KiB).
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <holdfast/store.hpp>

namespace holdfast::store {
namespace {

constexpr Migration kMigrations[] = {
    {1, "jobs", R"sql(
CREATE TABLE job (id INTEGER PRIMARY KEY, name TEXT NOT NULL, user TEXT NOT NULL, state TEXT NOT NULL,
                  spec TEXT NOT NULL, at_us INTEGER NOT NULL) STRICT;
CREATE TABLE task (job INTEGER NOT NULL REFERENCES job (id), no INTEGER NOT NULL, state TEXT NOT NULL,
                   PRIMARY KEY (job, no)) STRICT, WITHOUT ROWID;
CREATE INDEX task_by_state ON task (state, job);
)sql"},
};

std::string make_folder() {
    std::string pattern =
        environment_variable("TMPDIR").value_or("/tmp") + "/holdfast_bench_XXXXXX";
    const char* made = mkdtemp(pattern.data());
    HOLD_CHECK(made != nullptr, "a folder for the benchmark");
    return made;
}

/// One store for all threads of a run.
struct Bench {
    std::string folder = make_folder();
    std::unique_ptr<Store> store;
    std::atomic<std::int64_t> keys = 0;
    std::atomic<std::int64_t> deltas = 0;
    Subscription subscription;

    explicit Bench(bool in_memory) {
        auto opened =
            Store::open({.directory = folder, .migrations = kMigrations, .in_memory = in_memory});
        HOLD_CHECK(opened.has_value(), "the store opens");
        store = std::move(*opened);
        subscription = store->subscribe({}, [this](const std::vector<Delta>& changed) {
            deltas += static_cast<std::int64_t>(changed.size());
        });
    }

    ~Bench() {
        subscription.cancel();
        store.reset();
        std::filesystem::remove_all(folder);
    }

    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;
};

std::unique_ptr<Bench> bench;  // made and ended outside the measured threads

bool submit(Durability durability) {
    const std::string key = "request-" + std::to_string(++bench->keys);
    const auto answer = bench->store->call_once(
        {.procedure = "submit", .who = "ann", .idempotency_key = key, .durability = durability},
        [&](Tx& tx) -> Result<std::string> {
            HOLD_TRY(const std::int64_t id, tx.next_id("job"));
            HOLD_TRY(
                tx.exec("INSERT INTO job(id, name, user, state, spec, at_us) VALUES "
                        "($1, $2, 'ann', 'pending', '{\"run\":\"train.sh\",\"gpus\":8}', $3)",
                        id, key, tx.now_us()));
            HOLD_TRY(
                tx.exec("INSERT INTO task(job, no, state) VALUES ($1, 0, 'pending'), "
                        "($1, 1, 'pending')",
                        id));
            return std::to_string(id);
        });
    return answer.has_value();
}

void run_calls(benchmark::State& state, Durability durability) {
    Clock& clock = real_env().clock;
    std::vector<std::int64_t> times_us;
    for (auto _ : state) {
        const std::int64_t started_us = clock.steady_us();
        if (!submit(durability)) {
            state.SkipWithError("a call failed");
        }
        times_us.push_back(clock.steady_us() - started_us);
    }
    std::sort(times_us.begin(), times_us.end());
    if (!times_us.empty()) {
        const auto at = [&](std::size_t percent) {
            return static_cast<double>(times_us[times_us.size() * percent / 100]);
        };
        using benchmark::Counter;
        state.counters["p10_us"] = Counter(at(10), Counter::kAvgThreads);
        state.counters["p50_us"] = Counter(at(50), Counter::kAvgThreads);
        state.counters["p99_us"] = Counter(at(99), Counter::kAvgThreads);
    }
    state.SetItemsProcessed(state.iterations());
}

void CallDurable(benchmark::State& state) {
    run_calls(state, Durability::durable);
}

void CallRelaxed(benchmark::State& state) {
    run_calls(state, Durability::relaxed);
}

void CallInMemory(benchmark::State& state) {
    run_calls(state, Durability::durable);
}

void FdatasyncOf4KiB(benchmark::State& state) {
    const std::string folder = make_folder();
    const std::string path = folder + "/f";
    const int file = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    std::string page(4096, 'x');
    Clock& clock = real_env().clock;
    std::vector<std::int64_t> times_us;
    off_t at = 0;
    for (auto _ : state) {
        page[0] = static_cast<char>(page[0] + 1);
        const std::int64_t started_us = clock.steady_us();
        if (::pwrite(file, page.data(), page.size(), at) != 4096 || ::fdatasync(file) != 0) {
            state.SkipWithError("the disk failed");
        }
        times_us.push_back(clock.steady_us() - started_us);
        at = (at + 4096) % (4 << 20);
    }
    std::sort(times_us.begin(), times_us.end());
    state.counters["p10_us"] = static_cast<double>(times_us[times_us.size() / 10]);
    state.counters["p50_us"] = static_cast<double>(times_us[times_us.size() / 2]);
    state.counters["p99_us"] = static_cast<double>(times_us[times_us.size() * 99 / 100]);
    ::close(file);
    std::filesystem::remove_all(folder);
}

void on_file(const benchmark::State&) {
    bench = std::make_unique<Bench>(false);
}

void in_memory(const benchmark::State&) {
    bench = std::make_unique<Bench>(true);
}

void end(const benchmark::State&) {
    bench.reset();
}

BENCHMARK(FdatasyncOf4KiB)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(CallDurable)
    ->Setup(on_file)
    ->Teardown(end)
    ->Threads(1)
    ->Threads(8)
    ->Threads(32)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(CallRelaxed)
    ->Setup(on_file)
    ->Teardown(end)
    ->Threads(1)
    ->Threads(8)
    ->Threads(32)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(CallInMemory)
    ->Setup(in_memory)
    ->Teardown(end)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace holdfast::store
