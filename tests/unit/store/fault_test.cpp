// SPDX-License-Identifier: Apache-2.0
/// Disks that fail: every write, sync and truncate of a small workload fails once, by a shim below
/// SQLite; and a real file system that runs full.
#include <cstring>

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <holdfast/log.hpp>
#include <holdfast/simulated_env.hpp>

#include "fixture.hpp"

namespace holdfast::store {
namespace {

/// What a file holds after a power loss: what was synced, and any of the sectors written since.
struct DiskImage {
    struct Write {
        sqlite3_int64 at = 0;
        std::string bytes;  ///< empty: the file was cut to `at`
    };

    std::string synced = {};
    std::vector<Write> unsynced = {};
    bool exists = true;
};

void apply_write(std::string& content, sqlite3_int64 at, std::string_view bytes) {
    const auto start = static_cast<std::size_t>(at);
    content.resize(std::max(content.size(), start + bytes.size()));
    content.replace(start, bytes.size(), bytes);
}

void apply_write(std::string& content, const DiskImage::Write& write) {
    if (write.bytes.empty()) {
        content.resize(std::min(content.size(), static_cast<std::size_t>(write.at)));
    } else {
        apply_write(content, write.at, write.bytes);
    }
}

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
std::map<std::string, DiskImage> images;  // open files point into it: emptied between stores only
sqlite3_vfs* real_vfs = nullptr;

struct ShimFile {
    sqlite3_file base;
    sqlite3_file* real;
    DiskImage* image;  // null for files without a name
};

DiskImage* image_of(sqlite3_file* file) {
    return reinterpret_cast<ShimFile*>(file)->image;  // SAFETY: as in real_of
}

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
    if (DiskImage* const image = image_of(file)) {
        image->unsynced.push_back(
            {at, std::string(static_cast<const char*>(from), static_cast<std::size_t>(bytes))});
    }
    return real_of(file)->pMethods->xWrite(real_of(file), from, bytes, at);
}

int shim_truncate(sqlite3_file* file, sqlite3_int64 bytes) {
    if (disk.is_failing()) {
        return SQLITE_IOERR_TRUNCATE;
    }
    if (DiskImage* const image = image_of(file)) {
        image->unsynced.push_back({bytes, ""});
    }
    return real_of(file)->pMethods->xTruncate(real_of(file), bytes);
}

int shim_sync(sqlite3_file* file, int flags) {
    if (disk.is_failing()) {
        return SQLITE_IOERR_FSYNC;
    }
    if (DiskImage* const image = image_of(file)) {
        for (const DiskImage::Write& write : image->unsynced) {
            apply_write(image->synced, write);
        }
        image->unsynced.clear();
    }
    return real_of(file)->pMethods->xSync(real_of(file), flags);
}

int shim_delete(sqlite3_vfs* /*vfs*/, const char* name, int sync_folder) {
    if (disk.is_failing()) {
        return SQLITE_IOERR_DELETE;
    }
    if (const auto found = images.find(name); found != images.end()) {
        found->second = {.exists = false};
    }
    return real_vfs->xDelete(real_vfs, name, sync_folder);
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
    shim->image = name == nullptr ? nullptr : &images[name];
    if (shim->image != nullptr) {
        shim->image->exists = true;
    }
    const int status = real_vfs->xOpen(real_vfs, name, shim->real, flags, out);
    shim->base.pMethods = status == SQLITE_OK ? &kShimMethods : nullptr;
    return status;
}

/// Puts the shim below every store opened while it lives.
class FaultyVfs {
  public:
    FaultyVfs() {
        disk = {};
        images.clear();
        real_vfs = sqlite3_vfs_find(nullptr);
        vfs_ = *real_vfs;
        vfs_.zName = "holdfast_faulty";
        vfs_.szOsFile = static_cast<int>(sizeof(ShimFile)) + real_vfs->szOsFile;
        vfs_.xOpen = shim_open;
        vfs_.xDelete = shim_delete;
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
std::set<int> workload(const std::string& directory, Durability durability = Durability::durable) {
    std::set<int> acknowledged;
    auto store = Store::open({.directory = directory, .migrations = kTestMigrations});
    if (!store) {
        EXPECT_TRUE(store.error().code == Errc::store_io || store.error().code == Errc::store_full)
            << store.error().describe();
        return acknowledged;
    }
    for (int id = 1; id <= 5; ++id) {
        const auto done =
            (*store)->call({.procedure = "add", .durability = durability}, [&](Tx& tx) -> Result<> {
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

/// Writes what the disk holds after the power went away: each unsynced sector is there or not.
void lose_power(const std::map<std::string, DiskImage>& left, const std::string& target,
                SeededRandom& random) {
    constexpr std::size_t kSector = 512;
    const double kept = static_cast<double>(random.below(3)) / 2.0;  // none, half, all
    for (const auto& [path, image] : left) {
        std::string content = image.synced;
        for (const DiskImage::Write& write : image.unsynced) {
            if (write.bytes.empty() && random.uniform() < kept) {
                apply_write(content, write);
            }
            for (std::size_t at = 0; at < write.bytes.size(); at += kSector) {
                if (random.uniform() < kept) {
                    apply_write(content, write.at + static_cast<sqlite3_int64>(at),
                                std::string_view(write.bytes).substr(at, kSector));
                }
            }
        }
        const std::string name = std::filesystem::path(path).filename();
        if (image.exists) {
            ASSERT_TRUE(real_env().files.write_file_atomic(target + "/" + name, content, 0600));
        }
    }
}

struct Survivors {
    std::set<int> acknowledged = {};
    std::set<int> present = {};
    bool was_hit = false;  ///< the workload reached operation `at`
};

/// Runs the workload with the power going away at operation `at`.
Survivors survive(int at, Durability durability, SeededRandom& random) {
    Survivors answer;
    std::map<std::string, DiskImage> left;
    images.clear();
    {
        TempFolder folder(TempFolder::Place::memory);
        disk = {.fail_at = at, .for_ever = true};
        answer.acknowledged = workload(folder.path(), durability);
        left = images;
        answer.was_hit = disk.operations >= at;
    }
    disk = {};
    TempFolder after(TempFolder::Place::memory);
    lose_power(left, after.path(), random);
    const auto store = open_store(after.path());
    for (const Row& row : ask(*store, "SELECT id FROM item")) {
        answer.present.insert(static_cast<int>(row.integer(0)));
    }
    EXPECT_EQ(number(*store, "SELECT count(*) FROM part"),
              static_cast<std::int64_t>(answer.present.size()));
    EXPECT_TRUE(store->check()) << "operation " << at;
    EXPECT_EQ(tables_replayed(*store), tables_now(*store)) << "operation " << at;
    return answer;
}

TEST(PowerLoss, DurableAnswersSurviveItAtEveryOperation) {
    const FaultyVfs vfs;
    const LogRecorder recorder;
    set_log_level(Level::off);
    SeededRandom random(1);
    Survivors last{.was_hit = true};
    for (int at = 1; last.was_hit; ++at) {
        last = survive(at, Durability::durable, random);
        for (const int id : last.acknowledged) {
            EXPECT_TRUE(last.present.contains(id)) << "operation " << at << ": lost " << id;
        }
    }
    EXPECT_EQ(last.acknowledged.size(), 5U);
    set_log_level(Level::info);
}

TEST(PowerLoss, RelaxedAnswersMayBeLostButOnlyTheLastOnes) {
    const FaultyVfs vfs;
    const LogRecorder recorder;
    set_log_level(Level::off);
    SeededRandom random(2);
    Survivors last{.was_hit = true};
    int losses = 0;
    for (int at = 1; last.was_hit; ++at) {
        last = survive(at, Durability::relaxed, random);
        int expected = 1;
        for (const int id : last.present) {
            EXPECT_EQ(id, expected++) << "operation " << at;
        }
        losses += last.acknowledged.size() > last.present.size() ? 1 : 0;
    }
    EXPECT_EQ(last.present.size(), 5U);
    EXPECT_GT(losses, 0);  // the harness sees a missing sync
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
