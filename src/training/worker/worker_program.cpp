// SPDX-License-Identifier: Apache-2.0
// A worker process: one thread turns the state machine and moves data, one computes, two talk to
// the coordinator.
#include "worker_program.hpp"

#include <atomic>
#include <cstdlib>
#include <thread>

#include <poll.h>
#include <unistd.h>

#include "compute_thread.hpp"
#include "control_stream.hpp"
#include "crypto.hpp"
#include "data_plane.hpp"
#include "mailbox.hpp"
#include "stage_module.hpp"

namespace holdfast::training {

namespace {

constexpr std::size_t kTextBytesMax = std::size_t{1} << 30;
constexpr std::int64_t kTurnUs = 100'000;
constexpr std::int64_t kFlushUs = 1'000'000;

Result<StageOptions> stage_options(const WorkerConfig& config, std::string text) {
    StageOptions options;
    HOLD_TRY(options.model, model_config(config.spec.model));
    options.stage = config.self.stage;
    options.stages = config.spec.stages;
    options.pipelines = config.spec.pipelines;
    options.microbatches = config.spec.microbatches;
    options.seed = config.spec.seed;
    options.exact = config.spec.exact;
    options.text = std::move(text);
    return options;
}

/// Carries out what the state machine decides.
class Worker {
  public:
    Worker(WorkerOptions options, Env& env, DataPlane& data, ControlStream& control,
           ComputeThread& compute, Mailbox& mailbox)
        : core_(std::move(options)),
          env_(env),
          data_(data),
          control_(control),
          compute_(compute),
          mailbox_(mailbox) {}

    int run(const std::atomic<bool>& terminated) {
        std::int64_t ticked_us = 0;
        while (!exit_) {
            control_.loop_turned();
            for (WorkerEvent& event : data_.poll(kTurnUs)) {
                give(std::move(event));
            }
            for (WorkerEvent& event : mailbox_.take()) {
                give(std::move(event));
            }
            if (terminated) {
                control_.send(WorkerFailed{"it was told to terminate"});
                std::printf("worker %s: terminated\n", to_string(self_).c_str());
                return kExitTerminated;
            }
            if (const std::int64_t now = env_.clock.steady_us(); now - ticked_us >= kTurnUs) {
                ticked_us = now;
                give(Tick{});
            }
        }
        std::printf("worker %s: %s\n", to_string(self_).c_str(), exit_->why.c_str());
        return exit_->code;
    }

    void name(WorkerName self) { self_ = self; }

  private:
    void give(WorkerEvent event) {
        for (WorkerAction& action : core_.handle(std::move(event), env_.clock.steady_us())) {
            std::visit([&](auto& each) { act(each); }, action);
        }
    }

    void act(SendReport& action) { control_.send(std::move(action.report)); }

    void act(OpenEpoch& action) {
        std::printf("epoch %lld: %zu peers\n", static_cast<long long>(action.epoch),
                    action.peers.size());
        std::fflush(stdout);
        data_.open_epoch(action);
    }

    void act(CloseEpoch&) { data_.close_epoch(); }

    void act(SendFrame& action) { data_.send(std::move(action.frame)); }

    void act(StartCompute& action) { compute_.start(std::move(action.task)); }

    void act(ExitWorker& action) { exit_ = action; }

    void act(StepDone& done) {
        const double ms = static_cast<double>(done.step_us) / 1000;
        if (done.loss) {
            std::printf("step %lld loss %.6f %.1f ms\n", static_cast<long long>(done.step),
                        *done.loss, ms);
        } else {
            std::printf("step %lld %.1f ms\n", static_cast<long long>(done.step), ms);
        }
        std::fflush(stdout);
    }

    WorkerCore core_;
    Env& env_;
    DataPlane& data_;
    ControlStream& control_;
    ComputeThread& compute_;
    Mailbox& mailbox_;
    WorkerName self_;
    std::optional<ExitWorker> exit_;
};

/// Sets a flag when a signal comes; ends when the write end of its pipe closes.
class SignalWatch {
  public:
    SignalWatch(int signal_fd, DataPlane& data) : signal_fd_(signal_fd), data_(data) {
        if (::pipe(stop_) == 0) {
            thread_ = std::thread([this] { watch(); });
        }
    }

    ~SignalWatch() {
        ::close(stop_[1]);
        if (thread_.joinable()) {
            thread_.join();
        }
        ::close(stop_[0]);
    }

    SignalWatch(const SignalWatch&) = delete;
    SignalWatch& operator=(const SignalWatch&) = delete;

    [[nodiscard]] const std::atomic<bool>& terminated() const { return terminated_; }

  private:
    void watch() {
        std::array<pollfd, 2> fds{{{signal_fd_, POLLIN, 0}, {stop_[0], POLLIN, 0}}};
        while (::poll(fds.data(), fds.size(), -1) < 0) {
        }
        if ((fds[0].revents & POLLIN) != 0) {
            terminated_ = true;
            data_.wake();
        }
    }

    const int signal_fd_;
    DataPlane& data_;
    int stop_[2] = {-1, -1};
    std::atomic<bool> terminated_{false};
    std::thread thread_;
};

Result<int> train(const WorkerConfig& config, Secret secret, int signal_fd, Env& env) {
    HOLD_TRY(std::string text, env.files.read_file(config.spec.data, kTextBytesMax));
    WorkerOptions options;
    options.spec = config.spec;
    options.self = config.self;
    options.lease = config.lease;
    options.data_hash = sha256_hex(text);
    options.pid = ::getpid();
    HOLD_TRY(StageOptions stage, stage_options(config, std::move(text)));
    const bool torch = config.spec.backend == "torch";
    const bool last = config.self.stage + 1 == config.spec.stages;
    StageRunner runner(
        [stage, torch] { return torch ? make_torch_stage(stage) : make_reference_stage(stage); },
        last);
    DataPlaneOptions data_options;
    data_options.self = config.self;
    data_options.host = config.data_host;
    HOLD_TRY(const std::unique_ptr<DataPlane> data, DataPlane::listen(data_options, env));
    options.data_address = data->address();
    const SignalWatch signals(signal_fd, *data);
    Mailbox mailbox([&] { data->wake(); });
    ComputeThread compute(std::move(runner), mailbox);
    HOLD_TRY(const std::unique_ptr<ControlStream> control,
             ControlStream::start(config, std::move(secret), mailbox, env));
    Worker worker(std::move(options), env, *data, *control, compute, mailbox);
    worker.name(config.self);
    const int code = worker.run(signals.terminated());
    control->flush(kFlushUs);  // the reason, if it gave up
    if (compute.is_busy()) {
        // Nothing can stop a computation, and none of its results matters any more.
        std::fflush(nullptr);
        std::_Exit(code);
    }
    return code;
}

}  // namespace

int run_worker(const WorkerConfig& config, Secret secret, int signal_fd, Env& env) {
    const Result<int> code = train(config, std::move(secret), signal_fd, env);
    if (!code) {
        std::fprintf(stderr, "hold-train: worker %s: %s\n", to_string(config.self).c_str(),
                     code.error().describe().c_str());
        return kExitFailed;
    }
    return *code;
}

}  // namespace holdfast::training
