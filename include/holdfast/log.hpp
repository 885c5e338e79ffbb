// SPDX-License-Identifier: Apache-2.0
/// Structured logging: named events with typed fields, as JSON lines or for people.
///
///     HOLD_EVENT(info, "placement_committed", {"job", job.id}, {"node", node.name}, {"solve_us",
///     t});
///
/// Names are snake_case, stable and documented; free text is a field. `error` means an operator
/// must act: in tests any error event that was not announced (ExpectedErrors) is a failure. Limits:
/// 512 bytes per text field, 4 KiB per event, 200 events per name and second (then counted and
/// reported as `events_suppressed`).
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <holdfast/ids.hpp>
#include <holdfast/result.hpp>

namespace holdfast {

enum class Level : std::uint8_t { debug, info, warn, error, off };

[[nodiscard]] std::string_view to_string(Level level);
/// Errors: invalid_argument naming the levels that exist.
[[nodiscard]] Result<Level> level_from(std::string_view name);

/// A value that must never be printed: tokens, keys, passwords. Prints and serialises as `***`.
class Secret {
  public:
    Secret() = default;

    explicit Secret(std::string value) : value_(std::move(value)) {}

    /// The only way to the value; every caller is worth a look in review.
    [[nodiscard]] const std::string& reveal() const { return value_; }

    [[nodiscard]] bool is_empty() const { return value_.empty(); }

  private:
    std::string value_;
};

/// One field of an event. Views only: lives no longer than the statement that logs.
struct Field {
    using Value = std::variant<bool, std::int64_t, std::uint64_t, double, std::string_view>;

    Field(std::string_view field, bool flag) : name(field), value(flag) {}

    template <std::signed_integral T>
        requires(!std::same_as<T, bool>)
    Field(std::string_view field, T number) : name(field), value(std::int64_t{number}) {}

    template <std::unsigned_integral T>
        requires(!std::same_as<T, bool>)
    Field(std::string_view field, T number) : name(field), value(std::uint64_t{number}) {}

    Field(std::string_view field, double number) : name(field), value(number) {}

    Field(std::string_view field, std::string_view text) : name(field), value(text) {}

    Field(std::string_view field, const char* text) : name(field), value(std::string_view(text)) {}

    Field(std::string_view field, const std::string& text)
        : name(field), value(std::string_view(text)) {}

    Field(std::string_view field, const Secret&) : name(field), value(std::string_view("***")) {}

    Field(std::string_view field, const Error& error) : name(field), value(error.message) {}

    template <typename Tag>
    Field(std::string_view field, Id<Tag> id) : name(field), value(id.value) {}

    std::string_view name;
    Value value;
};

enum class LogFormat : std::uint8_t {
    json,   ///< one object a line: {"time","level","event",fields…}
    human,  ///< `12:30:01.123 info  placement_committed job=42 node=n1`
};

struct LogOptions {
    Level level = Level::info;
    LogFormat format = LogFormat::json;
    std::string file = {};     ///< empty: standard error
    std::string program = {};  ///< added to every event as "program" when not empty
};

/// Sets the process's sink. Errors: invalid_argument when the file cannot be opened.
Result<> configure_logging(const LogOptions& options);
void set_log_level(Level level);
[[nodiscard]] bool is_logged(Level level);

/// Threads: safe. Never fails; what cannot be written is dropped and counted.
void log_event(Level level, std::string_view name, std::initializer_list<Field> fields);

/// What an event looked like, for tests.
struct LoggedEvent {
    Level level = Level::info;
    std::string name;
    std::string json;  ///< the whole line
};

/// Receives every event at `info` or above (whatever the sink's level) while it lives. One at a
/// time.
class LogRecorder {
  public:
    LogRecorder();
    ~LogRecorder();
    LogRecorder(const LogRecorder&) = delete;
    LogRecorder& operator=(const LogRecorder&) = delete;
    [[nodiscard]] std::vector<LoggedEvent> events() const;
    [[nodiscard]] std::vector<LoggedEvent> errors() const;
};

/// How many error events this process has logged: the test hook of "any error event fails the run".
[[nodiscard]] std::uint64_t error_events_logged();

}  // namespace holdfast

/// Fields are not evaluated when the level is off.
#define HOLD_EVENT(level, name, ...)                                                \
    do {                                                                            \
        if (::holdfast::is_logged(::holdfast::Level::level)) {                      \
            ::holdfast::log_event(::holdfast::Level::level, (name), {__VA_ARGS__}); \
        }                                                                           \
    } while (false)
