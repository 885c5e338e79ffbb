// SPDX-License-Identifier: Apache-2.0
/// A small schema with every shape of table, folders that go away, and replay of the history.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <holdfast/store.hpp>

#include "history.hpp"

namespace holdfast::store {

inline constexpr Migration kTestMigrations[] = {
    {1, "tables", R"sql(
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, size REAL, data BLOB,
                   CHECK (size IS NULL OR size >= 0)) STRICT;
CREATE TABLE part (item INTEGER NOT NULL REFERENCES item (id) ON DELETE CASCADE ON UPDATE CASCADE,
                   no INTEGER NOT NULL, what TEXT NOT NULL, PRIMARY KEY (item, no)) STRICT, WITHOUT ROWID;
CREATE TABLE tally (name TEXT PRIMARY KEY, parts INTEGER NOT NULL) STRICT;
INSERT INTO tally VALUES ('all', 0);
CREATE TRIGGER count_parts AFTER INSERT ON part
    BEGIN UPDATE tally SET parts = parts + 1 WHERE name = 'all'; END;
CREATE TABLE pulse (node INTEGER PRIMARY KEY, at_us INTEGER NOT NULL) STRICT;
INSERT INTO history_exempt VALUES ('pulse', 'written every second');
CREATE TABLE token (hash TEXT PRIMARY KEY, owner TEXT NOT NULL, note TEXT) STRICT;
INSERT INTO history_redacted VALUES ('token', 'hash');
)sql"},
};

class TempFolder {
  public:
    enum class Place : std::uint8_t { disk, memory };  ///< memory: where faults come from a shim

    explicit TempFolder(Place place = Place::disk) {
        const bool in_memory = place == Place::memory && std::filesystem::exists("/dev/shm");
        std::string pattern =
            (in_memory ? std::string("/dev/shm") : testing::TempDir()) + "/holdfast_store_XXXXXX";
        path_ = mkdtemp(pattern.data());
    }

    ~TempFolder() { std::filesystem::remove_all(path_); }

    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

inline std::unique_ptr<Store> open_store(const std::string& directory) {
    auto store = Store::open({.directory = directory, .migrations = kTestMigrations});
    EXPECT_TRUE(store) << store.error().describe();
    return std::move(*store);
}

inline std::unique_ptr<Store> open_in_memory(Env* env = nullptr) {
    auto store = Store::open({.migrations = kTestMigrations, .env = env, .in_memory = true});
    EXPECT_TRUE(store) << store.error().describe();
    return std::move(*store);
}

/// Runs one statement as a call; fails the test on an error.
template <typename... Args>
void must(Store& store, std::string_view sql, const Args&... args) {
    const auto done = store.call({.procedure = "test", .who = "tester"},
                                 [&](Tx& tx) { return tx.exec(sql, args...); });
    EXPECT_TRUE(done) << done.error().describe();
}

inline std::vector<Row> ask(Store& store, std::string_view sql) {
    auto rows = store.read([&](ReadTx& tx) { return tx.query(sql); });
    EXPECT_TRUE(rows) << rows.error().describe();
    return std::move(*rows);
}

inline std::int64_t number(Store& store, std::string_view sql) {
    return ask(store, sql).at(0).integer(0);
}

/// `insert item 1 {before} {after}` for each delta.
inline std::string text_of(const Delta& delta) {
    const auto side = [](const std::optional<Row>& row) {
        if (!row) {
            return std::string("-");
        }
        std::vector<Value> values;
        for (std::size_t column = 0; column < row->size(); ++column) {
            values.push_back(row->value(column));
        }
        return row_json(row->columns(), values);
    };
    return fmt::format("{} {} {} {} {}", to_string(delta.op), delta.table, delta.key,
                       side(delta.before), side(delta.after));
}

using Tables = std::map<std::string, std::multiset<std::string>>;

/// The rows of every table that has history, as JSON.
inline Tables tables_now(Store& store) {
    Tables tables;
    for (const std::string table : {"item", "part", "tally"}) {
        for (const Row& row : ask(store, "SELECT * FROM " + table)) {
            std::vector<Value> values;
            for (std::size_t column = 0; column < row.size(); ++column) {
                values.push_back(row.value(column));
            }
            tables[table].insert(row_json(row.columns(), values));
        }
    }
    return tables;
}

/// The same, rebuilt from nothing but `change`. Every before image must be there when it is used.
inline Tables tables_replayed(Store& store) {
    Tables tables;
    std::int64_t last_seq = 0;
    for (const Row& change : ask(store, "SELECT * FROM change ORDER BY seq")) {
        if (change.text("tbl") == "token") {
            continue;
        }
        EXPECT_GT(change.integer("seq"), last_seq);
        last_seq = change.integer("seq");
        auto& rows = tables[change.text("tbl")];
        if (!change.is_null("before_json")) {
            const auto found = rows.find(change.text("before_json"));
            EXPECT_NE(found, rows.end()) << "change " << last_seq;
            if (found != rows.end()) {
                rows.erase(found);
            }
        }
        if (!change.is_null("after_json")) {
            rows.insert(change.text("after_json"));
        }
    }
    std::erase_if(tables, [](const auto& entry) { return entry.second.empty(); });
    return tables;
}

}  // namespace holdfast::store
