// SPDX-License-Identifier: Apache-2.0
#include "crypto.hpp"

#include <array>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <holdfast/result.hpp>

namespace holdfast::training {

namespace {

// SAFETY: char and unsigned char may alias; OpenSSL only reads.
const unsigned char* bytes_of(std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view text) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    const unsigned char* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                     bytes_of(text), text.size(), digest.data(), &size);
    HOLD_CHECK(done != nullptr && size == 32, "OpenSSL has HMAC-SHA256");
    return {digest.begin(), digest.begin() + size};
}

std::string sha256_hex(std::string_view text) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    const int done =
        EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
    HOLD_CHECK(done == 1 && size == 32, "OpenSSL has SHA-256");
    std::string hex;
    for (unsigned int i = 0; i < size; ++i) {
        hex += fmt::format("{:02x}", digest[i]);
    }
    return hex;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
    return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace holdfast::training
