// SPDX-License-Identifier: Apache-2.0
// The append-only history, as System.History shows it.
#pragma once

#include <holdfast.pb.h>

#include <holdfast/result.hpp>
#include <holdfast/store.hpp>

#include "access.hpp"

namespace holdfast::server {

/// Oldest first, after `after_seq`. Plain users see changes of everybody's rows, but not the texts
/// of other people's job specs (commands and environments).
Result<v1::HistoryResponse> read_history(store::ReadTx& tx, const v1::HistoryRequest& request,
                                         const Caller& caller);

}  // namespace holdfast::server
