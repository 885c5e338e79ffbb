// SPDX-License-Identifier: Apache-2.0
#include "child_process.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <holdfast/env.hpp>

namespace holdfast::cli::demo {
namespace {

constexpr std::int64_t kPollUs = 10'000;

[[noreturn]] void become(std::vector<char*>& argv, int log, pid_t parent) {
    // SIGTERM follows the demo's own death, however it dies; the check closes the race with a
    // parent already gone.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) {
        _exit(1);
    }
    // A session of its own: Ctrl-C at the terminal reaches the demo alone, which then stops its
    // children in order.
    setsid();
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
}

}  // namespace

ChildProcess::~ChildProcess() {
    kill_now();
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
    if (this != &other) {
        kill_now();
        pid_ = std::exchange(other.pid_, -1);
    }
    return *this;
}

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& arguments,
                                         const std::string& log_file) {
    const int log = open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0) {
        return fail(Errc::failed, "start {}: open its log {}: {}", arguments.front(), log_file,
                    std::strerror(errno));
    }
    std::vector<char*> argv;
    for (const std::string& argument : arguments) {
        argv.push_back(const_cast<char*>(argument.c_str()));  // execv's signature predates const
    }
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        become(argv, log, parent);
    }
    const int fork_error = errno;
    close(log);
    if (pid < 0) {
        return fail(Errc::failed, "start {}: fork: {}", arguments.front(),
                    std::strerror(fork_error));
    }
    return ChildProcess(pid);
}

bool ChildProcess::is_running() {
    if (pid_ < 0) {
        return false;
    }
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = -1;
        return false;
    }
    return true;
}

void ChildProcess::kill_now() {
    if (pid_ > 0) {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }
}

void ChildProcess::stop(std::int64_t grace_ms) {
    if (pid_ < 0) {
        return;
    }
    kill(pid_, SIGTERM);
    Clock& clock = real_env().clock;
    const std::int64_t deadline_us = clock.steady_us() + grace_ms * 1000;
    while (is_running() && clock.steady_us() < deadline_us) {
        clock.sleep_us(kPollUs);
    }
    kill_now();
}

}  // namespace holdfast::cli::demo
