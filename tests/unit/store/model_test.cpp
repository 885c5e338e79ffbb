// SPDX-License-Identifier: Apache-2.0
/// Random calls against a model of the deltas: after every call the tables equal what the deltas
/// and the history say, and a real database rebuilt from the history equals the store.
#include <nlohmann/json.hpp>

#include <holdfast/simulated_env.hpp>

#include "fixture.hpp"

namespace holdfast::store {
namespace {

/// One random statement; many of them fail on purpose.
std::string random_statement(SeededRandom& random) {
    const auto id = [&] { return random.below(6) + 1; };
    const auto name = [&] { return "n" + std::to_string(random.below(8)); };
    switch (random.below(14)) {
        case 0:
        case 1:
            return fmt::format("INSERT INTO item(id, name, size) VALUES ({}, '{}', {})", id(),
                               name(), random.below(3));
        case 2:
            return fmt::format(
                "INSERT INTO item(id, name) VALUES ({}, '{}'), ({}, '{}'), ({}, '{}')", id(),
                name(), id(), name(), id(), name());
        case 3:
            return fmt::format("REPLACE INTO item(id, name, data) VALUES ({}, '{}', x'0{}')", id(),
                               name(), random.below(10));
        case 4:
            return fmt::format("UPDATE item SET id = {} WHERE id = {}", id(), id());
        case 5:
            return fmt::format("UPDATE item SET size = coalesce(size, 0) - {}", random.below(2));
        case 6:
            return fmt::format("DELETE FROM item WHERE id = {}", id());
        case 7:
        case 8:
            return fmt::format("INSERT INTO part VALUES ({}, {}, '{}')", id(), random.below(4),
                               name());
        case 9:
            return fmt::format("REPLACE INTO part VALUES ({}, {}, '{}')", id(), random.below(4),
                               name());
        case 10:
            return fmt::format("UPDATE part SET item = {}, no = no + 1 WHERE item = {}", id(),
                               id());
        case 11:
            return fmt::format("INSERT OR FAIL INTO item(id, name) VALUES ({}, '{}'), ({}, '{}')",
                               id(), name(), id(), name());
        case 12:
            return fmt::format("INSERT OR IGNORE INTO item(id, name) VALUES ({}, '{}'), ({}, '{}')",
                               id(), name(), id(), name());
        default:
            return fmt::format(
                "INSERT INTO tally VALUES ('{}', 1) ON CONFLICT DO UPDATE SET parts = "
                "parts + 1",
                name());
    }
}

Result<> random_work(Tx& tx, SeededRandom& random, int depth) {
    const std::uint64_t statements = random.below(4) + 1;
    for (std::uint64_t count = 0; count < statements; ++count) {
        if (depth < 3 && random.below(5) == 0) {
            (void)tx.attempt([&](Tx& nested) { return random_work(nested, random, depth + 1); });
        } else {
            (void)tx.exec(random_statement(random));
        }
    }
    if (random.below(4) == 0) {
        return fail(Errc::no_capacity, "no");
    }
    return {};
}

void apply(Tables& tables, const Delta& delta) {
    const std::string text = text_of(delta);
    auto& rows = tables[delta.table];
    const auto json = [](const Row& row) {
        std::vector<Value> values;
        for (std::size_t column = 0; column < row.size(); ++column) {
            values.push_back(row.value(column));
        }
        return row_json(row.columns(), values);
    };
    if (delta.before) {
        const auto found = rows.find(json(*delta.before));
        ASSERT_NE(found, rows.end()) << text;
        rows.erase(found);
    }
    if (delta.after) {
        rows.insert(json(*delta.after));
    }
}

/// What JSON says, as a value to bind.
Value bound(const nlohmann::json& json) {
    if (json.is_null()) {
        return {};
    }
    if (json.is_number_float()) {
        return json.get<double>();
    }
    if (json.is_number()) {
        return json.get<std::int64_t>();
    }
    if (json.is_string()) {
        return json.get<std::string>();
    }
    Blob bytes;
    const std::string hex = json.at("hex");
    for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
        bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(at, 2), nullptr, 16)));
    }
    return bytes;
}

/// Writes the history's rows into a database of the same schema without triggers and keys.
std::unique_ptr<Store> rebuild(Store& source) {
    static constexpr Migration kBare[] = {{1, "bare", R"sql(
        CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, size REAL, data BLOB) STRICT;
        CREATE TABLE part (item INTEGER, no INTEGER, what TEXT, PRIMARY KEY (item, no)) STRICT, WITHOUT ROWID;
        CREATE TABLE tally (name TEXT PRIMARY KEY, parts INTEGER) STRICT;)sql"}};
    auto target = std::move(*Store::open({.migrations = kBare, .in_memory = true}));
    const std::map<std::string, std::string> remove = {
        {"item", "DELETE FROM item WHERE id = $1"},
        {"part", "DELETE FROM part WHERE item = $1 AND no = $2"},
        {"tally", "DELETE FROM tally WHERE name = $1"}};
    const std::map<std::string, std::string> insert = {
        {"item", "INSERT INTO item(id, name, size, data) VALUES ($1, $2, $3, $4)"},
        {"part", "INSERT INTO part(item, no, what) VALUES ($1, $2, $3)"},
        {"tally", "INSERT INTO tally(name, parts) VALUES ($1, $2)"}};
    for (const Row& change : ask(source, "SELECT * FROM change ORDER BY seq")) {
        const std::string& table = change.text("tbl");
        const auto done = target->call({.procedure = "replay"}, [&](Tx& tx) -> Result<> {
            if (!change.is_null("before_json")) {
                const auto before = nlohmann::ordered_json::parse(change.text("before_json"));
                std::vector<Value> key = {bound(before.begin().value())};
                if (table == "part") {
                    key.push_back(bound(before.at("no")));
                }
                HOLD_TRY(const std::int64_t removed, tx.exec_values(remove.at(table), key));
                EXPECT_EQ(removed, 1);
            }
            if (!change.is_null("after_json")) {
                std::vector<Value> values;
                for (const auto& value : nlohmann::ordered_json::parse(change.text("after_json"))) {
                    values.push_back(bound(value));
                }
                HOLD_TRY(tx.exec_values(insert.at(table), values));
            }
            return {};
        });
        EXPECT_TRUE(done) << done.error().describe();
    }
    return target;
}

class ModelTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ModelTest, DeltasHistoryAndTablesAgree) {
    SeededRandom random(GetParam());
    SimulatedEnv world(GetParam());
    const auto store = open_in_memory(&world.env());
    Tables model = tables_now(*store);
    std::int64_t last_seq = 0;
    const auto subscription = store->subscribe({}, [&](const std::vector<Delta>& deltas) {
        for (const Delta& delta : deltas) {
            EXPECT_GT(delta.seq, last_seq);
            last_seq = delta.seq;
            apply(model, delta);
        }
    });
    for (int call = 0; call < 120; ++call) {
        (void)store->call({.procedure = "work"},
                          [&](Tx& tx) { return random_work(tx, random, 0); });
        std::erase_if(model, [](const auto& entry) { return entry.second.empty(); });
        ASSERT_EQ(model, tables_now(*store)) << "call " << call;
    }
    EXPECT_EQ(tables_replayed(*store), model);
    EXPECT_EQ(tables_now(*rebuild(*store)), model);
    EXPECT_TRUE(store->check());
    // Every change belongs to a committed invocation whose range holds it.
    EXPECT_EQ(number(*store,
                     "SELECT count(*) FROM change c WHERE NOT EXISTS (SELECT 1 FROM invocation "
                     "i WHERE i.txn = c.txn AND i.status = 'ok' AND c.seq BETWEEN i.seq_first "
                     "AND i.seq_last)"),
              0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelTest, testing::Range<std::uint64_t>(1, 13));

}  // namespace
}  // namespace holdfast::store
