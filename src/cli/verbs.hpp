// SPDX-License-Identifier: Apache-2.0
// The table of verbs. One function per verb, each in the file of its name.
#pragma once

#include <string>
#include <vector>

#include "verb.hpp"

namespace holdfast::cli {

/// In the order of `hold help`.
const std::vector<Verb>& all_verbs();
/// Null if there is none.
const Verb* find_verb(const std::string& name);

Verb server_verb();
Verb agent_verb();
Verb submit_verb();
Verb run_verb();
Verb wait_verb();
Verb jobs_verb();
Verb why_verb();
Verb cancel_verb();
Verb pause_verb();
Verb resume_verb();
Verb logs_verb();
Verb nodes_verb();
Verb node_add_verb();
Verb node_remove_verb();
Verb node_drain_verb();
Verb node_undrain_verb();
Verb node_cordon_verb();
Verb pool_create_verb();
Verb pool_list_verb();
Verb pool_delete_verb();
Verb token_create_verb();
Verb token_list_verb();
Verb token_revoke_verb();
Verb history_verb();
Verb sql_verb();
Verb demo_verb();
Verb completion_verb();
Verb version_verb();
Verb help_verb();

}  // namespace holdfast::cli
