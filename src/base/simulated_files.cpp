// SPDX-License-Identifier: Apache-2.0
/// Files in memory that lose what was not synced. Folders are durable as soon as they are made;
/// names become durable with the next sync of their folder (write_file_atomic, open_append).
#include <algorithm>

#include "simulated_parts.hpp"

namespace holdfast {

namespace {

constexpr std::string_view kFoldersEnd = "/";

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) {
        return ".";
    }
    return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
    return path.substr(path.rfind('/') + 1);
}

Error injected(Errc code, std::string_view action, const std::string& path) {
    Error error =
        make_error(code, "{} {}: {}", action, path,
                   code == Errc::store_full ? "no space left on device" : "input/output error");
    error.injected = true;
    return error;
}

class SimulatedAppendFile : public AppendFile {
  public:
    SimulatedAppendFile(SimulatedFiles& files, std::shared_ptr<SimulatedFiles::Inode> inode,
                        std::uint64_t generation, std::string path)
        : files_(files),
          inode_(std::move(inode)),
          generation_(generation),
          path_(std::move(path)) {}

    Result<> append(std::string_view bytes) override {
        return files_.append_to(*inode_, generation_, path_, bytes);
    }

    Result<> sync() override { return files_.sync(*inode_, generation_, path_); }

    std::uint64_t size() const override { return inode_->bytes.size(); }

  private:
    SimulatedFiles& files_;
    std::shared_ptr<SimulatedFiles::Inode> inode_;
    std::uint64_t generation_;
    std::string path_;
};

class SimulatedLock : public FileLock {
  public:
    SimulatedLock(SimulatedFiles& files, std::uint64_t generation, std::string path)
        : files_(files), generation_(generation), path_(std::move(path)) {}

    ~SimulatedLock() override { files_.unlock(generation_, path_); }

    SimulatedLock(const SimulatedLock&) = delete;
    SimulatedLock& operator=(const SimulatedLock&) = delete;

  private:
    SimulatedFiles& files_;
    std::uint64_t generation_;
    std::string path_;
};

}  // namespace

Result<> SimulatedFiles::begin_operation(std::string_view action, const std::string& path,
                                         bool* is_short) {
    ++operations_;
    if (fail_at_ != operations_) {
        return {};
    }
    if (fault_ == FileFault::short_write && is_short != nullptr) {
        *is_short = true;
        return {};
    }
    return fail(
        injected(fault_ == FileFault::no_space ? Errc::store_full : Errc::store_io, action, path));
}

Result<> SimulatedFiles::take_space(std::string_view action, const std::string& path,
                                    std::size_t bytes) {
    if (used_bytes() + bytes > disk_bytes_) {
        return fail(injected(Errc::store_full, action, path));
    }
    return {};
}

std::uint64_t SimulatedFiles::used_bytes() const {
    std::uint64_t used = 0;
    for (const auto& [path, inode] : names_) {
        used += inode->bytes.size();
    }
    return used;
}

void SimulatedFiles::sync_folder(const std::string& folder) {
    std::erase_if(synced_names_,
                  [&](const auto& entry) { return folder_of(entry.first) == folder; });
    for (const auto& [path, inode] : names_) {
        if (folder_of(path) == folder) {
            synced_names_[path] = inode;
        }
    }
}

Result<std::string> SimulatedFiles::read_file(const std::string& path, std::size_t bytes_max) {
    const auto found = names_.find(path);
    if (found == names_.end()) {
        return fail(Errc::not_found, "open {}: no such file or directory", path);
    }
    if (found->second->bytes.size() > bytes_max) {
        return fail(Errc::too_large, "read {}: more than {} bytes", path, bytes_max);
    }
    return found->second->bytes;
}

Result<std::string> SimulatedFiles::read_range(const std::string& path, std::uint64_t offset,
                                               std::size_t bytes_max) {
    const auto found = names_.find(path);
    if (found == names_.end()) {
        return fail(Errc::not_found, "open {}: no such file or directory", path);
    }
    const std::string& bytes = found->second->bytes;
    return offset >= bytes.size() ? std::string() : bytes.substr(offset, bytes_max);
}

Result<> SimulatedFiles::write_file_atomic(const std::string& path, std::string_view bytes,
                                           unsigned /*mode*/) {
    bool is_short = false;
    HOLD_TRY(begin_operation("write", path, &is_short));
    if (is_short) {
        return fail(injected(Errc::store_io, "write", path));  // the temporary file is gone again
    }
    if (!folders_.contains(folder_of(path))) {
        return fail(Errc::not_found, "write {}: no such file or directory", path);
    }
    HOLD_TRY(take_space("write", path, bytes.size()));
    names_[path] = std::make_shared<Inode>(Inode{std::string(bytes), std::string(bytes)});
    sync_folder(folder_of(path));
    return {};
}

Result<std::unique_ptr<AppendFile>> SimulatedFiles::open_append(const std::string& path,
                                                                unsigned /*mode*/) {
    HOLD_TRY(begin_operation("open to append", path, nullptr));
    if (!folders_.contains(folder_of(path))) {
        return fail(Errc::not_found, "open to append {}: no such file or directory", path);
    }
    auto& inode = names_[path];
    if (inode == nullptr) {
        inode = std::make_shared<Inode>();
    }
    sync_folder(folder_of(path));
    return std::make_unique<SimulatedAppendFile>(*this, inode, generation_, path);
}

Result<> SimulatedFiles::make_directories(const std::string& path, unsigned /*mode*/) {
    HOLD_TRY(begin_operation("make folder", path, nullptr));
    for (std::size_t at = 1; at <= path.size(); ++at) {
        if (at == path.size() || path[at] == '/') {
            const std::string part = path.substr(0, at);
            if (names_.contains(part)) {
                return fail(Errc::conflict, "make folder {}: something else has that name", part);
            }
            folders_.insert(part);
        }
    }
    return {};
}

Result<> SimulatedFiles::remove(const std::string& path) {
    HOLD_TRY(begin_operation("remove", path, nullptr));
    if (names_.erase(path) > 0) {
        return {};
    }
    if (!folders_.contains(path)) {
        return fail(Errc::not_found, "remove {}: no such file or directory", path);
    }
    HOLD_TRY(const std::vector<std::string> inside, list(path));
    if (!inside.empty()) {
        return fail(Errc::conflict, "remove {}: directory not empty", path);
    }
    folders_.erase(path);
    return {};
}

Result<std::vector<std::string>> SimulatedFiles::list(const std::string& directory) {
    if (!folders_.contains(directory)) {
        return fail(Errc::not_found, "list {}: no such file or directory", directory);
    }
    std::set<std::string> found;
    for (const auto& [path, inode] : names_) {
        if (folder_of(path) == directory) {
            found.insert(name_of(path));
        }
    }
    for (const std::string& folder : folders_) {
        if (folder != kFoldersEnd && folder != "." && folder_of(folder) == directory) {
            found.insert(name_of(folder));
        }
    }
    return std::vector<std::string>(found.begin(), found.end());
}

bool SimulatedFiles::exists(const std::string& path) {
    return names_.contains(path) || folders_.contains(path);
}

Result<std::unique_ptr<FileLock>> SimulatedFiles::lock_file(const std::string& path) {
    if (!locked_.insert(path).second) {
        return fail(make_error(Errc::store_locked, "lock {}: process 1 holds it", path)
                        .advise("stop that process, or use another directory"));
    }
    if (names_[path] == nullptr) {
        names_[path] = std::make_shared<Inode>(Inode{"1\n", ""});
    }
    return std::make_unique<SimulatedLock>(*this, generation_, path);
}

void SimulatedFiles::unlock(std::uint64_t generation, const std::string& path) {
    if (generation == generation_) {
        locked_.erase(path);
    }
}

Result<std::uint64_t> SimulatedFiles::free_bytes(const std::string& /*path*/) {
    const std::uint64_t used = used_bytes();
    return used >= disk_bytes_ ? 0 : disk_bytes_ - used;
}

Result<> SimulatedFiles::append_to(Inode& inode, std::uint64_t generation, const std::string& path,
                                   std::string_view bytes) {
    bool is_short = false;
    HOLD_TRY(begin_operation("write", path, &is_short));
    if (generation != generation_) {
        return fail(injected(Errc::store_io, "write after a crash", path));
    }
    HOLD_TRY(take_space("write", path, bytes.size()));
    if (is_short) {
        inode.bytes += bytes.substr(0, bytes.size() / 2);
        return fail(injected(Errc::store_io, "write", path));
    }
    inode.bytes += bytes;
    return {};
}

Result<> SimulatedFiles::sync(Inode& inode, std::uint64_t generation, const std::string& path) {
    HOLD_TRY(begin_operation("sync", path, nullptr));
    if (generation != generation_) {
        return fail(injected(Errc::store_io, "sync after a crash", path));
    }
    inode.synced = inode.bytes;
    return {};
}

void SimulatedFiles::crash() {
    ++generation_;
    locked_.clear();
    names_ = synced_names_;
    for (auto& [path, inode] : names_) {
        // A handle from before the crash keeps the old inode.
        inode = std::make_shared<Inode>(Inode{inode->synced, inode->synced});
    }
    synced_names_ = names_;
}

void SimulatedFiles::fail_operation(std::uint64_t nth, FileFault fault) {
    fail_at_ = nth == 0 ? 0 : operations_ + nth;
    fault_ = fault;
}

}  // namespace holdfast
