// SPDX-License-Identifier: Apache-2.0
/// Between the training messages and their wire form in api/holdfast.proto. Link
/// holdfast::training_proto.
///
/// from_proto refuses what no honest sender makes (a message without a kind, names out of range,
/// over-long lists).
#pragma once

#include <holdfast.pb.h>

#include <holdfast/result.hpp>
#include <holdfast/training_messages.hpp>

namespace holdfast::training {

v1::WorkerMessage to_proto(const WorkerReport& report);
v1::CoordinatorMessage to_proto(const CoordinatorCommand& command);
v1::TrainingSpec to_proto(const TrainingSpec& spec);
/// Errors: wire_corrupt.
Result<WorkerReport> from_proto(const v1::WorkerMessage& message);
/// Errors: wire_corrupt.
Result<CoordinatorCommand> from_proto(const v1::CoordinatorMessage& message);
TrainingSpec from_proto(const v1::TrainingSpec& spec);

}  // namespace holdfast::training
