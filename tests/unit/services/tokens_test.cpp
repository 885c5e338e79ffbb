// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

namespace holdfast::services {
namespace {

const std::string kSecret = "hf_0123456789abcdef0123456789abcdef";

TokenRow token(const std::string& role, const std::string& user = "ada") {
    TokenRow row;
    row.role = role;
    row.user = user;
    return row;
}

TokenId make(World& world, const TokenRow& row, const std::string& secret) {
    return world.must([&](store::Tx& tx) { return create_token(tx, row, secret); });
}

Result<TokenRow> who(World& world, const std::string& secret, std::int64_t now_us = 1) {
    return world.read([&](store::ReadTx& tx) { return authenticate(tx, secret, now_us); });
}

TEST(Tokens, OnlyTheHashIsStored) {
    World world;
    make(world, token("user"), kSecret);
    const auto row =
        world.read([](store::ReadTx& tx) { return tx.query_one("SELECT hash FROM token"); });
    // echo -n hf_0123456789abcdef0123456789abcdef | sha256sum
    EXPECT_EQ((*row)->text(0), "457da978f6eee3af2fe037a3752c3a2dc5f78f72a25ff04f0ed511ab685bd1f0");
    EXPECT_EQ(who(world, kSecret).value().user, "ada");
    EXPECT_EQ(who(world, kSecret).value().role, "user");
    EXPECT_EQ(who(world, kSecret + "x").error().code, Errc::unauthenticated);
    EXPECT_EQ(who(world, "").error().code, Errc::unauthenticated);
    EXPECT_EQ(who(world, std::string(5000, 'x')).error().code, Errc::unauthenticated);
}

TEST(Tokens, ExpireAndAreRevoked) {
    World world;
    TokenRow row = token("operator");
    row.expires_us = 1000;
    const TokenId id = make(world, row, kSecret);
    EXPECT_TRUE(who(world, kSecret, 999).has_value());
    EXPECT_EQ(who(world, kSecret, 1000).error().code, Errc::unauthenticated);
    world.must([&](store::Tx& tx) { return revoke_token(tx, id); });
    world.must([&](store::Tx& tx) { return revoke_token(tx, id); });
    EXPECT_EQ(who(world, kSecret, 999).error().code, Errc::unauthenticated);
    const auto all = world.must([](store::Tx& tx) { return list_tokens(tx); });
    ASSERT_EQ(all.size(), 1U);
    EXPECT_TRUE(all[0].revoked);
    EXPECT_EQ(all[0].expires_us, 1000);
    EXPECT_EQ(world.code([](store::Tx& tx) { return revoke_token(tx, TokenId(9)); }),
              Errc::not_found);
}

TEST(Tokens, AreChecked) {
    World world;
    const auto refused = [&](const TokenRow& row, const std::string& secret) {
        return world.code([&](store::Tx& tx) { return create_token(tx, row, secret); });
    };
    EXPECT_EQ(refused(token("king"), kSecret), Errc::invalid_argument);
    EXPECT_EQ(refused(token("user"), "short"), Errc::invalid_argument);
    EXPECT_EQ(refused(token("user", ""), kSecret), Errc::invalid_argument);
    make(world, token("user"), kSecret);
    EXPECT_EQ(refused(token("admin"), kSecret), Errc::conflict);
}

TEST(Tokens, AnEnrolmentWorksOnce) {
    World world;
    const std::string own = "hf_node_0123456789abcdef";
    make(world, token("enrol", ""), kSecret);
    const auto enrol = [&](const std::string& secret, const std::string& node,
                           const std::string& node_secret) {
        return world.call([&](store::Tx& tx) { return enrol_node(tx, secret, node, node_secret); });
    };
    ASSERT_TRUE(enrol(kSecret, "n1", own));
    EXPECT_EQ(who(world, own).value().role, "node");
    EXPECT_EQ(who(world, own).value().user, "n1");
    EXPECT_EQ(enrol(kSecret, "n2", own + "2").error().code, Errc::unauthenticated);
    EXPECT_EQ(enrol(own, "n2", own + "2").error().code, Errc::denied);

    make(world, token("enrol", "n1"), kSecret + "n1");
    EXPECT_EQ(enrol(kSecret + "n1", "n2", own + "2").error().code, Errc::denied);
    ASSERT_TRUE(enrol(kSecret + "n1", "n1", own + "3"));
    EXPECT_EQ(who(world, own).error().code, Errc::unauthenticated);  // replaced
    EXPECT_TRUE(who(world, own + "3").has_value());
}

TEST(Tokens, RemovingANodeRevokesItsToken) {
    World world;
    world.node("n1");
    const std::string own = "hf_node_0123456789abcdef";
    make(world, token("node", "n1"), own);
    world.must([](store::Tx& tx) { return remove_node(tx, "n1"); });
    EXPECT_EQ(who(world, own).error().code, Errc::unauthenticated);
    make(world, token("enrol", "n1"), kSecret);
    world.must([&](store::Tx& tx) { return enrol_node(tx, kSecret, "n1", own + "2"); });
    EXPECT_EQ(world.find("n1").state, "down");
    EXPECT_EQ(world.node("n1").state, "up");
}

}  // namespace
}  // namespace holdfast::services
