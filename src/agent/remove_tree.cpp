// SPDX-License-Identifier: Apache-2.0
#include "remove_tree.hpp"

#include <cerrno>
#include <cstdint>
#include <vector>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "descriptor.hpp"
#include "task_files.hpp"

namespace holdfast::agent {
namespace {

constexpr int kDepthMax = 64;
constexpr std::size_t kBatch = 1024;

Fd open_below(int parent, const std::string& name) {
    open_how how = {};
    how.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
    const auto open_once = [&] {
        return static_cast<int>(::syscall(SYS_openat2, parent, name.c_str(), &how, sizeof how));
    };
    int opened = open_once();
    if (opened < 0 && errno == EACCES && ::geteuid() != 0) {
        // Our own user's task took its folder's permissions away; as root this never happens.
        ::fchmodat(parent, name.c_str(), 0700, 0);
        opened = open_once();
    }
    return Fd(opened);
}

class Remover {
  public:
    explicit Remover(int top) : top_(top) {}

    /// Empties the open folder. Subfolders too deep for recursion are moved up to the top folder,
    /// whose own loop meets them again.
    Result<> empty(int folder, int depth) {
        // Some file systems skip entries when names go away during a listing: until none is left.
        while (true) {
            const auto names = names_in(folder, kBatch);
            if (names.empty()) {
                return {};
            }
            for (const std::string& name : names) {
                HOLD_TRY(remove(folder, name, depth));
            }
        }
    }

  private:
    Result<> remove(int folder, const std::string& name, int depth) {
        if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) {
            return {};
        }
        if (errno == EACCES && ::geteuid() != 0) {
            ::fchmod(folder, 0700);
            if (::unlinkat(folder, name.c_str(), 0) == 0) {
                return {};
            }
        }
        if (errno != EISDIR && errno != EPERM) {
            return fail(Errc::failed, "remove {}: {}", name, errno_text(errno));
        }
        if (depth >= kDepthMax) {
            return move_up(folder, name);
        }
        const Fd inner = open_below(folder, name);
        if (!inner.is_open()) {
            return fail(Errc::failed, "open {} to remove it: {}", name, errno_text(errno));
        }
        HOLD_TRY(empty(inner.get(), depth + 1));
        if (::unlinkat(folder, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
            return fail(Errc::failed, "remove the folder {}: {}", name, errno_text(errno));
        }
        return {};
    }

    Result<> move_up(int folder, const std::string& name) {
        // The name may be taken by the task's own files: then the next.
        for (int attempt = 0; attempt < 10'000; ++attempt) {
            const std::string moved = fmt::format(".deep-{}", ++moved_);
            if (::renameat(folder, name.c_str(), top_, moved.c_str()) == 0) {
                return {};
            }
            if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) {
                break;
            }
        }
        return fail(Errc::failed, "move {} up to remove it: {}", name, errno_text(errno));
    }

    int top_;
    std::uint64_t moved_ = 0;
};

}  // namespace

Result<> remove_tree(int parent, const std::string& name) {
    const Fd top = open_below(parent, name);
    if (!top.is_open()) {
        return fail(errno == ENOENT ? Errc::not_found : Errc::failed, "open {} to remove it: {}",
                    name, errno_text(errno));
    }
    HOLD_TRY(Remover(top.get()).empty(top.get(), 0));
    if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0) {
        return fail(Errc::failed, "remove the folder {}: {}", name, errno_text(errno));
    }
    return {};
}

}  // namespace holdfast::agent
