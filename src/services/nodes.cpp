// SPDX-License-Identifier: Apache-2.0
/// Nodes: registration, health, and the operator's wishes.
///
/// node.state is what is true, node.wanted what the operator wants (up, cordoned, drained):
///   up        → cordoned, draining (something is held) or drained (nothing is)   set_node_state
///   draining  → drained      when the last lease is gone and the last revoked one confirmed
///   cordoned, draining, drained → up                                             set_node_state
///   any of these → down      node_down; leases are revoked
///   down      → wanted       node_up, register_node
///   without leases → removed  remove_node; → down by announce_node, enrol_node
#include <algorithm>

#include "endings.hpp"
#include "rows.hpp"

namespace holdfast::services {

namespace {

constexpr std::int64_t kCapacityMax = std::int64_t{1} << 50;
constexpr std::int64_t kNodeGpusMax = 1024;

#define HOLD_NODE_SELECT                                                                         \
    "SELECT n.id, n.name, n.pool, n.state, n.reason, n.cpus, n.memory_bytes, n.gpus, "           \
    "n.gpu_type, n.address, n.version, n.instance, n.epoch, n.registered_us, coalesce(h.at_us, " \
    "0) AS heartbeat_us, coalesce(u.cpus, 0) AS used_cpus, coalesce(u.memory_bytes, 0) AS "      \
    "used_memory, coalesce(u.gpus, 0) AS used_gpus, coalesce(u.active, 0) AS running FROM node " \
    "n LEFT JOIN node_heartbeat h ON h.node = n.id LEFT JOIN (SELECT node, sum(cpus) AS cpus, "  \
    "sum(memory_bytes) AS memory_bytes, sum(gpus) AS gpus, sum(active) AS active FROM (SELECT "  \
    "node, cpus, memory_bytes, gpus, 1 AS active FROM lease UNION ALL SELECT node, cpus, "       \
    "memory_bytes, gpus, 0 FROM lease_revoked) GROUP BY node) u ON u.node = n.id "

NodeRow node_from(const store::Row& row) {
    NodeRow node;
    node.id = row.id<NodeId>("id");
    node.name = row.text("name");
    node.pool = row.text("pool");
    node.state = row.text("state");
    node.reason = row.text("reason");
    node.capacity = {row.integer("cpus"), row.integer("memory_bytes"), row.integer("gpus"),
                     row.text("gpu_type")};
    node.used = {row.integer("used_cpus"), row.integer("used_memory"), row.integer("used_gpus"),
                 row.text("gpu_type")};
    node.address = row.text("address");
    node.version = row.text("version");
    node.instance = row.text("instance");
    node.epoch = row.integer("epoch");
    node.registered_us = row.integer("registered_us");
    node.heartbeat_us = row.integer("heartbeat_us");
    node.running_tasks = static_cast<std::int32_t>(row.integer("running"));
    return node;
}

struct NodeBrief {
    NodeId id;
    std::string name, state, wanted;
};

Result<NodeBrief> find_brief(store::ReadTx& tx, NodeId node) {
    HOLD_TRY(const auto row,
             tx.query_one("SELECT name, state, wanted FROM node WHERE id = $1", node));
    if (!row) {
        return fail(Errc::not_found, "no {}", node.label());
    }
    return NodeBrief{node, row->text("name"), row->text("state"), row->text("wanted")};
}

Result<> check_registration(store::ReadTx& tx, const NodeRegistration& node) {
    HOLD_TRY(check_name(node.name, "name"));
    HOLD_TRY(check_line(node.address, 512, "address"));
    HOLD_TRY(check_line(node.version, 128, "version"));
    HOLD_TRY(check_line(node.instance, 128, "instance"));
    const Resources& has = node.capacity;
    if (has.cpus < 0 || has.cpus > kCapacityMax || has.memory_bytes < 0 ||
        has.memory_bytes > kCapacityMax || has.gpus < 0 || has.gpus > kNodeGpusMax) {
        return fail(make_error(Errc::invalid_argument,
                               "register node {}: {} cpus, {} bytes and {} gpus are out of range",
                               node.name, has.cpus, has.memory_bytes, has.gpus)
                        .at("capacity"));
    }
    if (!has.gpu_type.empty()) {
        HOLD_TRY(check_name(has.gpu_type, "gpu_type"));
    }
    HOLD_TRY(const auto pool, tx.query_one("SELECT 1 FROM pool WHERE name = $1", node.pool));
    if (!pool) {
        return fail(make_error(Errc::not_found, "register node {}: no pool is named '{}'",
                               node.name, is_utf8(node.pool) ? node.pool.substr(0, 64) : "…")
                        .at("pool")
                        .advise("`hold pool create NAME` makes it"));
    }
    return {};
}

Result<NodeId> insert_node(store::Tx& tx, const std::string& name, const std::string& pool) {
    HOLD_TRY(const std::int64_t number, tx.next_id("node"));
    HOLD_TRY(
        tx.exec("INSERT INTO node (id, name, pool, state, reason) VALUES ($1, $2, $3, 'down', "
                "'announced, not registered yet')",
                number, name, pool));
    return NodeId(number);
}

/// Errors: conflict, bad_state.
Result<> check_renewal(const NodeRow& known, const NodeRegistration& node, std::int64_t now_us,
                       std::int64_t dead_after_us) {
    if (known.state == "removed") {
        return fail(make_error(Errc::bad_state, "register node {}: it was removed", node.name)
                        .advise(fmt::format("`hold node add {}` brings it back", node.name)));
    }
    const bool alive = known.state != "down" && now_us - known.heartbeat_us < dead_after_us;
    if (alive && known.instance != node.instance) {
        return fail(make_error(Errc::conflict,
                               "register node {}: another agent holds this name and was heard {} "
                               "ms ago",
                               node.name, (now_us - known.heartbeat_us) / 1000)
                        .advise("give this agent another --name, or stop the other one"));
    }
    return {};
}

/// Takes back, newest first, the leases that the node no longer has room for.
Result<> shed_leases(store::Tx& tx, const NodeRow& node) {
    HOLD_TRY(const auto leases, leases_of_node(tx, node.id));
    Resources left = node.capacity;
    for (const LeaseRow& lease : leases) {
        const bool slots_exist =
            std::all_of(lease.gpu_slots.begin(), lease.gpu_slots.end(),
                        [&](std::int32_t slot) { return slot < node.capacity.gpus; });
        const Resources& held = lease.resources;
        if (slots_exist && held.cpus <= left.cpus && held.memory_bytes <= left.memory_bytes &&
            held.gpus <= left.gpus) {
            left.cpus -= held.cpus;
            left.memory_bytes -= held.memory_bytes;
            left.gpus -= held.gpus;
            continue;
        }
        HOLD_TRY(lose_lease(tx, lease.id, Remains::unknown,
                            fmt::format("node {} came back smaller", node.name)));
    }
    return {};
}

Result<> beat(store::Tx& tx, NodeId node, double load1, std::int64_t memory_available_bytes) {
    HOLD_TRY(
        tx.exec("INSERT INTO node_heartbeat (node, at_us, load1, memory_available_bytes) VALUES "
                "($1, $2, $3, $4) ON CONFLICT (node) DO UPDATE SET at_us = excluded.at_us, "
                "load1 = excluded.load1, memory_available_bytes = "
                "excluded.memory_available_bytes",
                node, tx.now_us(), load1, memory_available_bytes));
    return {};
}

Result<> wish(store::Tx& tx, const NodeBrief& node, const std::string& wanted,
              const std::string& reason, std::int64_t deadline_us) {
    std::string state = node.state;
    if (node.state != "down") {
        state = wanted == "drained" ? "draining" : wanted;  // settle_drain decides
    }
    HOLD_TRY(
        tx.exec("UPDATE node SET state = $2, wanted = $3, reason = $4, drain_deadline_us = $5 "
                "WHERE id = $1",
                node.id, state, wanted, reason, deadline_us));
    return settle_drain(tx, node.id);
}

}  // namespace

Result<NodeRow> announce_node(store::Tx& tx, const std::string& name, const std::string& pool) {
    NodeRegistration asked;
    asked.name = name;
    asked.pool = pool.empty() ? "default" : pool;
    HOLD_TRY(check_registration(tx, asked));
    HOLD_TRY(const auto known,
             tx.query_one("SELECT id, state, epoch FROM node WHERE name = $1", name));
    if (!known) {
        HOLD_TRY(insert_node(tx, name, asked.pool));
        return find_node(tx, name);
    }
    const bool removed = known->text("state") == "removed";
    if (!removed && known->integer("epoch") > 0) {
        return fail(Errc::conflict, "add node {}: it is there already", name);
    }
    HOLD_TRY(
        tx.exec("UPDATE node SET state = 'down', wanted = 'up', pool = $2, reason = "
                "'announced, not registered yet' WHERE id = $1",
                known->integer("id"), asked.pool));
    return find_node(tx, name);
}

Result<NodeRow> register_node(store::Tx& tx, const NodeRegistration& node,
                              std::int64_t dead_after_us) {
    HOLD_TRY(check_registration(tx, node));
    HOLD_TRY(const auto row, tx.query_one(HOLD_NODE_SELECT "WHERE n.name = $1", node.name));
    NodeId id;
    if (row) {
        const NodeRow known = node_from(*row);
        HOLD_TRY(check_renewal(known, node, tx.now_us(), dead_after_us));
        id = known.id;
    } else {
        HOLD_TRY(id, insert_node(tx, node.name, node.pool));
    }
    HOLD_TRY(
        tx.exec("UPDATE node SET pool = $2, cpus = $3, memory_bytes = $4, gpus = $5, gpu_type "
                "= $6, address = $7, version = $8, instance = $9, epoch = epoch + 1, "
                "registered_us = $10 WHERE id = $1",
                id, node.pool, node.capacity.cpus, node.capacity.memory_bytes, node.capacity.gpus,
                node.capacity.gpu_type, node.address, node.version, node.instance, tx.now_us()));
    HOLD_TRY(beat(tx, id, 0, node.capacity.memory_bytes));
    HOLD_TRY(node_up(tx, id));
    HOLD_TRY(const NodeRow renewed, find_node(tx, node.name));
    HOLD_TRY(shed_leases(tx, renewed));
    return find_node(tx, node.name);
}

Result<> heartbeat(store::Tx& tx, NodeId node, double load1, std::int64_t memory_available_bytes) {
    HOLD_TRY(const NodeBrief brief, find_brief(tx, node));
    if (brief.state == "removed") {
        return fail(Errc::bad_state, "heartbeat of node {}: it was removed", brief.name);
    }
    return beat(tx, node, load1, memory_available_bytes);
}

Result<> node_down(store::Tx& tx, NodeId node, const std::string& reason) {
    HOLD_TRY(const NodeBrief brief, find_brief(tx, node));
    if (brief.state == "removed") {
        return fail(Errc::bad_state, "node {} is removed", brief.name);
    }
    HOLD_TRY(
        tx.exec("UPDATE node SET state = 'down', reason = $2 WHERE id = $1 AND state != 'down'",
                node, reason));
    return evict_node(tx, node, reason);
}

Result<> evict_node(store::Tx& tx, NodeId node, const std::string& reason) {
    HOLD_TRY(const NodeBrief brief, find_brief(tx, node));
    HOLD_TRY(const auto leases, leases_of_node(tx, node));
    // The jobs' reasons name the node, once.
    const std::string why = reason.find(brief.name) != std::string::npos
                                ? reason
                                : fmt::format("node {}: {}", brief.name, reason);
    for (const LeaseRow& lease : leases) {
        HOLD_TRY(lose_lease(tx, lease.id, Remains::unknown, why));
    }
    return {};
}

Result<> node_up(store::Tx& tx, NodeId node) {
    HOLD_TRY(const NodeBrief brief, find_brief(tx, node));
    if (brief.state == "removed") {
        return fail(Errc::bad_state, "node {} is removed", brief.name);
    }
    if (brief.state != "down") {
        return {};
    }
    HOLD_TRY(tx.exec("UPDATE node SET state = $2, reason = '' WHERE id = $1", node,
                     brief.wanted == "drained" ? "draining" : brief.wanted));
    return settle_drain(tx, node);
}

Result<NodeRow> set_node_state(store::Tx& tx, const std::string& name, const std::string& state,
                               const std::string& reason, std::int64_t deadline_us) {
    HOLD_TRY(const NodeRow node, find_node(tx, name));
    HOLD_TRY(check_line(reason, 1024, "reason"));
    HOLD_TRY(const NodeBrief brief, find_brief(tx, node.id));
    if (brief.state == "removed") {
        return fail(Errc::bad_state, "node {}: it was removed", name);
    }
    if (state == "up" || state == "cordoned") {
        HOLD_TRY(wish(tx, brief, state, reason, 0));
    } else if (state == "draining" || state == "drained") {
        HOLD_TRY(wish(tx, brief, "drained", reason, deadline_us));
    } else if (state == "down") {
        HOLD_TRY(node_down(tx, node.id, reason));
    } else {
        return fail(make_error(Errc::invalid_argument, "node {}: no state is called '{}'", name,
                               is_utf8(state) ? state.substr(0, 64) : "…")
                        .at("state")
                        .advise("up, cordoned, draining or down"));
    }
    return find_node(tx, name);
}

Result<> remove_node(store::Tx& tx, const std::string& name) {
    HOLD_TRY(const NodeRow node, find_node(tx, name));
    if (node.running_tasks > 0) {
        return fail(make_error(Errc::bad_state, "remove node {}: {} tasks run on it", name,
                               node.running_tasks)
                        .advise(fmt::format("`hold node drain {}` first", name)));
    }
    HOLD_TRY(tx.exec("DELETE FROM lease_revoked WHERE node = $1", node.id));
    HOLD_TRY(
        tx.exec("UPDATE token SET revoked_us = $2 WHERE role = 'node' AND user = $1 AND "
                "revoked_us = 0",
                name, tx.now_us()));
    HOLD_TRY(
        tx.exec("UPDATE node SET state = 'removed', wanted = 'up', reason = '' WHERE id = $1 "
                "AND state != 'removed'",
                node.id));
    return {};
}

Result<std::vector<NodeRow>> list_nodes(store::ReadTx& tx, bool removed) {
    HOLD_TRY(const auto rows,
             tx.query(HOLD_NODE_SELECT "WHERE $1 OR n.state != 'removed' ORDER BY n.id", removed));
    std::vector<NodeRow> nodes;
    std::transform(rows.begin(), rows.end(), std::back_inserter(nodes), node_from);
    return nodes;
}

Result<NodeRow> find_node(store::ReadTx& tx, const std::string& name) {
    HOLD_TRY(const auto row, tx.query_one(HOLD_NODE_SELECT "WHERE n.name = $1", name));
    if (!row) {
        return fail(make_error(Errc::not_found, "no node is named '{}'",
                               is_utf8(name) ? name.substr(0, 64) : "…")
                        .advise("`hold nodes` lists the nodes"));
    }
    return node_from(*row);
}

}  // namespace holdfast::services
