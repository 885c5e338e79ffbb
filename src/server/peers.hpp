// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of the unix socket.
//
// gRPC 1.51 does not tell a peer's uid, so we accept connections ourselves, read SO_PEERCRED, and
// hand the descriptor to gRPC, whose calls then name it: `fd:N`. A number alone would be a trap:
// when a connection ends, the kernel gives its number to the next one, and a call of the old
// connection that still waits for a thread would run as the new one's user. So each number we hand
// over belongs to one uid for as long as the process lives: a descriptor is moved (F_DUPFD) to a
// number that is new or that the same uid had before.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include <holdfast/result.hpp>

#include "access.hpp"

namespace holdfast::server {

class Peers {
  public:
    /// At most so many connections of one uid at a time: one user cannot use the numbers up.
    static constexpr std::size_t kConnectionsPerUserMax = 512;

    Peers();

    /// Moves `accepted` (closed in any case) to a number of this uid's.
    /// Errors: unavailable when the uid, or the process, has no number left.
    Result<int> adopt(int accepted, uid_t uid);

    /// Whose calls `peer` (ServerContext::peer()) names. Errors: unauthenticated for a uid without
    /// a name, not_found when `peer` is no local connection.
    Result<Caller> find(const std::string& peer) const;

  private:
    struct User {
        Result<Caller> caller = Caller{};
        std::size_t numbers = 0;
    };

    Result<int> adopt_locked(int accepted, uid_t uid);

    mutable std::mutex mutex_;
    int first_ = 0;  ///< numbers below are left to files
    int limit_ = 0;
    std::vector<std::optional<uid_t>> owner_;  ///< by number - first_
    std::vector<std::pair<uid_t, User>> users_;
};

/// The name and role of a local uid: root and the server's own uid are admins.
Result<Caller> caller_of_uid(uid_t uid);

/// Listens on a unix socket and hands each connection's descriptor over (already adopted).
class LocalListener {
  public:
    LocalListener() = default;

    ~LocalListener() { stop(); }

    LocalListener(const LocalListener&) = delete;
    LocalListener& operator=(const LocalListener&) = delete;

    /// Pre: the caller owns the data directory's lock, so a socket file that is left at `path` and
    /// refuses connections is stale and may go. Errors: conflict when somebody listens there,
    /// invalid_argument for a path that is too long or no socket.
    Result<> start(const std::string& path, Peers& peers, std::function<void(int)> hand_over);
    /// Stops accepting and removes the socket file.
    void stop();

  private:
    void run();

    std::string path_;
    Peers* peers_ = nullptr;
    std::function<void(int)> hand_over_;
    int listen_fd_ = -1;
    int wake_fd_ = -1;
    std::thread thread_;
};

}  // namespace holdfast::server
