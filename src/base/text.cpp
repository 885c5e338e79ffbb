// SPDX-License-Identifier: Apache-2.0
/// Values as text for people, and the parts of Random and Connection that need no machine.
#include <array>
#include <cstdio>
#include <ctime>

#include <fmt/format.h>

#include <holdfast/env.hpp>

namespace holdfast {

std::uint64_t Random::below(std::uint64_t bound) {
    if (bound == 0) {
        return 0;
    }
    // Draws from the last, incomplete block of `bound` are refused so that every value is equally
    // likely.
    const std::uint64_t refused = (0 - bound) % bound;
    while (true) {
        const std::uint64_t draw = next();
        if (draw >= refused) {
            return draw % bound;
        }
    }
}

double Random::uniform() {
    constexpr double kStep = 1.0 / 9007199254740992.0;  // 2^-53: the spacing of doubles below 1
    return static_cast<double>(next() >> 11) * kStep;
}

std::string Random::hex(std::size_t bytes) {
    std::vector<std::byte> raw(bytes);
    fill(raw);
    std::string text;
    text.reserve(bytes * 2);
    for (const std::byte byte : raw) {
        fmt::format_to(std::back_inserter(text), "{:02x}", std::to_integer<unsigned>(byte));
    }
    return text;
}

Result<> Connection::read_all(std::span<std::byte> into, std::int64_t wait_us) {
    while (!into.empty()) {
        HOLD_TRY(const std::size_t got, read_some(into, wait_us));
        if (got == 0) {
            return fail(Errc::peer_lost, "read from {}: the stream ended {} bytes early", peer(),
                        into.size());
        }
        into = into.subspan(got);
    }
    return {};
}

std::string human_bytes(std::uint64_t bytes) {
    constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    if (bytes < 1024) {
        return fmt::format("{} B", bytes);
    }
    double value = static_cast<double>(bytes) / 1024.0;
    std::size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < kUnits.size()) {
        value /= 1024.0;
        ++unit;
    }
    return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string human_duration(std::int64_t duration_us) {
    if (duration_us < 0) {
        return "-" + human_duration(-duration_us);
    }
    if (duration_us < 1000) {
        return fmt::format("{} us", duration_us);
    }
    if (duration_us < kSecondUs) {
        return fmt::format("{} ms", duration_us / 1000);
    }
    const std::int64_t seconds = duration_us / kSecondUs;
    if (seconds < 60) {
        return fmt::format("{}.{} s", seconds, duration_us % kSecondUs / 100'000);
    }
    if (seconds < 3600) {
        return fmt::format("{} min {} s", seconds / 60, seconds % 60);
    }
    if (seconds < 86'400) {
        return fmt::format("{} h {} min", seconds / 3600, seconds % 3600 / 60);
    }
    return fmt::format("{} d {} h", seconds / 86'400, seconds % 86'400 / 3600);
}

std::string utc_time(std::int64_t wall_us) {
    std::int64_t micros = wall_us % kSecondUs;
    std::int64_t seconds = wall_us / kSecondUs;
    if (micros < 0) {
        micros += kSecondUs;
        --seconds;
    }
    const std::time_t when = seconds;
    std::tm parts{};
    if (gmtime_r(&when, &parts) == nullptr) {
        return fmt::format("{} us", wall_us);  // a year that does not fit an int
    }
    return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900,
                       parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                       micros);
}

}  // namespace holdfast
