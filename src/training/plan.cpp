// SPDX-License-Identifier: Apache-2.0
// Who runs which microbatch, in which order, when some workers are dead.
//
// Idea: run the iteration once on paper. A list schedule in slots (forward 1, backward 2) lets
// every free worker take its best ready operation: a forward while fewer than P - s microbatches
// are in flight (it feeds the stages after), else a backward. With nobody dead this is exactly
// 1F1B. Which of several ready forwards is best decides how long a loaded peer starves or stalls
// the others; no rule is best everywhere, so a few are tried and the shortest schedule is kept (on
// 3 × 4 × 6 with one dead worker: the proven optimum, 36 slots, for every stage). The order in
// which each worker ran its operations on paper is the order it must use for real: all orders
// together come from one execution, so they cannot deadlock whatever the real durations are (inputs
// are buffered at the receiver).
//
// It cannot get stuck on paper either: the last stage can always finish what it holds, so every
// stage before it gets its gradients, and a stage below its cap takes any ready forward.
//
// Source: ReCycle (arXiv 2405.14009), adaptive pipelining. Backward is coupled here; splitting it
// in the plan, the staggered optimizer and measured costs are left out.
#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <queue>
#include <tuple>

#include <holdfast/training.hpp>

namespace holdfast::training {

namespace {

constexpr std::int64_t kForwardSlots = 1;
constexpr std::int64_t kBackwardSlots = 2;

Result<> check_shape(Shape shape) {
    const auto in = [](std::int32_t value, std::int32_t most) {
        return value >= 1 && value <= most;
    };
    if (!in(shape.pipelines, kPipelinesMax)) {
        return fail(make_error(Errc::invalid_argument, "{} pipelines: need 1 to {}",
                               shape.pipelines, kPipelinesMax)
                        .at("training.pipelines"));
    }
    if (!in(shape.stages, kStagesMax)) {
        return fail(
            make_error(Errc::invalid_argument, "{} stages: need 1 to {}", shape.stages, kStagesMax)
                .at("training.stages"));
    }
    if (!in(shape.microbatches, kMicrobatchesMax)) {
        return fail(make_error(Errc::invalid_argument, "{} microbatches: need 1 to {}",
                               shape.microbatches, kMicrobatchesMax)
                        .at("training.microbatches"));
    }
    const std::int64_t operations =
        std::int64_t{shape.pipelines} * shape.stages * shape.microbatches;
    if (operations > kOperationsMax) {
        return fail(make_error(Errc::invalid_argument,
                               "pipelines × stages × microbatches is {}: need at most {}",
                               operations, kOperationsMax)
                        .at("training"));
    }
    return {};
}

std::size_t index_of(Shape shape, std::int32_t pipeline, std::int32_t microbatch,
                     std::int32_t stage) {
    return (static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape.pipelines) +
            static_cast<std::size_t>(pipeline)) *
               static_cast<std::size_t>(shape.microbatches) +
           static_cast<std::size_t>(microbatch);
}

/// Fills live and routes. Dead pipelines of a stage share one round robin over its live peers, so
/// that no peer gets more than ceil(D × M / live).
Result<> make_routes(Plan& plan, const std::set<WorkerName>& dead) {
    const Shape shape = plan.shape;
    plan.routes.resize(static_cast<std::size_t>(shape.pipelines) *
                       static_cast<std::size_t>(shape.stages) *
                       static_cast<std::size_t>(shape.microbatches));
    for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
        std::vector<std::int32_t> peers;
        for (std::int32_t pipeline = 0; pipeline < shape.pipelines; ++pipeline) {
            if (!dead.contains({pipeline, stage})) {
                peers.push_back(pipeline);
                plan.live.insert({pipeline, stage});
            }
        }
        if (peers.empty()) {
            return fail(Errc::bad_state, "plan for {} dead workers: stage {} has no live worker",
                        dead.size(), stage);
        }
        std::size_t next = 0;
        for (std::int32_t pipeline = 0; pipeline < shape.pipelines; ++pipeline) {
            const bool alive = !dead.contains({pipeline, stage});
            for (std::int32_t m = 0; m < shape.microbatches; ++m) {
                plan.routes[index_of(shape, pipeline, m, stage)] =
                    alive ? pipeline : peers[next++ % peers.size()];
            }
        }
    }
    return {};
}

/// The paper execution of one iteration.
class ListSchedule {
  public:
    /// Which of several ready forwards runs first.
    enum class Rule { microbatch, microbatch_down, pipeline, pipeline_down, newest };
    static constexpr std::array kRules{Rule::microbatch, Rule::microbatch_down, Rule::pipeline,
                                       Rule::pipeline_down, Rule::newest};

    ListSchedule(Plan& plan, Rule rule) : plan_(plan), rule_(rule) {}

    void run() {
        const Shape shape = plan_.shape;
        plan_.ops.clear();
        for (const WorkerName& worker : plan_.live) {
            plan_.ops[worker];
            workers_[worker];
        }
        for (std::int32_t d = 0; d < shape.pipelines; ++d) {
            for (std::int32_t m = 0; m < shape.microbatches; ++m) {
                make_ready(0, {OpKind::forward, d, m});
            }
        }
        for (const WorkerName& worker : plan_.live) {
            start_next(worker, 0);
        }
        while (!ends_.empty()) {
            finish_all_at(ends_.top().at);
        }
    }

  private:
    using Priority = std::tuple<std::int32_t, std::int32_t>;

    struct Paper {
        std::map<Priority, Op> forwards;
        std::map<Priority, Op> backwards;
        std::int32_t in_flight = 0;
        bool busy = false;
    };

    struct End {
        std::int64_t at = 0;
        WorkerName worker;
        Op op;

        bool operator>(const End& other) const {
            return std::tie(at, worker) > std::tie(other.at, other.worker);
        }
    };

    [[nodiscard]] Priority priority(const Op& op) const {
        switch (rule_) {
            case Rule::microbatch:
                return {op.microbatch, op.pipeline};
            case Rule::microbatch_down:
                return {op.microbatch, -op.pipeline};
            case Rule::pipeline:
                return {op.pipeline, op.microbatch};
            case Rule::pipeline_down:
                return {-op.pipeline, op.microbatch};
            case Rule::newest:
                return {-op.microbatch, op.pipeline};
        }
        return {};
    }

    void make_ready(std::int32_t stage, Op op) {
        const WorkerName worker{plan_.route(op.pipeline, op.microbatch, stage), stage};
        Paper& paper = workers_[worker];
        if (op.kind == OpKind::backward) {
            paper.backwards.emplace(Priority{op.microbatch, op.pipeline}, op);
        } else {
            paper.forwards.emplace(priority(op), op);
        }
        touched_.insert(worker);
    }

    void start_next(const WorkerName& worker, std::int64_t now) {
        Paper& paper = workers_[worker];
        if (paper.busy) {
            return;
        }
        const bool backward =
            paper.forwards.empty() || paper.in_flight >= in_flight_max(plan_.shape, worker.stage);
        if (backward && paper.backwards.empty()) {
            return;
        }
        auto& ready = backward ? paper.backwards : paper.forwards;
        const Op op = ready.begin()->second;
        ready.erase(ready.begin());
        paper.busy = true;
        paper.in_flight += backward ? 0 : 1;
        plan_.ops[worker].push_back(op);
        ends_.push({now + (backward ? kBackwardSlots : kForwardSlots), worker, op});
    }

    void finish_all_at(std::int64_t now) {
        touched_.clear();
        while (!ends_.empty() && ends_.top().at == now) {
            const End end = ends_.top();
            ends_.pop();
            workers_[end.worker].busy = false;
            touched_.insert(end.worker);
            follow(end);
        }
        plan_.makespan = now;
        for (const WorkerName& worker : touched_) {
            start_next(worker, now);
        }
    }

    void follow(const End& end) {
        const std::int32_t stage = end.worker.stage;
        if (end.op.kind == OpKind::backward) {
            --workers_[end.worker].in_flight;
            if (stage > 0) {
                make_ready(stage - 1, end.op);
            }
        } else if (stage + 1 < plan_.shape.stages) {
            make_ready(stage + 1, end.op);
        } else {
            make_ready(stage, {OpKind::backward, end.op.pipeline, end.op.microbatch});
        }
    }

    Plan& plan_;
    const Rule rule_;
    std::map<WorkerName, Paper> workers_;
    std::set<WorkerName> touched_;
    std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

/// Runs all orders together, each worker strictly in order; true if everything runs.
bool runs_to_the_end(const Plan& plan) {
    std::set<std::tuple<std::int32_t, OpKind, std::int32_t, std::int32_t>> done;
    std::map<WorkerName, std::size_t> next;
    std::deque<WorkerName> work(plan.live.begin(), plan.live.end());
    const auto is_ready = [&](std::int32_t stage, const Op& op) {
        if (op.kind == OpKind::forward) {
            return stage == 0 ||
                   done.contains({stage - 1, OpKind::forward, op.pipeline, op.microbatch});
        }
        return stage + 1 == plan.shape.stages
                   ? done.contains({stage, OpKind::forward, op.pipeline, op.microbatch})
                   : done.contains({stage + 1, OpKind::backward, op.pipeline, op.microbatch});
    };
    while (!work.empty()) {
        const WorkerName worker = work.front();
        work.pop_front();
        const std::vector<Op>& ops = plan.ops.at(worker);
        std::size_t& at = next[worker];
        while (at < ops.size() && is_ready(worker.stage, ops[at])) {
            const Op& op = ops[at++];
            done.insert({worker.stage, op.kind, op.pipeline, op.microbatch});
            const bool forward = op.kind == OpKind::forward;
            const std::int32_t follower = worker.stage + (forward ? 1 : -1);
            if (follower >= 0 && follower < plan.shape.stages) {
                work.push_back({plan.route(op.pipeline, op.microbatch, follower), follower});
            }
        }
    }
    return std::all_of(plan.ops.begin(), plan.ops.end(),
                       [&](const auto& entry) { return next[entry.first] == entry.second.size(); });
}

/// One worker's list: its own microbatches, forward before backward, memory kept. Marks what it
/// runs.
Result<> validate_worker(const Plan& plan, const WorkerName& worker, std::vector<int>& ran) {
    std::int32_t in_flight = 0;
    for (const Op& op : plan.ops.at(worker)) {
        if (op.pipeline < 0 || op.pipeline >= plan.shape.pipelines || op.microbatch < 0 ||
            op.microbatch >= plan.shape.microbatches) {
            return fail(Errc::bad_state,
                        "plan: worker {} runs microbatch {}:{}, which is not in the job",
                        to_string(worker), op.pipeline, op.microbatch);
        }
        if (plan.route(op.pipeline, op.microbatch, worker.stage) != worker.pipeline) {
            return fail(Errc::bad_state, "plan: worker {} runs microbatch {}:{}, routed elsewhere",
                        to_string(worker), op.pipeline, op.microbatch);
        }
        int& count = ran[index_of(plan.shape, op.pipeline, op.microbatch, worker.stage)];
        const int expected = op.kind == OpKind::forward ? 0 : 1;
        if (count != expected) {
            return fail(Errc::bad_state,
                        "plan: worker {} runs microbatch {}:{} out of order or twice",
                        to_string(worker), op.pipeline, op.microbatch);
        }
        ++count;
        in_flight += op.kind == OpKind::forward ? 1 : -1;
        if (in_flight > in_flight_max(plan.shape, worker.stage)) {
            return fail(Errc::bad_state,
                        "plan: worker {} holds {} microbatches, at most {} allowed",
                        to_string(worker), in_flight, in_flight_max(plan.shape, worker.stage));
        }
    }
    return {};
}

}  // namespace

std::string to_string(WorkerName worker) {
    return fmt::format("{}:{}", worker.pipeline, worker.stage);
}

Result<WorkerName> parse_worker(std::string_view text) {
    const auto bad = [&] {
        return fail(make_error(Errc::invalid_argument, "worker name '{}' is not PIPELINE:STAGE",
                               text.substr(0, 64))
                        .advise("write two numbers, as in 1:2"));
    };
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) {
        return bad();
    }
    const auto number = [](std::string_view digits, std::int32_t most) {
        std::int32_t value = -1;
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), value);
        const bool whole = error == std::errc{} && end == digits.data() + digits.size();
        return whole && value >= 0 && value < most ? value : -1;
    };
    const WorkerName worker{number(text.substr(0, colon), kPipelinesMax),
                            number(text.substr(colon + 1), kStagesMax)};
    if (worker.pipeline < 0 || worker.stage < 0) {
        return bad();
    }
    return worker;
}

std::int32_t Plan::route(std::int32_t pipeline, std::int32_t microbatch, std::int32_t stage) const {
    return routes.at(index_of(shape, pipeline, microbatch, stage));
}

Result<Plan> make_plan(Shape shape, const std::set<WorkerName>& dead) {
    HOLD_TRY(check_shape(shape));
    for (const WorkerName& worker : dead) {
        if (worker.pipeline < 0 || worker.pipeline >= shape.pipelines || worker.stage < 0 ||
            worker.stage >= shape.stages) {
            return fail(Errc::invalid_argument, "plan: dead worker {} is not in a job of {} × {}",
                        to_string(worker), shape.pipelines, shape.stages);
        }
    }
    Plan plan;
    plan.shape = shape;
    HOLD_TRY(make_routes(plan, dead));
    ListSchedule(plan, ListSchedule::Rule::microbatch).run();
    if (dead.empty()) {
        return plan;
    }
    Plan other = plan;
    for (const ListSchedule::Rule rule : ListSchedule::kRules) {
        ListSchedule(other, rule).run();
        if (other.makespan < plan.makespan) {
            plan = other;
        }
    }
    return plan;
}

Result<> validate(const Plan& plan) {
    HOLD_TRY(check_shape(plan.shape));
    const std::size_t expected = static_cast<std::size_t>(plan.shape.pipelines) *
                                 static_cast<std::size_t>(plan.shape.stages) *
                                 static_cast<std::size_t>(plan.shape.microbatches);
    if (plan.routes.size() != expected || plan.ops.size() != plan.live.size()) {
        return fail(Errc::bad_state,
                    "plan: {} routes and {} orders for {} microbatches and {} workers",
                    plan.routes.size(), plan.ops.size(), expected, plan.live.size());
    }
    std::vector<int> ran(expected, 0);
    for (const WorkerName& worker : plan.live) {
        if (!plan.ops.contains(worker)) {
            return fail(Errc::bad_state, "plan: worker {} has no order", to_string(worker));
        }
        HOLD_TRY(validate_worker(plan, worker, ran));
    }
    const auto missing = std::find_if(ran.begin(), ran.end(), [](int count) { return count != 2; });
    if (missing != ran.end()) {
        return fail(Errc::bad_state,
                    "plan: microbatch slot {} is not run forward and backward once",
                    missing - ran.begin());
    }
    if (!runs_to_the_end(plan)) {
        return fail(Errc::bad_state, "plan: the workers' orders deadlock");
    }
    return {};
}

}  // namespace holdfast::training
