// SPDX-License-Identifier: Apache-2.0
/// The metrics registry. Updates touch one atomic; registration and text() take the mutex.
#include <algorithm>
#include <map>
#include <mutex>
#include <variant>

#include <fmt/format.h>

#include <holdfast/metrics.hpp>
#include <holdfast/result.hpp>

namespace holdfast {

namespace {

using Series =
    std::variant<std::unique_ptr<Counter>, std::unique_ptr<Gauge>, std::unique_ptr<Histogram>>;

struct Family {
    std::string help;
    std::vector<std::string> label_names;
    std::size_t kind = 0;                  ///< index into Series
    std::map<std::string, Series> series;  ///< by label text: `a="x",b="y"`
};

bool is_word(std::string_view name) {
    return !name.empty() && name.front() >= 'a' && name.front() <= 'z' &&
           std::all_of(name.begin(), name.end(), [](char letter) {
               return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') ||
                      letter == '_';
           });
}

std::string escape(std::string_view text, bool with_quotes) {
    std::string escaped;
    for (const char letter : text) {
        if (letter == '\\' || (with_quotes && letter == '"')) {
            escaped += '\\';
            escaped += letter;
        } else if (letter == '\n') {
            escaped += "\\n";
        } else {
            escaped += letter;
        }
    }
    return escaped;
}

std::string label_text(const Labels& labels) {
    std::string text;
    for (const auto& [name, value] : labels) {
        text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, escape(value, true));
    }
    return text;
}

std::string braces(const std::string& labels) {
    return labels.empty() ? "" : "{" + labels + "}";
}

std::string number(double value) {
    if (value != value) {
        return "NaN";
    }
    if (value - value != 0.0) {
        return value > 0 ? "+Inf" : "-Inf";
    }
    return fmt::format("{}", value);
}

void write_series(std::string& text, const std::string& name, const std::string& labels,
                  const Series& series) {
    if (const auto* counter = std::get_if<std::unique_ptr<Counter>>(&series)) {
        text += fmt::format("{}{} {}\n", name, braces(labels), (*counter)->value());
        return;
    }
    if (const auto* gauge = std::get_if<std::unique_ptr<Gauge>>(&series)) {
        text += fmt::format("{}{} {}\n", name, braces(labels), number((*gauge)->value()));
        return;
    }
    const Histogram& histogram = *std::get<std::unique_ptr<Histogram>>(series);
    const std::string comma = labels.empty() ? "" : labels + ",";
    std::uint64_t total = 0;
    for (std::size_t index = 0; index <= histogram.bounds().size(); ++index) {
        total += histogram.in_bucket(index);
        const std::string bound = index < histogram.bounds().size()
                                      ? number(histogram.bounds()[index])
                                      : std::string("+Inf");
        text += fmt::format("{}_bucket{{{}le=\"{}\"}} {}\n", name, comma, bound, total);
    }
    text += fmt::format("{}_sum{} {}\n", name, braces(labels), number(histogram.sum()));
    text += fmt::format("{}_count{} {}\n", name, braces(labels), total);
}

}  // namespace

struct Metrics::State {
    mutable std::mutex mutex;
    std::map<std::string, Family, std::less<>> families;

    /// The series' slot. Pre: mutex held.
    std::pair<Series*, bool> slot(std::string_view name, std::string_view help,
                                  const Labels& labels, std::size_t kind) {
        HOLD_CHECK(is_word(name) && name.starts_with("holdfast_"),
                   "metric names are holdfast_<module>_<noun>_<unit>");
        std::vector<std::string> label_names;
        for (const auto& [label, value] : labels) {
            HOLD_CHECK(is_word(label), "label names are lower-case words");
            label_names.push_back(label);
        }
        auto [found, is_new] = families.try_emplace(std::string(name));
        Family& family = found->second;
        if (is_new) {
            family.help = help;
            family.label_names = label_names;
            family.kind = kind;
        }
        HOLD_CHECK(family.kind == kind, "a metric keeps its type");
        HOLD_CHECK(family.label_names == label_names, "a metric keeps its label names");
        auto [series, is_new_series] = family.series.try_emplace(label_text(labels));
        HOLD_CHECK(family.series.size() <= kSeriesMax, "labels come from small closed sets");
        return {&series->second, is_new_series};
    }
};

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(bounds_.size() + 1) {
    HOLD_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()), "histogram bounds ascend");
}

void Histogram::observe(double value) {
    const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
    buckets_[static_cast<std::size_t>(bound - bounds_.begin())].fetch_add(
        1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
}

std::uint64_t Histogram::count() const {
    std::uint64_t total = 0;
    for (const auto& bucket : buckets_) {
        total += bucket.load(std::memory_order_relaxed);
    }
    return total;
}

std::uint64_t Histogram::in_bucket(std::size_t index) const {
    return buckets_.at(index).load(std::memory_order_relaxed);
}

std::vector<double> latency_bounds_s() {
    return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
            0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
}

Metrics::Metrics() : state_(std::make_unique<State>()) {}

Metrics::~Metrics() = default;

Metrics& Metrics::global() {
    static Metrics* const registry = new Metrics;  // never destroyed: threads count until the end
    return *registry;
}

Counter& Metrics::counter(std::string_view name, std::string_view help, const Labels& labels) {
    const std::lock_guard lock(state_->mutex);
    HOLD_CHECK(name.ends_with("_total"), "counters end in _total");
    auto [series, is_new] = state_->slot(name, help, labels, 0);
    if (is_new) {
        *series = std::make_unique<Counter>();
    }
    return *std::get<std::unique_ptr<Counter>>(*series);
}

Gauge& Metrics::gauge(std::string_view name, std::string_view help, const Labels& labels) {
    const std::lock_guard lock(state_->mutex);
    auto [series, is_new] = state_->slot(name, help, labels, 1);
    if (is_new) {
        *series = std::make_unique<Gauge>();
    }
    return *std::get<std::unique_ptr<Gauge>>(*series);
}

Histogram& Metrics::histogram(std::string_view name, std::string_view help,
                              std::vector<double> bounds, const Labels& labels) {
    const std::lock_guard lock(state_->mutex);
    auto [series, is_new] = state_->slot(name, help, labels, 2);
    if (is_new) {
        *series = std::make_unique<Histogram>(std::move(bounds));
    }
    return *std::get<std::unique_ptr<Histogram>>(*series);
}

std::string Metrics::text() const {
    constexpr const char* kKinds[] = {"counter", "gauge", "histogram"};
    const std::lock_guard lock(state_->mutex);
    std::string text;
    for (const auto& [name, family] : state_->families) {
        text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escape(family.help, false), name,
                            kKinds[family.kind]);
        for (const auto& [labels, series] : family.series) {
            write_series(text, name, labels, series);
        }
    }
    return text;
}

}  // namespace holdfast
