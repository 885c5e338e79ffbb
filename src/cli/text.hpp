// SPDX-License-Identifier: Apache-2.0
// Text that people type and read: durations, sizes, host lists, device counts, array indices.
//
// The forms are Slurm's where Slurm has one, since that is what users' fingers know. Every parser
// refuses what it does not understand and says which forms it takes; errors carry no place, the
// caller adds it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::cli {

inline constexpr std::int32_t kArrayElementsMax = 10'000;
inline constexpr std::int32_t kArrayIndexMax = 4'000'000;
inline constexpr std::size_t kHostsMax = 10'000;

struct Gpus {
    std::int64_t count = 0;
    std::string type;  ///< empty: any
    bool operator==(const Gpus&) const = default;
};

struct ArraySpec {
    std::vector<std::int32_t> indices;
    std::int32_t at_once = 0;  ///< 0: no limit
    bool operator==(const ArraySpec&) const = default;
};

/// Decimal digits with an optional sign, nothing else. Errors: invalid_argument naming the range.
Result<std::int64_t> parse_integer(std::string_view text, std::int64_t low, std::int64_t high);
/// "30" (minutes), "30:00", "4:00:00", "2-12", "2-12:30", "2-00:00:00", "90s", "30m", "4h", "2d";
/// "unlimited" is 0. Seconds.
Result<std::int64_t> parse_time_limit(std::string_view text);
/// "200G", "512M", "4096" (MiB, as Slurm's --mem). Powers of 1024. Bytes.
Result<std::int64_t> parse_memory(std::string_view text);
/// "8" or "h100:8".
Result<Gpus> parse_gpus(std::string_view text);
/// "0-9%4", "1,3,5-7", "0-15:4". Indices are sorted; duplicates are refused.
Result<ArraySpec> parse_array(std::string_view text);
/// "n[01-03,7],gpu1" → n01 n02 n03 n7 gpu1. At most kHostsMax names.
Result<std::vector<std::string>> expand_hosts(std::string_view text);
/// The reverse, shortest form: n01 n02 n03 → "n[01-03]". Sorted, without repeats.
std::string compress_hosts(std::vector<std::string> names);

/// As squeue's TIME: "0:05", "1:02:03", "2-03:04:05".
std::string format_elapsed(std::int64_t duration_us);
/// "2026-01-31T12:00:00" in local time; "-" for 0.
std::string format_local_time(std::int64_t wall_us);

/// The candidate a typing mistake away (swapped, missing, extra or wrong letters), if one is near.
std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates);
/// "did you mean `x`?", or empty.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

[[nodiscard]] bool is_utf8(std::string_view text);
/// Control characters as \xNN: nobody's job name may steer another user's terminal.
std::string printable(std::string_view text);
/// Columns that `text` takes on a terminal (one per code point).
std::size_t display_width(std::string_view text);
/// One word for a POSIX shell.
std::string shell_quote(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

}  // namespace holdfast::cli
