// SPDX-License-Identifier: Apache-2.0
/// kill -9 at random instants: what was acknowledged is there, what is there is whole.
#include <atomic>
#include <csignal>
#include <thread>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <holdfast/simulated_env.hpp>

#include "fixture.hpp"

namespace holdfast::store {
namespace {

constexpr int kRounds = 20;
constexpr int kThreads = 4;
constexpr std::size_t kAcksMax = 200'000;

/// Written by the child, read by the parent after the child is dead.
struct Acks {
    std::atomic<std::uint32_t> count;
    std::atomic<std::int64_t> ids[kAcksMax];
};

/// The child: adds items with two parts each, for ever, and notes each acknowledged id.
[[noreturn]] void write_until_killed(const std::string& directory, Acks& acks) {
    auto store = Store::open({.directory = directory, .migrations = kTestMigrations});
    if (!store) {
        _exit(3);
    }
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&store, &acks] {
            while (true) {
                const auto id =
                    (*store)->call({.procedure = "add"}, [](Tx& tx) -> Result<std::int64_t> {
                        HOLD_TRY(const std::int64_t next, tx.next_id("item"));
                        HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES ($1, $2)", next,
                                         "n" + std::to_string(next)));
                        HOLD_TRY(
                            tx.exec("INSERT INTO part VALUES ($1, 1, 'a'), ($1, 2, 'b')", next));
                        return next;
                    });
                if (!id || acks.count.load() >= kAcksMax) {
                    _exit(4);
                }
                acks.ids[acks.count.fetch_add(1)].store(*id);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    _exit(5);
}

void expect_whole(Store& store, const Acks& acks) {
    std::set<std::int64_t> present;
    for (const Row& row : ask(store, "SELECT id FROM item")) {
        present.insert(row.integer(0));
    }
    std::size_t lost = 0;
    for (std::uint32_t index = 0; index < acks.count.load(); ++index) {
        const std::int64_t id = acks.ids[index].load();
        // A slot that was taken but not yet filled was not acknowledged.
        lost += id != 0 && !present.contains(id) ? 1 : 0;
    }
    EXPECT_EQ(lost, 0U);
    EXPECT_EQ(number(store, "SELECT count(*) FROM part"),
              2 * static_cast<std::int64_t>(present.size()));
    EXPECT_EQ(number(store, "SELECT parts FROM tally WHERE name = 'all'"),
              2 * static_cast<std::int64_t>(present.size()));
    EXPECT_EQ(number(store, "SELECT coalesce(max(id), 0) FROM item"),
              static_cast<std::int64_t>(present.size()));  // numbers without gaps
    EXPECT_TRUE(store.check());
}

TEST(Crash, KilledAtRandomInstantsNothingAcknowledgedIsLost) {
    TempFolder folder;
    void* const memory =
        mmap(nullptr, sizeof(Acks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    Acks* const acks = new (memory) Acks{};
    SeededRandom random(20);
    for (int round = 0; round < kRounds; ++round) {
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            write_until_killed(folder.path(), *acks);
        }
        if (round % 4 == 3) {
            // Inside opening, recovery and migration.
            real_env().clock.sleep_us(static_cast<std::int64_t>(random.below(30'000)));
        } else {
            // Under load, however slow the machine is.
            const std::uint64_t wanted = acks->count.load() + 1 + random.below(100);
            for (int wait = 0; wait < 20'000 && acks->count.load() < wanted; ++wait) {
                real_env().clock.sleep_us(1'000);
            }
            real_env().clock.sleep_us(static_cast<std::int64_t>(random.below(3'000)));
        }
        ASSERT_EQ(kill(child, SIGKILL), 0);
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended with " << WEXITSTATUS(status);
        const auto store = open_store(folder.path());
        expect_whole(*store, *acks);
    }
    EXPECT_GE(acks->count.load(), 15U);  // one each for the rounds that waited
    const auto store = open_store(folder.path());
    EXPECT_EQ(tables_replayed(*store), tables_now(*store));
    munmap(memory, sizeof(Acks));
}

}  // namespace
}  // namespace holdfast::store
