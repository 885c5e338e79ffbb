// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "job_ref.hpp"
#include "json.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

const std::vector<std::string> kRoles = {"user", "operator", "admin", "enrol"};

struct Options {
    std::optional<std::string> user;
    std::optional<std::string> role;
    std::optional<std::string> expires;
    std::optional<std::string> description;
};

Result<v1::Token> wanted_token(Session& session, const Options& options) {
    v1::Token token;
    token.set_user(options.user.value_or(""));
    token.set_role(options.role.value_or("user"));
    token.set_description(options.description.value_or(""));
    if (std::find(kRoles.begin(), kRoles.end(), token.role()) == kRoles.end()) {
        const std::string near = did_you_mean(token.role(), kRoles);
        return fail(
            make_error(Errc::invalid_argument, "unknown role `{}`", printable(token.role()))
                .at("--role")
                .advise(near.empty() ? fmt::format("choose {}", fmt::join(kRoles, ", ")) : near));
    }
    if (options.expires) {
        auto seconds = parse_time_limit(*options.expires);
        if (!seconds) {
            return fail(std::move(seconds).error().at("--expires"));
        }
        token.set_expires_us(*seconds == 0 ? 0 : session.now_us() + *seconds * kSecondUs);
    }
    return token;
}

Result<int> create(Session& session, const Options& options) {
    HOLD_TRY(const v1::Token wanted, wanted_token(session, options));
    HOLD_TRY(Client * client, session.client());
    HOLD_TRY(const v1::Token token, client->create_token(wanted));
    Json object = to_json(token);
    object["secret"] = token.secret();
    HOLD_TRY(print(session, {{"token", std::move(object)}}, token.secret() + "\n",
                   fmt::format("token-{}", token.id())));
    session.note(
        fmt::format("token-{} is shown once: keep it in a file that only you can read, and "
                    "name the file with --token-file",
                    token.id()));
    return 0;
}

Listing token_listing(const google::protobuf::RepeatedPtrField<v1::Token>& tokens,
                      std::int64_t now_us) {
    Listing listing;
    listing.noun = "tokens";
    listing.shape = to_json(v1::Token());
    listing.columns = {{.header = "TOKEN", .right = true},
                       {.header = "USER"},
                       {.header = "ROLE"},
                       {.header = "STATE"},
                       {.header = "CREATED"},
                       {.header = "EXPIRES"},
                       {.header = "DESCRIPTION"}};
    for (const v1::Token& token : tokens) {
        const bool over = token.expires_us() != 0 && token.expires_us() <= now_us;
        Row row;
        row.object = to_json(token);
        row.cells = {std::to_string(token.id()),
                     token.user(),
                     token.role(),
                     token.revoked() ? "revoked"
                     : over          ? "expired"
                                     : "valid",
                     format_local_time(token.created_us()),
                     format_local_time(token.expires_us()),
                     token.description()};
        row.name = fmt::format("token-{}", token.id());
        listing.rows.push_back(std::move(row));
    }
    return listing;
}

Result<int> revoke(Session& session, const std::vector<std::string>& ids) {
    HOLD_TRY(Client * client, session.client());
    Listing listing;
    listing.noun = "revoked";
    listing.shape = {{"id", 0}};
    listing.columns = {{.header = "REVOKED"}};
    for (const std::string& text : ids) {
        std::string_view number = text;
        if (number.starts_with("token-")) {
            number.remove_prefix(6);
        }
        const auto id = parse_integer(number, 1, std::int64_t{1} << 62);
        if (!id) {
            return fail(
                make_error(Errc::invalid_argument, "`{}` is not a token's id", printable(text))
                    .at(printable(text))
                    .advise("write 7 or token-7; see `hold token list`"));
        }
        v1::Token token;
        token.set_id(*id);
        HOLD_TRY(client->revoke_token(token));
        Row row;
        row.object = {{"id", *id}};
        row.name = fmt::format("token-{}", *id);
        row.cells = {row.name};
        listing.rows.push_back(std::move(row));
    }
    HOLD_TRY(print(session, std::move(listing)));
    return 0;
}

}  // namespace

Verb token_create_verb() {
    return {.name = "token create",
            .summary = "makes a token for calls over TCP, shown once",
            .group = "Access",
            .prints = Prints::object,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                flags.text("--user", options->user, "NAME",
                           "whose calls it makes (default: yours)");
                FlagInfo& role = flags.text("--role", options->role, "ROLE",
                                            "user (default), operator, admin or enrol");
                role.completes = Completes::words;
                role.words = kRoles;
                flags.text("--expires", options->expires, "TIME", "from now: 8h, 30d");
                flags.text("--description", options->description, "TEXT", "for people");
                return [options](Session& session) { return create(session, *options); };
            },
            .examples = {"hold token create --expires 30d > ~/.hold-token",
                         "hold token create --user ada --role operator"}};
}

Verb token_list_verb() {
    return {.name = "token list",
            .summary = "lists tokens, without their secrets",
            .group = "Access",
            .prints = Prints::list,
            .declare = [](Flags&) -> Command {
                return [](Session& session) -> Result<int> {
                    HOLD_TRY(Client * client, session.client());
                    HOLD_TRY(const v1::ListTokensResponse tokens, client->list_tokens());
                    HOLD_TRY(print(session, token_listing(tokens.tokens(), session.now_us())));
                    return 0;
                };
            },
            .examples = {"hold token list", "hold token list --sort expires_us"}};
}

Verb token_revoke_verb() {
    return {.name = "token revoke",
            .summary = "makes tokens useless",
            .group = "Access",
            .prints = Prints::list,
            .declare = [](Flags& flags) -> Command {
                auto ids = std::make_shared<std::vector<std::string>>();
                flags.positionals("ID", *ids, "token: 7 or token-7");
                return [ids](Session& session) { return revoke(session, *ids); };
            },
            .examples = {"hold token revoke 7", "hold token revoke token-7 token-8"}};
}

}  // namespace holdfast::cli
