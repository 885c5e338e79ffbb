// SPDX-License-Identifier: Apache-2.0
/// Who a job may run as, and what is taken from it before it runs.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include <holdfast/result.hpp>

namespace holdfast::agent {

struct Account {
    std::string name;
    uid_t uid = 0;
    gid_t gid = 0;
    std::vector<gid_t> groups;
    std::string home;
    std::string shell;
};

/// The one rule: never uid 0; an agent that is not root runs its own user's tasks only.
/// Errors: denied, with what to do.
Result<> may_run_as(uid_t agent, uid_t target, const std::string& name);

/// The account of a user name, or of a number where the machine knows no name for it.
/// Errors: not_found, denied (see may_run_as).
[[nodiscard]] Result<Account> account_of(const std::string& user);

/// Becomes that account for ever: identity, groups, capabilities (all five sets empty), no core
/// dumps, no new privileges through exec. Calls only the kernel: for a freshly forked child.
/// Returns 0 or the errno of the step that failed.
[[nodiscard]] int drop_privileges(const Account& account);

}  // namespace holdfast::agent
