// SPDX-License-Identifier: Apache-2.0
/// Events to lines. One mutex guards the sink, the rate table and the recorder; events are rare
/// enough. spdlog only carries finished lines to a file or to standard error.
#include <atomic>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <holdfast/env.hpp>
#include <holdfast/log.hpp>

namespace holdfast {

namespace {

constexpr std::size_t kFieldBytesMax = 512;
constexpr std::size_t kEventBytesMax = 4096;
constexpr std::uint32_t kEventsPerNameAndSecondMax = 200;
constexpr std::size_t kNamesMax =
    1024;  // names are literals; more means a bug, and they share a row

struct Rate {
    std::int64_t second = 0;
    std::uint32_t seen = 0;
    std::uint64_t suppressed = 0;
};

struct LogState {
    std::mutex mutex;
    spdlog::sink_ptr sink = std::make_shared<spdlog::sinks::stderr_sink_st>();
    LogFormat format = LogFormat::json;
    std::string program;
    std::map<std::string, Rate, std::less<>> rates;
    LogRecorder* recorder = nullptr;
    std::vector<LoggedEvent> recorded;
};

std::atomic<Level> level_of_sink{Level::info};
std::atomic<bool> is_recording{false};
std::atomic<std::uint64_t> error_count{0};

/// Never destroyed: threads may log until the very end of the process.
LogState& state() {
    static LogState* const made = [] {
        auto* fresh = new LogState;
        fresh->sink->set_pattern("%v");
        return fresh;
    }();
    return *made;
}

/// Cuts at a UTF-8 border and says so.
std::string_view cut(std::string_view text, std::size_t bytes_max) {
    if (text.size() <= bytes_max) {
        return text;
    }
    std::size_t end = bytes_max;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
        --end;
    }
    return text.substr(0, end);
}

/// Length of the valid UTF-8 sequence at `at`, or 0.
std::size_t utf8_length(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
    const unsigned char first = byte(at);
    if (first < 0x80) {
        return 1;
    }
    const std::size_t length = first >= 0xF0 ? 4U : (first >= 0xE0 ? 3U : 2U);
    if (first < 0xC2 || first > 0xF4 || at + length > text.size()) {
        return 0;
    }
    for (std::size_t index = 1; index < length; ++index) {
        if ((byte(at + index) & 0xC0U) != 0x80U) {
            return 0;
        }
    }
    const unsigned char second = byte(at + 1);
    const bool is_bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
    return is_bad ? 0 : length;
}

void append_json_text(std::string& line, std::string_view text) {
    const std::string_view kept = cut(text, kFieldBytesMax);
    line += '"';
    for (std::size_t at = 0; at < kept.size();) {
        const char letter = kept[at];
        const auto code = static_cast<unsigned char>(letter);
        const std::size_t length = utf8_length(kept, at);
        if (letter == '"' || letter == '\\') {
            line += '\\';
            line += letter;
        } else if (letter == '\n') {
            line += "\\n";
        } else if (code < 0x20 || code == 0x7F) {
            line += fmt::format("\\u{:04x}", static_cast<unsigned>(code));
        } else if (length == 0) {
            line += "\\ufffd";
        } else {
            line += kept.substr(at, length);
        }
        at += length == 0 ? 1 : length;
    }
    if (kept.size() < text.size()) {
        line += "…";
    }
    line += '"';
}

void append_value(std::string& line, const Field::Value& value) {
    std::visit(
        [&](const auto& typed) {
            using T = std::decay_t<decltype(typed)>;
            if constexpr (std::is_same_v<T, std::string_view>) {
                append_json_text(line, typed);
            } else if constexpr (std::is_same_v<T, bool>) {
                line += typed ? "true" : "false";
            } else if constexpr (std::is_same_v<T, double>) {
                // JSON has no NaN and no infinity.
                line += typed - typed == 0.0 ? fmt::format("{}", typed) : std::string("null");
            } else {
                line += fmt::format("{}", typed);
            }
        },
        value);
}

std::string json_line(const LogState& log, std::int64_t wall_us, Level level, std::string_view name,
                      std::initializer_list<Field> fields) {
    std::string line =
        fmt::format(R"({{"time":"{}","level":"{}","event":)", utc_time(wall_us), to_string(level));
    append_json_text(line, name);
    if (!log.program.empty()) {
        line += R"(,"program":)";
        append_json_text(line, log.program);
    }
    bool is_cut = false;
    for (const Field& field : fields) {
        const std::size_t before = line.size();
        line += ',';
        append_json_text(line, field.name);
        line += ':';
        append_value(line, field.value);
        if (line.size() > kEventBytesMax - 20) {  // room for the mark and the brace
            line.resize(before);
            is_cut = true;
        }
    }
    line += is_cut ? R"(,"truncated":true})" : "}";
    return line;
}

std::string human_line(std::int64_t wall_us, Level level, std::string_view name,
                       std::initializer_list<Field> fields) {
    const std::string time = utc_time(wall_us);
    std::string line = fmt::format("{} {:<5} {}", time.substr(11, 12), to_string(level), name);
    for (const Field& field : fields) {
        line += fmt::format(" {}=", field.name);
        const auto* text = std::get_if<std::string_view>(&field.value);
        const bool is_plain = text != nullptr && !text->empty() &&
                              text->find_first_of(" \"=\n\t\\") == std::string_view::npos;
        const std::size_t before = line.size();
        append_value(line, field.value);
        if (is_plain &&
            line.size() == before + text->size() + 2) {  // nothing was escaped: no quotes
            line.erase(before, 1);
            line.pop_back();
        }
        if (line.size() > kEventBytesMax) {
            line.resize(before);
            line += "…";
            break;
        }
    }
    return line;
}

void write_line(LogState& log, const std::string& line) {
    try {
        const spdlog::details::log_msg message(spdlog::string_view_t(), spdlog::level::info,
                                               spdlog::string_view_t(line.data(), line.size()));
        log.sink->log(message);
        log.sink->flush();
    } catch (const std::exception&) {
        // A full disk or a closed standard error must never stop the program.
    }
}

/// False when this name has had its share of this second. Reports what was held back before.
bool is_admitted(LogState& log, std::int64_t wall_us, std::string_view name) {
    auto found = log.rates.find(name);
    if (found == log.rates.end()) {
        const std::string key = log.rates.size() < kNamesMax ? std::string(name) : "(other)";
        found = log.rates.try_emplace(key).first;
    }
    Rate& rate = found->second;
    const std::int64_t second = wall_us / kSecondUs;
    if (rate.second != second) {
        const std::uint64_t held_back = std::exchange(rate.suppressed, 0);
        rate.second = second;
        rate.seen = 0;
        if (held_back > 0 && level_of_sink.load() <= Level::warn) {
            const std::initializer_list<Field> fields = {{"name", found->first},
                                                         {"count", held_back}};
            write_line(log, log.format == LogFormat::json
                                ? json_line(log, wall_us, Level::warn, "events_suppressed", fields)
                                : human_line(wall_us, Level::warn, "events_suppressed", fields));
        }
    }
    if (++rate.seen > kEventsPerNameAndSecondMax) {
        ++rate.suppressed;
        return false;
    }
    return true;
}

}  // namespace

std::string_view to_string(Level level) {
    switch (level) {
        case Level::debug:
            return "debug";
        case Level::info:
            return "info";
        case Level::warn:
            return "warn";
        case Level::error:
            return "error";
        case Level::off:
            break;
    }
    return "off";
}

Result<Level> level_from(std::string_view name) {
    for (const Level level : {Level::debug, Level::info, Level::warn, Level::error, Level::off}) {
        if (name == to_string(level)) {
            return level;
        }
    }
    return fail(Errc::invalid_argument, "log level {}: expected debug, info, warn, error or off",
                name);
}

Result<> configure_logging(const LogOptions& options) {
    spdlog::sink_ptr sink;
    try {
        if (options.file.empty()) {
            sink = std::make_shared<spdlog::sinks::stderr_sink_st>();
        } else {
            sink = std::make_shared<spdlog::sinks::basic_file_sink_st>(options.file, false);
        }
        sink->set_pattern("%v");
    } catch (const std::exception& error) {
        return fail(Errc::invalid_argument, "log file {}: {}", options.file, error.what());
    }
    LogState& log = state();
    const std::lock_guard lock(log.mutex);
    log.sink = std::move(sink);
    log.format = options.format;
    log.program = options.program;
    level_of_sink.store(options.level);
    return {};
}

void set_log_level(Level level) {
    level_of_sink.store(level);
}

bool is_logged(Level level) {
    return level >= level_of_sink.load(std::memory_order_relaxed) || level == Level::error ||
           (level >= Level::info && is_recording.load(std::memory_order_relaxed));
}

void log_event(Level level, std::string_view name, std::initializer_list<Field> fields) {
    if (level == Level::error) {
        error_count.fetch_add(1);
    }
    if (!is_logged(level)) {
        return;
    }
    const std::int64_t wall_us = real_env().clock.wall_us();
    LogState& log = state();
    const std::lock_guard lock(log.mutex);
    if (log.recorder != nullptr && level >= Level::info) {
        log.recorded.push_back(
            {level, std::string(name), json_line(log, wall_us, level, name, fields)});
    }
    if (level < level_of_sink.load() || !is_admitted(log, wall_us, name)) {
        return;
    }
    write_line(log, log.format == LogFormat::json ? json_line(log, wall_us, level, name, fields)
                                                  : human_line(wall_us, level, name, fields));
}

LogRecorder::LogRecorder() {
    LogState& log = state();
    const std::lock_guard lock(log.mutex);
    HOLD_CHECK(log.recorder == nullptr, "one LogRecorder at a time");
    log.recorder = this;
    log.recorded.clear();
    is_recording.store(true);
}

LogRecorder::~LogRecorder() {
    LogState& log = state();
    const std::lock_guard lock(log.mutex);
    log.recorder = nullptr;
    log.recorded.clear();
    is_recording.store(false);
}

std::vector<LoggedEvent> LogRecorder::events() const {
    LogState& log = state();
    const std::lock_guard lock(log.mutex);
    return log.recorded;
}

std::vector<LoggedEvent> LogRecorder::errors() const {
    std::vector<LoggedEvent> found = events();
    std::erase_if(found, [](const LoggedEvent& event) { return event.level != Level::error; });
    return found;
}

std::uint64_t error_events_logged() {
    return error_count.load();
}

}  // namespace holdfast
