// SPDX-License-Identifier: Apache-2.0
// From an argument vector to an exit status.
#pragma once

#include <string>
#include <vector>

#include "verb.hpp"

namespace holdfast::cli {

/// Runs `hold` with these arguments (without the program's name) and returns its exit status. Every
/// error is printed: as text on stderr, in JSON mode as one object on stdout.
int run_hold(const std::vector<std::string>& arguments, Surroundings& surroundings);

/// Folder of the neighbours: HOLDFAST_LIBEXEC, else ../libexec/holdfast beside this program.
std::string libexec_folder();

}  // namespace holdfast::cli
