// SPDX-License-Identifier: Apache-2.0
/// The launcher: one pair of small processes per task, between the agent and the job.
///
/// The problem: a task must outlive its agent but never its launcher, every process that it ever
/// made must be gone before its slots are used again, and its output and exit must not be lost
/// whoever dies when.
///
///     agent ── launcher (leader of a session of its own; the "pid" of the task)
///                 └── supervisor ── job ── …
///
/// The launcher only forwards a stop, and cleans up should the supervisor be killed. The supervisor
/// starts the job, carries its output, holds the time limit, and writes exit.json. Each is a
/// subreaper, so daemons that the job detached fall to them; each watches the other, so that no
/// single SIGKILL leaves anything behind: the launcher's death ends the job, and so does the
/// supervisor's (the job's first process also has PR_SET_PDEATHSIG). A SIGKILL of both at once is
/// left to the agent, which looks for processes that carry the lease in their environment.
///
/// It runs privileged where the agent does; it is kept small and reads nothing that a job can
/// write. It does not confine more than: another user, no capabilities, no new privileges, no
/// inherited descriptors.
#pragma once

#include <string>

namespace holdfast::agent {

/// Runs the task described in `folder` to its end. `secret_passed`: descriptor 3 holds the secret.
/// Returns the process's exit status: 0 when
/// exit.json says how the task ended; 1 when nothing was started (the reason is on stderr).
int launch(const std::string& folder, bool secret_passed);

}  // namespace holdfast::agent
