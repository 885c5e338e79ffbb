// SPDX-License-Identifier: Apache-2.0
/// The server: one process that owns the data directory, serves the API (api/holdfast.proto),
/// places jobs, speaks with agents and training workers, and notices what died. Everything it
/// knows is a row; it may be killed at any moment and starts again on its own data.
///
/// Not here: JSON over HTTP, and high availability (one server per data directory).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <holdfast/env.hpp>
#include <holdfast/log.hpp>
#include <holdfast/result.hpp>

namespace holdfast::server {

struct Options {
    std::string data_dir;  ///< made with mode 0700 if missing
    std::string socket;    ///< empty: data_dir/hold.sock
    std::string listen;    ///< `host:port` (port 0: the kernel chooses), TLS only; empty: no TCP
    std::string libexec;   ///< where hold-sql is; empty: beside this program
    std::int64_t heartbeat_interval_ms = 500;
    std::int64_t node_dead_ms = 5000;
    std::int64_t worker_suspect_ms = 500;
    std::int64_t worker_dead_ms = 1500;
    Env* env = nullptr;  ///< null: the machine's
};

/// Errors: invalid_argument naming the flag.
Result<> check(const Options& options);

class Server {
  public:
    /// Opens the store, serves the socket (and TCP), resumes what the rows say was going on.
    /// Errors: store_locked when another server owns the directory (naming its process id), those
    /// of Store::open, conflict when the socket or port is taken, invalid_argument.
    [[nodiscard]] static Result<std::unique_ptr<Server>> start(Options options);
    ~Server();  ///< stops
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    /// Ends every call with `unavailable` and returns when all threads are gone, within 5 s.
    /// Idempotent.
    void stop();

    [[nodiscard]] const std::string& socket() const;
    /// The TCP port really bound; 0 without TCP.
    [[nodiscard]] int port() const;
    /// PEM file of the CA that clients must trust; empty without TCP.
    [[nodiscard]] std::string ca_file() const;
    /// Made at the first start of a data directory, for one node, within a day; empty later.
    [[nodiscard]] const Secret& first_enrolment_token() const;

  private:
    struct State;
    explicit Server(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace holdfast::server
