// SPDX-License-Identifier: Apache-2.0
#include "supervisor.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job_process.hpp"

namespace holdfast::agent {
namespace {

constexpr std::int64_t kKillAgainUs = 200'000;

std::vector<std::string> arguments_of(const LaunchSpec& spec) {
    if (!spec.run.empty()) {
        return {"sh", "-c", spec.run};
    }
    std::vector<std::string> arguments = {spec.program.substr(spec.program.rfind('/') + 1)};
    arguments.insert(arguments.end(), spec.arguments.begin(), spec.arguments.end());
    return arguments;
}

const char* signal_text(int signal) {
    const char* const text = ::sigdescr_np(signal);
    return text == nullptr ? "unknown" : text;
}

}  // namespace

ExitRecord Supervisor::run() {
    auto started = start();
    if (started) {
        watch();
    }
    if (const auto ended = kill_everything(job_, [this] { carry_output(); })) {
        ended_ = ended;
    }
    for (OutputSink& output : outputs_) {
        output.finish();
    }
    ExitRecord record = verdict();
    if (!started) {
        record.state = "failed";
        record.exit_code = kStartFailed;
        record.signal = 0;
        record.reason = started.error().describe();
    }
    record.end_us = real_env().clock.wall_us();
    return record;
}

Result<> Supervisor::open_outputs(const Account& account, Fd& output, Fd& errors) {
    const auto open_one = [&, this](const char* name, Fd& writer) -> Result<> {
        Fd file(::openat(folder_, name,
                         O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
        int ends[2] = {-1, -1};
        if (!file.is_open() || ::pipe2(ends, O_CLOEXEC) != 0) {
            return fail(Errc::failed, "could not open the task's {} file: {}", name,
                        errno_text(errno));
        }
        Fd reader(ends[0]);
        writer.reset(ends[1]);
        // Non-blocking at our end only: the job's writes must wait when we are slow. The pipe is
        // the user's, or `echo text > /dev/stderr` in a script would be denied.
        if (::fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0 ||
            (::geteuid() == 0 && ::fchown(writer.get(), account.uid, account.gid) != 0)) {
            return fail(Errc::failed, "could not set up the task's {} pipe: {}", name,
                        errno_text(errno));
        }
        outputs_.emplace_back(std::move(reader), std::move(file), spec_.log_bytes_max);
        return {};
    };
    HOLD_TRY(open_one(kStdoutFile, output));
    return open_one(kStderrFile, errors);
}

/// The scratch folder is the user's, inside a folder that is not: it cannot be swapped for a link.
Result<std::string> Supervisor::make_workdir(const Account& account) {
    if (::mkdirat(folder_, kScratchFolder, 0700) != 0) {
        return fail(Errc::failed, "could not make the task's scratch folder: {}",
                    errno_text(errno));
    }
    if (::geteuid() == 0 &&
        ::fchownat(folder_, kScratchFolder, account.uid, account.gid, AT_SYMLINK_NOFOLLOW) != 0) {
        return fail(Errc::failed, "could not give the scratch folder to {}: {}", account.name,
                    errno_text(errno));
    }
    if (!spec_.workdir.empty()) {
        return spec_.workdir;
    }
    char path[4096];
    const ssize_t length =
        ::readlink(fmt::format("/proc/self/fd/{}", folder_).c_str(), path, sizeof path);
    if (length <= 0 || length >= static_cast<ssize_t>(sizeof path)) {
        return fail(Errc::failed, "could not name the task's scratch folder");
    }
    return std::string(path, static_cast<std::size_t>(length)) + "/" + kScratchFolder;
}

Result<> Supervisor::start() {
    signals_ = signal_descriptor({kForwardedStop, SIGCHLD});
    HOLD_TRY(const Account account, account_of(spec_.user));
    Fd output;
    Fd errors;
    HOLD_TRY(open_outputs(account, output, errors));
    HOLD_TRY(const std::string workdir, make_workdir(account));
    Fd program;
    if (!spec_.program.empty()) {
        // Opened as the agent's user: the job's user may not be able to reach the folder.
        program.reset(::open(spec_.program.c_str(), O_RDONLY | O_CLOEXEC));
        if (!program.is_open()) {
            return fail(make_error(Errc::not_found, "could not open the program {}: {}",
                                   spec_.program, errno_text(errno))
                            .advise("install Holdfast on this node with its training worker"));
        }
    }
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return fail(Errc::failed, "could not make a pipe: {}", errno_text(errno));
    }
    const Fd status(ends[0]);
    Fd status_writer(ends[1]);
    JobStart job = {.account = account,
                    .arguments = arguments_of(spec_),
                    .environment = environment_of(spec_, account),
                    .workdir = workdir,
                    .program = program.get(),
                    .output = output.get(),
                    .errors = errors.get(),
                    .status = status_writer.get(),
                    .supervisor = ::getpid(),
                    .open_files = spec_.open_files,
                    .has_secret = spec_.has_secret};
    const std::vector<char*> arguments = pointers(job.arguments);
    const std::vector<char*> environment = pointers(job.environment);
    job_ = ::fork();
    if (job_ == 0) {
        become_job(job, arguments.data(), environment.data());
    }
    if (job_ < 0) {
        return fail(make_error(Errc::failed, "could not start a process: {}", errno_text(errno))
                        .advise("the node has reached its limit of processes"));
    }
    status_writer.reset();
    if (spec_.has_secret) {
        ::close(kSecretFd);
    }
    return wait_for_exec(status.get(), workdir);
}

/// The status pipe closes when exec succeeds; before, it may carry the step that failed.
Result<> Supervisor::wait_for_exec(int status, const std::string& workdir) {
    StepFailure failure = {};
    ssize_t got = 0;
    do {
        got = ::read(status, &failure, sizeof failure);
    } while (got < 0 && errno == EINTR);
    if (got != 0) {
        return fail(Errc::failed, "{}", why(failure, spec_, workdir));
    }
    Clock& clock = real_env().clock;
    start_steady_us_ = clock.steady_us();
    launcher_.start_us = clock.wall_us();
    if (const auto told = write_at(folder_, kLauncherFile, to_json(launcher_), false); !told) {
        // The agent shows the task as starting until it ends: not worth ending it.
        complain("could not record the start: " + told.error().message);
    }
    return {};
}

void Supervisor::watch() {
    Clock& clock = real_env().clock;
    while (!ended_ && !launcher_died_) {
        const std::int64_t now_us = clock.steady_us();
        enforce(now_us);
        std::int64_t next_us = kill_at_us_;
        if (next_us == kNoLimit && spec_.time_limit_ms > 0) {
            next_us = start_steady_us_ + spec_.time_limit_ms * 1000;
        }
        // Rounded up: waking early would turn the last millisecond into a busy loop.
        const int wait_ms = next_us == kNoLimit
                                ? -1
                                : static_cast<int>(std::clamp<std::int64_t>(
                                      (next_us - now_us + 999) / 1000, 0, 3'600'000));
        pollfd waiting[] = {{signals_.get(), POLLIN, 0},
                            {launcher_alive_.get(), POLLIN, 0},
                            {outputs_[0].pipe(), POLLIN, 0},
                            {outputs_[1].pipe(), POLLIN, 0}};
        if (::poll(waiting, std::size(waiting), wait_ms) < 0 && errno != EINTR) {
            complain("poll failed: " + errno_text(errno));
            return;  // ends the task: unwatched it must not run
        }
        carry_output();
        handle_signals();
        launcher_died_ = waiting[1].revents != 0;
    }
}

void Supervisor::carry_output() {
    for (OutputSink& output : outputs_) {
        if (output.pipe() >= 0) {
            output.carry();
        }
    }
}

void Supervisor::handle_signals() {
    bool child = false;
    while (const auto info = next_signal(signals_.get())) {
        if (info->ssi_signo == SIGCHLD) {
            child = true;
        } else if (static_cast<pid_t>(info->ssi_pid) == launcher_.pid) {
            take_stop_request();
        }
    }
    if (child) {
        bool any_left = false;
        if (const auto ended = reap(job_, any_left)) {
            ended_ = ended;
        }
    }
}

void Supervisor::take_stop_request() {
    std::int64_t grace_ms = spec_.grace_ms;
    if (const auto text = read_at(folder_, kStopFile, kRecordBytesMax)) {
        if (auto request = stop_request_from(*text)) {
            grace_ms = std::max<std::int64_t>(request->grace_ms, 0);
            stop_ = std::move(*request);
        }
    }
    outside_signal_ = !stop_;
    terminate(grace_ms * 1000);
}

/// A second request can only shorten the grace.
void Supervisor::terminate(std::int64_t grace_us) {
    const std::int64_t at_us = real_env().clock.steady_us() + grace_us;
    if (kill_at_us_ == kNoLimit || at_us < kill_at_us_) {
        kill_at_us_ = at_us;
    }
    if (grace_us > 0) {
        signal_descendants(SIGTERM);
        signal_descendants(SIGCONT);  // a stopped process cannot act on SIGTERM
    }
}

void Supervisor::enforce(std::int64_t now_us) {
    if (spec_.time_limit_ms > 0 && !time_is_up_ && !stop_ &&
        now_us >= start_steady_us_ + spec_.time_limit_ms * 1000) {
        time_is_up_ = true;
        terminate(spec_.grace_ms * 1000);
    }
    if (kill_at_us_ != kNoLimit && now_us >= kill_at_us_) {
        // Everything but `watch`'s own end: run() finishes what this begins.
        signal_descendants(SIGKILL);
        kill_at_us_ = now_us + kKillAgainUs;
    }
}

ExitRecord Supervisor::verdict() const {
    ExitRecord record;
    record.start_us = launcher_.start_us;
    if (ended_) {
        record.exit_code = ended_->exit_code;
        record.signal = ended_->signal;
    }
    for (const OutputSink& output : outputs_) {
        record.lost_bytes += output.lost_bytes();
    }
    if (time_is_up_) {
        record.state = "timeout";
        record.reason = fmt::format("ran longer than its time limit of {:.3g} s",
                                    static_cast<double>(spec_.time_limit_ms) / 1000.0);
    } else if (stop_) {
        record.state = "cancelled";
        record.reason = stop_->reason;
    } else if (launcher_died_) {
        record.state = "lost";  // not the task's doing: its job's `recovery` decides
        record.reason = "its launcher was killed, so the task was ended";
    } else if (record.signal != 0) {
        record.state = "failed";
        record.reason =
            fmt::format("ended by signal {} ({}){}", record.signal, signal_text(record.signal),
                        outside_signal_ ? " after its launcher was asked to stop" : "");
    } else {
        record.state = record.exit_code == 0 ? "completed" : "failed";
        if (record.exit_code != 0) {
            record.reason = fmt::format("exit code {}", record.exit_code);
        }
    }
    if (record.lost_bytes > 0) {
        record.reason += fmt::format("{}{} bytes of output were lost: the node's disk took no more",
                                     record.reason.empty() ? "" : "; ", record.lost_bytes);
    }
    return record;
}

}  // namespace holdfast::agent
