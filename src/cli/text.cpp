// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <map>
#include <set>

namespace holdfast::cli {
namespace {

constexpr std::int64_t kMinute = 60;
constexpr std::int64_t kHour = 3600;
constexpr std::int64_t kDay = 86'400;
constexpr std::int64_t kTimeLimitMax = 3650 * kDay;  // ten years: more is a typing mistake
constexpr std::int64_t kMemoryMax = std::int64_t{1} << 50;
constexpr std::size_t kDigitsMax = 12;  // in host names: fits std::int64_t with room

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool all_digits(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lowered(std::string_view text) {
    std::string answer(text);
    std::transform(answer.begin(), answer.end(), answer.begin(), lower);
    return answer;
}

std::optional<std::int64_t> digits(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (!all_digits(text) || error != std::errc{} || end != text.data() + text.size()) {
        return std::nullopt;
    }
    return value;
}

tl::unexpected<Error> bad_time(std::string_view text) {
    return fail(
        make_error(Errc::invalid_argument, "`{}` is not a time", printable(text))
            .advise("write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM:SS, or 90s, 30m, 4h, 2d"));
}

/// The part after "D-" or a whole time with colons; `names` are the units from the left.
std::optional<std::int64_t> colon_fields(std::string_view text,
                                         std::span<const std::int64_t> units) {
    const auto fields = split(text, ':');
    if (fields.size() > units.size()) {
        return std::nullopt;
    }
    std::int64_t seconds = 0;
    for (std::size_t i = 0; i < fields.size(); ++i) {
        const auto value = digits(fields[i]);
        if (!value || *value > kTimeLimitMax) {
            return std::nullopt;
        }
        seconds += *value * units[i];
    }
    return seconds;
}

std::optional<std::int64_t> suffixed_time(std::string_view text) {
    static constexpr std::array<std::pair<char, std::int64_t>, 4> kUnits = {
        {{'s', 1}, {'m', kMinute}, {'h', kHour}, {'d', kDay}}};
    for (const auto& [letter, seconds] : kUnits) {
        if (lower(text.back()) == letter) {
            const auto value = digits(text.substr(0, text.size() - 1));
            return value && *value <= kTimeLimitMax ? std::optional(*value * seconds)
                                                    : std::nullopt;
        }
    }
    return std::nullopt;
}

std::optional<std::int64_t> slurm_time(std::string_view text) {
    const auto dash = text.find('-');
    if (dash != std::string_view::npos) {
        const auto days = digits(text.substr(0, dash));
        static constexpr std::array<std::int64_t, 3> kUnits = {kHour, kMinute, 1};
        const auto rest = colon_fields(text.substr(dash + 1), kUnits);
        if (!days || *days > kTimeLimitMax / kDay || !rest) {
            return std::nullopt;
        }
        return *days * kDay + *rest;
    }
    const auto colons = std::count(text.begin(), text.end(), ':');
    if (colons == 2) {
        static constexpr std::array<std::int64_t, 3> kUnits = {kHour, kMinute, 1};
        return colon_fields(text, kUnits);
    }
    static constexpr std::array<std::int64_t, 2> kUnits = {kMinute, 1};
    return colon_fields(text, kUnits);
}

struct Range {
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::int64_t step = 1;
};

std::optional<Range> array_range(std::string_view text) {
    Range range;
    if (const auto colon = text.find(':'); colon != std::string_view::npos) {
        const auto step = digits(text.substr(colon + 1));
        if (!step || *step == 0 || text.find('-') == std::string_view::npos) {
            return std::nullopt;
        }
        range.step = *step;
        text = text.substr(0, colon);
    }
    const auto dash = text.find('-');
    const auto first = digits(text.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : digits(text.substr(dash + 1));
    if (!first || !last || *last < *first) {
        return std::nullopt;
    }
    range.first = *first;
    range.last = *last;
    return range;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (true) {
        const auto at = text.find(separator);
        parts.push_back(text.substr(0, at));
        if (at == std::string_view::npos) {
            return parts;
        }
        text.remove_prefix(at + 1);
    }
}

std::string_view trim(std::string_view text) {
    constexpr std::string_view kBlank = " \t\r\n";
    const auto first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos) {
        return {};
    }
    return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

Result<std::int64_t> parse_integer(std::string_view text, std::int64_t low, std::int64_t high) {
    const bool negative = !text.empty() && text.front() == '-';
    const auto value = digits(text.substr(negative ? 1 : 0));
    if (!value) {
        return fail(Errc::invalid_argument, "`{}` is not a whole number from {} to {}",
                    printable(text), low, high);
    }
    const std::int64_t number = negative ? -*value : *value;
    if (number < low || number > high) {
        return fail(Errc::invalid_argument, "{} is outside {} to {}", number, low, high);
    }
    return number;
}

Result<std::int64_t> parse_time_limit(std::string_view text) {
    if (lowered(text) == "unlimited" || lowered(text) == "infinite") {
        return 0;
    }
    if (text.empty()) {
        return bad_time(text);
    }
    const auto seconds = is_digit(text.back()) ? slurm_time(text) : suffixed_time(text);
    if (!seconds) {
        return bad_time(text);
    }
    if (*seconds > kTimeLimitMax) {
        return fail(Errc::invalid_argument, "time `{}` is over ten years", printable(text));
    }
    return *seconds;
}

Result<std::int64_t> parse_memory(std::string_view text) {
    const std::string word = lowered(text);
    std::string_view number = word;
    for (const std::string_view unit : {"ib", "b"}) {
        if (number.size() > unit.size() + 1 && number.ends_with(unit) &&
            !is_digit(number[number.size() - unit.size() - 1])) {
            number.remove_suffix(unit.size());
            break;
        }
    }
    std::int64_t shift = 20;  // Slurm: a bare number is in MiB
    if (!number.empty() && !is_digit(number.back())) {
        static constexpr std::string_view kLetters = "kmgt";
        const auto at = kLetters.find(number.back());
        if (at == std::string_view::npos) {
            number = {};
        } else {
            shift = 10 * (static_cast<std::int64_t>(at) + 1);
            number.remove_suffix(1);
        }
    }
    const auto value = digits(number);
    if (!value) {
        return fail(make_error(Errc::invalid_argument, "`{}` is not a memory size", printable(text))
                        .advise("write 512M, 200G or 1T (a bare number is in MiB)"));
    }
    if (*value > (kMemoryMax >> shift)) {
        return fail(Errc::invalid_argument, "memory `{}` is over 1 PiB", printable(text));
    }
    if (*value == 0) {
        return fail(make_error(Errc::unsupported, "memory 0 (a whole node's) is not supported")
                        .advise("name an amount, such as 200G"));
    }
    return *value << shift;
}

Result<Gpus> parse_gpus(std::string_view text) {
    constexpr std::int64_t kGpusMax = 1'000'000;
    Gpus gpus;
    const auto colon = text.rfind(':');
    std::string_view number = text;
    if (colon != std::string_view::npos) {
        gpus.type = lowered(text.substr(0, colon));
        number = text.substr(colon + 1);
    }
    const auto count = digits(number);
    const bool typed = std::all_of(gpus.type.begin(), gpus.type.end(), [](char c) {
        return is_digit(c) || (c >= 'a' && c <= 'z') || c == '-' || c == '_' || c == '.';
    });
    if (!count || *count > kGpusMax || !typed || colon == 0) {
        return fail(
            make_error(Errc::invalid_argument, "`{}` is not a number of GPUs", printable(text))
                .advise("write 8, or TYPE:N such as h100:8"));
    }
    gpus.count = *count;
    return gpus;
}

Result<ArraySpec> parse_array(std::string_view text) {
    constexpr std::string_view kForms =
        "write 0-9, 1,3,5-7 or 0-15:4, with %N for at most N at once";
    ArraySpec spec;
    std::string_view list = text;
    if (const auto percent = text.find('%'); percent != std::string_view::npos) {
        const auto limit = digits(text.substr(percent + 1));
        if (!limit || *limit < 1 || *limit > kArrayElementsMax) {
            return fail(make_error(Errc::invalid_argument,
                                   "array `{}`: the limit after % is not a number from 1 to {}",
                                   printable(text), kArrayElementsMax)
                            .advise(std::string(kForms)));
        }
        spec.at_once = static_cast<std::int32_t>(*limit);
        list = text.substr(0, percent);
    }
    std::set<std::int32_t> seen;
    for (const std::string_view part : split(list, ',')) {
        const auto range = array_range(part);
        if (!range || range->last > kArrayIndexMax) {
            return fail(make_error(Errc::invalid_argument,
                                   "array `{}`: `{}` is not an index or range from 0 to {}",
                                   printable(text), printable(part), kArrayIndexMax)
                            .advise(std::string(kForms)));
        }
        for (std::int64_t index = range->first; index <= range->last; index += range->step) {
            if (seen.size() == kArrayElementsMax) {
                return fail(Errc::too_large, "array `{}` has more than {} elements",
                            printable(text), kArrayElementsMax);
            }
            if (!seen.insert(static_cast<std::int32_t>(index)).second) {
                return fail(Errc::invalid_argument, "array `{}` names index {} twice",
                            printable(text), index);
            }
        }
    }
    spec.indices.assign(seen.begin(), seen.end());
    return spec;
}

// ------------------------------------------------------------------------------------- host lists

namespace {

struct HostName {
    std::string prefix;
    std::string number;  ///< digits, may begin with zeros; empty: a name without a number
    std::string suffix;
};

/// "rack1-n08-ib" → {"rack1-n", "08", "-ib"}: the last run of digits counts.
HostName split_host(const std::string& name) {
    const auto last = name.find_last_of("0123456789");
    if (last == std::string::npos) {
        return {name, "", ""};
    }
    std::size_t first = last;
    while (first > 0 && is_digit(name[first - 1])) {
        --first;
    }
    if (last - first + 1 > kDigitsMax) {
        return {name, "", ""};
    }
    return {name.substr(0, first), name.substr(first, last - first + 1), name.substr(last + 1)};
}

std::string padded(std::int64_t value, std::size_t width) {
    return fmt::format("{:0{}}", value, width);
}

Result<> append_host(std::vector<std::string>& hosts, std::string name, std::string_view text) {
    if (hosts.size() == kHostsMax) {
        return fail(Errc::too_large, "host list `{}` names more than {} hosts",
                    printable(text.substr(0, 60)), kHostsMax);
    }
    hosts.push_back(std::move(name));
    return {};
}

bool is_host_text(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) {
        return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') || c == '-' || c == '_' ||
               c == '.';
    });
}

tl::unexpected<Error> bad_hosts(std::string_view text) {
    return fail(
        make_error(Errc::invalid_argument, "`{}` is not a host list", printable(text.substr(0, 60)))
            .advise("write names and ranges: n1,n2 or n[01-08,12]"));
}

/// One comma-separated item, at most one bracket.
Result<> expand_item(std::string_view item, std::string_view text,
                     std::vector<std::string>& hosts) {
    const auto open = item.find('[');
    if (open == std::string_view::npos) {
        if (item.empty() || !is_host_text(item)) {
            return bad_hosts(text);
        }
        return append_host(hosts, std::string(item), text);
    }
    const auto close = item.find(']');
    const std::string prefix(item.substr(0, open));
    if (close == std::string_view::npos || close < open || !is_host_text(prefix) ||
        !is_host_text(item.substr(close + 1))) {
        return bad_hosts(text);
    }
    for (const std::string_view part : split(item.substr(open + 1, close - open - 1), ',')) {
        const auto dash = part.find('-');
        const std::string_view low = part.substr(0, dash);
        const std::string_view high = dash == std::string_view::npos ? low : part.substr(dash + 1);
        const auto first = digits(low);
        const auto last = digits(high);
        if (!first || !last || *last < *first || low.size() > kDigitsMax ||
            high.size() > kDigitsMax) {
            return bad_hosts(text);
        }
        for (std::int64_t value = *first; value <= *last; ++value) {
            HOLD_TRY(append_host(
                hosts, prefix + padded(value, low.size()) + std::string(item.substr(close + 1)),
                text));
        }
    }
    return {};
}

}  // namespace

Result<std::vector<std::string>> expand_hosts(std::string_view text) {
    std::vector<std::string> hosts;
    std::size_t begin = 0;
    bool inside = false;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        if (i < text.size() && text[i] == '[') {
            inside = true;
        } else if (i < text.size() && text[i] == ']') {
            inside = false;
        } else if (i == text.size() || (text[i] == ',' && !inside)) {
            HOLD_TRY(expand_item(text.substr(begin, i - begin), text, hosts));
            begin = i + 1;
        }
    }
    return hosts;
}

std::string compress_hosts(std::vector<std::string> names) {
    struct Numbered {
        std::int64_t value;
        std::string number;
        auto operator<=>(const Numbered&) const = default;
    };

    std::map<std::pair<std::string, std::string>, std::set<Numbered>> groups;
    for (const std::string& name : names) {
        HostName host = split_host(name);
        auto& group = groups[{std::move(host.prefix), std::move(host.suffix)}];
        group.insert({digits(host.number).value_or(-1), host.number});
    }
    std::string answer;
    const auto append = [&answer](const std::string& item) {
        answer += answer.empty() ? item : "," + item;
    };
    for (const auto& [name, numbers] : groups) {
        std::vector<std::string> ranges;
        std::size_t hosts = 0;
        for (auto first = numbers.begin(); first != numbers.end();) {
            if (first->number.empty()) {
                append(name.first + name.second);
                ++first;
                continue;
            }
            auto last = first;
            auto next = std::next(first);
            while (next != numbers.end() && next->value == last->value + 1 &&
                   next->number == padded(next->value, first->number.size())) {
                last = next++;
            }
            ++hosts;
            ranges.push_back(first == last ? first->number : first->number + "-" + last->number);
            hosts += first == last ? 0 : 1;
            first = next;
        }
        if (hosts == 1) {
            append(name.first + ranges.front() + name.second);
        } else if (hosts > 1) {
            append(fmt::format("{}[{}]{}", name.first, fmt::join(ranges, ","), name.second));
        }
    }
    return answer;
}

// ------------------------------------------------------------------------------------------ times

std::string format_elapsed(std::int64_t duration_us) {
    const std::int64_t seconds = std::max<std::int64_t>(duration_us, 0) / 1'000'000;
    const std::int64_t days = seconds / kDay;
    const std::int64_t hours = seconds % kDay / kHour;
    const std::int64_t minutes = seconds % kHour / kMinute;
    const std::int64_t rest = seconds % kMinute;
    if (days > 0) {
        return fmt::format("{}-{:02}:{:02}:{:02}", days, hours, minutes, rest);
    }
    if (hours > 0) {
        return fmt::format("{}:{:02}:{:02}", hours, minutes, rest);
    }
    return fmt::format("{}:{:02}", minutes, rest);
}

std::string format_local_time(std::int64_t wall_us) {
    if (wall_us == 0) {
        return "-";
    }
    const std::time_t seconds = wall_us / 1'000'000;
    std::tm fields{};
    std::array<char, 32> text{};
    if (localtime_r(&seconds, &fields) == nullptr ||
        std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &fields) == 0) {
        return "-";
    }
    return text.data();
}

// ------------------------------------------------------------------------------------------ words

namespace {

/// Edit distance where a swap of neighbours counts once. Words are short: both are cut at 64.
std::size_t distance(std::string_view a, std::string_view b) {
    constexpr std::size_t kMax = 64;
    a = a.substr(0, kMax);
    b = b.substr(0, kMax);
    std::vector<std::vector<std::size_t>> cost(a.size() + 1,
                                               std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i) {
        for (std::size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            const std::size_t wrong = lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1;
            cost[i][j] =
                std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + wrong});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
            }
        }
    }
    return cost[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates) {
    const std::size_t near = std::max<std::size_t>(1, word.size() / 3);
    std::optional<std::string> best;
    std::size_t best_distance = near + 1;
    for (const std::string& candidate : candidates) {
        const std::size_t d = distance(word, candidate);
        if (d < best_distance && d < candidate.size()) {
            best_distance = d;
            best = candidate;
        }
    }
    return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
    const auto near = closest(word, candidates);
    return near ? fmt::format("did you mean `{}`?", *near) : std::string();
}

bool is_utf8(std::string_view text) {
    std::size_t i = 0;
    while (i < text.size()) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const std::size_t length = lead < 0x80   ? 1
                                   : lead < 0xc2 ? 0
                                   : lead < 0xe0 ? 2
                                   : lead < 0xf0 ? 3
                                   : lead < 0xf5 ? 4
                                                 : 0;
        if (length == 0 || i + length > text.size()) {
            return false;
        }
        std::uint32_t point = length == 1 ? lead : lead & (0xffU >> (length + 1));
        for (std::size_t k = 1; k < length; ++k) {
            const auto next = static_cast<unsigned char>(text[i + k]);
            if ((next & 0xc0U) != 0x80) {
                return false;
            }
            point = (point << 6) | (next & 0x3fU);
        }
        const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
        if (overlong || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) {
            return false;
        }
        i += length;
    }
    return true;
}

std::string printable(std::string_view text) {
    const bool valid = is_utf8(text);
    std::string answer;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        // U+0080 … U+009F are control characters too: 0xc2 0x80 … 0xc2 0x9f.
        const bool c1 = valid && c == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
        if (c < 0x20 || c == 0x7f || c1 || (!valid && c >= 0x80)) {
            answer += fmt::format("\\x{:02x}", c);
            if (c1) {
                answer += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
            }
        } else {
            answer += text[i];
        }
    }
    return answer;
}

std::size_t display_width(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0U) != 0x80;
    }));
}

std::string shell_quote(std::string_view text) {
    const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') ||
               std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
    });
    if (plain) {
        return std::string(text);
    }
    std::string quoted = "'";
    for (const char c : text) {
        quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return quoted + "'";
}

}  // namespace holdfast::cli
