// SPDX-License-Identifier: Apache-2.0
/// An Env from a seed: virtual time, seeded randomness, files in memory and a network in memory,
/// with faults.
///
/// One thread. Time moves only by advance_us, by sleep_us and by waits: a wait that nothing ends
/// moves the clock to its deadline (so `wait_us = 0` polls). The same seed and the same calls give
/// the same results. Hosts share clock, randomness and network and have files of their own:
///
///     SimulatedEnv world(seed);
///     Env& a = world.host("a");
///     a.network.listen("tcp:a:7000");                 // the host's name is its address
///     world.partition("a", "b"); world.advance_us(kSecondUs); world.heal("a", "b");
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <holdfast/env.hpp>

namespace holdfast {

/// xoshiro256**, seeded by splitmix64. Not for secrets.
class SeededRandom : public Random {
  public:
    explicit SeededRandom(std::uint64_t seed);
    [[nodiscard]] std::uint64_t next() override;
    void fill(std::span<std::byte> bytes) override;

  private:
    std::uint64_t state_[4];
};

enum class FileFault : std::uint8_t {
    io_error,     ///< nothing written, Errc::store_io
    no_space,     ///< nothing written, Errc::store_full
    short_write,  ///< half of the bytes written, then Errc::store_io
};

/// How the simulated network treats a segment (one write_all). Probabilities are in [0, 1].
struct NetworkFaults {
    std::int64_t delay_min_us = 50;
    std::int64_t delay_max_us = 500;
    double drop = 0.0;  ///< lost once: arrives `retransmit_us` later
    std::int64_t retransmit_us = 200'000;
    double reset = 0.0;  ///< the connection breaks for both sides (peer_lost)
};

class SimulatedEnv {
  public:
    explicit SimulatedEnv(std::uint64_t seed);
    ~SimulatedEnv();
    SimulatedEnv(const SimulatedEnv&) = delete;
    SimulatedEnv& operator=(const SimulatedEnv&) = delete;

    /// The host "localhost".
    [[nodiscard]] Env& env();
    /// The host of this name, made on first use.
    [[nodiscard]] Env& host(const std::string& name);

    void advance_us(std::int64_t duration_us);

    /// Power loss of a host: files and names fall back to what was synced, locks are released, its
    /// listeners and connections are gone without a word to their peers.
    void crash(const std::string& host);
    /// The `nth` next writing operation (1: the next) of the host's files fails once; 0: none does.
    void fail_file_operation(const std::string& host, std::uint64_t nth, FileFault fault);
    /// Writing operations of the host's files so far, failed ones included.
    [[nodiscard]] std::uint64_t file_operations(const std::string& host) const;
    /// Bytes the host's files may hold in all (default 1 GiB); more fails with store_full.
    void set_disk_bytes(const std::string& host, std::uint64_t bytes);

    void set_network_faults(const NetworkFaults& faults);
    /// Nothing passes between the two hosts until healed; what was sent meanwhile arrives then.
    void partition(const std::string& a, const std::string& b);
    void heal(const std::string& a, const std::string& b);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace holdfast
