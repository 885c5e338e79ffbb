// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

#include <holdfast/env.hpp>

#include "worker_config.hpp"

namespace holdfast::training {

/// A worker's exit statuses.
inline constexpr int kExitFinished = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitBadConfig = 2;
inline constexpr int kExitFenced = 3;
inline constexpr int kExitTerminated = 143;  ///< SIGTERM, as a shell would say it

/// Trains until the coordinator says otherwise; returns the exit status. Pre: SIGTERM and SIGINT
/// are blocked in every thread; signal_fd delivers them.
int run_worker(const WorkerConfig& config, Secret secret, int signal_fd, Env& env);

}  // namespace holdfast::training
