// SPDX-License-Identifier: Apache-2.0
#include "account.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

std::optional<uid_t> number_in(const std::string& text) {
    uid_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) {
        return std::nullopt;
    }
    return number;
}

std::optional<Account> look_up(const std::string& user) {
    std::vector<char> buffer(64 * 1024);
    passwd entry = {};
    passwd* found = nullptr;
    ::getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (const auto number = number_in(user); found == nullptr && number) {
        ::getpwuid_r(*number, &entry, buffer.data(), buffer.size(), &found);
        if (found == nullptr && *number == ::getuid()) {
            return Account{user, *number, ::getgid(), {}, "/", "/bin/sh"};
        }
    }
    if (found == nullptr) {
        return std::nullopt;
    }
    Account account = {entry.pw_name, entry.pw_uid, entry.pw_gid, {}, entry.pw_dir, entry.pw_shell};
    int count = 64;
    account.groups.resize(static_cast<std::size_t>(count));
    while (::getgrouplist(entry.pw_name, entry.pw_gid, account.groups.data(), &count) < 0 &&
           count <= 65536 && static_cast<std::size_t>(count) > account.groups.size()) {
        account.groups.resize(static_cast<std::size_t>(count));
    }
    account.groups.resize(
        std::min(account.groups.size(), static_cast<std::size_t>(std::max(count, 0))));
    return account;
}

/// Effective, permitted and inheritable: empty. (The ambient set follows the inheritable one.)
int clear_capabilities() {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    return ::syscall(SYS_capset, &header, none) == 0 ? 0 : errno;
}

int become(const Account& account) {
    // Past the last capability that this kernel knows, the call says EINVAL.
    for (unsigned long capability = 0; capability < 64; ++capability) {
        if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EINVAL) {
            return errno;
        }
    }
    if (::setgroups(account.groups.size(), account.groups.data()) != 0 ||
        ::setresgid(account.gid, account.gid, account.gid) != 0 ||
        ::setresuid(account.uid, account.uid, account.uid) != 0) {
        return errno;
    }
    return 0;
}

}  // namespace

Result<> may_run_as(uid_t agent, uid_t target, const std::string& name) {
    if (target == 0) {
        return fail(make_error(Errc::denied, "run as {}: jobs never run as root (uid 0)", name)
                        .at("user")
                        .advise("submit as an ordinary user; root passes --user NAME"));
    }
    if (agent != 0 && agent != target) {
        return fail(make_error(Errc::denied,
                               "run as {} (uid {}): this node's agent is not root (uid {}) and can "
                               "only run its own user's tasks",
                               name, target, agent)
                        .at("user")
                        .advise("start the agent as root, or submit as the agent's user"));
    }
    return {};
}

Result<Account> account_of(const std::string& user) {
    auto account = look_up(user);
    if (!account) {
        return fail(make_error(Errc::not_found, "run as {}: this node knows no such user", user)
                        .at("user")
                        .advise("create the user on the node, or exclude the node from the job"));
    }
    HOLD_TRY(may_run_as(::geteuid(), account->uid, account->name));
    return std::move(*account);
}

int drop_privileges(const Account& account) {
    const rlimit no_core = {0, 0};
    if (::setrlimit(RLIMIT_CORE, &no_core) != 0) {
        return errno;
    }
    if (::geteuid() == 0) {
        if (const int error = become(account); error != 0) {
            return error;
        }
    }
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return errno;
    }
    if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 && errno != EINVAL) {
        return errno;
    }
    if (const int error = clear_capabilities(); error != 0) {
        return error;
    }
    // Proof instead of trust: this must be impossible now.
    uid_t real = 0;
    uid_t effective = 0;
    uid_t saved = 0;
    if (::getresuid(&real, &effective, &saved) != 0 || real != account.uid ||
        effective != account.uid || saved != account.uid || ::setuid(0) == 0) {
        return EPERM;
    }
    return 0;
}

}  // namespace holdfast::agent
