// SPDX-License-Identifier: Apache-2.0
/// What training workers and the coordinator say to each other, as plain structs.
/// api/holdfast.proto has the wire form of each (same names, same fields); training_proto.hpp
/// converts.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <holdfast/ids.hpp>
#include <holdfast/result.hpp>

namespace holdfast::training {

struct Shape {
    std::int32_t pipelines = 0;     ///< D, 1..kPipelinesMax
    std::int32_t stages = 0;        ///< P, 1..kStagesMax
    std::int32_t microbatches = 0;  ///< M per pipeline and step, 1..kMicrobatchesMax
    bool operator==(const Shape&) const = default;
};

inline constexpr std::int32_t kPipelinesMax = 256;
inline constexpr std::int32_t kStagesMax = 64;
inline constexpr std::int32_t kMicrobatchesMax = 1024;
/// D × P × M of the largest accepted job: bounds the planner's work and every table of a job.
inline constexpr std::int64_t kOperationsMax = 1 << 17;

struct WorkerName {
    std::int32_t pipeline = 0;
    std::int32_t stage = 0;
    auto operator<=>(const WorkerName&) const = default;
};

std::string to_string(WorkerName worker);  ///< "1:2": pipeline 1, stage 2
Result<WorkerName> parse_worker(std::string_view text);

struct TrainingSpec {
    std::int32_t pipelines = 0;
    std::int32_t stages = 0;
    std::int32_t microbatches = 0;
    std::string model;
    std::int64_t steps = 0;
    bool exact = false;
    std::string data;
    std::uint64_t seed = 0;
    std::string backend;
    bool operator==(const TrainingSpec&) const = default;

    [[nodiscard]] Shape shape() const { return {pipelines, stages, microbatches}; }
};

struct WorkerHello {
    LeaseId lease;
    WorkerName worker;
    std::int64_t epoch = 0;              ///< 0: a fresh worker
    std::int64_t version = -1;           ///< optimizer steps in its parameters; -1: none yet
    std::int64_t previous_version = -1;  ///< what it can roll back to; -1: nothing
    bool running = false;                ///< it had the Go of that epoch and is not interrupted
    std::string data_address;            ///< host:port
    std::string data_hash;
    std::int64_t pid = 0;
};

struct WorkerHeartbeat {};

struct MicrobatchLoss {
    std::int32_t pipeline = 0;
    std::int32_t microbatch = 0;
    double loss = 0;
    bool operator==(const MicrobatchLoss&) const = default;
};

/// Step done: parameters are version step + 1. Last stage: losses of all D × M microbatches (peers
/// exchange theirs with the gradients, so that one survivor can report them all).
struct StepCommit {
    std::int64_t epoch = 0;
    std::int64_t step = 0;
    std::vector<MicrobatchLoss> losses;
    std::int64_t step_us = 0;
    std::uint64_t parameter_hash = 0;
};

struct Stopped {
    std::int64_t epoch = 0;
    std::int64_t version = -1;
    std::int64_t previous_version = -1;
};

struct PauseAnswer {
    std::int64_t epoch = 0;
    std::int64_t at_step = 0;
    bool accepted = false;
    std::int64_t version = 0;
};

struct Ready {
    std::int64_t epoch = 0;
    std::int64_t version = 0;
};

struct Suspect {
    std::int64_t epoch = 0;
    WorkerName worker;
    std::string why;
};

struct WorkerFailed {
    std::string why;
};

using WorkerReport = std::variant<WorkerHello, WorkerHeartbeat, StepCommit, Stopped, PauseAnswer,
                                  Ready, Suspect, WorkerFailed>;

struct PeerAddress {
    WorkerName worker;
    std::string data_address;
};

struct EpochPlan {
    std::int64_t epoch = 0;
    TrainingSpec spec;
    std::vector<PeerAddress> live;  ///< in worker order
    std::int64_t version = 0;
    std::int32_t state_from_pipeline = -1;
    std::string cluster_key;  ///< 32 bytes
};

struct AbortEpoch {
    std::int64_t epoch = 0;
};

struct PauseAt {
    std::int64_t epoch = 0;
    std::int64_t at_step = 0;
};

struct Go {
    std::int64_t epoch = 0;
};

struct Finish {
    std::int64_t version = 0;
};

struct Fenced {
    std::string why;
};

struct CommitAck {
    std::int64_t step = 0;
};

using CoordinatorCommand =
    std::variant<EpochPlan, AbortEpoch, PauseAt, Go, Finish, Fenced, CommitAck>;

}  // namespace holdfast::training
