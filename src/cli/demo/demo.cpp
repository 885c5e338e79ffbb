// SPDX-License-Identifier: Apache-2.0
#include "demo.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <vector>

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <holdfast/env.hpp>

#include "cluster.hpp"

namespace holdfast::cli::demo {
namespace {

// Six workers on six devices: whatever dies, no device is idle to take its place.
const std::vector<NodeShape> kNodes = {{"node-1", 2}, {"node-2", 2}, {"node-3", 1}, {"node-4", 1}};
constexpr std::int32_t kPipelines = 2;
constexpr std::int32_t kStages = 3;
constexpr std::int32_t kMicrobatches = 6;
constexpr std::int32_t kArrayElements = 6;
constexpr std::int64_t kPollUs = 50'000;
constexpr std::int64_t kRunLimitUs = 300 * kSecondUs;
constexpr std::int64_t kStepsMin = 20;

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int /*signal*/) {
    interrupted = 1;
}

/// One line on a terminal, rewritten; a line now and then elsewhere.
class Progress {
  public:
    Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

    void say(const std::string& text) {
        fmt::print(stderr, "{}{}\n", terminal_ && open_ ? "\r\x1b[K" : "", text);
        open_ = false;
    }

    void step(const char* run, std::int64_t step, std::int64_t steps, double loss, double step_ms) {
        if (step == last_ || (!terminal_ && step % kEvery != 0)) {
            return;
        }
        last_ = step;
        fmt::print(stderr,
                   "{}  {} step {:>3}/{}  loss {:.4f}  {:>4.0f} ms/step  about {:.0f} s left{}",
                   terminal_ ? "\r\x1b[K" : "", run, step, steps, loss, step_ms,
                   static_cast<double>(steps - step) * step_ms / 1000.0, terminal_ ? "" : "\n");
        open_ = terminal_;
    }

  private:
    static constexpr std::int64_t kEvery = 10;
    bool terminal_;
    bool open_ = false;
    std::int64_t last_ = -1;
};

v1::JobSpec training_job(const DemoOptions& options, const std::string& name) {
    v1::JobSpec spec;
    spec.set_name(name);
    v1::TrainingSpec& training = *spec.mutable_training();
    training.set_pipelines(kPipelines);
    training.set_stages(kStages);
    training.set_microbatches(kMicrobatches);
    training.set_model(options.model);
    training.set_steps(options.steps);
    training.set_exact(true);
    training.set_data("/usr/share/common-licenses/GPL-3");
    training.set_seed(1);
    training.set_backend(options.backend);
    spec.set_tasks(kPipelines * kStages);
    spec.mutable_per_task()->set_cpus(1);
    spec.mutable_per_task()->set_gpus(1);
    spec.set_pool("default");
    return spec;
}

v1::JobSpec array_job() {
    v1::JobSpec spec;
    spec.set_name("sweep");
    spec.set_run("sleep 1; echo \"element $SLURM_ARRAY_TASK_ID on $(id -un)\"");
    spec.set_tasks(1);
    spec.mutable_per_task()->set_cpus(1);
    for (std::int32_t i = 0; i < kArrayElements; ++i) {
        spec.add_array(i);
    }
    spec.set_array_at_once(2);
    spec.set_pool("default");
    return spec;
}

double number(const std::vector<std::vector<std::string>>& rows) {
    return rows.empty() || rows[0].empty() || rows[0][0].empty() ? 0 : std::stod(rows[0][0]);
}

/// One demo in progress.
class Demo {
  public:
    Demo(const DemoOptions& options, std::string directory)
        : options_(options),
          directory_(std::move(directory)),
          cluster_(directory_, options.libexec) {}

    Result<Report> run() {
        if (options_.fault == Fault::link_down) {
            HOLD_TRY(cluster_.use_namespaces(kNodes.size()));
        }
        HOLD_TRY(cluster_.start_server());
        for (const NodeShape& node : kNodes) {
            HOLD_TRY(cluster_.start_node(node));
        }
        HOLD_TRY(cluster_.wait_for_nodes(kNodes.size()));
        progress_.say(fmt::format("a server and {} agents run in {}", kNodes.size(), directory_));

        progress_.say("run 1 of 2: undisturbed");
        HOLD_TRY(undisturbed_, cluster_.submit(training_job(options_, "gpt-undisturbed")));
        HOLD_TRY(follow(undisturbed_, "undisturbed", false));

        progress_.say("run 2 of 2: the same job; a node will be killed at a random step");
        HOLD_TRY(job_, cluster_.submit(training_job(options_, "gpt")));
        HOLD_TRY(array_, cluster_.submit(array_job()));
        plan_kills();
        HOLD_TRY(follow(job_, "with a kill", true));
        HOLD_TRY(wait_for_array());
        return measure();
    }

    [[nodiscard]] std::int64_t job() const { return job_; }

    void stop() { cluster_.stop(); }

  private:
    struct PlannedKill {
        std::int64_t step = 0;
        std::int64_t revive_step = 0;
        bool killed = false;
        bool revived = false;
    };

    void plan_kills() {
        // Kills are spread over the run; each node is back well before the next kill and before the
        // end.
        Random& random = real_env().random;
        const std::int64_t span = options_.steps / (options_.kills + 1);
        for (std::int32_t i = 0; i < options_.kills; ++i) {
            PlannedKill kill;
            const auto jitter = static_cast<std::int64_t>(
                pick(random, static_cast<std::uint64_t>(std::max<std::int64_t>(1, span / 3))));
            kill.step = span * i + span / 3 + jitter;
            kill.revive_step = kill.step + std::max<std::int64_t>(4, span / 4);
            kills_.push_back(kill);
        }
    }

    std::uint64_t pick(Random& random, std::uint64_t bound) {
        if (options_.seed == 0) {
            return random.below(bound);
        }
        // splitmix64: the same seed kills the same node at the same step.
        picked_ += 0x9e3779b97f4a7c15ULL;
        std::uint64_t mixed = options_.seed + picked_;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
        return (mixed ^ (mixed >> 31)) % bound;
    }

    Result<> follow(std::int64_t id, const char* run, bool with_kills) {
        Clock& clock = real_env().clock;
        const std::int64_t begun_us = clock.steady_us();
        std::int64_t first_step_us = 0;
        while (true) {
            if (interrupted != 0) {
                return fail(Errc::cancelled, "the demo was interrupted");
            }
            HOLD_TRY(const v1::Job job, cluster_.job(id));
            const std::int64_t now_us = clock.steady_us();
            if (first_step_us == 0 && job.step() > 0) {
                first_step_us = now_us;
            }
            const double step_ms = job.step() > 1 ? static_cast<double>(now_us - first_step_us) /
                                                        1000.0 / static_cast<double>(job.step() - 1)
                                                  : 0;
            if (job.step() > 0) {
                progress_.step(run, job.step(), options_.steps, job.loss(), step_ms);
            }
            if (job.state() == "completed") {
                return {};
            }
            if (job.state() != "pending" && job.state() != "running") {
                return fail(make_error(Errc::failed, "the training job ended as {}: {}",
                                       job.state(), job.reason())
                                .at(directory_));
            }
            if (now_us - begun_us > kRunLimitUs) {
                return fail(make_error(Errc::timed_out,
                                       "the training job did not end within {} s; it is {} ({})",
                                       kRunLimitUs / kSecondUs, job.state(), job.reason())
                                .at(directory_));
            }
            if (with_kills) {
                HOLD_TRY(disturb(job));
            }
            clock.sleep_us(kPollUs);
        }
    }

    Result<> disturb(const v1::Job& job) {
        for (PlannedKill& kill : kills_) {
            if (!kill.killed && job.step() >= kill.step) {
                kill.killed = true;
                const auto index = pick(real_env().random, kNodes.size());
                HOLD_TRY(Cluster::Killed killed, cluster_.kill_node(kNodes[index].name));
                killed.step = job.step();
                progress_.say(
                    fmt::format("  {} (agent and workers {}) at step {}: {}", killed.node,
                                fmt::join(killed.workers, ", "), killed.step,
                                options_.fault == Fault::sigkill ? "SIGKILL" : "link down"));
                report_.killed.push_back(std::move(killed));
                return {};
            }
            if (kill.killed && !kill.revived && job.step() >= kill.revive_step) {
                kill.revived = true;
                const std::string& node = report_.killed.back().node;
                HOLD_TRY(cluster_.revive_node(node));
                progress_.say(fmt::format("  {} is back at step {}", node, job.step()));
                return {};
            }
        }
        return {};
    }

    Result<> wait_for_array() {
        Clock& clock = real_env().clock;
        const std::int64_t deadline_us = clock.steady_us() + 60 * kSecondUs;
        while (clock.steady_us() < deadline_us && interrupted == 0) {
            HOLD_TRY(const v1::Job array, cluster_.job(array_));
            if (array.state() != "pending" && array.state() != "running") {
                return {};
            }
            clock.sleep_us(kPollUs);
        }
        return {};  // the report counts the elements and fails the claim
    }

    Result<Report> measure() {
        report_.steps = options_.steps;
        report_.workers = kPipelines * kStages;
        report_.array_elements = kArrayElements;
        HOLD_TRY(const v1::Job job, cluster_.job(job_));
        report_.restarts = job.restarts();
        HOLD_TRY(measure_recoveries());
        HOLD_TRY(measure_losses());
        HOLD_TRY(measure_step_times());
        HOLD_TRY(const auto rejoined,
                 cluster_.sql(fmt::format("SELECT count(*) FROM training_event WHERE job = {} AND "
                                          "kind = 'rejoined'",
                                          job_)));
        report_.rejoined = static_cast<std::int64_t>(number(rejoined));
        HOLD_TRY(const auto events, cluster_.sql("SELECT count(*) FROM change"));
        report_.events = static_cast<std::int64_t>(number(events));
        HOLD_TRY(const auto completed,
                 cluster_.sql(fmt::format(
                     "SELECT count(*) FROM job WHERE array_parent = {} AND state = 'completed'",
                     array_)));
        report_.array_completed = static_cast<std::int64_t>(number(completed));
        check_claims(report_);
        return report_;
    }

    Result<> measure_recoveries() {
        for (const Cluster::Killed& killed : report_.killed) {
            // The last death row of the kill, and the epoch that followed it.
            HOLD_TRY(
                const auto deaths,
                cluster_.sql(fmt::format(
                    "SELECT max(at_us) FROM (SELECT at_us FROM training_event WHERE job = {} AND "
                    "kind = 'worker_dead' AND at_us >= {} ORDER BY seq LIMIT {})",
                    job_, killed.at_us, killed.workers.size())));
            HOLD_TRY(
                const auto epochs,
                cluster_.sql(fmt::format(
                    "SELECT epoch, redone FROM training_event WHERE job = {} AND kind = 'epoch' "
                    "AND at_us >= {} ORDER BY seq LIMIT 1",
                    job_, killed.at_us)));
            if (deaths.empty() || deaths[0][0].empty() || epochs.empty()) {
                continue;  // the claim "as many recoveries as kills" fails
            }
            HOLD_TRY(
                const auto resumed,
                cluster_.sql(fmt::format("SELECT min(committed_us) FROM training_step WHERE job "
                                         "= {} AND epoch >= {}",
                                         job_, epochs[0][0])));
            Recovery recovery;
            const auto at_us = static_cast<double>(killed.at_us);
            recovery.detect_ms = (number(deaths) - at_us) / 1000.0;
            recovery.resume_ms = (number(resumed) - at_us) / 1000.0;
            recovery.redone_iterations = std::stol(epochs[0][1]);
            report_.recoveries.push_back(recovery);
        }
        return {};
    }

    Result<> measure_losses() {
        HOLD_TRY(
            const auto losses,
            cluster_.sql(fmt::format(
                "SELECT a.loss, b.loss FROM training_step a LEFT JOIN training_step b ON b.step "
                "= a.step AND b.job = {} WHERE a.job = {} ORDER BY a.step",
                undisturbed_, job_)));
        if (std::ssize(losses) != options_.steps) {
            return fail(Errc::failed, "{} steps were committed, {} were asked for", losses.size(),
                        options_.steps);
        }
        for (const auto& row : losses) {
            const double difference = std::abs(std::stod(row[0]) - std::stod(row[1]));
            report_.loss_max_abs_diff = std::max(report_.loss_max_abs_diff, difference);
        }
        report_.loss_first = std::stod(losses.front()[0]);
        report_.loss_last = std::stod(losses.back()[0]);
        return {};
    }

    /// Median milliseconds between the commits of successive steps in [from, to).
    Result<double> step_ms(std::int64_t job, std::int64_t from, std::int64_t to) {
        HOLD_TRY(const auto rows, cluster_.sql(fmt::format(
                                      "SELECT step_us FROM training_step WHERE job = {} AND step "
                                      ">= {} AND step < {} ORDER BY step_us",
                                      job, from, to)));
        return rows.empty() ? 0.0 : std::stod(rows[rows.size() / 2][0]) / 1000.0;
    }

    Result<> measure_step_times() {
        HOLD_TRY(report_.step_times.undisturbed_ms, step_ms(undisturbed_, 1, options_.steps));
        if (report_.killed.empty()) {
            return {};
        }
        HOLD_TRY(const auto back,
                 cluster_.sql(fmt::format("SELECT min(step) FROM training_event WHERE job = {} AND "
                                          "kind = 'rejoined'",
                                          job_)));
        const std::int64_t killed_at = report_.killed.front().step;
        const auto back_at = static_cast<std::int64_t>(number(back));
        HOLD_TRY(report_.step_times.degraded_ms, step_ms(job_, killed_at + 2, back_at));
        HOLD_TRY(report_.step_times.after_rejoin_ms, step_ms(job_, back_at + 1, options_.steps));
        return {};
    }

    DemoOptions options_;
    std::string directory_;
    Cluster cluster_;
    Progress progress_;
    Report report_;
    std::vector<PlannedKill> kills_;
    std::uint64_t picked_ = 0;
    std::int64_t undisturbed_ = 0;
    std::int64_t job_ = 0;
    std::int64_t array_ = 0;
};

Result<std::string> make_directory(const DemoOptions& options) {
    std::string path = options.directory;
    if (path.empty()) {
        path = environment_variable("TMPDIR").value_or("/tmp") + "/holdfast-demo-XXXXXX";
        if (mkdtemp(path.data()) == nullptr) {
            return fail(Errc::failed, "make a temporary directory {}: {}", path,
                        std::generic_category().message(errno));
        }
    } else if (mkdir(path.c_str(), 0711) != 0) {
        return fail(make_error(Errc::conflict, "make the directory {}: {}", path,
                               std::generic_category().message(errno))
                        .advise("name one that does not exist yet"));
    }
    // Others may pass through, not look: tasks run as another user when the demo is root.
    if (chmod(path.c_str(), 0711) != 0) {
        return fail(Errc::failed, "open the directory {} to its tasks: {}", path,
                    std::generic_category().message(errno));
    }
    return path;
}

}  // namespace

Result<DemoOutcome> run_demo(const DemoOptions& options) {
    if (options.steps < kStepsMin || options.kills < 0 || options.kills > 4 ||
        options.steps < kStepsMin * (options.kills + 1) / 2) {
        return fail(make_error(Errc::invalid_argument,
                               "{} steps with {} kills leave no room to kill and come back",
                               options.steps, options.kills)
                        .at("--steps")
                        .advise(fmt::format("at least {} steps, and at most 4 kills", kStepsMin)));
    }
    HOLD_TRY(const std::string directory, make_directory(options));
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    Demo demo(options, directory);
    Result<Report> report = demo.run();
    demo.stop();
    if (!report) {
        return fail(std::move(report).error().advise("the logs are in " + directory));
    }
    return DemoOutcome{std::move(*report), directory, demo.job()};
}

}  // namespace holdfast::cli::demo
