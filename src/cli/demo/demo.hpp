// SPDX-License-Identifier: Apache-2.0
// `hold demo`: the product's main job on real parts, on one machine, checked.
//
// A server and four agents are started from the installed programs. A 2-pipeline × 3-stage GPT is
// trained twice with the same seed: once undisturbed, once with a node (its agent and its workers)
// killed with SIGKILL at a random step and brought back later. The claims that are checked: no
// restart, at most one iteration redone per kill, every lost worker back before the end, and losses
// that are the same bytes.
#pragma once

#include <cstdint>
#include <string>

#include <holdfast/result.hpp>

#include "report.hpp"

namespace holdfast::cli::demo {

/// What happens to a node.
enum class Fault {
    sigkill,    ///< its processes die; the kernel closes their sockets
    link_down,  ///< its host falls silent: no FIN, no RST (namespaces, TLS; needs root)
};

struct DemoOptions {
    Fault fault = Fault::sigkill;
    std::int64_t steps = 60;
    std::int32_t kills = 1;  ///< nodes killed, one after another
    std::uint64_t seed = 0;  ///< of the kill; 0: random
    std::string model = "gpt-small";
    std::string backend = "torch";
    std::string directory;  ///< empty: a new one under TMPDIR
    std::string libexec;    ///< folder of hold-server and hold-agent
};

struct DemoOutcome {
    Report report;
    std::string directory;  ///< logs and the server's data
    std::int64_t job = 0;   ///< the training job that was disturbed
};

/// Runs it; progress goes to stderr. Errors: what could not be started, with the logs' place.
Result<DemoOutcome> run_demo(const DemoOptions& options);

}  // namespace holdfast::cli::demo
