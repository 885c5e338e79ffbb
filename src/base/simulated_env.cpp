// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <holdfast/simulated_env.hpp>

#include "simulated_parts.hpp"

namespace holdfast {

namespace {

constexpr std::uint64_t rotate_left(std::uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

}  // namespace

SeededRandom::SeededRandom(std::uint64_t seed) : state_{} {
    for (std::uint64_t& word : state_) {  // splitmix64: any seed gives a good start
        seed += 0x9E3779B97F4A7C15ULL;
        std::uint64_t mixed = seed;
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9ULL;
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBULL;
        word = mixed ^ mixed >> 31;
    }
}

std::uint64_t SeededRandom::next() {
    const std::uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate_left(state_[3], 45);
    return result;
}

void SeededRandom::fill(std::span<std::byte> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
        std::uint64_t word = next();
        for (std::size_t index = at; index < std::min(at + 8, bytes.size()); ++index) {
            bytes[index] = static_cast<std::byte>(word & 0xFFU);
            word >>= 8;
        }
    }
}

struct SimulatedEnv::State {
    struct Host {
        Host(SimulatedClock& clock, SeededRandom& random, SimulatedWires& wires,
             const std::string& name)
            : network(wires, name), env{clock, random, files, network} {}

        SimulatedFiles files;
        SimulatedNetwork network;
        Env env;
    };

    explicit State(std::uint64_t seed) : random(seed) {}

    Host& host(const std::string& name) {
        auto& made = hosts[name];
        if (made == nullptr) {
            made = std::make_unique<Host>(clock, random, wires, name);
        }
        return *made;
    }

    SimulatedClock clock;
    SeededRandom random;
    SimulatedWires wires{clock, random};
    std::map<std::string, std::unique_ptr<Host>> hosts;
};

SimulatedEnv::SimulatedEnv(std::uint64_t seed) : state_(std::make_unique<State>(seed)) {}

SimulatedEnv::~SimulatedEnv() = default;

Env& SimulatedEnv::env() {
    return host("localhost");
}

Env& SimulatedEnv::host(const std::string& name) {
    return state_->host(name).env;
}

void SimulatedEnv::advance_us(std::int64_t duration_us) {
    HOLD_CHECK(duration_us >= 0, "time does not go backwards");
    state_->clock.sleep_us(duration_us);
}

void SimulatedEnv::crash(const std::string& name) {
    state_->host(name).files.crash();
    state_->wires.crash(name);
}

void SimulatedEnv::fail_file_operation(const std::string& name, std::uint64_t nth,
                                       FileFault fault) {
    state_->host(name).files.fail_operation(nth, fault);
}

std::uint64_t SimulatedEnv::file_operations(const std::string& name) const {
    return state_->host(name).files.operations();
}

void SimulatedEnv::set_disk_bytes(const std::string& name, std::uint64_t bytes) {
    state_->host(name).files.set_disk_bytes(bytes);
}

void SimulatedEnv::set_network_faults(const NetworkFaults& faults) {
    state_->wires.set_faults(faults);
}

void SimulatedEnv::partition(const std::string& a, const std::string& b) {
    state_->wires.partition(a, b);
}

void SimulatedEnv::heal(const std::string& a, const std::string& b) {
    state_->wires.heal(a, b);
}

}  // namespace holdfast
