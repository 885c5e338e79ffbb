// SPDX-License-Identifier: Apache-2.0
/// Processes as the kernel shows them in /proc: who they are, who descends from whom, and how to
/// signal one without ever hitting another that got its number.
///
/// A process is named by its id *and* its start time (clock ticks since boot, from
/// /proc/PID/stat): ids are used again, pairs are not while the machine is up. Signals go through a
/// pidfd that is opened first and compared afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "descriptor.hpp"

namespace holdfast::agent {

struct Process {
    pid_t pid = 0;
    pid_t parent = 0;
    pid_t group = 0;
    pid_t session = 0;
    char state = '?';  ///< as in `ps`: Z is a zombie, X is dead
    std::uint64_t start_ticks = 0;
    uid_t uid = 0;

    /// Neither a zombie nor dead.
    [[nodiscard]] bool is_running() const { return state != 'Z' && state != 'X'; }
};

/// The fields of one /proc/PID/stat line (uid is left 0). Nothing if the line is not one.
[[nodiscard]] std::optional<Process> parse_process_stat(std::string_view line);
/// Nothing if there is no such process.
[[nodiscard]] std::optional<Process> read_process(pid_t pid);
[[nodiscard]] std::vector<Process> all_processes();
/// Children, their children and so on; zombies included, `root` not.
[[nodiscard]] std::vector<Process> descendants_of(pid_t root, const std::vector<Process>& all);
/// Whoever has the id now; readable (poll) when it has ended.
[[nodiscard]] Fd open_pidfd(pid_t pid);
/// The pidfd of the process that started at `start_ticks`; closed if it is gone, a zombie, or the
/// id belongs to another process now.
[[nodiscard]] Fd open_process(pid_t pid, std::uint64_t start_ticks);
/// False if that process is gone.
bool signal_process(const Process& process, int signal);
/// Whether the process was started with all of these `NAME=value` entries in its environment.
[[nodiscard]] bool has_environment(pid_t pid, const std::vector<std::string>& entries);
/// Changes with every boot of the machine; empty when the kernel does not tell.
[[nodiscard]] std::string boot_id();
/// A small file of /proc or /sys; empty if it cannot be read.
[[nodiscard]] std::string read_kernel_file(const std::string& path, std::size_t bytes_max);

}  // namespace holdfast::agent
