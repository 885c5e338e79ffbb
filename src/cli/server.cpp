// SPDX-License-Identifier: Apache-2.0
// `hold server` and `hold agent`: programs of their own, found beside this one.
#include "verbs.hpp"

namespace holdfast::cli {

Verb server_verb() {
    return {.name = "server",
            .summary = "runs the server: all state, all decisions",
            .group = "Daemons",
            .needs_server = false,
            .neighbour = "hold-server",
            .examples = {"hold server --data /var/lib/holdfast",
                         "hold server --data d --listen 0.0.0.0:7333"},
            .notes = "All arguments go to hold-server; see hold-server(8)."};
}

Verb agent_verb() {
    return {.name = "agent",
            .summary = "runs a node's agent: starts and watches its tasks",
            .group = "Daemons",
            .needs_server = false,
            .neighbour = "hold-agent",
            .examples = {"hold agent --server unix:/run/holdfast/hold.sock --state s",
                         "hold agent --server head:7333 --ca ca.crt --state s --gpus 8"},
            .notes = "All arguments go to hold-agent; see hold-agent(8)."};
}

}  // namespace holdfast::cli
