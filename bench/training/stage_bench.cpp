// SPDX-License-Identifier: Apache-2.0
// Time of the three operations of a stage (tF : tBI : tW is what a schedule is made from), of what
// follows them once a step, and of a whole step of the demo's job (2 pipelines × 3 stages × 6
// microbatches) in one thread: divide by the number of cores for the step time of six workers.
//
// Run with OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1, as workers are.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "nn/torch_stage.hpp"
#include "stage_module.hpp"

namespace holdfast::training {
namespace {

using Maker = Result<std::unique_ptr<StageModule>> (*)(StageOptions);

constexpr std::int32_t kPipelines = 2;
constexpr std::int32_t kStages = 3;
constexpr std::int32_t kMicrobatches = 6;

template <typename Value>
Value need(Result<Value> result) {
    if (!result) {
        std::fprintf(stderr, "%s\n", result.error().message.c_str());
        std::exit(1);
    }
    if constexpr (!std::is_void_v<Value>) {
        return std::move(result).value();
    }
}

StageOptions options(const char* model, std::int32_t stage, bool exact) {
    StageOptions made;
    made.model = need(model_config(model));
    made.stage = stage;
    made.stages = kStages;
    made.pipelines = kPipelines;
    made.microbatches = kMicrobatches;
    made.exact = exact;
    for (int i = 0; i < 4000; ++i) {
        made.text += "the quick brown fox jumps over the lazy dog; "[i * i % 45];
    }
    return made;
}

/// Input and output gradient that a stage would get: zeros cost as much as other numbers.
std::vector<float> activation(const StageOptions& of, bool absent) {
    const auto size = of.model.sequences * of.model.context * of.model.width;
    return std::vector<float>(absent ? 0 : static_cast<std::size_t>(size), 0.01F);
}

enum class Op : std::uint8_t { forward, backward_input, backward_weight };

void run_op(benchmark::State& state, Maker maker, const char* model, std::int32_t index, Op op) {
    const StageOptions made = options(model, index, true);
    const auto stage = need(maker(made));
    const auto in = activation(made, index == 0);
    const auto slope = activation(made, index == kStages - 1);
    const MicrobatchKey key{};
    const auto timed = [&](bool is_timed, auto&& call) {
        if (is_timed) {
            state.ResumeTiming();
        }
        need(call());
        if (is_timed) {
            state.PauseTiming();
        }
    };
    for (auto _ : state) {
        state.PauseTiming();
        timed(op == Op::forward, [&] { return stage->forward(key, in); });
        timed(op == Op::backward_input, [&] { return stage->backward_input(key, slope); });
        timed(op == Op::backward_weight, [&] { return stage->backward_weight(key); });
        stage->drop_iteration();
        state.ResumeTiming();
    }
}

/// All workers of the job in one thread.
class Job {
  public:
    Job(Maker maker, const char* model, bool exact) {
        for (std::int32_t i = 0; i < kStages * kPipelines; ++i) {
            workers_.push_back(need(maker(options(model, i % kStages, exact))));
        }
    }

    double step(std::int64_t number) {
        double loss = 0;
        for (std::int32_t pipeline = 0; pipeline < kPipelines; ++pipeline) {
            for (std::int32_t index = 0; index < kMicrobatches; ++index) {
                loss += microbatch({.step = number, .pipeline = pipeline, .microbatch = index});
            }
        }
        for (std::int32_t stage = 0; stage < kStages; ++stage) {
            const auto left = at(0, stage).gradient_sums();
            need(at(0, stage).add_gradient_sums(at(1, stage).gradient_sums()));
            need(at(1, stage).add_gradient_sums(left));
            need(at(0, stage).optimizer_step());
            need(at(1, stage).optimizer_step());
        }
        return loss / (kPipelines * kMicrobatches);
    }

  private:
    StageModule& at(std::int32_t pipeline, std::int32_t stage) {
        return *workers_.at(static_cast<std::size_t>(pipeline * kStages + stage));
    }

    double microbatch(const MicrobatchKey& key) {
        std::vector<float> x;
        for (std::int32_t stage = 0; stage < kStages; ++stage) {
            x = need(at(key.pipeline, stage).forward(key, x));
        }
        const double loss = need(at(key.pipeline, kStages - 1).loss(key));
        for (std::int32_t stage = kStages; stage-- > 0;) {
            x = need(at(key.pipeline, stage).backward_input(key, x));
            need(at(key.pipeline, stage).backward_weight(key));
        }
        return loss;
    }

    std::vector<std::unique_ptr<StageModule>> workers_;
};

void run_step(benchmark::State& state, Maker maker, const char* model, bool exact) {
    Job job(maker, model, exact);
    std::int64_t number = 0;
    double loss = 0;
    for (auto _ : state) {
        loss = job.step(number++);
    }
    state.counters["loss"] = loss;
    state.counters["steps"] = static_cast<double>(number);
}

void run_once(benchmark::State& state, const char* model, const char* what) {
    // The optimizer wants a whole iteration in the sums: zeros of the right count do.
    StageOptions made = options(model, 1, true);
    made.pipelines = 1;
    made.microbatches = 1;
    const auto stage = need(make_reference_stage(made));
    const auto zeros = activation(made, false);
    need(stage->forward({}, zeros));
    need(stage->backward_input({}, zeros));
    need(stage->backward_weight({}));
    const auto sums = stage->gradient_sums();
    const auto saved = stage->save_state();
    const std::string which = what;
    for (auto _ : state) {
        if (which == "sums_out") {
            benchmark::DoNotOptimize(stage->gradient_sums());
        } else if (which == "sums_in") {
            stage->drop_iteration();
            need(stage->add_gradient_sums(sums));
        } else if (which == "sums_in_and_step") {
            stage->drop_iteration();
            need(stage->add_gradient_sums(sums));
            need(stage->optimizer_step());
        } else if (which == "save") {
            benchmark::DoNotOptimize(stage->save_state());
        } else {
            need(stage->load_state(saved));
        }
    }
    state.counters["bytes_sums"] = static_cast<double>(sums.size());
    state.counters["bytes_state"] = static_cast<double>(saved.size());
}

struct Backend {
    const char* name;
    Maker maker;
};

void register_backend(const Backend& backend, const char* model) {
    const std::string prefix = std::string(backend.name) + "/" + model;
    const std::vector<std::pair<const char*, Op>> ops = {
        {"F", Op::forward}, {"BI", Op::backward_input}, {"W", Op::backward_weight}};
    for (std::int32_t stage = 0; stage < kStages; ++stage) {
        for (const auto& [name, op] : ops) {
            benchmark::RegisterBenchmark(
                (prefix + "/stage" + std::to_string(stage) + "/" + name).c_str(),
                [=](benchmark::State& state) { run_op(state, backend.maker, model, stage, op); })
                ->Unit(benchmark::kMillisecond);
        }
    }
    for (const bool exact : {true, false}) {
        benchmark::RegisterBenchmark(
            (prefix + "/step/" + (exact ? "exact" : "fast")).c_str(),
            [=](benchmark::State& state) { run_step(state, backend.maker, model, exact); })
            ->Unit(benchmark::kMillisecond);
    }
}

}  // namespace
}  // namespace holdfast::training

int main(int count, char** arguments) {
    using namespace holdfast::training;
    std::vector<Backend> backends = {{"reference", &make_reference_stage}};
    if (make_torch_stage(options("gpt-tiny", 0, true))) {
        backends.push_back({"torch", &make_torch_stage});
        backends.push_back({"torch-coupled", &make_coupled_torch_stage});
    }
    for (const char* model : {"gpt-tiny", "gpt-small"}) {
        for (const Backend& backend : backends) {
            register_backend(backend, model);
        }
        for (const char* what : {"sums_out", "sums_in", "sums_in_and_step", "save", "load"}) {
            benchmark::RegisterBenchmark(
                (std::string("any/") + model + "/" + what).c_str(),
                [=](benchmark::State& state) { run_once(state, model, what); })
                ->Unit(benchmark::kMillisecond);
        }
    }
    benchmark::Initialize(&count, arguments);
    if (benchmark::ReportUnrecognizedArguments(count, arguments)) {
        return 1;
    }
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
