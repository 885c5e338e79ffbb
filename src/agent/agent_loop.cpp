// SPDX-License-Identifier: Apache-2.0
#include "agent_loop.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

constexpr std::size_t kTasksMax = 4096;
constexpr std::size_t kForgottenMax = 4096;
constexpr std::int64_t kLookPauseUs = 20'000;
constexpr std::int64_t kSweepUs = 500'000;
constexpr std::int64_t kResendUs = 2 * kSecondUs;
/// How long the report of an end waits for its output to be stored, so that who waits for the end
/// can read all of it.
constexpr std::int64_t kLogsFirstUs = 2 * kSecondUs;
constexpr std::int64_t kLogsGivenUpUs = 60 * kSecondUs;
constexpr std::int64_t kExitGraceMs = 5000;
constexpr std::int64_t kExitReportUs = 2 * kSecondUs;
/// After a crash of the whole machine the server may still hold our old connection for open.
constexpr std::int64_t kOwnNameUs = 15 * kSecondUs;
constexpr std::size_t kEnvironmentCopyMax = 1 << 20;

}  // namespace

AgentLoop::AgentLoop(const AgentOptions& options, StateDir& state, Machine machine,
                     std::int64_t job_open_files, Env& env)
    : options_(options),
      state_(state),
      machine_(std::move(machine)),
      job_open_files_(job_open_files),
      env_(env),
      instance_(env.random.hex(16)),
      launcher_(options.libexec_dir + "/hold-launch") {}

AgentLoop::~AgentLoop() {
    if (link_) {
        link_->stop();
    }
}

Result<> AgentLoop::prepare() {
    sigset_t mask;
    ::sigemptyset(&mask);
    for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) {
        ::sigaddset(&mask, signal);
    }
    signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
    wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!signals_.is_open() || !wake_.is_open()) {
        return fail(Errc::failed, "prepare the agent's descriptors: {}", errno_text(errno));
    }
    inotify_.reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (!inotify_.is_open()) {
        // Only slower: every change is found by the sweep.
        HOLD_EVENT(warn, "file_events_missing", {"error", errno_text(errno)});
    }
    if (!options_.ca_file.empty()) {
        HOLD_TRY(worker_ca_file_, state_.publish_ca(options_.ca_file));
    }
    for (const std::string& name : state_.tasks()) {
        auto task = HeldTask::adopt(name, state_, env_);
        if (!task) {
            (void)state_.discard(name);  // what cannot be moved stays, and was told above
            continue;
        }
        HOLD_EVENT(info, "task_adopted", {"task", task->spec().task}, {"lease", task->spec().lease},
                   {"state", task->state()}, {"pid", task->pid()});
        task->measure_output();
        watch_files(*task);
        const Key key = {task->spec().task, task->spec().lease};
        tasks_[key] = std::move(task);
    }
    return {};
}

Result<> AgentLoop::run(const rpc::Endpoint& endpoint) {
    // Our own former connection may still stand at the server; another agent's name is final.
    const bool knows_name = state_.has_registered_as(options_.name);
    const std::int64_t patient_until_us = env_.clock.steady_us() + (knows_name ? kOwnNameUs : 0);
    link_ = std::make_unique<Link>(
        endpoint, env_,
        [this] {
            const std::uint64_t one = 1;
            // Fails only when the counter is full: then the loop is about to wake anyway.
            [[maybe_unused]] const ssize_t told = ::write(wake_.get(), &one, sizeof one);
        },
        [patient_until_us, &clock = env_.clock](const Error& error) {
            return is_final_refusal(error.code) &&
                   (error.code != Errc::conflict || clock.steady_us() >= patient_until_us);
        });
    link_->start();
    while (!outcome_) {
        wait();
        for (Link::Event& event : link_->take()) {
            handle(std::move(event));
        }
        link_->watch_silence();
        look_after_tasks();
        if (exiting_ && is_exit_complete(env_.clock.steady_us())) {
            outcome_ = Result<>();
        }
    }
    link_->stop();
    HOLD_EVENT(info, "agent_stopped", {"node", options_.name}, {"tasks_left", tasks_.size()});
    return *outcome_;
}

// ----------------------------------------------------------------------------------- waiting

std::int64_t AgentLoop::wait_until_us(std::int64_t now_us) const {
    std::int64_t until_us = std::min(next_sweep_us_, now_us + kSweepUs);
    for (const auto& [key, task] : tasks_) {
        const bool busy =
            task->phase() == HeldTask::Phase::cleaning || (session_ != 0 && task->has_ended());
        if (busy) {
            until_us = std::min(until_us, now_us + kLookPauseUs);
        }
    }
    return std::max(until_us, now_us);
}

void AgentLoop::wait() {
    const std::int64_t now_us = env_.clock.steady_us();
    std::vector<pollfd> waiting = {{wake_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    std::int64_t until_us = wait_until_us(now_us);
    const bool listen_to_files = inotify_.is_open() && now_us >= next_look_us_;
    if (listen_to_files) {
        waiting.push_back({inotify_.get(), POLLIN, 0});
    } else if (inotify_.is_open()) {
        until_us = std::min(until_us, next_look_us_);
    }
    for (const auto& [key, task] : tasks_) {
        if (task->process_handle() >= 0) {
            waiting.push_back({task->process_handle(), POLLIN, 0});
        }
    }
    const auto wait_ms =
        static_cast<int>(std::max<std::int64_t>(until_us - now_us + 999, 0) / 1000);
    ::poll(waiting.data(), waiting.size(), wait_ms);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof count);
    if (read_signals()) {
        begin_exit();
    }
    if (listen_to_files) {
        read_file_events();
    }
}

bool AgentLoop::read_signals() {
    signalfd_siginfo info = {};
    bool stop = false;
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
        stop = stop || info.ssi_signo != SIGCHLD;
    }
    return stop;
}

/// Which files changed does not matter: a change means that the tasks are worth a look.
void AgentLoop::read_file_events() {
    alignas(inotify_event) char buffer[16 * 1024];
    bool any = false;
    while (::read(inotify_.get(), buffer, sizeof buffer) > 0) {
        any = true;
    }
    if (any) {
        next_look_us_ = env_.clock.steady_us() + kLookPauseUs;
    }
}

void AgentLoop::watch_files(HeldTask& task) {
    if (inotify_.is_open() && !task.folder().empty()) {
        task.inotify_watch =
            ::inotify_add_watch(inotify_.get(), state_.task_path(task.folder()).c_str(),
                                IN_MODIFY | IN_MOVED_TO | IN_CREATE | IN_ONLYDIR | IN_DONT_FOLLOW);
    }
}

// ------------------------------------------------------------------------- the server's words

void AgentLoop::handle(Link::Event event) {
    if (std::holds_alternative<Link::WantsRegistration>(event.what)) {
        link_->register_as(event.session, registration());
        return;
    }
    if (const auto* const closed = std::get_if<Link::Closed>(&event.what)) {
        handle_closed(*closed);
        return;
    }
    const auto& message = std::get<v1::ServerMessage>(event.what);
    if (message.has_registered()) {
        session_ = event.session;
        begin_session(message.registered());
    } else if (event.session == session_) {
        handle_message(message);
    }
}

void AgentLoop::handle_message(const v1::ServerMessage& message) {
    switch (message.kind_case()) {
        case v1::ServerMessage::kStart:
            start_task(message.start());
            break;
        case v1::ServerMessage::kStop:
            stop_task(message.stop());
            break;
        case v1::ServerMessage::kTaskAck:
            acknowledge(message.task_ack());
            break;
        case v1::ServerMessage::kLogAck:
            acknowledge_log(message.log_ack());
            break;
        default:
            HOLD_EVENT(warn, "message_unknown", {"kind", int{message.kind_case()}});
            break;
    }
}

void AgentLoop::handle_closed(const Link::Closed& closed) {
    session_ = 0;
    if (closed.is_final) {
        // Not an error event of ours: the caller ends with it and says so.
        outcome_ = fail(closed.error);
        return;
    }
    if (!link_loss_told_) {
        link_loss_told_ = true;
        HOLD_EVENT(warn, "link_lost", {"server", options_.server}, {"error", closed.error},
                   {"tasks_kept", tasks_.size()});
    }
}

v1::RegisterNode AgentLoop::registration() const {
    v1::RegisterNode node;
    node.set_name(options_.name);
    node.set_pool(options_.pool);
    node.set_version(HOLDFAST_VERSION);
    node.set_address(options_.address);
    node.set_instance(instance_);
    node.mutable_capacity()->set_cpus(machine_.cpus);
    node.mutable_capacity()->set_memory_bytes(machine_.memory_bytes);
    node.mutable_capacity()->set_gpus(machine_.gpus);
    node.mutable_capacity()->set_gpu_type(machine_.gpu_type);
    for (const auto& [key, task] : tasks_) {
        // A waiting task is not here yet; asked again, it is started.
        if (task->phase() != HeldTask::Phase::waiting) {
            *node.add_tasks() = status_of(*task);
        }
    }
    return node;
}

void AgentLoop::begin_session(const v1::Registered& registered) {
    HOLD_EVENT(info, "node_registered", {"node", options_.name}, {"id", registered.node()},
               {"epoch", registered.epoch()}, {"tasks", tasks_.size()});
    link_loss_told_ = false;
    state_.note_registered_as(options_.name);
    const std::int64_t now_us = env_.clock.steady_us();
    for (const auto& [key, task] : tasks_) {
        task->told_state.clear();
        task->acknowledged_state.clear();
        task->out().stream.restart();
        task->err().stream.restart();
        task->log_progress_us = now_us;
    }
}

LaunchSpec AgentLoop::spec_of(const v1::StartTask& start) const {
    LaunchSpec spec;
    spec.task = start.task();
    spec.job = start.job();
    spec.lease = start.lease();
    spec.user = start.user();
    spec.run = start.run();
    spec.workdir = start.workdir();
    spec.time_limit_ms = std::clamp<std::int64_t>(start.time_limit_s(), 0, 1'000'000'000) * 1000;
    for (const auto& [name, value] : start.env()) {
        spec.env[name] = value;
    }
    // Also the mark by which processes that escaped their launcher are found.
    spec.env["HOLDFAST_JOB"] = std::to_string(start.job());
    spec.env["HOLDFAST_TASK"] = std::to_string(start.task());
    spec.env["HOLDFAST_LEASE"] = std::to_string(start.lease());
    spec.env["HOLDFAST_STATE"] = std::filesystem::absolute(options_.state_dir).string();
    if (start.training_worker()) {
        spec.run.clear();
        spec.program = options_.libexec_dir + "/hold-train";
        spec.arguments = {"worker"};
        spec.env["HOLDFAST_SERVER"] = options_.server;
        spec.env["HOLDFAST_CA"] = worker_ca_file_;
        spec.env["HOLDFAST_DATA_HOST"] = options_.address;
        // One thread per worker: with more, the workers of a node fight for its cores.
        spec.env.emplace("OPENBLAS_NUM_THREADS", "1");
        spec.env.emplace("OMP_NUM_THREADS", "1");
    }
    spec.open_files = job_open_files_;
    spec.has_secret = !start.secret().empty();
    return spec;
}

void AgentLoop::start_task(const v1::StartTask& start) {
    const Key key = {start.task(), start.lease()};
    if (const auto known = tasks_.find(key); known != tasks_.end()) {
        known->second->told_state.clear();  // the server may have missed it: say it again
        return;
    }
    if (std::find(forgotten_.begin(), forgotten_.end(), key) != forgotten_.end()) {
        answer_unknown(start.task(), start.lease(), "failed", "this lease has ended before");
        return;
    }
    const auto newest = tasks_.upper_bound({start.task(), INT64_MAX});
    if (newest != tasks_.begin()) {
        const Key latest = std::prev(newest)->first;
        if (latest.first == key.first && latest.second > key.second) {
            answer_unknown(start.task(), start.lease(), "cancelled",
                           fmt::format("lease {} of this task is newer", latest.second));
            return;
        }
    }
    if (tasks_.size() >= kTasksMax || start.ByteSizeLong() > 2 * kEnvironmentCopyMax) {
        answer_unknown(
            start.task(), start.lease(), "failed",
            fmt::format("this node holds {} tasks, its limit is {}", tasks_.size(), kTasksMax));
        return;
    }
    for (const auto& [other, task] : tasks_) {
        if (other.first == key.first && !task->has_ended()) {
            HOLD_EVENT(warn, "task_fenced", {"task", other.first}, {"lease", other.second},
                       {"newer_lease", key.second});
            task->stop({0, fmt::format("lease {} took its place", key.second)});
        }
    }
    tasks_[key] = std::make_unique<HeldTask>(spec_of(start), Secret(start.secret()), state_, env_);
}

void AgentLoop::stop_task(const v1::StopTask& stop) {
    const auto found = tasks_.find({stop.task(), stop.lease()});
    if (found == tasks_.end()) {
        answer_unknown(stop.task(), stop.lease(), "cancelled", "it does not run on this node");
        return;
    }
    if (found->second->has_ended()) {
        found->second->told_state.clear();
        return;
    }
    HOLD_EVENT(info, "task_stopping", {"task", stop.task()}, {"lease", stop.lease()},
               {"grace_ms", stop.grace_ms()}, {"reason", stop.reason()});
    found->second->stop({std::max<std::int64_t>(stop.grace_ms(), 0), stop.reason()});
    if (found->second->has_ended()) {
        note_change(*found->second);
    }
}

void AgentLoop::answer_unknown(std::int64_t task, std::int64_t lease, const std::string& state,
                               const std::string& reason) {
    v1::AgentMessage message;
    message.mutable_task()->set_task(task);
    message.mutable_task()->set_lease(lease);
    message.mutable_task()->set_state(state);
    message.mutable_task()->set_end_us(env_.clock.wall_us());
    message.mutable_task()->set_reason(reason);
    link_->send(session_, std::move(message));  // unsent: the server asks again
}

void AgentLoop::acknowledge(const v1::TaskAck& ack) {
    const auto found = tasks_.find({ack.task(), ack.lease()});
    if (found == tasks_.end()) {
        return;
    }
    HeldTask& task = *found->second;
    // A server that knows another end than ours (it gave the task up) has our report all the same.
    const bool of_end = task.has_ended() && ack.state() != "running";
    if (of_end || ack.state() == task.state()) {
        task.acknowledged_state = task.state();
    }
}

void AgentLoop::acknowledge_log(const v1::LogAck& ack) {
    HeldTask* task = nullptr;
    if (ack.lease() != 0) {
        const auto found = tasks_.find({ack.task(), ack.lease()});
        task = found == tasks_.end() ? nullptr : found->second.get();
    } else if (const auto after = tasks_.upper_bound({ack.task(), INT64_MAX});
               after != tasks_.begin() && std::prev(after)->first.first == ack.task()) {
        task = std::prev(after)->second.get();
    }
    if (task == nullptr || ack.offset() < 0) {
        return;
    }
    const std::int64_t now_us = env_.clock.steady_us();
    LogStream& stream = ack.stream() == kStderrFile ? task->err().stream : task->out().stream;
    if (static_cast<std::uint64_t>(ack.offset()) > stream.stored()) {
        task->log_progress_us = now_us;
    }
    stream.stored_below(static_cast<std::uint64_t>(ack.offset()), now_us);
}

// --------------------------------------------------------------------------------- the tasks

v1::TaskStatus AgentLoop::status_of(const HeldTask& task) {
    v1::TaskStatus status;
    status.set_task(task.spec().task);
    status.set_job(task.spec().job);
    status.set_lease(task.spec().lease);
    status.set_state(task.state());
    status.set_pid(task.pid());
    status.set_start_us(task.start_us());
    if (task.has_ended()) {
        status.set_exit_code(task.exit().exit_code);
        status.set_signal(task.exit().signal);
        status.set_end_us(task.exit().end_us);
        status.set_reason(task.exit().reason);
    }
    return status;
}

bool AgentLoop::has_live_other(const HeldTask& task) const {
    return std::any_of(tasks_.begin(), tasks_.end(), [&](const auto& entry) {
        return entry.first.first == task.spec().task && entry.second.get() != &task &&
               !entry.second->has_ended();
    });
}

void AgentLoop::launch(HeldTask& task) {
    task.launch(launcher_);
    watch_files(task);
    if (task.has_ended()) {
        note_change(task);
    }
}

void AgentLoop::note_change(HeldTask& task) {
    if (task.phase() == HeldTask::Phase::running) {
        HOLD_EVENT(info, "task_started", {"task", task.spec().task}, {"lease", task.spec().lease},
                   {"user", task.spec().user}, {"pid", task.pid()});
    }
    if (task.has_ended()) {
        HOLD_EVENT(info, "task_ended", {"task", task.spec().task}, {"lease", task.spec().lease},
                   {"state", task.exit().state}, {"exit_code", task.exit().exit_code},
                   {"signal", task.exit().signal}, {"reason", task.exit().reason});
        if (task.exit().lost_bytes > 0) {
            HOLD_EVENT(warn, "output_lost", {"task", task.spec().task},
                       {"bytes", task.exit().lost_bytes});
        }
    }
}

void AgentLoop::look_after_tasks() {
    const std::int64_t now_us = env_.clock.steady_us();
    if (now_us >= next_sweep_us_) {
        next_sweep_us_ = now_us + kSweepUs;
    }
    for (const auto& [key, task] : tasks_) {
        if (task->phase() == HeldTask::Phase::waiting && !has_live_other(*task)) {
            launch(*task);
        }
        if (task->observe()) {
            note_change(*task);
        }
        task->enforce_stop();
        if (session_ != 0) {
            forward_logs(*task, now_us);
            report(*task, now_us);
        }
    }
    forget_finished();
}

void AgentLoop::report(HeldTask& task, std::int64_t now_us) {
    const bool in_view = task.phase() == HeldTask::Phase::running || task.has_ended();
    if (!in_view || task.acknowledged_state == task.state()) {
        return;
    }
    if (task.told_state == task.state() && now_us - task.told_us < kResendUs) {
        return;
    }
    if (task.has_ended() && !task.logs_stored() && now_us - task.ended_steady_us() < kLogsFirstUs) {
        return;
    }
    v1::AgentMessage message;
    *message.mutable_task() = status_of(task);
    if (link_->send(session_, std::move(message))) {
        task.told_state = task.state();
        task.told_us = now_us;
    }
}

void AgentLoop::forward_logs(HeldTask& task, std::int64_t now_us) {
    if (task.folder().empty()) {
        return;
    }
    task.measure_output();
    for (HeldTask::Output* const output : {&task.out(), &task.err()}) {
        output->stream.expire(now_us);
        while (forward_one(task, *output, now_us)) {
        }
    }
}

bool AgentLoop::forward_one(HeldTask& task, HeldTask::Output& output, std::int64_t now_us) {
    const auto range = output.stream.next();
    if (!range) {
        return false;
    }
    v1::AgentMessage message;
    v1::LogAppend& append = *message.mutable_log();
    append.set_task(task.spec().task);
    append.set_lease(task.spec().lease);
    append.set_stream(output.name);
    append.set_offset(static_cast<std::int64_t>(range->offset));
    std::string& text = *append.mutable_text();
    text.resize(range->bytes);
    const ssize_t got =
        ::pread(output.file.get(), text.data(), text.size(), static_cast<off_t>(range->offset));
    if (got <= 0) {
        return false;  // tried again at the next look
    }
    text.resize(static_cast<std::size_t>(got));
    if (!link_->send(session_, std::move(message))) {
        return false;
    }
    output.stream.sent({range->offset, static_cast<std::uint64_t>(got)}, now_us);
    return true;
}

/// Drops tasks whose end and output the server has, or will never take.
void AgentLoop::forget_finished() {
    const std::int64_t now_us = env_.clock.steady_us();
    for (auto entry = tasks_.begin(); entry != tasks_.end();) {
        HeldTask& task = *entry->second;
        const bool told = task.has_ended() && task.acknowledged_state == task.state();
        if (!told || task.process_handle() >= 0) {
            ++entry;
            continue;
        }
        if (!task.logs_stored()) {
            if (now_us - std::max(task.log_progress_us, task.ended_steady_us()) < kLogsGivenUpUs) {
                ++entry;
                continue;
            }
            HOLD_EVENT(warn, "logs_abandoned", {"task", task.spec().task},
                       {"lease", task.spec().lease}, {"unstored", task.out().stream.unsent()});
        }
        if (task.inotify_watch >= 0) {
            ::inotify_rm_watch(inotify_.get(), task.inotify_watch);
        }
        if (!task.folder().empty()) {
            if (const auto gone = state_.discard(task.folder()); !gone) {
                HOLD_EVENT(warn, "task_folder_stays", {"task", task.spec().task},
                           {"error", gone.error()});
            }
        }
        forgotten_.push_back(entry->first);
        if (forgotten_.size() > kForgottenMax) {
            forgotten_.pop_front();
        }
        entry = tasks_.erase(entry);
    }
}

// ----------------------------------------------------------------------------------- the end

void AgentLoop::begin_exit() {
    if (exiting_) {
        return;
    }
    exiting_ = true;
    const std::int64_t now_us = env_.clock.steady_us();
    exit_by_us_ = now_us;
    if (!options_.kill_tasks_on_exit) {
        return;
    }
    exit_by_us_ = now_us + kExitGraceMs * 1000 + kExitReportUs * 3;
    for (const auto& [key, task] : tasks_) {
        task->stop({kExitGraceMs, "the node's agent was stopped"});
    }
}

bool AgentLoop::is_exit_complete(std::int64_t now_us) {
    const bool all_ended = std::all_of(tasks_.begin(), tasks_.end(),
                                       [](const auto& entry) { return entry.second->has_ended(); });
    // What ended but could not be told is told by the next agent of this directory.
    const bool told = tasks_.empty() || session_ == 0;
    return now_us >= exit_by_us_ || (all_ended && told && link_->is_drained());
}

}  // namespace holdfast::agent
