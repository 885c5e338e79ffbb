// SPDX-License-Identifier: Apache-2.0
// The API's messages as the objects of `--json`, and as rows of a table.
//
// Not protobuf's JSON: ids are bare integers, every field is there, and the words are those of SQL.
// `tasks` is a number as in SQL; the tasks themselves are `task_list`.
#pragma once

#include <cstdint>
#include <string>

#include "holdfast.pb.h"
#include "output.hpp"

namespace holdfast::cli {

/// `loss` is null without a training step, `spec` in lists, `spec.training` for other jobs.
Json to_json(const v1::Job& job);
Json to_json(const v1::JobSpec& spec);
Json to_json(const v1::Task& task);
Json to_json(const v1::Node& node);
Json to_json(const v1::Pool& pool);
/// Without its secret.
Json to_json(const v1::Token& token);
/// `before` and `after` are objects, or null for a row that was not there.
Json to_json(const v1::Change& change);

/// What people call it: "42", or "42_3" for an element of an array.
std::string job_label(const v1::Job& job);
/// squeue's ST: PD R S CD F CA TO NF.
std::string state_letters(const std::string& job_state);

Listing job_listing(const google::protobuf::RepeatedPtrField<v1::Job>& jobs, std::int64_t now_us);
Listing node_listing(const google::protobuf::RepeatedPtrField<v1::Node>& nodes,
                     std::int64_t now_us);

}  // namespace holdfast::cli
