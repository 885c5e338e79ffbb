// SPDX-License-Identifier: Apache-2.0
#include "held_task.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "account.hpp"

namespace holdfast::agent {
namespace {

constexpr int kStartFailed = 126;
constexpr int kKilled = 128 + SIGKILL;
constexpr std::size_t kSecretBytesMax = 1024;  // fits into a pipe without a reader
constexpr std::int64_t kStopPatienceUs = 5 * kSecondUs;
constexpr std::int64_t kSupervisorPatienceUs = 5 * kSecondUs;
constexpr std::size_t kComplaintBytesMax = 1000;

/// A pipe that already holds `secret` and whose writing end is closed.
Result<Fd> pipe_holding(const Secret& secret) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return fail(Errc::failed, "make a pipe: {}", errno_text(errno));
    }
    Fd reader(ends[0]);
    const Fd writer(ends[1]);
    const std::string& bytes = secret.reveal();
    if (bytes.size() > kSecretBytesMax ||
        ::write(writer.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
        return fail(Errc::failed, "hand over the lease's secret");
    }
    return reader;
}

class SpawnActions {
  public:
    SpawnActions() {
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawnattr_init(&attributes);
    }

    ~SpawnActions() {
        ::posix_spawn_file_actions_destroy(&actions);
        ::posix_spawnattr_destroy(&attributes);
    }

    SpawnActions(const SpawnActions&) = delete;
    SpawnActions& operator=(const SpawnActions&) = delete;

    posix_spawn_file_actions_t actions = {};
    posix_spawnattr_t attributes = {};
};

}  // namespace

HeldTask::HeldTask(LaunchSpec spec, Secret secret, StateDir& state, Env& env)
    : spec_(std::move(spec)), secret_(std::move(secret)), state_(state), env_(env) {}

std::unique_ptr<HeldTask> HeldTask::adopt(const std::string& name, StateDir& state, Env& env) {
    LaunchSpec spec;
    if (!task_and_lease_of(name, spec.task, spec.lease)) {
        HOLD_EVENT(warn, "task_folder_unknown", {"folder", state.task_path(name)});
        return nullptr;
    }
    auto folder = state.open_task(name);
    if (!folder) {
        HOLD_EVENT(warn, "task_not_adopted", {"task", spec.task}, {"error", folder.error()});
        return nullptr;
    }
    if (const auto text = read_at(folder->get(), kSpecFile, kRecordBytesMax)) {
        if (auto read = launch_spec_from(*text)) {
            spec = std::move(*read);
        } else {
            HOLD_EVENT(warn, "task_spec_unreadable", {"task", spec.task}, {"error", read.error()});
        }
    }
    auto task = std::make_unique<HeldTask>(std::move(spec), Secret(), state, env);
    task->folder_name_ = name;
    task->folder_ = std::move(*folder);
    task->phase_ = Phase::starting;
    task->spawned_us_ = env.clock.wall_us();
    if (const auto text = read_at(task->folder_.get(), kStopFile, kRecordBytesMax)) {
        if (auto request = stop_request_from(*text)) {
            task->stop_ = std::move(*request);
        }
    }
    // Without a launcher's word the lock decides: held, a launcher is about to speak; free, none
    // will: one that comes late finds no spec.
    const auto has_begun = [&] {
        return exists_at(task->folder_.get(), kLauncherFile) ||
               exists_at(task->folder_.get(), kExitFile);
    };
    if (!has_begun()) {
        const Fd lock = task->take_lock();
        if (lock.is_open() && !has_begun()) {
            ::unlinkat(task->folder_.get(), kSpecFile, 0);
            return nullptr;
        }
    }
    task->observe();
    return task;
}

std::int64_t HeldTask::start_us() const {
    if (has_ended()) {
        return exit_.start_us;
    }
    return launcher_.start_us != 0 ? launcher_.start_us : spawned_us_;
}

std::string HeldTask::state() const {
    return has_ended() ? exit_.state : "running";
}

void HeldTask::launch(const std::string& launcher) {
    auto launched = prepare();
    if (launched) {
        launched = spawn(launcher);
    }
    secret_ = Secret();
    if (launched) {
        phase_ = Phase::starting;
        return;
    }
    end({.state = "failed",
         .exit_code = kStartFailed,
         .end_us = env_.clock.wall_us(),
         .reason = launched.error().describe()});
    if (!folder_name_.empty()) {
        (void)state_.discard(folder_name_);  // what stays is met again at the next start
        folder_name_.clear();
        folder_.reset();
    }
}

Result<> HeldTask::prepare() {
    HOLD_TRY(check_spec(spec_));
    const std::string name = folder_name(spec_.task, spec_.lease);
    HOLD_TRY(folder_, state_.create_task(name));
    folder_name_ = name;
    auto written = write_at(folder_.get(), kSpecFile, to_json(spec_), false);
    if (!written) {
        return fail(std::move(written.error())
                        .within("prepare the task in " + state_.path())
                        .advise("free space on the node, or drain it"));
    }
    return {};
}

Result<> HeldTask::spawn(const std::string& launcher) {
    SpawnActions spawn;
    Fd secret;
    if (spec_.has_secret) {
        HOLD_TRY(secret, pipe_holding(secret_));
        ::posix_spawn_file_actions_adddup2(&spawn.actions, secret.get(), kSecretFd);
    }
    for (int standard = 0; standard <= 2; ++standard) {
        ::posix_spawn_file_actions_addopen(&spawn.actions, standard, "/dev/null", O_RDWR, 0);
    }
    ::posix_spawn_file_actions_addclosefrom_np(&spawn.actions,
                                               spec_.has_secret ? kSecretFd + 1 : kSecretFd);
    // All blocked: a stop that comes before the launcher listens must wait, not kill it.
    sigset_t all;
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&spawn.attributes, &all);
    ::posix_spawnattr_setsigdefault(&spawn.attributes, &all);
    ::posix_spawnattr_setflags(
        &spawn.attributes,
        static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
    std::string program = launcher;
    std::string path = state_.task_path(folder_name_);
    std::string word = "secret";
    char* const arguments[] = {program.data(), path.data(),
                               spec_.has_secret ? word.data() : nullptr, nullptr};
    std::string search = "PATH=/usr/local/bin:/usr/bin:/bin";
    std::string language = "LANG=C.UTF-8";
    char* const environment[] = {search.data(), language.data(), nullptr};
    pid_t pid = 0;
    const int error = ::posix_spawn(&pid, launcher.c_str(), &spawn.actions, &spawn.attributes,
                                    arguments, environment);
    if (error != 0) {
        return fail(
            make_error(Errc::failed, "start the launcher {}: {}", launcher, errno_text(error))
                .advise("repair the installation on this node"));
    }
    is_child_ = true;
    spawned_us_ = env_.clock.wall_us();
    // Ours until reaped: the id cannot pass to another process before.
    process_ = open_pidfd(pid);
    const auto process = read_process(pid);
    launcher_ = {pid, process ? process->start_ticks : 0, boot_id(), 0};
    return {};
}

/// For an adopted task: the process that launcher.json names, if it is still that one.
void HeldTask::find_launcher() {
    const auto text = read_at(folder_.get(), kLauncherFile, kRecordBytesMax);
    if (!text) {
        return;
    }
    auto record = launcher_record_from(*text);
    if (!record) {
        return;
    }
    launcher_ = std::move(*record);
    if (launcher_.boot_id == boot_id()) {
        process_ = open_process(launcher_.pid, launcher_.start_ticks);
    }
    if (stop_ && process_.is_open()) {
        signal_stop();  // the former agent may have died before it did
    }
}

void HeldTask::load_start() {
    const auto text = read_at(folder_.get(), kLauncherFile, kRecordBytesMax);
    if (!text) {
        return;
    }
    const auto record = launcher_record_from(*text);
    if (record && record->start_us != 0) {
        launcher_.start_us = record->start_us;
        if (phase_ == Phase::starting) {
            phase_ = Phase::running;
        }
    }
}

bool HeldTask::load_exit() {
    const auto text = read_at(folder_.get(), kExitFile, kRecordBytesMax);
    if (!text) {
        return false;
    }
    auto record = exit_record_from(*text);
    if (!record) {
        record = ExitRecord{.state = "failed",
                            .exit_code = kKilled,
                            .end_us = env_.clock.wall_us(),
                            .reason = record.error().describe()};
    }
    end(std::move(*record));
    return true;
}

void HeldTask::end(ExitRecord record) {
    exit_ = std::move(record);
    phase_ = Phase::ended;
    ended_steady_us_ = env_.clock.steady_us();
    measure_output();
}

void HeldTask::reap() {
    if (is_child_) {
        siginfo_t info = {};
        ::waitid(P_PID, static_cast<id_t>(launcher_.pid), &info, WEXITED | WNOHANG);
        is_child_ = false;
    }
    process_.reset();
}

bool HeldTask::observe() {
    const Phase before = phase_;
    if (phase_ == Phase::waiting || folder_name_.empty()) {
        return false;
    }
    if (!process_.is_open() && launcher_.pid == 0 && !has_ended()) {
        find_launcher();
    }
    // The process first, the record second: the record is written before the process ends.
    pollfd alive = {process_.get(), POLLIN, 0};
    const bool gone = !process_.is_open() || ::poll(&alive, 1, 0) == 1;
    if (gone) {
        reap();
    }
    if (has_ended()) {
        return false;
    }
    if (load_exit()) {
        return true;
    }
    if (launcher_.start_us == 0 || phase_ == Phase::starting) {
        load_start();
    }
    if (gone && phase_ != Phase::cleaning && (launcher_.pid != 0 || take_lock().is_open())) {
        phase_ = Phase::cleaning;
        cleaning_since_us_ = env_.clock.steady_us();
    }
    if (phase_ == Phase::cleaning) {
        clean_up();
    }
    return phase_ != before;
}

/// Both the launcher and its supervisor hold the lock for as long as they live; closed if so.
Fd HeldTask::take_lock() {
    Fd lock(::openat(folder_.get(), kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (lock.is_open() && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
        lock.reset();
    }
    return lock;
}

void HeldTask::clean_up() {
    // A supervisor that outlived its launcher ends the task itself and writes the record.
    const std::int64_t waited_us = env_.clock.steady_us() - cleaning_since_us_;
    if (!take_lock().is_open() && waited_us < kSupervisorPatienceUs) {
        return;
    }
    if (kill_leftovers()) {
        return;  // look again: none must be left
    }
    if (!load_exit()) {
        end_without_record();
    }
}

/// Signals what is left of the task; true if there was anything.
bool HeldTask::kill_leftovers() {
    if (launcher_.boot_id != boot_id()) {
        return false;
    }
    const auto account = account_of(spec_.user);
    std::vector<std::string> marks = {fmt::format("HOLDFAST_TASK={}", spec_.task),
                                      fmt::format("HOLDFAST_LEASE={}", spec_.lease)};
    // Another cluster on this machine counts its tasks and leases from 1, too.
    if (const auto state = spec_.env.find("HOLDFAST_STATE"); state != spec_.env.end()) {
        marks.push_back("HOLDFAST_STATE=" + state->second);
    }
    const auto leader = read_process(launcher_.pid);
    // The number of a session stays taken while a member lives; a leader of another age means that
    // all members died and the number came round.
    const bool session_is_ours = !leader || leader->start_ticks == launcher_.start_ticks;
    bool found = false;
    for (const Process& process : all_processes()) {
        if (process.pid == ::getpid() || !process.is_running()) {
            continue;
        }
        const bool of_session = session_is_ours && process.session == launcher_.pid;
        const bool of_lease = account && process.uid == account->uid &&
                              process.start_ticks >= launcher_.start_ticks &&
                              has_environment(process.pid, marks);
        if (of_session || of_lease) {
            found = true;
            signal_process(process, SIGKILL);
        }
    }
    return found;
}

void HeldTask::end_without_record() {
    // Not the task's doing: `lost`, so that its job's `recovery` decides.
    ExitRecord record = {.state = "lost",
                         .exit_code = kKilled,
                         .signal = SIGKILL,
                         .start_us = launcher_.start_us,
                         .end_us = env_.clock.wall_us(),
                         .reason = "its launcher was killed, so the task was ended"};
    if (stop_) {
        record.state = "cancelled";
        record.reason = stop_->reason;
    } else if (launcher_.pid != 0 && launcher_.boot_id != boot_id()) {
        record.reason = "the node was restarted while the task ran";
    } else if (auto said = read_at(folder_.get(), kLauncherLogFile, kRecordBytesMax);
               said && !said->empty()) {
        record.state = "failed";
        record.reason = "its launcher failed: " + said->substr(0, kComplaintBytesMax);
        record.exit_code = kStartFailed;
        record.signal = 0;
    }
    // For a successor of this agent; without it the successor comes to the same end again.
    const auto written = write_at(folder_.get(), kExitFile, to_json(record), true);
    if (!written) {
        HOLD_EVENT(warn, "state_not_written", {"file", kExitFile}, {"task", spec_.task},
                   {"error", written.error()});
    }
    HOLD_EVENT(warn, "launcher_lost", {"task", spec_.task}, {"lease", spec_.lease},
               {"pid", launcher_.pid});
    end(std::move(record));
}

void HeldTask::stop(const StopRequest& request) {
    if (has_ended()) {
        return;
    }
    if (phase_ == Phase::waiting) {
        end({.state = "cancelled", .end_us = env_.clock.wall_us(), .reason = request.reason});
        return;
    }
    const bool repeated = stop_ && stop_->grace_ms <= request.grace_ms;
    if (!repeated) {
        stop_ = request;
        kill_at_us_ = kNoLimit;
        // Before the signal: the launcher reads it. Without it (full disk) its own grace holds.
        const auto written = write_at(folder_.get(), kStopFile, to_json(request), false);
        if (!written) {
            HOLD_EVENT(warn, "state_not_written", {"file", kStopFile}, {"task", spec_.task},
                       {"error", written.error()});
        }
    }
    signal_stop();
}

void HeldTask::signal_stop() {
    if (kill_at_us_ == kNoLimit) {
        const std::int64_t grace_ms = std::clamp<std::int64_t>(stop_->grace_ms, 0, 86'400'000);
        kill_at_us_ = env_.clock.steady_us() + grace_ms * 1000 + kStopPatienceUs;
    }
    if (process_.is_open()) {
        const Process launcher = {.pid = launcher_.pid, .start_ticks = launcher_.start_ticks};
        signal_process(launcher, SIGTERM);
        signal_process(launcher, SIGCONT);
    }
}

void HeldTask::enforce_stop() {
    if (has_ended() || kill_at_us_ == kNoLimit || env_.clock.steady_us() < kill_at_us_) {
        return;
    }
    // Its supervisor, or the clean-up here, ends the rest.
    signal_process({.pid = launcher_.pid, .start_ticks = launcher_.start_ticks}, SIGKILL);
    kill_at_us_ = env_.clock.steady_us() + kStopPatienceUs;
}

void HeldTask::measure_output() {
    for (Output* const output : {&out_, &err_}) {
        if (!output->file.is_open() && folder_.is_open()) {
            output->file.reset(::openat(folder_.get(), output->name,
                                        O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
        }
        struct stat facts = {};
        if (output->file.is_open() && ::fstat(output->file.get(), &facts) == 0 &&
            S_ISREG(facts.st_mode)) {
            output->stream.grow(static_cast<std::uint64_t>(facts.st_size));
        }
    }
}

}  // namespace holdfast::agent
