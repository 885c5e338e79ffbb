// SPDX-License-Identifier: Apache-2.0
// The one keyed hash of the training protocol. OpenSSL ends in crypto.cpp.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::training {

/// HMAC-SHA256: 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view text);
/// SHA-256 as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view text);
/// Compares without telling by its duration where the two differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace holdfast::training
