// SPDX-License-Identifier: Apache-2.0
/// All that descends from this process, which is a subreaper: collect it, signal it, end it.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>

#include <sys/signalfd.h>
#include <sys/types.h>

#include "process_tree.hpp"

namespace holdfast::agent {

inline constexpr int kSignalledBase = 128;

/// How the job's first process ended.
struct Ended {
    int exit_code = 0;
    int signal = 0;
};

/// Collects every ended child; returns how `watched` ended if it was among them.
/// `any_left`: whether children remain.
std::optional<Ended> reap(pid_t watched, bool& any_left);

void signal_descendants(int signal);

/// Returns when no descendant is left, however long that takes: slots of a task that still runs
/// must not be given away. `watched` and the return value as in reap. `meanwhile` keeps the output
/// flowing.
std::optional<Ended> kill_everything(pid_t watched, const std::function<void()>& meanwhile);

/// Non-blocking; the signals must be blocked already.
[[nodiscard]] Fd signal_descriptor(std::initializer_list<int> signals);
[[nodiscard]] std::optional<signalfd_siginfo> next_signal(int descriptor);

/// A line on the launcher's own log.
void complain(const std::string& text);

}  // namespace holdfast::agent
