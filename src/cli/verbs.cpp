// SPDX-License-Identifier: Apache-2.0
#include "verbs.hpp"

#include <algorithm>

namespace holdfast::cli {

const std::vector<Verb>& all_verbs() {
    static const std::vector<Verb> kVerbs = {
        submit_verb(),       run_verb(),          wait_verb(),         jobs_verb(),
        why_verb(),          cancel_verb(),       pause_verb(),        resume_verb(),
        logs_verb(),         nodes_verb(),        node_add_verb(),     node_remove_verb(),
        node_drain_verb(),   node_undrain_verb(), node_cordon_verb(),  pool_create_verb(),
        pool_list_verb(),    pool_delete_verb(),  token_create_verb(), token_list_verb(),
        token_revoke_verb(), history_verb(),      sql_verb(),          server_verb(),
        agent_verb(),        demo_verb(),         completion_verb(),   version_verb(),
        help_verb(),
    };
    return kVerbs;
}

const Verb* find_verb(const std::string& name) {
    const auto& verbs = all_verbs();
    const auto found = std::find_if(verbs.begin(), verbs.end(),
                                    [&name](const Verb& verb) { return verb.name == name; });
    return found == verbs.end() ? nullptr : &*found;
}

}  // namespace holdfast::cli
