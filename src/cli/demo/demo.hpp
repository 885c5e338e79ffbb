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

namespace holdfast::cli::demo {

/// What happens to a node.
enum class Fault {
    sigkill,    ///< its processes die; the kernel closes their sockets
    link_down,  ///< its host falls silent: no FIN, no RST (namespaces, TLS; needs root)
};

struct DemoOptions {
    Fault fault = Fault::sigkill;
    bool json = false;
    std::int64_t steps = 60;
    std::int32_t kills = 1;  ///< nodes killed, one after another
    std::uint64_t seed = 0;  ///< of the kill; 0: random
    std::string model = "gpt-small";
    std::string backend = "torch";
    std::string directory;  ///< empty: a new one under TMPDIR
    bool remove_directory =
        false;            ///< default: kept, with a word on how to look around and delete it
    std::string libexec;  ///< folder of hold-server and hold-agent
};

/// Runs it; progress goes to stderr, the report to stdout. Returns the process's exit code: 0, or 1
/// when a claim fails. Errors: what could not be started, with the log's place.
Result<int> run_demo(const DemoOptions& options);

}  // namespace holdfast::cli::demo
