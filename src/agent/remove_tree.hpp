// SPDX-License-Identifier: Apache-2.0
/// Removes a folder whose content others could write, without ever leaving it.
#pragma once

#include <string>

#include <holdfast/result.hpp>

namespace holdfast::agent {

/// Removes `name` below `parent` (a descriptor) with all it holds. Follows no link and crosses no
/// mount; depth and number of entries are unlimited, descriptors are not.
/// Errors: failed naming what could not be removed; not_found.
Result<> remove_tree(int parent, const std::string& name);

}  // namespace holdfast::agent
