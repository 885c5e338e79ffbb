// SPDX-License-Identifier: Apache-2.0
/// Brings a database to the newest schema: numbered scripts, each in a transaction of its own, each
/// once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include <holdfast/store.hpp>

#include "connection.hpp"
#include "delta_capture.hpp"
#include "history.hpp"

namespace holdfast::store {

/// Identifies a script's text: FNV-1a, 64 bits, hexadecimal.
[[nodiscard]] std::string script_checksum(std::string_view sql);

/// Applies what is missing, the store's own tables first. Rows that migrations write enter the
/// history. Returns the newest version. Errors: store_newer, conflict (an applied script has
/// another text), invalid_argument (a script is wrong: nothing of it stays).
[[nodiscard]] Result<int> migrate(Connection& connection, DeltaCapture& capture, Counters& counters,
                                  std::span<const Migration> migrations, std::int64_t now_us);

}  // namespace holdfast::store
