// SPDX-License-Identifier: Apache-2.0
/// The writer thread, group commit, subscribers and readers, from many threads.
#include <atomic>
#include <latch>
#include <thread>

#include "fixture.hpp"

namespace holdfast::store {
namespace {

/// Holds the writer inside a call until released, so that other calls pile up into one batch.
class Gate {
  public:
    explicit Gate(Store& store)
        : holder_([this, &store] {
              const auto done = store.call({.procedure = "gate"}, [this](Tx&) -> Result<> {
                  entered_.count_down();
                  open_.wait();
                  return {};
              });
              EXPECT_TRUE(done);
          }) {
        entered_.wait();
    }

    void open() { open_.count_down(); }

    ~Gate() { holder_.join(); }

    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

  private:
    std::latch entered_{1};
    std::latch open_{1};
    std::thread holder_;
};

Result<> add_item(Store& store, int id, bool succeed) {
    return store.call({.procedure = "add"}, [&](Tx& tx) -> Result<> {
        HOLD_TRY(
            tx.exec("INSERT INTO item(id, name) VALUES ($1, $2)", id, "n" + std::to_string(id)));
        if (!succeed) {
            return fail(Errc::no_capacity, "no room for {}", id);
        }
        return {};
    });
}

TEST(GroupCommit, AFailingCallTakesBackOnlyItself) {
    TempFolder folder;
    const auto store = open_store(folder.path());
    std::vector<std::thread> threads;
    {
        Gate gate(*store);
        for (int id = 1; id <= 16; ++id) {
            threads.emplace_back([&store, id] {
                const auto done = add_item(*store, id, id % 3 != 0);
                EXPECT_EQ(done.has_value(), id % 3 != 0);
                if (!done) {
                    EXPECT_EQ(done.error().message, "no room for " + std::to_string(id));
                }
            });
        }
        real_env().clock.sleep_us(50'000);  // most of them wait now; the counts hold in any case
        gate.open();
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(number(*store, "SELECT count(*) FROM item"), 11);
    EXPECT_EQ(number(*store, "SELECT count(*) FROM item WHERE id % 3 = 0"), 0);
    EXPECT_EQ(number(*store, "SELECT count(*) FROM invocation WHERE status = 'no_capacity'"), 5);
    EXPECT_EQ(tables_replayed(*store), tables_now(*store));
    EXPECT_EQ(store->stats().calls, 17);
    EXPECT_EQ(store->stats().failed_calls, 5);
    EXPECT_LT(store->stats().commits, 17);
}

TEST(GroupCommit, AFullQueueIsSaid) {
    TempFolder folder;
    const auto store = std::move(
        *Store::open({.directory = folder.path(), .migrations = kTestMigrations, .queue_max = 2}));
    std::atomic<int> refused = 0;
    std::atomic<int> done = 0;
    std::vector<std::thread> threads;
    {
        Gate gate(*store);
        for (int id = 1; id <= 6; ++id) {
            threads.emplace_back([&, id] {
                const auto answer = add_item(*store, id, true);
                if (answer) {
                    ++done;
                } else {
                    EXPECT_EQ(answer.error().code, Errc::unavailable);
                    EXPECT_TRUE(answer.error().retryable);
                    ++refused;
                }
            });
        }
        while (refused < 4) {
            std::this_thread::yield();
        }
        gate.open();
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(refused, 4);
    EXPECT_EQ(done, 2);
    EXPECT_EQ(number(*store, "SELECT count(*) FROM item"), 2);
}

TEST(GroupCommit, ACallThatEndsTheTransactionFailsItsNeighboursCleanly) {
    TempFolder folder;
    const auto store = open_store(folder.path());
    must(*store, "INSERT INTO item(id, name) VALUES (1000, 'taken')");
    std::atomic<int> succeeded = 0;
    std::vector<std::thread> threads;
    {
        Gate gate(*store);
        for (int id = 1; id <= 8; ++id) {
            threads.emplace_back([&, id] {
                const auto done = store->call({.procedure = "add"}, [&](Tx& tx) -> Result<> {
                    HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES ($1, $2)", id,
                                     "n" + std::to_string(id)));
                    if (id == 4) {
                        HOLD_TRY(tx.exec(
                            "INSERT OR ROLLBACK INTO item(id, name) VALUES (5000, 'taken')"));
                    }
                    return {};
                });
                if (done) {
                    ++succeeded;
                } else if (id != 4) {
                    EXPECT_EQ(done.error().code, Errc::unavailable);
                    EXPECT_TRUE(done.error().retryable);
                } else {
                    EXPECT_EQ(done.error().code, Errc::constraint);
                }
            });
        }
        real_env().clock.sleep_us(20'000);
        gate.open();
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(number(*store, "SELECT count(*) FROM item"), succeeded + 1);
    EXPECT_EQ(tables_replayed(*store), tables_now(*store));
}

TEST(Threads, EightCallersReadersAndASubscriber) {
    TempFolder folder;
    const auto store = open_store(folder.path());
    std::int64_t last_seq = 0;  // handlers run on one thread
    std::int64_t last_txn = 0;
    std::int64_t inserted = 0;
    auto subscription = store->subscribe({"item"}, [&](const std::vector<Delta>& deltas) {
        EXPECT_GT(deltas.front().txn, last_txn);
        last_txn = deltas.front().txn;
        for (const Delta& delta : deltas) {
            EXPECT_EQ(delta.txn, last_txn);
            EXPECT_GT(delta.seq, last_seq);
            last_seq = delta.seq;
            inserted += delta.op == Op::insert ? 1 : 0;
        }
    });
    constexpr int kThreads = 8;
    constexpr int kCalls = 60;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&store, thread] {
            for (int call = 0; call < kCalls; ++call) {
                const int id = thread * kCalls + call + 1;
                const auto done = store->call(
                    {.procedure = "add",
                     .durability = call % 2 == 0 ? Durability::durable : Durability::relaxed},
                    [&](Tx& tx) {
                        return tx.exec("INSERT INTO item(id, name) VALUES ($1, $2)", id,
                                       "n" + std::to_string(id));
                    });
                EXPECT_TRUE(done);
                // What a call has written, a read that follows sees.
                const auto seen = store->read([&](ReadTx& tx) {
                    return tx.query_one("SELECT 1 FROM item WHERE id = $1", id);
                });
                EXPECT_TRUE(seen.value().has_value());
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    store->wait_published();
    EXPECT_EQ(inserted, kThreads * kCalls);
    EXPECT_EQ(tables_replayed(*store), tables_now(*store));
    EXPECT_EQ(store->stats().calls, kThreads * kCalls);
}

TEST(Threads, OneKeyFromManyThreadsRunsOnce) {
    TempFolder folder;
    const auto store = open_store(folder.path());
    std::atomic<int> runs = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 8; ++thread) {
        threads.emplace_back([&] {
            for (int key = 0; key < 20; ++key) {
                const auto answer = store->call_once(
                    {.procedure = "p", .who = "w", .idempotency_key = std::to_string(key)},
                    [&](Tx& tx) -> Result<std::string> {
                        ++runs;
                        HOLD_TRY(const std::int64_t id, tx.next_id("item"));
                        return std::to_string(id);
                    });
                EXPECT_TRUE(answer);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(runs, 20);
}

TEST(Subscribers, MayCallTheStoreEvenWhenTheirQueueIsFull) {
    TempFolder folder;
    const auto store = std::move(*Store::open(
        {.directory = folder.path(), .migrations = kTestMigrations, .deltas_pending_max = 2}));
    std::atomic<int> echoed = 0;
    auto subscription = store->subscribe({"item"}, [&](const std::vector<Delta>& deltas) {
        for (const Delta& delta : deltas) {
            must(*store, "INSERT INTO pulse VALUES ($1, 0)", delta.row().integer("id"));
            ++echoed;
        }
    });
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&store, thread] {
            for (int call = 0; call < 25; ++call) {
                EXPECT_TRUE(add_item(*store, thread * 25 + call + 1, true));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    store->wait_published();
    EXPECT_EQ(echoed, 100);
    EXPECT_EQ(number(*store, "SELECT count(*) FROM pulse"), 100);
}

TEST(Subscribers, EndCleanlyWhileDeltasFlow) {
    TempFolder folder;
    const auto store = open_store(folder.path());
    std::atomic<bool> stop = false;
    std::thread writer([&] {
        for (int id = 1; !stop; ++id) {
            EXPECT_TRUE(add_item(*store, id, true));
        }
    });
    for (int round = 0; round < 20; ++round) {
        auto alive = std::make_unique<std::atomic<bool>>(true);
        auto subscription =
            store->subscribe({}, [flag = alive.get()](const auto&) { EXPECT_TRUE(flag->load()); });
        real_env().clock.sleep_us(1'000);
        subscription.cancel();
        alive->store(false);
        alive.reset();  // a handler that still ran would touch freed memory
    }
    stop = true;
    writer.join();
}

TEST(Subscribers, MayOutliveTheStore) {
    Subscription subscription;
    {
        TempFolder folder;
        const auto store = open_store(folder.path());
        subscription = store->subscribe({}, [](const auto&) {});
    }
    subscription.cancel();
}

}  // namespace
}  // namespace holdfast::store
