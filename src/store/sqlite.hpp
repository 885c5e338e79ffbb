// SPDX-License-Identifier: Apache-2.0
/// SQLite's header with the preupdate hook, which it hides unless asked before the include.
#pragma once

#define SQLITE_ENABLE_PREUPDATE_HOOK 1  // NOLINT: SQLite's own switch
#include <sqlite3.h>
