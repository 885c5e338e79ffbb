// SPDX-License-Identifier: Apache-2.0
#include "peers.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <holdfast/log.hpp>

namespace holdfast::server {
namespace {

constexpr int kNumbersMax = 16'384;

std::string errno_text(int number) {
    std::array<char, 128> buffer{};
    return strerror_r(number, buffer.data(), buffer.size());
}

Result<std::string> user_name(uid_t uid) {
    std::array<char, 4096> buffer{};
    passwd entry{};
    passwd* found = nullptr;
    if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
        return fail(Errc::unauthenticated, "uid {} has no name in this machine's user database",
                    uid);
    }
    return std::string(found->pw_name);
}

// SAFETY: bind, connect and friends take a sockaddr*; sockaddr_un is layout-compatible with it by
// POSIX, and the length is passed beside it.
const sockaddr* as_sockaddr(const sockaddr_un& address) {
    return reinterpret_cast<const sockaddr*>(&address);
}

Result<sockaddr_un> address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof(address.sun_path)) {
        return fail(make_error(Errc::invalid_argument,
                               "socket path `{}` has {} bytes; a unix socket's may have 1 to {}",
                               path, path.size(), sizeof(address.sun_path) - 1)
                        .at("--socket")
                        .advise("name a shorter one with --socket"));
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
}

/// Removes what an earlier server left; refuses to touch anything else.
Result<> remove_stale(const std::string& path, const sockaddr_un& address) {
    struct stat status{};
    if (lstat(path.c_str(), &status) != 0) {
        return {};
    }
    if (!S_ISSOCK(status.st_mode)) {
        return fail(
            make_error(Errc::conflict, "listen on {}: a file that is no socket is there", path)
                .at("--socket")
                .advise("name another path, or move the file away"));
    }
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int connected = connect(probe, as_sockaddr(address), sizeof(address));
    close(probe);
    if (connected == 0) {
        return fail(make_error(Errc::conflict, "listen on {}: another program listens there", path)
                        .at("--socket")
                        .advise("name another path with --socket"));
    }
    unlink(path.c_str());
    return {};
}

}  // namespace

Result<Caller> caller_of_uid(uid_t uid) {
    HOLD_TRY(std::string name, user_name(uid));
    Caller caller;
    caller.user = std::move(name);
    caller.role = uid == 0 || uid == geteuid() ? Role::admin : Role::user;
    caller.local = true;
    return caller;
}

Peers::Peers() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < limit.rlim_max) {  // agents, workers and clients each hold a descriptor
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    const auto available = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 2 * kNumbersMax));
    first_ = std::min(available / 2, 1024);
    limit_ = std::min(available, first_ + kNumbersMax);
    owner_.resize(static_cast<std::size_t>(limit_ - first_));
}

Result<int> Peers::adopt(int accepted, uid_t uid) {
    const std::lock_guard lock(mutex_);
    auto number = adopt_locked(accepted, uid);
    close(accepted);
    return number;
}

Result<int> Peers::adopt_locked(int accepted, uid_t uid) {
    auto user = std::find_if(users_.begin(), users_.end(),
                             [&](const auto& entry) { return entry.first == uid; });
    if (user == users_.end()) {
        users_.emplace_back(uid, User{});
        user = users_.end() - 1;
        user->second.caller = fail(Errc::unauthenticated, "uid {} was not looked up", uid);
    }
    if (!user->second.caller) {  // also again, later, for a uid that had no name
        user->second.caller = caller_of_uid(uid);
    }
    const auto owner_of = [&](int number) -> std::optional<uid_t>& {
        return owner_[static_cast<std::size_t>(number - first_)];
    };
    const bool may_grow = user->second.numbers < kConnectionsPerUserMax;
    const auto is_usable = [&](int number) {
        return owner_of(number) ? *owner_of(number) == uid : may_grow;
    };
    for (int from = first_; from < limit_;) {
        if (!is_usable(from)) {
            ++from;
            continue;
        }
        const int number = fcntl(accepted, F_DUPFD_CLOEXEC, from);
        if (number < 0 || number >= limit_) {
            if (number >= 0) {
                close(number);
            }
            break;
        }
        if (is_usable(number)) {
            user->second.numbers += owner_of(number) ? 0 : 1;
            owner_of(number) = uid;
            return number;
        }
        close(number);
        from = number + 1;
    }
    return fail(make_error(Errc::unavailable, "a connection of uid {}: no descriptor is left", uid)
                    .may_retry());
}

Result<Caller> Peers::find(const std::string& peer) const {
    const auto at = peer.find("fd:");
    const bool is_local = at == 0 || (at == 5 && peer.rfind("unix:", 0) == 0);
    int number = -1;
    if (is_local) {
        std::from_chars(peer.data() + at + 3, peer.data() + peer.size(), number);
    }
    const std::lock_guard lock(mutex_);
    if (number < first_ || number >= limit_) {
        return fail(Errc::not_found, "{} is no local connection", peer);
    }
    const auto& owner = owner_[static_cast<std::size_t>(number - first_)];
    for (const auto& [uid, user] : users_) {
        if (owner && uid == *owner) {
            return user.caller;
        }
    }
    return fail(Errc::not_found, "{} is no local connection", peer);
}

Result<> LocalListener::start(const std::string& path, Peers& peers,
                              std::function<void(int)> hand_over) {
    HOLD_TRY(const sockaddr_un address, address_of(path));
    HOLD_TRY(remove_stale(path, address));
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    // Any local user may connect: who it is decides what it may do.
    if (fd < 0 || bind(fd, as_sockaddr(address), sizeof(address)) != 0 ||
        chmod(path.c_str(), 0666) != 0 || listen(fd, 512) != 0) {
        const int number = errno;
        close(fd);
        return fail(make_error(Errc::unavailable, "listen on {}: {}", path, errno_text(number))
                        .at("--socket"));
    }
    path_ = path;
    peers_ = &peers;
    hand_over_ = std::move(hand_over);
    listen_fd_ = fd;
    wake_fd_ = eventfd(0, EFD_CLOEXEC);
    thread_ = std::thread([this] { run(); });
    return {};
}

void LocalListener::run() {
    constexpr int kPauseMs = 50;  // when descriptors are used up: let some close
    int pause = -1;
    while (true) {
        std::array<pollfd, 2> watched = {pollfd{wake_fd_, POLLIN, 0},
                                         pollfd{pause < 0 ? listen_fd_ : -1, POLLIN, 0}};
        poll(watched.data(), watched.size(), pause);
        pause = -1;
        if (watched[0].revents != 0) {
            return;
        }
        const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            pause = errno == EMFILE || errno == ENFILE || errno == ENOMEM ? kPauseMs : -1;
            continue;
        }
        ucred credentials{};
        socklen_t size = sizeof(credentials);
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
            close(fd);
            continue;
        }
        auto number = peers_->adopt(fd, credentials.uid);
        if (!number) {
            HOLD_EVENT(warn, "connection_refused", {"uid", credentials.uid},
                       {"why", number.error()});
            continue;
        }
        hand_over_(*number);
    }
}

void LocalListener::stop() {
    if (!thread_.joinable()) {
        return;
    }
    const std::uint64_t one = 1;
    if (write(wake_fd_, &one, sizeof(one)) < 0) {
        return;  // an eventfd cannot be full after one write
    }
    thread_.join();
    close(listen_fd_);
    close(wake_fd_);
    unlink(path_.c_str());
}

}  // namespace holdfast::server
