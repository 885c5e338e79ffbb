// SPDX-License-Identifier: Apache-2.0
#include "access.hpp"

#include <algorithm>

namespace holdfast::server {

std::string_view to_string(Role role) {
    switch (role) {
        case Role::user:
            return "user";
        case Role::operator_:
            return "operator";
        case Role::admin:
            return "admin";
        case Role::node:
            return "node";
        case Role::bearer:
            return "bearer";
    }
    return "unknown";
}

Result<Role> role_from(std::string_view name) {
    for (const Role role : {Role::user, Role::operator_, Role::admin, Role::node}) {
        if (to_string(role) == name) {
            return role;
        }
    }
    return fail(Errc::invalid_argument, "no role `{}`: there are user, operator, admin and node",
                name);
}

const VerbRule& rule_of(Verb verb) {
    const auto index = static_cast<std::size_t>(verb);
    HOLD_CHECK(index < kVerbs.size() && kVerbs[index].verb == verb,
               "kVerbs has one entry per verb, in the enum's order");
    return kVerbs[index];
}

namespace {

std::string roles_text(unsigned roles) {
    std::string text;
    for (const Role role : {Role::user, Role::operator_, Role::admin, Role::node, Role::bearer}) {
        if ((roles & static_cast<unsigned>(role)) != 0) {
            text += text.empty() ? "" : ", ";
            text += to_string(role);
        }
    }
    return text;
}

}  // namespace

Result<> check_role(const Caller& caller, Verb verb) {
    const VerbRule& rule = rule_of(verb);
    if ((rule.roles & static_cast<unsigned>(caller.role)) != 0) {
        return {};
    }
    return fail(make_error(Errc::denied, "{} is not for {} (role {})", rule.name, caller.user,
                           to_string(caller.role))
                    .advise(fmt::format("roles that may: {}", roles_text(rule.roles))));
}

Result<> check_owner(const Caller& caller, Verb verb, const std::string& owner) {
    if (caller.is_operator() || caller.user == owner) {
        return {};
    }
    return fail(make_error(Errc::denied, "{} by {}: it belongs to {}", rule_of(verb).name,
                           caller.user, owner)
                    .advise("only its owner, an operator or an admin may"));
}

Result<> check_user_name(const std::string& name) {
    const auto is_fine = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '.' || c == '-';
    };
    if (name.empty() || name.size() > 64 || name[0] == '-' || name[0] == '.' ||
        !std::all_of(name.begin(), name.end(), is_fine)) {
        return fail(make_error(Errc::invalid_argument,
                               "`{}` is no user name: 1 to 64 letters, digits, _ . -", name)
                        .at("user"));
    }
    return {};
}

}  // namespace holdfast::server
