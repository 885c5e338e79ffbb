// SPDX-License-Identifier: Apache-2.0
// How long `hold` takes to start, and how much memory it holds, beside a program that does nothing
// (/bin/true): the difference is ours, the rest is the machine's. One process per iteration; wait4
// gives CPU and peak memory.
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char** environ;

namespace {

void start(benchmark::State& state, std::vector<std::string> words) {
    std::vector<char*> argv;
    for (std::string& word : words) {
        argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1 /* O_WRONLY */, 0);
    long rss_kib_max = 0;
    double cpu_ms = 0;
    for ([[maybe_unused]] auto iteration : state) {
        pid_t pid = -1;
        int status = -1;
        rusage usage{};
        if (posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ) != 0 ||
            wait4(pid, &status, 0, &usage) != pid || status != 0) {
            state.SkipWithError("the program failed");
            break;
        }
        rss_kib_max = std::max(rss_kib_max, usage.ru_maxrss);
        cpu_ms += static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
                  static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
    }
    posix_spawn_file_actions_destroy(&actions);
    state.counters["rss_MiB"] = static_cast<double>(rss_kib_max) / 1024.0;
    state.counters["cpu_ms"] = benchmark::Counter(cpu_ms, benchmark::Counter::kAvgIterations);
}

}  // namespace

BENCHMARK_CAPTURE(start, bin_true, {"/bin/true"})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(40)
    ->Repetitions(5)
    ->ReportAggregatesOnly()
    ->UseRealTime();
BENCHMARK_CAPTURE(start, hold_version, {HOLDFAST_BIN_DIR "/hold", "version"})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(40)
    ->Repetitions(5)
    ->ReportAggregatesOnly()
    ->UseRealTime();

BENCHMARK_MAIN();
