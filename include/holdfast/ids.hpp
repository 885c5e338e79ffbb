// SPDX-License-Identifier: Apache-2.0
/// Strong ids: a JobId is not a NodeId. Printed bare in JSON and SQL (`42`), with a prefix for
/// people (`job-42`).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace holdfast {

template <typename Tag>
struct Id {
    std::int64_t value = 0;  ///< 0: none

    constexpr Id() = default;

    constexpr explicit Id(std::int64_t number) : value(number) {}

    [[nodiscard]] constexpr bool is_set() const { return value != 0; }

    auto operator<=>(const Id&) const = default;

    [[nodiscard]] std::string label() const {
        return std::string(Tag::prefix) + "-" + std::to_string(value);
    }
};

struct JobTag {
    static constexpr const char* prefix = "job";
};

struct TaskTag {
    static constexpr const char* prefix = "task";
};

struct NodeTag {
    static constexpr const char* prefix = "node";
};

struct LeaseTag {
    static constexpr const char* prefix = "lease";
};

struct TokenTag {
    static constexpr const char* prefix = "token";
};

using JobId = Id<JobTag>;
using TaskId = Id<TaskTag>;
using NodeId = Id<NodeTag>;
using LeaseId = Id<LeaseTag>;  ///< also the fencing number: grows with every grant, cluster-wide
using TokenId = Id<TokenTag>;

}  // namespace holdfast

template <typename Tag>
struct std::hash<holdfast::Id<Tag>> {
    std::size_t operator()(const holdfast::Id<Tag>& id) const noexcept {
        return std::hash<std::int64_t>{}(id.value);
    }
};
