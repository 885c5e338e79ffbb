// SPDX-License-Identifier: Apache-2.0
#include "descendants.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <holdfast/env.hpp>

namespace holdfast::agent {
namespace {

constexpr std::int64_t kKillPauseMinUs = 500;
constexpr std::int64_t kKillPauseMaxUs = 200'000;
constexpr std::int64_t kKillComplainUs = 30 * kSecondUs;

}  // namespace

void complain(const std::string& text) {
    fmt::print(stderr, "{}\n", text);
}

std::optional<Ended> reap(pid_t watched, bool& any_left) {
    std::optional<Ended> ended;
    while (true) {
        siginfo_t info = {};
        if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) {
            any_left = errno != ECHILD;
            return ended;
        }
        if (info.si_pid == 0) {
            any_left = true;
            return ended;
        }
        if (info.si_pid == watched) {
            const bool exited = info.si_code == CLD_EXITED;
            ended = exited ? Ended{info.si_status, 0}
                           : Ended{kSignalledBase + info.si_status, info.si_status};
        }
    }
}

void signal_descendants(int signal) {
    for (const Process& process : descendants_of(::getpid(), all_processes())) {
        if (process.is_running()) {
            signal_process(process, signal);
        }
    }
}

std::optional<Ended> kill_everything(pid_t watched, const std::function<void()>& meanwhile) {
    Clock& clock = real_env().clock;
    const std::int64_t begin_us = clock.steady_us();
    std::int64_t pause_us = kKillPauseMinUs;
    bool complained = false;
    std::optional<Ended> ended;
    while (true) {
        bool any_left = false;
        if (const auto now = reap(watched, any_left)) {
            ended = now;
        }
        if (!any_left) {
            return ended;
        }
        // New children may appear between look and kill: hence again until none is left.
        signal_descendants(SIGKILL);
        meanwhile();
        clock.sleep_us(pause_us);
        pause_us = std::min(pause_us * 2, kKillPauseMaxUs);
        if (!complained && clock.steady_us() - begin_us > kKillComplainUs) {
            complained = true;
            complain(
                "a process of this task does not die on SIGKILL (stuck in the kernel); waiting");
        }
    }
}

Fd signal_descriptor(std::initializer_list<int> signals) {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : signals) {
        ::sigaddset(&set, signal);
    }
    return Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

std::optional<signalfd_siginfo> next_signal(int descriptor) {
    signalfd_siginfo info = {};
    if (::read(descriptor, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) {
        return std::nullopt;
    }
    return info;
}

}  // namespace holdfast::agent
