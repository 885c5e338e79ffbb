// SPDX-License-Identifier: Apache-2.0
// Between the API's messages and the services' structs.
#pragma once

#include <string>
#include <vector>

#include <holdfast.pb.h>

#include <holdfast/placement.hpp>
#include <holdfast/result.hpp>
#include <holdfast/services.hpp>

#include "sql/sql_answer.hpp"

namespace holdfast::server {

/// The bounds of what a spec may hold are checked here, its meaning in services::checked.
Result<services::JobSpec> from_proto(const v1::JobSpec& spec);
v1::JobSpec to_proto(const services::JobSpec& spec);

v1::Job to_proto(const services::JobRow& job);
v1::Task to_proto(const services::TaskRow& task);
v1::Node to_proto(const services::NodeRow& node);
v1::Token to_proto(const services::TokenRow& token);
v1::SqlResponse to_proto(sql::Answer&& answer);

bool is_ended(const std::string& job_state);

/// One job that stands for an array: running if any element runs, else pending or paused while any
/// waits, else the worst end.
v1::Job array_as_job(std::int64_t array, const std::vector<services::JobRow>& elements);

/// A spec's texts may hold what only the owner should see: env, and the command with it.
void hide_private(v1::Job& job);

}  // namespace holdfast::server
