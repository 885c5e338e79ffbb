// SPDX-License-Identifier: Apache-2.0
#include "job_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

[[noreturn]] void give_up(int status, Step step, int error) {
    const StepFailure failure = {step, error};
    // Nobody to tell if this fails: the supervisor then sees exit 126 without a step.
    [[maybe_unused]] const ssize_t told = ::write(status, &failure, sizeof failure);
    ::_exit(kStartFailed);
}

}  // namespace

std::string why(const StepFailure& failure, const LaunchSpec& spec, const std::string& workdir) {
    std::string text = errno_text(failure.error);
    switch (failure.step) {
        case Step::descriptors:
            return fmt::format("could not arrange the task's descriptors: {}", text);
        case Step::privileges:
            return fmt::format("could not become user {}: {}", spec.user, text);
        case Step::parent:
            return "its launcher was killed while it started";
        case Step::workdir:
            return fmt::format(
                "could not enter the working folder {} as user {}: {}; make it on this node, or "
                "change `workdir`",
                workdir, spec.user, text);
        case Step::exec:
            return fmt::format("could not run {} as user {}: {}",
                               spec.run.empty() ? spec.program : "/bin/sh", spec.user, text);
    }
    return text;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> list;
    list.reserve(texts.size() + 1);
    for (std::string& text : texts) {
        list.push_back(text.data());
    }
    list.push_back(nullptr);
    return list;
}

void become_job(const JobStart& job, char* const* arguments, char* const* environment) {
    for (int signal = 1; signal < NSIG; ++signal) {
        ::signal(signal, SIG_DFL);
    }
    sigset_t none;
    ::sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
    ::umask(022);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const unsigned first_closed = job.has_secret ? kSecretFd + 1 : kSecretFd;
    if (null < 0 || ::dup2(null, STDIN_FILENO) < 0 || ::dup2(job.output, STDOUT_FILENO) < 0 ||
        ::dup2(job.errors, STDERR_FILENO) < 0 ||
        (job.has_secret && ::fcntl(kSecretFd, F_SETFD, 0) != 0) ||
        ::close_range(first_closed, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
        give_up(job.status, Step::descriptors, errno);
    }
    rlimit files = {};
    if (job.open_files > 0 && ::getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = std::min(static_cast<rlim_t>(job.open_files), files.rlim_max);
        ::setrlimit(RLIMIT_NOFILE, &files);  // lowering or keeping: cannot fail
    }
    if (const int error = drop_privileges(job.account); error != 0) {
        give_up(job.status, Step::privileges, error);
    }
    // After the change of identity, which clears it; then look whether the parent died meanwhile.
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0 || ::getppid() != job.supervisor) {
        give_up(job.status, Step::parent, errno);
    }
    if (::chdir(job.workdir.c_str()) != 0) {
        give_up(job.status, Step::workdir, errno);
    }
    if (job.program >= 0) {
        ::fexecve(job.program, arguments, environment);
    } else {
        ::execve("/bin/sh", arguments, environment);
    }
    give_up(job.status, Step::exec, errno);
}

std::vector<std::string> environment_of(const LaunchSpec& spec, const Account& account) {
    std::map<std::string, std::string> env = spec.env;
    env.emplace("HOME", account.home);
    env.emplace("USER", account.name);
    env.emplace("LOGNAME", account.name);
    env.emplace("SHELL", account.shell);
    env.emplace("PATH", "/usr/local/bin:/usr/bin:/bin");
    if (spec.has_secret) {
        env["HOLDFAST_SECRET_FD"] = std::to_string(kSecretFd);
    }
    std::vector<std::string> entries;
    entries.reserve(env.size());
    for (const auto& [name, value] : env) {
        entries.push_back(fmt::format("{}={}", name, value));
    }
    return entries;
}

}  // namespace holdfast::agent
