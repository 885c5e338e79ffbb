// SPDX-License-Identifier: Apache-2.0
#include "job_ref.hpp"
#include "json.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {

Verb nodes_verb() {
    struct Options {
        std::optional<std::string> pool;
        std::optional<std::string> states;
    };

    return {.name = "nodes",
            .summary = "lists nodes: what they have, what is free",
            .group = "Nodes",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                flags.text("-p,--partition", options->pool, "POOL", "only this pool's");
                flags.text("-t,--states", options->states, "LIST",
                           "up, down, draining, drained, cordoned, removed");
                return [options](Session& session) -> Result<int> {
                    HOLD_TRY(Client * client, session.client());
                    HOLD_TRY(v1::ListNodesResponse nodes, client->list_nodes());
                    v1::ListNodesResponse chosen;
                    for (v1::Node& node : *nodes.mutable_nodes()) {
                        const std::string padded =
                            "," + options->states.value_or(node.state()) + ",";
                        if ((!options->pool || node.pool() == *options->pool) &&
                            padded.find("," + node.state() + ",") != std::string::npos) {
                            *chosen.add_nodes() = std::move(node);
                        }
                    }
                    HOLD_TRY(print(session, node_listing(chosen.nodes(), session.now_us())));
                    return 0;
                };
            },
            .examples = {"hold nodes", "hold nodes -t down,drained -o wide"},
            .notes = "CPUS, MEMORY and GPUS are free/all."};
}

}  // namespace holdfast::cli
