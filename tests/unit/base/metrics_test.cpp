// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include <gtest/gtest.h>

#include <holdfast/metrics.hpp>

namespace holdfast {
namespace {

TEST(Metrics, TextIsPrometheus) {
    Metrics metrics;
    metrics.counter("holdfast_test_calls_total", "Calls", {{"status", "ok"}}).add(2);
    metrics.counter("holdfast_test_calls_total", "Calls", {{"status", "failed"}}).add();
    metrics.gauge("holdfast_test_load", "Load\nnow").set(0.5);
    Histogram& histogram =
        metrics.histogram("holdfast_test_wait_seconds", "Wait", {0.1, 1.0}, {{"q", "a\"b\\"}});
    for (const double value : {0.05, 0.1, 0.5, 7.0}) {
        histogram.observe(value);
    }
    EXPECT_EQ(metrics.text(), R"(# HELP holdfast_test_calls_total Calls
# TYPE holdfast_test_calls_total counter
holdfast_test_calls_total{status="failed"} 1
holdfast_test_calls_total{status="ok"} 2
# HELP holdfast_test_load Load\nnow
# TYPE holdfast_test_load gauge
holdfast_test_load 0.5
# HELP holdfast_test_wait_seconds Wait
# TYPE holdfast_test_wait_seconds histogram
holdfast_test_wait_seconds_bucket{q="a\"b\\",le="0.1"} 2
holdfast_test_wait_seconds_bucket{q="a\"b\\",le="1"} 3
holdfast_test_wait_seconds_bucket{q="a\"b\\",le="+Inf"} 4
holdfast_test_wait_seconds_sum{q="a\"b\\"} 7.65
holdfast_test_wait_seconds_count{q="a\"b\\"} 4
)");
}

TEST(Metrics, TheSameSeriesIsTheSameObject) {
    Metrics metrics;
    Counter& one = metrics.counter("holdfast_test_total", "T");
    Counter& two = metrics.counter("holdfast_test_total", "T");
    EXPECT_EQ(&one, &two);
}

TEST(Metrics, CountsFromManyThreadsAddUp) {
    Metrics metrics;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
        threads.emplace_back([&metrics] {
            Counter& counter = metrics.counter("holdfast_test_total", "T");
            Histogram& histogram = metrics.histogram("holdfast_test_seconds", "S", {1.0});
            for (int count = 0; count < 1'000; ++count) {
                counter.add();
                histogram.observe(0.5);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(metrics.counter("holdfast_test_total", "T").value(), 8'000U);
    EXPECT_EQ(metrics.histogram("holdfast_test_seconds", "S", {1.0}).count(), 8'000U);
    EXPECT_EQ(metrics.histogram("holdfast_test_seconds", "S", {1.0}).sum(), 4'000.0);
}

TEST(MetricsDeathTest, MisuseIsABug) {
    Metrics metrics;
    EXPECT_DEATH(metrics.gauge("my_metric", ""), "metric names");
    EXPECT_DEATH(metrics.counter("holdfast_test_calls", ""), "counters end in _total");
    metrics.gauge("holdfast_test_load", "", {{"kind", "a"}});
    EXPECT_DEATH(metrics.gauge("holdfast_test_load", ""), "label names");
    EXPECT_DEATH(metrics.histogram("holdfast_test_load", "", {1.0}, {{"kind", "a"}}), "type");
    EXPECT_DEATH(
        for (int job = 0; job < 1'000;
             ++job) { metrics.gauge("holdfast_test_load", "", {{"kind", std::to_string(job)}}); },
        "closed sets");
}

}  // namespace
}  // namespace holdfast
