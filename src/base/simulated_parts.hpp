// SPDX-License-Identifier: Apache-2.0
/// The parts of SimulatedEnv, one file each; private to base.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <holdfast/simulated_env.hpp>

namespace holdfast {

class SimulatedClock : public Clock {
  public:
    /// 2026-01-01 00:00:00 UTC: some fixed day.
    static constexpr std::int64_t kStartUs = 1'767'225'600LL * kSecondUs;

    std::int64_t wall_us() override { return kStartUs + steady_us_; }

    std::int64_t steady_us() override { return steady_us_; }

    void sleep_us(std::int64_t duration_us) override { steady_us_ += duration_us; }

    void move_to(std::int64_t steady_us) { steady_us_ = std::max(steady_us_, steady_us); }

  private:
    std::int64_t steady_us_ = 0;
};

class SimulatedFiles : public Files {
  public:
    /// Contents now, and contents after a power loss.
    struct Inode {
        std::string bytes;
        std::string synced;
    };

    Result<std::string> read_file(const std::string& path, std::size_t bytes_max) override;
    Result<std::string> read_range(const std::string& path, std::uint64_t offset,
                                   std::size_t bytes_max) override;
    Result<> write_file_atomic(const std::string& path, std::string_view bytes,
                               unsigned mode) override;
    Result<std::unique_ptr<AppendFile>> open_append(const std::string& path,
                                                    unsigned mode) override;
    Result<> make_directories(const std::string& path, unsigned mode) override;
    Result<> remove(const std::string& path) override;
    Result<std::vector<std::string>> list(const std::string& directory) override;
    bool exists(const std::string& path) override;
    Result<std::unique_ptr<FileLock>> lock_file(const std::string& path) override;
    Result<std::uint64_t> free_bytes(const std::string& path) override;

    void crash();
    void fail_operation(std::uint64_t nth, FileFault fault);

    [[nodiscard]] std::uint64_t operations() const { return operations_; }

    void set_disk_bytes(std::uint64_t bytes) { disk_bytes_ = bytes; }

    // For the handles it gives out; `generation` tells those of before a crash.
    Result<> append_to(Inode& inode, std::uint64_t generation, const std::string& path,
                       std::string_view bytes);
    Result<> sync(Inode& inode, std::uint64_t generation, const std::string& path);
    void unlock(std::uint64_t generation, const std::string& path);

  private:
    using Names = std::map<std::string, std::shared_ptr<Inode>>;

    /// Counts a writing operation and returns its fault, if it has one.
    Result<> begin_operation(std::string_view action, const std::string& path, bool* is_short);
    Result<> take_space(std::string_view action, const std::string& path, std::size_t bytes);
    [[nodiscard]] std::uint64_t used_bytes() const;
    void sync_folder(const std::string& folder);

    Names names_;
    Names synced_names_;
    std::set<std::string> folders_ = {"/", "."};
    std::set<std::string> locked_;
    std::uint64_t generation_ = 1;
    std::uint64_t operations_ = 0;
    std::uint64_t fail_at_ = 0;
    FileFault fault_ = FileFault::io_error;
    std::uint64_t disk_bytes_ = std::uint64_t{1} << 30;
};

/// All hosts' connections; each host sees it through a SimulatedNetwork.
class SimulatedWires {
  public:
    struct Segment {
        std::int64_t arrives_us = 0;
        std::string bytes;
        bool is_end = false;
    };

    /// What one host reads: segments under way and bytes that have arrived.
    struct Inbox {
        std::string host;
        std::string from;
        std::deque<Segment> under_way;
        std::string arrived;
        bool has_ended = false;  ///< the peer's end has arrived
        bool is_broken = false;  ///< reset: peer_lost
        bool is_closed = false;  ///< by its own host
        bool is_dead = false;    ///< its host crashed: swallows everything
    };

    struct Backlog {
        std::string host;
        std::string address;
        std::deque<std::unique_ptr<Connection>> waiting;
        bool is_closed = false;
    };

    SimulatedWires(SimulatedClock& clock, SeededRandom& random) : clock_(clock), random_(random) {}

    [[nodiscard]] Result<std::unique_ptr<Listener>> listen(const std::string& host,
                                                           const std::string& address);
    [[nodiscard]] Result<std::unique_ptr<Connection>> connect(const std::string& host,
                                                              const std::string& address,
                                                              std::int64_t wait_us);
    void send(Inbox& to, Inbox& back, std::string bytes, bool is_end);
    /// Moves the clock until `inbox` has something to say or the deadline passes.
    Result<> wait_for(Inbox& inbox, std::int64_t wait_us, const std::string& what);
    void crash(const std::string& host);

    void set_faults(const NetworkFaults& faults) { faults_ = faults; }

    void partition(const std::string& a, const std::string& b);
    void heal(const std::string& a, const std::string& b);

    [[nodiscard]] SimulatedClock& clock() { return clock_; }

  private:
    [[nodiscard]] bool is_apart(const std::string& a, const std::string& b) const;
    void deliver_due(Inbox& inbox);

    SimulatedClock& clock_;
    SeededRandom& random_;
    NetworkFaults faults_;
    std::set<std::pair<std::string, std::string>> apart_;
    std::map<std::string, std::shared_ptr<Backlog>> listeners_;
    std::vector<std::weak_ptr<Inbox>> inboxes_;
    int next_port_ = 40'000;
};

class SimulatedNetwork : public Network {
  public:
    SimulatedNetwork(SimulatedWires& wires, std::string host)
        : wires_(wires), host_(std::move(host)) {}

    Result<std::unique_ptr<Listener>> listen(const std::string& address) override {
        return wires_.listen(host_, address);
    }

    Result<std::unique_ptr<Connection>> connect(const std::string& address,
                                                std::int64_t wait_us) override {
        return wires_.connect(host_, address, wait_us);
    }

  private:
    SimulatedWires& wires_;
    std::string host_;
};

}  // namespace holdfast
