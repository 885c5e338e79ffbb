// SPDX-License-Identifier: Apache-2.0
#include "job_ref.hpp"
#include "json.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

Listing pool_listing(const google::protobuf::RepeatedPtrField<v1::Pool>& pools) {
    Listing listing;
    listing.noun = "pools";
    listing.shape = to_json(v1::Pool());
    listing.columns = {
        {.header = "POOL"}, {.header = "NODES", .right = true}, {.header = "DESCRIPTION"}};
    for (const v1::Pool& pool : pools) {
        Row row;
        row.object = to_json(pool);
        row.cells = {pool.name(), std::to_string(pool.nodes()), pool.description()};
        row.name = pool.name();
        listing.rows.push_back(std::move(row));
    }
    return listing;
}

struct Options {
    std::optional<std::string> name;
    std::optional<std::string> description;
};

}  // namespace

Verb pool_create_verb() {
    return {
        .name = "pool create",
        .summary = "makes a pool of nodes (a partition)",
        .group = "Nodes",
        .prints = Prints::object,
        .declare = [](Flags& flags) -> Command {
            auto options = std::make_shared<Options>();
            flags.positional("NAME", options->name, "the pool's name");
            flags.text("--description", options->description, "TEXT", "for people");
            return [options](Session& session) -> Result<int> {
                HOLD_TRY(Client * client, session.client());
                v1::Pool wanted;
                wanted.set_name(*options->name);
                wanted.set_description(options->description.value_or(""));
                HOLD_TRY(const v1::Pool pool, client->create_pool(wanted));
                HOLD_TRY(print(session, {{"pool", to_json(pool)}},
                               fmt::format("pool {} is made\n", pool.name()), pool.name()));
                return 0;
            };
        },
        .examples = {"hold pool create h100", "hold pool create test --description 'for trials'"}};
}

Verb pool_list_verb() {
    return {.name = "pool list",
            .summary = "lists pools",
            .group = "Nodes",
            .prints = Prints::list,
            .declare = [](Flags&) -> Command {
                return [](Session& session) -> Result<int> {
                    HOLD_TRY(Client * client, session.client());
                    HOLD_TRY(const v1::ListPoolsResponse pools, client->list_pools());
                    HOLD_TRY(print(session, pool_listing(pools.pools())));
                    return 0;
                };
            },
            .examples = {"hold pool list", "hold pool list -o json"}};
}

Verb pool_delete_verb() {
    return {.name = "pool delete",
            .summary = "deletes a pool that has no nodes",
            .group = "Nodes",
            .prints = Prints::object,
            .declare = [](Flags& flags) -> Command {
                auto name = std::make_shared<std::optional<std::string>>();
                flags.positional("NAME", *name, "the pool's name");
                return [name](Session& session) -> Result<int> {
                    HOLD_TRY(Client * client, session.client());
                    v1::Pool pool;
                    pool.set_name(**name);
                    HOLD_TRY(client->delete_pool(pool));
                    HOLD_TRY(print(session, {{"deleted", **name}},
                                   fmt::format("pool {} is deleted\n", **name), **name));
                    return 0;
                };
            },
            .examples = {"hold pool delete test", "hold pool delete test --json"}};
}

}  // namespace holdfast::cli
