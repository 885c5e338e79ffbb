// SPDX-License-Identifier: Apache-2.0
// Who may call what. One table names every method of the API with the roles that may call it; one
// function, authorize (core.hpp), looks there before any handler runs. The test matrix is made from
// the same table, so a method that is missing here cannot be served.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <holdfast/ids.hpp>
#include <holdfast/result.hpp>

namespace holdfast::server {

enum class Role : std::uint8_t {
    user = 1,
    operator_ = 2,
    admin = 4,
    node = 8,     ///< an agent, by its node token
    bearer = 16,  ///< proves itself by a secret in the first message: enrolment token, lease secret
};

[[nodiscard]] std::string_view to_string(Role role);
Result<Role> role_from(std::string_view name);

struct Caller {
    std::string user;  ///< a node's name for role node
    Role role = Role::user;
    TokenId token;       ///< 0: known by the unix socket
    bool local = false;  ///< came over the unix socket

    /// May act on what others own.
    [[nodiscard]] bool is_operator() const {
        return role == Role::operator_ || role == Role::admin;
    }

    [[nodiscard]] bool is_admin() const { return role == Role::admin; }
};

enum class Verb : std::uint8_t {
    jobs_submit,
    jobs_get,
    jobs_list,
    jobs_cancel,
    jobs_pause,
    jobs_resume,
    jobs_wait,
    jobs_why,
    jobs_logs,
    nodes_list,
    nodes_add,
    nodes_remove,
    nodes_drain,
    nodes_undrain,
    nodes_cordon,
    pools_create,
    pools_delete,
    pools_list,
    tokens_create,
    tokens_list,
    tokens_revoke,
    system_info,
    system_sql,
    system_history,
    system_metrics,
    agents_enrol,
    agents_connect,
    training_attach,
};

struct VerbRule {
    Verb verb;
    std::string_view name;  ///< Service.Method
    unsigned roles;         ///< Role bits
    bool own_only;          ///< users: on what is theirs; operators and admins: on anything
};

inline constexpr unsigned kUser = 1, kOperator = 2, kAdmin = 4, kNode = 8, kBearer = 16;
inline constexpr unsigned kPeople = kUser | kOperator | kAdmin;

inline constexpr std::array kVerbs = {
    VerbRule{Verb::jobs_submit, "Jobs.Submit", kPeople, true},
    VerbRule{Verb::jobs_get, "Jobs.Get", kPeople, false},
    VerbRule{Verb::jobs_list, "Jobs.List", kPeople, false},
    VerbRule{Verb::jobs_cancel, "Jobs.Cancel", kPeople, true},
    VerbRule{Verb::jobs_pause, "Jobs.Pause", kPeople, true},
    VerbRule{Verb::jobs_resume, "Jobs.Resume", kPeople, true},
    VerbRule{Verb::jobs_wait, "Jobs.Wait", kPeople, false},
    VerbRule{Verb::jobs_why, "Jobs.Why", kPeople, false},
    VerbRule{Verb::jobs_logs, "Jobs.Logs", kPeople, true},
    VerbRule{Verb::nodes_list, "Nodes.List", kPeople, false},
    VerbRule{Verb::nodes_add, "Nodes.Add", kAdmin, false},
    VerbRule{Verb::nodes_remove, "Nodes.Remove", kAdmin, false},
    VerbRule{Verb::nodes_drain, "Nodes.Drain", kOperator | kAdmin, false},
    VerbRule{Verb::nodes_undrain, "Nodes.Undrain", kOperator | kAdmin, false},
    VerbRule{Verb::nodes_cordon, "Nodes.Cordon", kOperator | kAdmin, false},
    VerbRule{Verb::pools_create, "Pools.Create", kOperator | kAdmin, false},
    VerbRule{Verb::pools_delete, "Pools.Delete", kOperator | kAdmin, false},
    VerbRule{Verb::pools_list, "Pools.List", kPeople, false},
    VerbRule{Verb::tokens_create, "Tokens.Create", kPeople, true},
    VerbRule{Verb::tokens_list, "Tokens.List", kPeople, true},
    VerbRule{Verb::tokens_revoke, "Tokens.Revoke", kPeople, true},
    VerbRule{Verb::system_info, "System.Info", kPeople | kNode, false},
    VerbRule{Verb::system_sql, "System.Sql", kPeople, false},
    VerbRule{Verb::system_history, "System.History", kPeople, false},
    VerbRule{Verb::system_metrics, "System.Metrics", kPeople, false},
    VerbRule{Verb::agents_enrol, "Agents.Enrol", kBearer, false},
    VerbRule{Verb::agents_connect, "Agents.Connect", kNode | kAdmin, false},
    VerbRule{Verb::training_attach, "Training.Attach", kBearer, false},
};

[[nodiscard]] const VerbRule& rule_of(Verb verb);

/// Errors: denied, naming the verb and the roles that may.
Result<> check_role(const Caller& caller, Verb verb);

/// For verbs with own_only. Errors: denied, naming the owner.
Result<> check_owner(const Caller& caller, Verb verb, const std::string& owner);

/// User names that may stand in a row: what POSIX and LDAP directories allow.
Result<> check_user_name(const std::string& name);

}  // namespace holdfast::server
