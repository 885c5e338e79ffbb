// SPDX-License-Identifier: Apache-2.0
/// Errors as values. No exception crosses a module's public header.
///
///     Result<Lease> renew(NodeId node) {
///         HOLD_TRY(const NodeRow row, find(node));          // returns early with the error
///         if (row.removed) {
///             return fail(Errc::not_found, "renew node {}: it was removed", row.name);
///         }
///         ...
///     }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <tl/expected.hpp>

namespace holdfast {

enum class Errc : std::uint16_t {
#define HOLD_ERROR(name, number, exit_code, grpc_code) name = number,
#include <holdfast/error_codes.def>
#undef HOLD_ERROR
};

/// The code's stable name, as in JSON and docs: "not_found".
[[nodiscard]] std::string_view to_string(Errc code);
/// The exit status that `hold` ends with for this code.
[[nodiscard]] int exit_code_of(Errc code);
/// The grpc::StatusCode number for this code.
[[nodiscard]] int grpc_code_of(Errc code);
/// The code with this name; Errc::failed for an unknown one.
[[nodiscard]] Errc errc_from(std::string_view name);

/// What went wrong. Message: what was tried, on what, why it failed; lower case, no full stop, no
/// secrets.
struct [[nodiscard]] Error {
    Errc code = Errc::failed;
    std::string message;
    std::string where;       ///< file:line:column, field, flag or row; may be empty
    std::string hint;        ///< what to do; may be empty
    bool retryable = false;  ///< the same call may succeed later
    bool injected = false;   ///< a test or simulator made this fault

    Error& at(std::string place) & {
        where = std::move(place);
        return *this;
    }

    Error&& at(std::string place) && {
        where = std::move(place);
        return std::move(*this);
    }

    Error&& advise(std::string what_to_do) && {
        hint = std::move(what_to_do);
        return std::move(*this);
    }

    Error&& may_retry() && {
        retryable = true;
        return std::move(*this);
    }

    /// Puts context before the message: "start server: open store: ...".
    Error&& within(std::string_view context) && {
        message = fmt::format("{}: {}", context, message);
        return std::move(*this);
    }

    /// One line for people: message, then where and hint if present.
    [[nodiscard]] std::string describe() const;
};

template <typename T = void>
using Result = tl::expected<T, Error>;

/// `fail(Errc::not_found, "no job {}", id)` → an unexpected to return.
template <typename... Args>
[[nodiscard]] tl::unexpected<Error> fail(Errc code, fmt::format_string<Args...> text,
                                         Args&&... args) {
    Error error;
    error.code = code;
    error.message = fmt::format(text, std::forward<Args>(args)...);
    return tl::unexpected<Error>(std::move(error));
}

/// The same as a plain Error, for `.at(...)` and `.advise(...)`.
template <typename... Args>
[[nodiscard]] Error make_error(Errc code, fmt::format_string<Args...> text, Args&&... args) {
    Error error;
    error.code = code;
    error.message = fmt::format(text, std::forward<Args>(args)...);
    return error;
}

[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
    return tl::unexpected<Error>(std::move(error));
}

/// Ends the process after logging: for bugs, never for input.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view why);

}  // namespace holdfast

#define HOLD_CONCAT_INNER(a, b) a##b
#define HOLD_CONCAT(a, b) HOLD_CONCAT_INNER(a, b)

/// HOLD_TRY(expression) or HOLD_TRY(declaration, expression): returns early with the error.
/// (An expression may hold up to two commas of its own, as in `f<A, B>(x)`.)
#define HOLD_TRY_SELECT(a, b, c, d, chosen, ...) chosen
#define HOLD_TRY(...)                                                               \
    HOLD_TRY_SELECT(__VA_ARGS__, HOLD_TRY_ASSIGN, HOLD_TRY_ASSIGN, HOLD_TRY_ASSIGN, \
                    HOLD_TRY_VOID, )                                                \
    (__VA_ARGS__)
#define HOLD_TRY_VOID(expression) \
    HOLD_TRY_VOID_AS(HOLD_CONCAT(hold_result_, __COUNTER__), expression)
#define HOLD_TRY_VOID_AS(name, ...)                                              \
    do {                                                                         \
        if (auto name = (__VA_ARGS__); !name) {                                  \
            return ::tl::unexpected<::holdfast::Error>(std::move(name).error()); \
        }                                                                        \
    } while (false)
#define HOLD_TRY_ASSIGN(declaration, ...) \
    HOLD_TRY_ASSIGN_AS(HOLD_CONCAT(hold_result_, __COUNTER__), declaration, __VA_ARGS__)
#define HOLD_TRY_ASSIGN_AS(name, declaration, ...)                           \
    auto name = (__VA_ARGS__);                                               \
    if (!name) {                                                             \
        return ::tl::unexpected<::holdfast::Error>(std::move(name).error()); \
    }                                                                        \
    declaration = std::move(name).value()

/// A bug if false. Stays on in release. Input can never reach it.
#define HOLD_CHECK(condition, why)                                           \
    do {                                                                     \
        if (!(condition)) {                                                  \
            ::holdfast::check_failed(__FILE__, __LINE__, #condition, (why)); \
        }                                                                    \
    } while (false)
