// SPDX-License-Identifier: Apache-2.0
/// What agent and launcher tell each other: the files of a task's folder.
///
///     STATE/tasks/<task>-<lease>/   owned by the agent; nobody else may write here
///         spec.json      what to run                              written by the agent, once
///         lock           held by the launcher while it lives      (flock)
///         launcher.json  the launcher's process, when it started  written by the launcher
///         stop.json      that the task shall end, and how fast    written by the agent
///         stdout stderr  the output                               written by the launcher
///         launcher.log   the launcher's own complaints
///         exit.json      how it ended                             written by the launcher, last
///         scratch/       the task's working folder, owned by the job's user
///
/// Every file is replaced by rename, so a reader sees a whole one or none. A file that is missing
/// or torn means that its writer died before that step; recovery is built on that alone. All access
/// is relative to a descriptor of the folder and follows no link.
///
/// These functions use the kernel's *at() calls and not Env::files: the point is never to resolve a
/// path twice.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <holdfast/result.hpp>

#include "descriptor.hpp"

namespace holdfast::agent {

inline constexpr const char* kSpecFile = "spec.json";
inline constexpr const char* kLockFile = "lock";
inline constexpr const char* kLauncherFile = "launcher.json";
inline constexpr const char* kStopFile = "stop.json";
inline constexpr const char* kExitFile = "exit.json";
inline constexpr const char* kStdoutFile = "stdout";
inline constexpr const char* kStderrFile = "stderr";
inline constexpr const char* kLauncherLogFile = "launcher.log";
inline constexpr const char* kScratchFolder = "scratch";

/// The child reads the lease's secret here; HOLDFAST_SECRET_FD says so.
inline constexpr int kSecretFd = 3;
inline constexpr std::size_t kRecordBytesMax = 4 << 20;

/// What the launcher shall run.
struct LaunchSpec {
    std::int64_t task = 0;
    std::int64_t job = 0;
    std::int64_t lease = 0;
    std::string user = {};
    std::string run = {};      ///< shell text; empty: `program`
    std::string program = {};  ///< path of an executable that the agent's user can read
    std::vector<std::string> arguments = {};  ///< of `program`, after its name
    std::map<std::string, std::string> env = {};
    std::string workdir = {};        ///< empty: the task's scratch folder
    std::int64_t time_limit_ms = 0;  ///< 0: none
    std::int64_t grace_ms = 10'000;  ///< between SIGTERM and SIGKILL where nothing else is said
    std::int64_t log_bytes_max = 64 << 20;  ///< per stream; more is dropped, and a line says so
    std::int64_t open_files = 0;  ///< soft limit of open files for the job; 0: as the launcher's
    bool has_secret = false;      ///< fd 3 of the launcher holds the lease's secret

    bool operator==(const LaunchSpec&) const = default;
};

/// Which process the launcher is, and since when the job runs (0: not yet).
struct LauncherRecord {
    pid_t pid = 0;
    std::uint64_t start_ticks = 0;
    std::string boot_id = {};
    std::int64_t start_us = 0;

    bool operator==(const LauncherRecord&) const = default;
};

struct StopRequest {
    std::int64_t grace_ms = 0;
    std::string reason = {};

    bool operator==(const StopRequest&) const = default;
};

/// How a task ended.
struct ExitRecord {
    std::string state = {};  ///< completed | failed | cancelled | timeout | lost
    int exit_code = 0;       ///< 128 + signal where a signal ended it; 126: could not be started
    int signal = 0;
    std::int64_t start_us = 0;  ///< 0: it never ran
    std::int64_t end_us = 0;
    std::string reason = {};
    std::int64_t lost_bytes = 0;  ///< output that no disk took

    bool operator==(const ExitRecord&) const = default;
};

[[nodiscard]] std::string to_json(const LaunchSpec& spec);
[[nodiscard]] std::string to_json(const LauncherRecord& record);
[[nodiscard]] std::string to_json(const StopRequest& request);
[[nodiscard]] std::string to_json(const ExitRecord& record);

// Errors: invalid_argument naming the field that is missing, unknown or of the wrong kind.
[[nodiscard]] Result<LaunchSpec> launch_spec_from(const std::string& json);
[[nodiscard]] Result<LauncherRecord> launcher_record_from(const std::string& json);
[[nodiscard]] Result<StopRequest> stop_request_from(const std::string& json);
[[nodiscard]] Result<ExitRecord> exit_record_from(const std::string& json);

/// Limits on what is handed to execve, checked before anything is started.
/// Errors: invalid_argument or too_large, `where` names the field.
Result<> check_spec(const LaunchSpec& spec);

/// Errors: not_found, denied, too_large, failed (not a plain file, or a link).
[[nodiscard]] Result<std::string> read_at(int folder, const char* name, std::size_t bytes_max);
/// After success the file holds exactly `bytes`; readers see the old or the new text. Mode 0600.
/// `durable`: also after a power loss. Errors: store_full, failed.
Result<> write_at(int folder, const char* name, const std::string& bytes, bool durable);
[[nodiscard]] bool exists_at(int folder, const char* name);
/// Error text of errno: "No such file or directory".
[[nodiscard]] std::string errno_text(int number);

/// exit.json with its space taken in advance: a full disk must not hide how a task ended.
class ExitFile {
  public:
    static Result<ExitFile> reserve(int folder);
    /// Durable when it returns.
    Result<> write(const ExitRecord& record);

  private:
    ExitFile(int folder, Fd file) : folder_(folder), file_(std::move(file)) {}

    int folder_;
    Fd file_;
};

}  // namespace holdfast::agent
