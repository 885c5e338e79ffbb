// SPDX-License-Identifier: Apache-2.0
/// Tokens: who a caller is. The database holds hashes only, so a copy of it lets nobody in. The
/// secrets have 256 random bits: a plain SHA-256 needs no salt against guessing, and a look-up by
/// hash tells nothing of a secret by its timing.
#include <array>

#include <openssl/evp.h>

#include "rows.hpp"

namespace holdfast::services {

namespace {

constexpr std::size_t kSecretBytesMin = 16;
constexpr std::size_t kSecretBytesMax = 512;

std::string hash_of(const std::string& secret) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int length = 0;
    const int done =
        EVP_Digest(secret.data(), secret.size(), digest.data(), &length, EVP_sha256(), nullptr);
    HOLD_CHECK(done == 1, "SHA-256 is always there");
    std::string hex;
    for (unsigned int at = 0; at < length; ++at) {
        hex += fmt::format("{:02x}", digest[at]);
    }
    return hex;
}

Result<> check_secret(const std::string& secret) {
    if (secret.size() < kSecretBytesMin || secret.size() > kSecretBytesMax) {
        return fail(Errc::invalid_argument, "a token's secret has {} to {} bytes, not {}",
                    kSecretBytesMin, kSecretBytesMax, secret.size());
    }
    return {};
}

TokenRow token_from(const store::Row& row) {
    TokenRow token;
    token.id = row.id<TokenId>("id");
    token.user = row.text("user");
    token.role = row.text("role");
    token.description = row.text("description");
    token.created_us = row.integer("created_us");
    token.expires_us = row.integer("expires_us");
    token.revoked = row.integer("revoked_us") != 0;
    return token;
}

Error unknown(const char* why, const char* hint) {
    return make_error(Errc::unauthenticated, "the token {}", why).advise(hint);
}

}  // namespace

Result<TokenId> create_token(store::Tx& tx, const TokenRow& token, const std::string& secret) {
    HOLD_TRY(check_secret(secret));
    const bool known = token.role == "user" || token.role == "operator" || token.role == "admin" ||
                       token.role == "enrol" || token.role == "node";
    if (!known) {
        return fail(make_error(Errc::invalid_argument, "no role is called '{}'",
                               is_utf8(token.role) ? token.role.substr(0, 64) : "…")
                        .at("role")
                        .advise("user, operator, admin, enrol or node"));
    }
    HOLD_TRY(check_line(token.description, 1024, "description"));
    if (token.role != "enrol" || !token.user.empty()) {  // an enrolment may be for any node
        HOLD_TRY(check_name(token.user, token.role == "node" ? "node" : "user"));
    }
    if (token.expires_us < 0) {
        return fail(make_error(Errc::invalid_argument, "a token expires after 1970, or never (0)")
                        .at("expires_us"));
    }
    const std::string hash = hash_of(secret);
    HOLD_TRY(const auto twin, tx.query_one("SELECT 1 FROM token WHERE hash = $1", hash));
    if (twin) {
        return fail(Errc::conflict, "create token: the secret is in use");
    }
    HOLD_TRY(const std::int64_t number, tx.next_id("token"));
    HOLD_TRY(tx.exec(
        "INSERT INTO token (id, user, role, hash, description, created_us, "
        "expires_us) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        number, token.user, token.role, hash, token.description, tx.now_us(), token.expires_us));
    return TokenId(number);
}

Result<TokenRow> authenticate(store::ReadTx& tx, const std::string& secret, std::int64_t now_us) {
    if (secret.size() > kSecretBytesMax) {
        return fail(unknown("is not known", "ask for a new one"));
    }
    HOLD_TRY(const auto row,
             tx.query_one("SELECT id, user, role, description, created_us, expires_us, revoked_us, "
                          "used_us FROM token WHERE hash = $1",
                          hash_of(secret)));
    if (!row) {
        return fail(unknown("is not known", "check HOLDFAST_TOKEN_FILE, or ask for a new one"));
    }
    if (row->integer("revoked_us") != 0) {
        return fail(unknown("was revoked", "ask for a new one"));
    }
    if (row->integer("expires_us") != 0 && now_us >= row->integer("expires_us")) {
        return fail(unknown("has expired", "ask for a new one"));
    }
    if (row->integer("used_us") != 0) {
        return fail(unknown("was used up: it enrols one node, once",
                            "`hold node add NAME` makes a new one"));
    }
    return token_from(*row);
}

Result<> enrol_node(store::Tx& tx, const std::string& enrolment_secret, const std::string& node,
                    const std::string& node_secret) {
    HOLD_TRY(check_name(node, "node"));
    HOLD_TRY(const TokenRow enrolment, authenticate(tx, enrolment_secret, tx.now_us()));
    if (enrolment.role != "enrol") {
        return fail(
            make_error(Errc::denied, "enrol node {}: this is a {} token", node, enrolment.role)
                .advise("`hold node add NAME` makes an enrolment token"));
    }
    if (!enrolment.user.empty() && enrolment.user != node) {
        return fail(Errc::denied, "enrol node {}: the token is for node {}", node, enrolment.user);
    }
    HOLD_TRY(tx.exec("UPDATE token SET used_us = $2 WHERE id = $1", enrolment.id, tx.now_us()));
    HOLD_TRY(
        tx.exec("UPDATE token SET revoked_us = $2 WHERE role = 'node' AND user = $1 AND "
                "revoked_us = 0",
                node, tx.now_us()));
    // Whoever made the enrolment token wants the node back.
    HOLD_TRY(
        tx.exec("UPDATE node SET state = 'down', reason = 'enrolled, not registered yet' WHERE "
                "name = $1 AND state = 'removed'",
                node));
    TokenRow own;
    own.user = node;
    own.role = "node";
    own.description = fmt::format("made by enrolment {}", enrolment.id.label());
    HOLD_TRY(create_token(tx, own, node_secret));
    return {};
}

Result<> revoke_token(store::Tx& tx, TokenId token) {
    HOLD_TRY(const auto row, tx.query_one("SELECT 1 FROM token WHERE id = $1", token));
    if (!row) {
        return fail(make_error(Errc::not_found, "no {}", token.label())
                        .advise("`hold token list` shows the tokens"));
    }
    HOLD_TRY(tx.exec("UPDATE token SET revoked_us = $2 WHERE id = $1 AND revoked_us = 0", token,
                     tx.now_us()));
    return {};
}

Result<std::vector<TokenRow>> list_tokens(store::ReadTx& tx) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT id, user, role, description, created_us, expires_us, revoked_us FROM "
                      "token ORDER BY id"));
    std::vector<TokenRow> tokens;
    for (const store::Row& row : rows) {
        tokens.push_back(token_from(row));
    }
    return tokens;
}

}  // namespace holdfast::services
