// SPDX-License-Identifier: Apache-2.0
/// Disks that fail: every write, sync and truncate of a small workload fails once, by a shim below
/// SQLite; and a real file system that runs full.
#include <cstring>

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <holdfast/log.hpp>

#include "fixture.hpp"

namespace holdfast::store {
namespace {

/// A VFS that passes everything on, counts what writes, and fails the chosen one (or all after it).
struct FaultyDisk {
    int operations = 0;
    int fail_at = 0;  ///< 0: never
    bool for_ever = false;
    int status = SQLITE_IOERR_WRITE;

    [[nodiscard]] bool is_failing() {
        ++operations;
        return fail_at != 0 && (for_ever ? operations >= fail_at : operations == fail_at);
    }
};

FaultyDisk disk;
sqlite3_vfs* real_vfs = nullptr;

struct ShimFile {
    sqlite3_file base;
    sqlite3_file* real;
};

sqlite3_file* real_of(sqlite3_file* file) {
    // SAFETY: SQLite hands back the memory that shim_open filled in as a ShimFile.
    return reinterpret_cast<ShimFile*>(file)->real;
}

int shim_close(sqlite3_file* file) {
    sqlite3_file* const real = real_of(file);
    return real->pMethods == nullptr ? SQLITE_OK : real->pMethods->xClose(real);
}

int shim_read(sqlite3_file* file, void* into, int bytes, sqlite3_int64 at) {
    return real_of(file)->pMethods->xRead(real_of(file), into, bytes, at);
}

int shim_write(sqlite3_file* file, const void* from, int bytes, sqlite3_int64 at) {
    if (disk.is_failing()) {
        if (disk.status == SQLITE_IOERR_WRITE) {
            // A torn write: half of it is on the disk.
            (void)real_of(file)->pMethods->xWrite(real_of(file), from, bytes / 2, at);
        }
        return disk.status;
    }
    return real_of(file)->pMethods->xWrite(real_of(file), from, bytes, at);
}

int shim_truncate(sqlite3_file* file, sqlite3_int64 bytes) {
    return disk.is_failing() ? SQLITE_IOERR_TRUNCATE
                             : real_of(file)->pMethods->xTruncate(real_of(file), bytes);
}

int shim_sync(sqlite3_file* file, int flags) {
    return disk.is_failing() ? SQLITE_IOERR_FSYNC
                             : real_of(file)->pMethods->xSync(real_of(file), flags);
}

int shim_size(sqlite3_file* file, sqlite3_int64* bytes) {
    return real_of(file)->pMethods->xFileSize(real_of(file), bytes);
}

int shim_lock(sqlite3_file* file, int level) {
    return real_of(file)->pMethods->xLock(real_of(file), level);
}

int shim_unlock(sqlite3_file* file, int level) {
    return real_of(file)->pMethods->xUnlock(real_of(file), level);
}

int shim_check_lock(sqlite3_file* file, int* answer) {
    return real_of(file)->pMethods->xCheckReservedLock(real_of(file), answer);
}

int shim_control(sqlite3_file* file, int op, void* argument) {
    return real_of(file)->pMethods->xFileControl(real_of(file), op, argument);
}

int shim_sector(sqlite3_file* file) {
    return real_of(file)->pMethods->xSectorSize(real_of(file));
}

int shim_device(sqlite3_file* file) {
    return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}

int shim_shm_map(sqlite3_file* file, int page, int bytes, int extend, volatile void** at) {
    return real_of(file)->pMethods->xShmMap(real_of(file), page, bytes, extend, at);
}

int shim_shm_lock(sqlite3_file* file, int offset, int count, int flags) {
    return real_of(file)->pMethods->xShmLock(real_of(file), offset, count, flags);
}

void shim_shm_barrier(sqlite3_file* file) {
    real_of(file)->pMethods->xShmBarrier(real_of(file));
}

int shim_shm_unmap(sqlite3_file* file, int remove) {
    return real_of(file)->pMethods->xShmUnmap(real_of(file), remove);
}

constexpr sqlite3_io_methods kShimMethods = {
    2,           shim_close,   shim_read,     shim_write,       shim_truncate,  shim_sync,
    shim_size,   shim_lock,    shim_unlock,   shim_check_lock,  shim_control,   shim_sector,
    shim_device, shim_shm_map, shim_shm_lock, shim_shm_barrier, shim_shm_unmap, nullptr,
    nullptr};

int shim_open(sqlite3_vfs* /*vfs*/, const char* name, sqlite3_file* file, int flags, int* out) {
    // SAFETY: szOsFile below asks for room for a ShimFile and the real file behind it.
    auto* shim = reinterpret_cast<ShimFile*>(file);
    shim->real = reinterpret_cast<sqlite3_file*>(shim + 1);
    std::memset(static_cast<void*>(shim->real), 0, static_cast<std::size_t>(real_vfs->szOsFile));
    const int status = real_vfs->xOpen(real_vfs, name, shim->real, flags, out);
    shim->base.pMethods = status == SQLITE_OK ? &kShimMethods : nullptr;
    return status;
}

/// Puts the shim below every store opened while it lives.
class FaultyVfs {
  public:
    FaultyVfs() {
        disk = {};
        real_vfs = sqlite3_vfs_find(nullptr);
        vfs_ = *real_vfs;
        vfs_.zName = "holdfast_faulty";
        vfs_.szOsFile = static_cast<int>(sizeof(ShimFile)) + real_vfs->szOsFile;
        vfs_.xOpen = shim_open;
        sqlite3_vfs_register(&vfs_, 1);
    }

    ~FaultyVfs() {
        sqlite3_vfs_unregister(&vfs_);
        sqlite3_vfs_register(real_vfs, 1);
    }

    FaultyVfs(const FaultyVfs&) = delete;
    FaultyVfs& operator=(const FaultyVfs&) = delete;

  private:
    sqlite3_vfs vfs_{};
};

/// Opens and adds five items; returns the ids that were acknowledged.
std::set<int> workload(const std::string& directory) {
    std::set<int> acknowledged;
    auto store = Store::open({.directory = directory, .migrations = kTestMigrations});
    if (!store) {
        EXPECT_TRUE(store.error().code == Errc::store_io || store.error().code == Errc::store_full)
            << store.error().describe();
        return acknowledged;
    }
    for (int id = 1; id <= 5; ++id) {
        const auto done = (*store)->call({.procedure = "add"}, [&](Tx& tx) -> Result<> {
            HOLD_TRY(tx.exec("INSERT INTO item(id, name) VALUES ($1, $2)", id,
                             std::string(3'000, 'x') + std::to_string(id)));
            HOLD_TRY(tx.exec("INSERT INTO part VALUES ($1, 1, 'a')", id));
            return {};
        });
        if (done) {
            acknowledged.insert(id);
        } else {
            EXPECT_TRUE(done.error().code == Errc::store_io ||
                        done.error().code == Errc::store_full)
                << done.error().describe();
        }
    }
    return acknowledged;
}

void expect_sound(const std::string& directory, const std::set<int>& acknowledged, int at) {
    auto store = open_store(directory);
    std::set<int> present;
    for (const Row& row : ask(*store, "SELECT id FROM item")) {
        present.insert(static_cast<int>(row.integer(0)));
    }
    for (const int id : acknowledged) {
        EXPECT_TRUE(present.contains(id)) << "operation " << at << ": item " << id << " is lost";
    }
    // An error says "not kept" or "unknown"; but never a half.
    EXPECT_EQ(number(*store, "SELECT count(*) FROM part"),
              static_cast<std::int64_t>(present.size()));
    EXPECT_TRUE(store->check()) << "operation " << at;
    EXPECT_EQ(tables_replayed(*store), tables_now(*store)) << "operation " << at;
}

class FaultTest : public testing::TestWithParam<int> {};

TEST_P(FaultTest, EveryWriteOfASmallWorkloadMayFailOnce) {
    const FaultyVfs vfs;
    const LogRecorder recorder;  // failing disks log errors; that is announced here
    set_log_level(Level::off);
    int last = 0;
    {
        TempFolder folder(TempFolder::Place::memory);
        EXPECT_EQ(workload(folder.path()).size(), 5U);
        last = disk.operations;
    }
    ASSERT_GT(last, 40);
    for (int at = 1; at <= last; ++at) {
        TempFolder folder(TempFolder::Place::memory);
        disk = {.fail_at = at, .status = GetParam()};
        const std::set<int> acknowledged = workload(folder.path());
        disk = {};
        expect_sound(folder.path(), acknowledged, at);
    }
    set_log_level(Level::info);
}

INSTANTIATE_TEST_SUITE_P(Kinds, FaultTest, testing::Values(SQLITE_IOERR_WRITE, SQLITE_FULL),
                         [](const auto& kind) {
                             return kind.param == SQLITE_FULL ? "NoSpace" : "TornWrite";
                         });

TEST(Fault, AfterAFailedSyncNothingIsPromisedUntilTheNextStart) {
    const FaultyVfs vfs;
    TempFolder folder;
    const LogRecorder recorder;
    set_log_level(Level::off);
    auto store = open_store(folder.path());
    must(*store, "INSERT INTO tally VALUES ('kept', 1)");
    // The commit writes frames, then syncs: fail everything that follows, then heal.
    disk = {.fail_at = 1, .for_ever = true};
    const auto failed = store->call({.procedure = "add"}, [](Tx& tx) {
        return tx.exec("INSERT INTO tally VALUES ('lost', 1)");
    });
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, Errc::store_io);
    disk = {};
    const auto refused = store->call({.procedure = "add"}, [](Tx& tx) {
        return tx.exec("INSERT INTO tally VALUES ('later', 1)");
    });
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::store_io);
    EXPECT_THAT(refused.error().message, testing::HasSubstr("closed to writes"));
    EXPECT_FALSE(recorder.errors().empty());
    EXPECT_EQ(number(*store, "SELECT count(*) FROM tally WHERE name = 'kept'"), 1);  // reads go on
    store.reset();
    store = open_store(folder.path());
    must(*store, "INSERT INTO tally VALUES ('later', 1)");
    set_log_level(Level::info);
}

/// In a child with a mount namespace of its own; 77: not allowed here.
int fill_a_small_disk(const std::string& folder) {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", folder.c_str(), "tmpfs", 0, "size=1m") != 0) {
        return 77;
    }
    auto store = open_store(folder);
    const std::string big(100'000, 'x');
    int acknowledged = 0;
    Result<std::int64_t> done = 0;
    while (done && acknowledged < 100) {
        done = store->call({.procedure = "add"}, [&](Tx& tx) {
            return tx.exec("INSERT INTO pulse(node, at_us) SELECT $1, length($2)", acknowledged + 1,
                           big);
        });
        if (done) {
            done = store->call({.procedure = "fill"}, [&](Tx& tx) {
                return tx.exec("INSERT INTO tally VALUES ($1, 1)",
                               std::to_string(acknowledged) + big);
            });
            acknowledged += done ? 1 : 0;
        }
    }
    EXPECT_FALSE(done);
    EXPECT_EQ(done.error().code, Errc::store_full) << done.error().describe();
    EXPECT_GT(acknowledged, 0);
    EXPECT_EQ(number(*store, "SELECT count(*) FROM tally"), acknowledged + 1);
    EXPECT_EQ(tables_replayed(*store), tables_now(*store));
    EXPECT_TRUE(store->check());
    // Space returns; the same store goes on.
    EXPECT_EQ(mount("none", folder.c_str(), nullptr, MS_REMOUNT, "size=8m"), 0);
    must(*store, "INSERT INTO tally VALUES ('after', 1)");
    store.reset();
    store = open_store(folder);
    EXPECT_EQ(number(*store, "SELECT count(*) FROM tally"), acknowledged + 2);
    EXPECT_EQ(tables_replayed(*store), tables_now(*store));
    return testing::Test::HasFailure() ? 1 : 0;
}

TEST(Fault, AFullDiskIsSaidAndSurvived) {
    TempFolder folder;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        _exit(fill_a_small_disk(folder.path()));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        GTEST_SKIP() << "mounting a tmpfs in a namespace of our own is not allowed here";
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace holdfast::store
