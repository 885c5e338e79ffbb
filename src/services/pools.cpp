// SPDX-License-Identifier: Apache-2.0
/// Pools: nodes that are scheduled together.
#include "rows.hpp"

namespace holdfast::services {

Result<> create_pool(store::Tx& tx, const std::string& name, const std::string& description) {
    HOLD_TRY(check_name(name, "pool"));
    HOLD_TRY(check_line(description, 1024, "description"));
    HOLD_TRY(const auto known, tx.query_one("SELECT 1 FROM pool WHERE name = $1", name));
    if (known) {
        return fail(Errc::conflict, "create pool '{}': it exists", name);
    }
    HOLD_TRY(tx.exec("INSERT INTO pool (name, description) VALUES ($1, $2)", name, description));
    return {};
}

Result<> delete_pool(store::Tx& tx, const std::string& name) {
    if (name == "default") {
        return fail(Errc::bad_state, "delete pool 'default': it is where nodes go by default");
    }
    HOLD_TRY(
        const auto row,
        tx.query_one("SELECT (SELECT count(*) FROM node WHERE pool = $1 AND state != "
                     "'removed') AS nodes, (SELECT count(*) FROM job WHERE pool = $1 AND state "
                     "IN ('pending', 'running', 'paused')) AS jobs FROM pool WHERE name = $1",
                     name));
    if (!row) {
        return fail(Errc::not_found, "delete pool '{}': no pool has this name", name);
    }
    if (row->integer("nodes") > 0 || row->integer("jobs") > 0) {
        return fail(make_error(Errc::bad_state,
                               "delete pool '{}': it has {} nodes and {} jobs that "
                               "have not ended",
                               name, row->integer("nodes"), row->integer("jobs"))
                        .advise("remove its nodes and cancel its jobs first"));
    }
    HOLD_TRY(
        tx.exec("UPDATE node SET pool = 'default' WHERE pool = $1 AND state = 'removed'", name));
    HOLD_TRY(tx.exec("DELETE FROM pool WHERE name = $1", name));
    return {};
}

Result<std::vector<PoolRow>> list_pools(store::ReadTx& tx) {
    HOLD_TRY(const auto rows,
             tx.query("SELECT p.name, p.description, (SELECT count(*) FROM node n WHERE n.pool = "
                      "p.name AND n.state != 'removed') AS nodes FROM pool p ORDER BY p.name"));
    std::vector<PoolRow> pools;
    for (const store::Row& row : rows) {
        pools.push_back({row.text("name"), row.text("description"),
                         static_cast<std::int32_t>(row.integer("nodes"))});
    }
    return pools;
}

}  // namespace holdfast::services
