// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <holdfast/env.hpp>

#include "descendants.hpp"
#include "job_process.hpp"
#include "supervisor.hpp"
#include "task_files.hpp"

namespace holdfast::agent {
namespace {

/// Waits for the supervisor and forwards stops to it.
void stand_by(pid_t supervisor, int signals) {
    const pid_t session = ::getsid(0);
    while (true) {
        pollfd waiting = {signals, POLLIN, 0};
        if (::poll(&waiting, 1, -1) < 0 && errno != EINTR) {
            complain("poll failed: " + errno_text(errno));
            return;
        }
        while (const auto info = next_signal(signals)) {
            if (info->ssi_signo == SIGTERM) {
                // `kill 0` in a script reaches its whole group and so us; only others may stop us.
                const auto sender = read_process(static_cast<pid_t>(info->ssi_pid));
                if (!sender || sender->session != session) {
                    ::kill(supervisor, kForwardedStop);
                }
                continue;
            }
            bool any_left = false;
            if (reap(supervisor, any_left)) {
                return;
            }
        }
    }
}

Result<Fd> open_folder(const std::string& path) {
    Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat facts = {};
    if (!folder.is_open() || ::fstat(folder.get(), &facts) != 0) {
        return fail(Errc::failed, "open {}: {}", path, errno_text(errno));
    }
    if (facts.st_uid != ::geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return fail(Errc::denied, "open {}: others can write there", path);
    }
    return folder;
}

/// One launcher per folder, and none in a folder that the agent has given up.
Result<Fd> lock_folder(int folder) {
    Fd lock(::openat(folder, kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!lock.is_open() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
        return fail(Errc::conflict, "lock the task's folder: {}", errno_text(errno));
    }
    struct stat facts = {};
    if (::fstat(lock.get(), &facts) != 0 || facts.st_nlink == 0) {
        return fail(Errc::conflict, "the task's folder was removed");
    }
    if (exists_at(folder, kExitFile) || exists_at(folder, kLauncherFile)) {
        return fail(Errc::conflict, "the task was started before");
    }
    return lock;
}

void block_signals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

/// Standard streams of our own: the agent's may be a terminal or a pipe that somebody waits for.
void redirect_streams(int folder) {
    const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    const Fd log(::openat(folder, kLauncherLogFile,
                          O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
    const int errors = log.is_open() ? log.get() : null.get();
    if (null.is_open()) {
        ::dup2(null.get(), STDIN_FILENO);
        ::dup2(null.get(), STDOUT_FILENO);
    }
    if (errors >= 0) {
        ::dup2(errors, STDERR_FILENO);
    }
}

Result<LaunchSpec> read_spec(int folder, bool secret_passed) {
    HOLD_TRY(const std::string text, read_at(folder, kSpecFile, kRecordBytesMax));
    HOLD_TRY(LaunchSpec spec, launch_spec_from(text));
    if (spec.has_secret != secret_passed) {
        return fail(Errc::invalid_argument, "{} and the command line disagree about a secret",
                    kSpecFile);
    }
    return spec;
}

Result<> run_task(int folder, const LaunchSpec& spec, ExitFile& exit_file) {
    const auto self = read_process(::getpid());
    if (!self) {
        return fail(Errc::failed, "read /proc/self: is /proc mounted?");
    }
    const LauncherRecord record = {self->pid, self->start_ticks, boot_id(), 0};
    HOLD_TRY(write_at(folder, kLauncherFile, to_json(record), false));
    const Fd alive = open_pidfd(::getpid());
    const Fd signals = signal_descriptor({SIGTERM, SIGCHLD});
    if (!alive.is_open() || !signals.is_open() ||
        ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
        return fail(Errc::failed, "prepare the launcher: {}", errno_text(errno));
    }
    const pid_t supervisor = ::fork();
    if (supervisor < 0) {
        return fail(Errc::failed, "start the supervisor: {}", errno_text(errno));
    }
    if (supervisor == 0) {
        ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        const auto written = exit_file.write(Supervisor(folder, spec, record, alive).run());
        if (!written) {
            complain(written.error().message);
        }
        ::_exit(written ? 0 : 1);
    }
    if (spec.has_secret) {
        ::close(kSecretFd);
    }
    stand_by(supervisor, signals.get());
    kill_everything(0, [] {});
    if (exists_at(folder, kExitFile)) {
        return {};
    }
    ExitRecord ended = {.state = "lost",  // not the task's doing: its job's `recovery` decides
                        .exit_code = kSignalledBase + SIGKILL,
                        .signal = SIGKILL,
                        .end_us = real_env().clock.wall_us(),
                        .reason = "its supervisor was killed, so the task was ended"};
    if (const auto text = read_at(folder, kLauncherFile, kRecordBytesMax)) {
        ended.start_us = launcher_record_from(*text).value_or(record).start_us;
    }
    return exit_file.write(ended);
}

}  // namespace

int launch(const std::string& path, bool secret_passed) {
    // Before anything else is opened: what we got from the agent beyond our part goes.
    ::close_range(secret_passed ? kSecretFd + 1 : kSecretFd, ~0U, 0);
    block_signals();
    ::umask(077);
    if (::getsid(0) != ::getpid()) {
        ::setsid();  // fails only for the leader of a group: then the agent set it up otherwise
    }
    auto folder = open_folder(path);
    if (!folder) {
        complain(folder.error().message);
        return 1;
    }
    redirect_streams(folder->get());
    const auto lock = lock_folder(folder->get());
    if (!lock) {
        complain(lock.error().message);
        return 1;
    }
    auto exit_file = ExitFile::reserve(folder->get());
    if (!exit_file) {
        complain(exit_file.error().message);
        return 1;
    }
    auto spec = read_spec(folder->get(), secret_passed);
    const Result<> done =
        spec ? run_task(folder->get(), *spec, *exit_file) : Result<>(fail(spec.error()));
    if (!done) {
        const ExitRecord record = {.state = "failed",
                                   .exit_code = kStartFailed,
                                   .start_us = 0,
                                   .end_us = real_env().clock.wall_us(),
                                   .reason = done.error().describe()};
        if (const auto written = exit_file->write(record); !written) {
            complain(written.error().message);
            return 1;
        }
    }
    return 0;
}

}  // namespace holdfast::agent
