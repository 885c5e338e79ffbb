// SPDX-License-Identifier: Apache-2.0
#include "state_dir.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "remove_tree.hpp"
#include "task_files.hpp"

namespace holdfast::agent {
namespace {

constexpr const char* kTokenFile = "node.token";
constexpr const char* kNodeFile = "node.name";
constexpr const char* kCaFile = "ca.crt";
constexpr std::size_t kTokenBytesMax = 4096;
constexpr std::size_t kFoldersMax = 1 << 20;
constexpr std::size_t kCertificateBytesMax = 1 << 20;

mode_t folder_mode() {
    return ::geteuid() == 0 ? 0711 : 0700;
}

Result<Fd> open_own_folder(const std::string& path) {
    if (::mkdir(path.c_str(), folder_mode()) != 0 && errno != EEXIST) {
        return fail(make_error(Errc::failed, "make the folder {}: {}", path, errno_text(errno)));
    }
    Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat facts = {};
    if (!folder.is_open() || ::fstat(folder.get(), &facts) != 0) {
        return fail(Errc::failed, "open the folder {}: {}", path, errno_text(errno));
    }
    if (facts.st_uid != ::geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return fail(make_error(Errc::denied,
                               "use {}: it belongs to another user or others can write there", path)
                        .advise("name a directory of the agent's own with --state"));
    }
    // mkdir's mode went through the umask.
    ::fchmod(folder.get(), folder_mode());
    return folder;
}

}  // namespace

bool task_and_lease_of(const std::string& name, std::int64_t& task, std::int64_t& lease) {
    const char* const end = name.data() + name.size();
    const auto first = std::from_chars(name.data(), end, task);
    if (first.ec != std::errc{} || first.ptr == end || *first.ptr != '-') {
        return false;
    }
    const auto second = std::from_chars(first.ptr + 1, end, lease);
    return second.ec == std::errc{} && second.ptr == end && task > 0 && lease > 0 &&
           name == folder_name(task, lease);
}

std::string folder_name(std::int64_t task, std::int64_t lease) {
    return fmt::format("{}-{}", task, lease);
}

Result<std::unique_ptr<StateDir>> StateDir::open(const std::string& path, Env& env) {
    HOLD_TRY(env.files.make_directories(path, folder_mode()));
    HOLD_TRY(const Fd top, open_own_folder(path));
    char resolved[4096];
    const ssize_t length =
        ::readlink(fmt::format("/proc/self/fd/{}", top.get()).c_str(), resolved, sizeof resolved);
    if (length <= 0 || length >= static_cast<ssize_t>(sizeof resolved)) {
        return fail(Errc::too_large, "use {}: its path is too long", path);
    }
    std::unique_ptr<StateDir> state(
        new StateDir(std::string(resolved, static_cast<std::size_t>(length)), env));
    auto lock = env.files.lock_file(state->path_ + "/lock");
    if (!lock) {
        return fail(std::move(lock.error())
                        .within("another agent runs on the state directory " + path)
                        .advise("stop that agent first, or give this one its own --state"));
    }
    state->lock_ = std::move(*lock);
    HOLD_TRY(state->tasks_, open_own_folder(state->path_ + "/tasks"));
    HOLD_TRY(state->trash_, open_own_folder(state->path_ + "/trash"));
    state->janitor_ = std::thread([raw = state.get()] { raw->remove_trash(); });
    return state;
}

StateDir::~StateDir() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (janitor_.joinable()) {
        janitor_.join();
    }
}

/// The janitor's thread: a scratch folder may hold millions of files, and heartbeats cannot wait.
void StateDir::remove_trash() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return has_trash_ || stopping_; });
        if (stopping_) {
            return;  // the rest is removed at the next start
        }
        has_trash_ = false;
        lock.unlock();
        for (const std::string& name : names_in(trash_.get(), kFoldersMax)) {
            const auto removed = remove_tree(trash_.get(), name);
            if (!removed && removed.error().code != Errc::not_found) {
                HOLD_EVENT(warn, "trash_not_removed", {"folder", path_ + "/trash/" + name},
                           {"error", removed.error()});
            }
        }
        lock.lock();
    }
}

std::string StateDir::task_path(const std::string& name) const {
    return path_ + "/tasks/" + name;
}

Result<Fd> StateDir::create_task(const std::string& name) {
    if (::mkdirat(tasks_.get(), name.c_str(), folder_mode()) != 0) {
        if (errno != EEXIST) {
            const Errc code = errno == ENOSPC || errno == EDQUOT ? Errc::store_full : Errc::failed;
            return fail(
                make_error(code, "make the task's folder in {}: {}", path_, errno_text(errno))
                    .advise("free space on the node, or drain it"));
        }
        HOLD_TRY(discard(name));
        if (::mkdirat(tasks_.get(), name.c_str(), folder_mode()) != 0) {
            return fail(Errc::failed, "make the task's folder in {}: {}", path_, errno_text(errno));
        }
    }
    HOLD_TRY(Fd folder, open_task(name));
    ::fchmod(folder.get(), folder_mode());
    return folder;
}

Result<Fd> StateDir::open_task(const std::string& name) {
    Fd folder(
        ::openat(tasks_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder.is_open()) {
        return fail(Errc::not_found, "open the task's folder {}: {}", name, errno_text(errno));
    }
    return folder;
}

std::vector<std::string> StateDir::tasks() {
    std::vector<std::string> names = names_in(tasks_.get(), kFoldersMax);
    std::sort(names.begin(), names.end());
    return names;
}

Result<> StateDir::discard(const std::string& name) {
    const std::string target = fmt::format("{}.{}", name, env_.random.hex(8));
    if (::renameat(tasks_.get(), name.c_str(), trash_.get(), target.c_str()) != 0) {
        return fail(Errc::failed, "move {} to the trash: {}", name, errno_text(errno));
    }
    {
        const std::lock_guard lock(mutex_);
        has_trash_ = true;
    }
    changed_.notify_all();
    return {};
}

Result<Secret> StateDir::token() {
    auto text = env_.files.read_file(path_ + "/" + kTokenFile, kTokenBytesMax);
    if (!text) {
        if (text.error().code == Errc::not_found) {
            return Secret();
        }
        return fail(std::move(text.error()).within("read the node's token"));
    }
    while (!text->empty() && (text->back() == '\n' || text->back() == ' ')) {
        text->pop_back();
    }
    return Secret(std::move(*text));
}

Result<> StateDir::keep_token(const Secret& token) {
    return env_.files.write_file_atomic(path_ + "/" + kTokenFile, token.reveal() + "\n", 0600);
}

bool StateDir::has_registered_as(const std::string& name) {
    const auto text = env_.files.read_file(path_ + "/" + kNodeFile, kTokenBytesMax);
    return text && *text == name + "\n";
}

void StateDir::note_registered_as(const std::string& name) {
    const auto noted = env_.files.write_file_atomic(path_ + "/" + kNodeFile, name + "\n", 0600);
    if (!noted) {
        HOLD_EVENT(warn, "state_not_written", {"file", kNodeFile}, {"error", noted.error()});
    }
}

Result<std::string> StateDir::publish_ca(const std::string& ca_file) {
    HOLD_TRY(const std::string text, env_.files.read_file(ca_file, kCertificateBytesMax));
    const std::string target = path_ + "/" + kCaFile;
    HOLD_TRY(env_.files.write_file_atomic(target, text, 0644));
    return target;
}

}  // namespace holdfast::agent
