// SPDX-License-Identifier: Apache-2.0
/// Files of the machine. The care here is about power loss (write_file_atomic) and about naming the
/// owner of a lock.
#include <algorithm>
#include <atomic>
#include <filesystem>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "real_parts.hpp"

namespace holdfast {

namespace {

Result<> write_fully(int descriptor, std::string_view bytes, const std::string& path) {
    while (!bytes.empty()) {
        const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
        if (wrote < 0) {
            if (errno == EINTR) {
                continue;
            }
            return fail(system_error("write", path, errno));
        }
        bytes.remove_prefix(static_cast<std::size_t>(wrote));
    }
    return {};
}

std::string folder_of(const std::string& path) {
    const std::string parent = std::filesystem::path(path).parent_path().string();
    return parent.empty() ? "." : parent;
}

Result<> sync_folder(const std::string& folder) {
    const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!opened.is_open()) {
        return fail(system_error("open folder", folder, errno));
    }
    if (::fsync(opened.get()) != 0) {
        return fail(system_error("sync folder", folder, errno));
    }
    return {};
}

class RealAppendFile : public AppendFile {
  public:
    RealAppendFile(Descriptor descriptor, std::string path, std::uint64_t size)
        : descriptor_(std::move(descriptor)), path_(std::move(path)), size_(size) {}

    Result<> append(std::string_view bytes) override {
        HOLD_TRY(write_fully(descriptor_.get(), bytes, path_));
        size_ += bytes.size();
        return {};
    }

    Result<> sync() override {
        if (::fdatasync(descriptor_.get()) != 0) {
            return fail(system_error("sync", path_, errno));
        }
        return {};
    }

    std::uint64_t size() const override { return size_; }

  private:
    Descriptor descriptor_;
    std::string path_;
    std::uint64_t size_;
};

class RealFileLock : public FileLock {
  public:
    explicit RealFileLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  private:
    Descriptor descriptor_;  // closing it ends the flock; the file stays, so nobody locks a ghost
};

Result<Descriptor> open_to_read(const std::string& path) {
    Descriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened.is_open()) {
        return fail(system_error("open", path, errno));
    }
    return opened;
}

Result<std::string> read_from(const Descriptor& opened, const std::string& path,
                              std::uint64_t offset, std::size_t bytes_max) {
    constexpr std::size_t kStep = 256 * 1024;
    std::string bytes;
    while (bytes.size() < bytes_max) {
        const std::size_t had = bytes.size();
        bytes.resize(had + std::min(kStep, bytes_max - had));
        const ssize_t got = ::pread(opened.get(), bytes.data() + had, bytes.size() - had,
                                    static_cast<off_t>(offset + had));
        bytes.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
        if (got < 0 && errno != EINTR) {
            return fail(system_error("read", path, errno));
        }
        if (got == 0) {
            break;
        }
    }
    return bytes;
}

class RealFiles : public Files {
  public:
    Result<std::string> read_file(const std::string& path, std::size_t bytes_max) override {
        HOLD_TRY(const Descriptor opened, open_to_read(path));
        HOLD_TRY(std::string bytes, read_from(opened, path, 0, bytes_max + 1));
        if (bytes.size() > bytes_max) {
            return fail(Errc::too_large, "read {}: more than {} bytes", path, bytes_max);
        }
        return bytes;
    }

    Result<std::string> read_range(const std::string& path, std::uint64_t offset,
                                   std::size_t bytes_max) override {
        HOLD_TRY(const Descriptor opened, open_to_read(path));
        return read_from(opened, path, offset, bytes_max);
    }

    Result<> write_file_atomic(const std::string& path, std::string_view bytes,
                               unsigned mode) override {
        const std::string temporary =
            fmt::format("{}.{}.{}.tmp", path, ::getpid(), temporary_count_.fetch_add(1));
        Result<> written = write_temporary(temporary, bytes, mode);
        if (written && ::rename(temporary.c_str(), path.c_str()) != 0) {
            written = fail(system_error("rename to", path, errno));
        }
        if (!written) {
            ::unlink(temporary.c_str());
            return written;
        }
        return sync_folder(folder_of(path));
    }

    Result<std::unique_ptr<AppendFile>> open_append(const std::string& path,
                                                    unsigned mode) override {
        Descriptor opened(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, mode));
        if (!opened.is_open()) {
            return fail(system_error("open to append", path, errno));
        }
        struct stat status{};
        if (::fstat(opened.get(), &status) != 0) {
            return fail(system_error("look at", path, errno));
        }
        HOLD_TRY(sync_folder(folder_of(path)));  // a new name survives a power loss, too
        return std::make_unique<RealAppendFile>(std::move(opened), path,
                                                static_cast<std::uint64_t>(status.st_size));
    }

    Result<> make_directories(const std::string& path, unsigned mode) override {
        std::filesystem::path grown;
        for (const auto& part : std::filesystem::path(path)) {
            grown /= part;
            if (grown.empty() || ::mkdir(grown.c_str(), mode) == 0 || errno == EISDIR) {
                continue;
            }
            if (errno != EEXIST) {
                return fail(system_error("make folder", grown.string(), errno));
            }
        }
        struct stat status{};
        if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
            return fail(Errc::conflict, "make folder {}: something else has that name", path);
        }
        return {};
    }

    Result<> remove(const std::string& path) override {
        if (::remove(path.c_str()) != 0) {
            return fail(system_error("remove", path, errno));
        }
        return {};
    }

    Result<std::vector<std::string>> list(const std::string& directory) override {
        DIR* opened = ::opendir(directory.c_str());
        if (opened == nullptr) {
            return fail(system_error("list", directory, errno));
        }
        std::vector<std::string> names;
        while (const dirent* entry = ::readdir(opened)) {  // NOLINT(concurrency-mt-unsafe): own DIR
            const std::string_view name = entry->d_name;
            if (name != "." && name != "..") {
                names.emplace_back(name);
            }
        }
        ::closedir(opened);
        std::sort(names.begin(), names.end());
        return names;
    }

    bool exists(const std::string& path) override {
        struct stat status{};
        return ::stat(path.c_str(), &status) == 0;
    }

    Result<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
        Descriptor opened(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        if (!opened.is_open()) {
            return fail(system_error("open lock file", path, errno));
        }
        if (::flock(opened.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK) {
                return fail(system_error("lock", path, errno));
            }
            return fail(owned_by_another(opened, path));
        }
        const std::string owner = fmt::format("{}\n", ::getpid());
        if (::ftruncate(opened.get(), 0) != 0) {
            return fail(system_error("write lock file", path, errno));
        }
        HOLD_TRY(write_fully(opened.get(), owner, path));
        return std::make_unique<RealFileLock>(std::move(opened));
    }

    Result<std::uint64_t> free_bytes(const std::string& path) override {
        struct statvfs status{};
        if (::statvfs(path.c_str(), &status) != 0) {
            return fail(system_error("ask for free space of", path, errno));
        }
        return std::uint64_t{status.f_bavail} * status.f_frsize;
    }

  private:
    static Result<> write_temporary(const std::string& path, std::string_view bytes,
                                    unsigned mode) {
        const Descriptor opened(
            ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
        if (!opened.is_open()) {
            return fail(system_error("make", path, errno));
        }
        HOLD_TRY(write_fully(opened.get(), bytes, path));
        if (::fsync(opened.get()) != 0) {
            return fail(system_error("sync", path, errno));
        }
        return {};
    }

    static Error owned_by_another(const Descriptor& opened, const std::string& path) {
        const auto owner = read_from(opened, path, 0, 32);
        std::string pid = owner ? *owner : "";
        while (!pid.empty() && pid.back() == '\n') {
            pid.pop_back();
        }
        return make_error(Errc::store_locked, "lock {}: process {} holds it", path,
                          pid.empty() ? "(unknown)" : pid)
            .advise("stop that process, or use another directory");
    }

    std::atomic<std::uint64_t> temporary_count_{0};
};

}  // namespace

Files& real_files() {
    static RealFiles files;
    return files;
}

}  // namespace holdfast
