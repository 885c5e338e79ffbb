// SPDX-License-Identifier: Apache-2.0
// A worker's data connections: one full-duplex TCP connection per pair of workers that exchange
// anything in an epoch.
//
// One thread polls, and does everything else here but wake(). The pair's greater name dials, the
// other accepts; both prove that they have the epoch's cluster key (wire.hpp). A dialler of an
// epoch that this worker hasn't heard of yet is kept waiting; one of an old epoch is hung up on. A
// new epoch closes every connection of the last. Bounded: connections not yet authenticated, how
// long they may take, bytes queued towards a peer, frame sizes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <holdfast/env.hpp>

#include "wire.hpp"
#include "worker_core.hpp"

namespace holdfast::training {

struct DataPlaneOptions {
    WorkerName self;
    std::string host;  ///< to listen on and to be dialled at
    std::int64_t redial_us = 20'000;
    std::int64_t handshake_us = 15'000'000;
    std::size_t strangers_max = 256;                      ///< connections not yet authenticated
    std::size_t queued_bytes_max = std::size_t{2} << 30;  ///< towards one peer
};

class DataPlane {
  public:
    /// Errors: invalid_argument for a host that is none of this machine's, unavailable when
    /// listening fails.
    static Result<std::unique_ptr<DataPlane>> listen(DataPlaneOptions options, Env& env);
    ~DataPlane();
    DataPlane(const DataPlane&) = delete;
    DataPlane& operator=(const DataPlane&) = delete;

    /// host:port, for peers to dial.
    [[nodiscard]] const std::string& address() const { return address_; }

    void open_epoch(const OpenEpoch& open);
    void close_epoch();
    /// Queues; a frame for a peer without a connection is dropped (its end was or will be
    /// reported).
    void send(Frame frame);
    /// Waits for sockets or wake(), at most this long, and moves bytes.
    std::vector<WorkerEvent> poll(std::int64_t wait_us);
    /// Ends a waiting poll. Threads: any.
    void wake();

  private:
    struct Link;
    DataPlane(DataPlaneOptions options, Env& env);

    Result<> start_listening();
    void accept_all();
    void dial_due();
    void dial(WorkerName peer, const std::string& address);
    void add(std::unique_ptr<Link> link);
    void drop(std::uint64_t id, const std::string& why);
    void read_from(std::uint64_t id);
    void write_to(std::uint64_t id);
    void queue(Link& link, const Frame& frame);
    void watch(Link& link);
    void expire();
    Result<> take(Link& link, Frame frame);
    Result<> on_challenge(Link& link, const Frame& frame);
    Result<> on_hello(Link& link, const Frame& frame);
    Result<> on_welcome(Link& link, const Frame& frame);
    Result<> admit(Link& link);
    void opened(Link& link);
    [[nodiscard]] Frame handshake_frame(FrameType type, const Link& link) const;
    [[nodiscard]] std::string nonce() const;

    const DataPlaneOptions options_;
    Env& env_;
    int epoll_ = -1;
    int listener_ = -1;
    int wake_ = -1;
    std::string address_;
    std::uint64_t last_id_ = 0;
    std::map<std::uint64_t, std::unique_ptr<Link>> links_;
    std::map<WorkerName, std::uint64_t> open_;  ///< authenticated, of this epoch
    std::int64_t epoch_ = 0;
    std::string key_;
    std::map<WorkerName, std::string> peers_;       ///< of this epoch, with addresses
    std::map<WorkerName, std::int64_t> redial_at_;  ///< those to dial that have no connection
    std::vector<WorkerEvent> events_;
    std::vector<std::byte> buffer_;
};

}  // namespace holdfast::training
