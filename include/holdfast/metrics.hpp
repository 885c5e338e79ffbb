// SPDX-License-Identifier: Apache-2.0
/// A registry of counters, gauges and histograms, written in Prometheus' text format.
///
///     static Counter& commits = Metrics::global().counter(
///         "holdfast_store_commits_total", "Committed transactions", {{"durability", "durable"}});
///     commits.add();
///
/// Names are `holdfast_<module>_<noun>_<unit>[_total]`. Labels come from closed sets (an enum's
/// names), never from users: no job id, no path. A family has at most kSeriesMax series; a bad
/// name, a changed type or label set, or one series too many is a bug and ends the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace holdfast {

using Labels = std::vector<std::pair<std::string, std::string>>;

/// Threads: all methods of the three are safe and lock-free.
class Counter {
  public:
    void add(std::uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }

    [[nodiscard]] std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t> value_{0};
};

class Gauge {
  public:
    void set(double value) { value_.store(value, std::memory_order_relaxed); }

    void add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }

    [[nodiscard]] double value() const { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<double> value_{0.0};
};

class Histogram {
  public:
    /// Upper bounds, ascending; +Inf is implied.
    explicit Histogram(std::vector<double> bounds);
    void observe(double value);
    [[nodiscard]] std::uint64_t count() const;

    [[nodiscard]] double sum() const { return sum_.load(std::memory_order_relaxed); }

    [[nodiscard]] const std::vector<double>& bounds() const { return bounds_; }

    /// Observations in bucket `index` alone; index bounds().size() is +Inf.
    [[nodiscard]] std::uint64_t in_bucket(std::size_t index) const;

  private:
    std::vector<double> bounds_;
    std::vector<std::atomic<std::uint64_t>> buckets_;
    std::atomic<double> sum_{0.0};
};

/// 100 µs … 10 s in steps of about 2.5, in seconds.
[[nodiscard]] std::vector<double> latency_bounds_s();

class Metrics {
  public:
    static constexpr std::size_t kSeriesMax = 256;

    Metrics();
    ~Metrics();
    Metrics(const Metrics&) = delete;
    Metrics& operator=(const Metrics&) = delete;

    /// The process's registry.
    [[nodiscard]] static Metrics& global();

    /// The series with these labels, made on first use; the reference stays valid. Threads: safe.
    Counter& counter(std::string_view name, std::string_view help, const Labels& labels = {});
    Gauge& gauge(std::string_view name, std::string_view help, const Labels& labels = {});
    Histogram& histogram(std::string_view name, std::string_view help, std::vector<double> bounds,
                         const Labels& labels = {});

    /// Everything in Prometheus' text exposition format 0.0.4, families and series sorted.
    [[nodiscard]] std::string text() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace holdfast
