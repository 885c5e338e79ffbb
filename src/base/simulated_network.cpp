// SPDX-License-Identifier: Apache-2.0
/// Byte streams in memory. A stream keeps its order whatever its segments' delays are; a lost
/// segment is one that comes late, as under TCP; hosts apart keep their segments until they are
/// healed.
#include <algorithm>
#include <cstring>

#include "simulated_parts.hpp"

namespace holdfast {

namespace {

constexpr std::size_t kBacklogMax = 128;
constexpr std::size_t kUnreadBytesMax = 64U
                                        << 20;  // a reader that never reads is a bug of the test

class SimulatedConnection : public Connection {
  public:
    SimulatedConnection(SimulatedWires& wires, std::shared_ptr<SimulatedWires::Inbox> own,
                        std::shared_ptr<SimulatedWires::Inbox> other, std::string peer)
        : wires_(wires), own_(std::move(own)), other_(std::move(other)), peer_(std::move(peer)) {}

    ~SimulatedConnection() override { close(); }

    SimulatedConnection(const SimulatedConnection&) = delete;
    SimulatedConnection& operator=(const SimulatedConnection&) = delete;

    Result<std::size_t> read_some(std::span<std::byte> into, std::int64_t wait_us) override {
        if (into.empty()) {
            return std::size_t{0};
        }
        HOLD_TRY(wires_.wait_for(*own_, wait_us, "read from " + peer_));
        const std::size_t count = std::min(into.size(), own_->arrived.size());
        std::memcpy(into.data(), own_->arrived.data(), count);
        own_->arrived.erase(0, count);
        return count;
    }

    Result<> write_all(std::span<const std::byte> bytes, std::int64_t wait_us) override {
        if (own_->is_closed || has_ended_) {
            return fail(Errc::cancelled, "write to {}: closed on our side", peer_);
        }
        if (own_->is_broken || own_->is_dead || other_->is_closed) {
            return fail(Errc::peer_lost, "write to {}: connection reset by peer", peer_);
        }
        std::size_t unread = other_->arrived.size();
        for (const SimulatedWires::Segment& segment : other_->under_way) {
            unread += segment.bytes.size();
        }
        if (unread + bytes.size() > kUnreadBytesMax) {
            wires_.clock().sleep_us(std::max<std::int64_t>(wait_us, 0));
            return fail(
                make_error(Errc::timed_out, "write to {}: no answer in time", peer_).may_retry());
        }
        // SAFETY: bytes seen as char, of the same length.
        std::string copy(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        wires_.send(*other_, *own_, std::move(copy), false);
        return {};
    }

    void shutdown_write() override {
        if (!has_ended_ && !own_->is_closed) {
            has_ended_ = true;
            wires_.send(*other_, *own_, "", true);
        }
    }

    void close() override {
        if (!own_->is_dead) {
            shutdown_write();
        }
        own_->is_closed = true;
    }

    std::string peer() const override { return peer_; }

  private:
    SimulatedWires& wires_;
    std::shared_ptr<SimulatedWires::Inbox> own_;
    std::shared_ptr<SimulatedWires::Inbox> other_;
    std::string peer_;
    bool has_ended_ = false;
};

class SimulatedListener : public Listener {
  public:
    SimulatedListener(SimulatedClock& clock, std::shared_ptr<SimulatedWires::Backlog> backlog)
        : clock_(clock), backlog_(std::move(backlog)) {}

    ~SimulatedListener() override { close(); }

    SimulatedListener(const SimulatedListener&) = delete;
    SimulatedListener& operator=(const SimulatedListener&) = delete;

    Result<std::unique_ptr<Connection>> accept(std::int64_t wait_us) override {
        if (backlog_->is_closed) {
            return fail(Errc::cancelled, "accept on {}: closed on our side", backlog_->address);
        }
        if (backlog_->waiting.empty()) {
            clock_.sleep_us(std::max<std::int64_t>(wait_us, 0));
            return fail(make_error(Errc::timed_out, "accept on {}: nobody connected in time",
                                   backlog_->address)
                            .may_retry());
        }
        std::unique_ptr<Connection> accepted = std::move(backlog_->waiting.front());
        backlog_->waiting.pop_front();
        return accepted;
    }

    std::string address() const override { return backlog_->address; }

    void close() override {
        backlog_->is_closed = true;
        backlog_->waiting.clear();
    }

  private:
    SimulatedClock& clock_;
    std::shared_ptr<SimulatedWires::Backlog> backlog_;
};

/// `tcp:HOST:PORT` → (HOST, PORT); `unix:/path` → (own host, path).
Result<std::pair<std::string, std::string>> split(const std::string& own_host,
                                                  const std::string& address) {
    if (address.starts_with("unix:") && address.size() > 5) {
        return std::pair(own_host, address.substr(5));
    }
    const std::size_t colon = address.rfind(':');
    if (!address.starts_with("tcp:") || colon <= 4 || colon + 1 >= address.size()) {
        return fail(Errc::invalid_argument, "address {}: expected tcp:HOST:PORT or unix:/path",
                    address);
    }
    std::string host = address.substr(4, colon - 4);
    if (host == "127.0.0.1" || host == "localhost") {
        host = own_host;
    }
    return std::pair(std::move(host), address.substr(colon + 1));
}

std::string key_of(const std::pair<std::string, std::string>& place) {
    return place.first + " " + place.second;
}

}  // namespace

Result<std::unique_ptr<Listener>> SimulatedWires::listen(const std::string& host,
                                                         const std::string& address) {
    HOLD_TRY(auto place, split(host, address));
    std::string bound = address;
    if (place.first != host) {
        return fail(Errc::invalid_argument, "listen on {}: this host is {}", address, host);
    }
    if (place.second == "0") {
        place.second = std::to_string(next_port_++);
        bound = fmt::format("tcp:{}:{}", host, place.second);
    }
    auto& backlog = listeners_[key_of(place)];
    if (backlog != nullptr && !backlog->is_closed) {
        return fail(Errc::conflict, "listen on {}: address already in use", address);
    }
    backlog = std::make_shared<Backlog>();
    backlog->host = host;
    backlog->address = bound;
    return std::make_unique<SimulatedListener>(clock_, backlog);
}

Result<std::unique_ptr<Connection>> SimulatedWires::connect(const std::string& host,
                                                            const std::string& address,
                                                            std::int64_t wait_us) {
    HOLD_TRY(const auto place, split(host, address));
    const std::int64_t delay_us =
        faults_.delay_min_us + static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(
                                   faults_.delay_max_us - faults_.delay_min_us + 1)));
    if (is_apart(host, place.first) || (wait_us != kNoLimit && delay_us > wait_us)) {
        clock_.sleep_us(std::max<std::int64_t>(wait_us, 0));
        return fail(
            make_error(Errc::timed_out, "connect to {}: no answer in time", address).may_retry());
    }
    clock_.sleep_us(delay_us);
    const auto found = listeners_.find(key_of(place));
    if (found == listeners_.end() || found->second->is_closed ||
        found->second->waiting.size() >= kBacklogMax) {
        return fail(make_error(Errc::unavailable, "connect to {}: connection refused", address)
                        .may_retry());
    }
    auto ours = std::make_shared<Inbox>();
    auto theirs = std::make_shared<Inbox>();
    ours->host = theirs->from = host;
    theirs->host = ours->from = place.first;
    std::erase_if(inboxes_, [](const auto& inbox) { return inbox.expired(); });
    inboxes_.push_back(ours);
    inboxes_.push_back(theirs);
    found->second->waiting.push_back(
        std::make_unique<SimulatedConnection>(*this, theirs, ours, "tcp:" + host));
    return std::make_unique<SimulatedConnection>(*this, ours, theirs, address);
}

void SimulatedWires::send(Inbox& to, Inbox& back, std::string bytes, bool is_end) {
    if (to.is_dead) {
        return;
    }
    if (!is_end && random_.uniform() < faults_.reset) {
        to.is_broken = true;
        back.is_broken = true;
        return;
    }
    std::int64_t arrives_us = clock_.steady_us() + faults_.delay_min_us +
                              static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(
                                  faults_.delay_max_us - faults_.delay_min_us + 1)));
    if (random_.uniform() < faults_.drop) {
        arrives_us += faults_.retransmit_us;
    }
    if (!to.under_way.empty()) {
        arrives_us = std::max(arrives_us, to.under_way.back().arrives_us);
    }
    to.under_way.push_back({arrives_us, std::move(bytes), is_end});
}

void SimulatedWires::deliver_due(Inbox& inbox) {
    while (!inbox.under_way.empty() && inbox.under_way.front().arrives_us <= clock_.steady_us() &&
           !is_apart(inbox.host, inbox.from)) {
        inbox.arrived += inbox.under_way.front().bytes;
        inbox.has_ended = inbox.has_ended || inbox.under_way.front().is_end;
        inbox.under_way.pop_front();
    }
}

Result<> SimulatedWires::wait_for(Inbox& inbox, std::int64_t wait_us, const std::string& what) {
    const std::int64_t deadline_us = wait_us == kNoLimit ? kNoLimit : clock_.steady_us() + wait_us;
    while (true) {
        deliver_due(inbox);
        if (inbox.is_closed) {
            return fail(Errc::cancelled, "{}: closed on our side", what);
        }
        if (inbox.is_broken || inbox.is_dead) {
            return fail(Errc::peer_lost, "{}: connection reset by peer", what);
        }
        if (!inbox.arrived.empty() || inbox.has_ended) {
            return {};
        }
        const bool is_coming = !inbox.under_way.empty() && !is_apart(inbox.host, inbox.from);
        const std::int64_t next_us = is_coming ? inbox.under_way.front().arrives_us : kNoLimit;
        if (is_coming && (deadline_us == kNoLimit || next_us <= deadline_us)) {
            clock_.move_to(next_us);
            continue;
        }
        clock_.move_to(deadline_us);
        return fail(make_error(Errc::timed_out, "{}: no answer in time", what).may_retry());
    }
}

bool SimulatedWires::is_apart(const std::string& a, const std::string& b) const {
    return apart_.contains(std::minmax(a, b));
}

void SimulatedWires::partition(const std::string& a, const std::string& b) {
    for (const auto& weak : inboxes_) {
        if (const auto inbox = weak.lock()) {
            deliver_due(*inbox);  // what has arrived is there
        }
    }
    apart_.insert(std::minmax(a, b));
}

void SimulatedWires::heal(const std::string& a, const std::string& b) {
    apart_.erase(std::minmax(a, b));
}

void SimulatedWires::crash(const std::string& host) {
    for (const auto& weak : inboxes_) {
        if (const auto inbox = weak.lock(); inbox != nullptr && inbox->host == host) {
            inbox->is_dead = true;
        }
    }
    for (auto& [key, backlog] : listeners_) {
        if (backlog->host == host) {
            backlog->is_closed = true;
            backlog->waiting.clear();
        }
    }
}

}  // namespace holdfast
