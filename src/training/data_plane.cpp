// SPDX-License-Identifier: Apache-2.0
#include "data_plane.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "crypto.hpp"

namespace holdfast::training {

namespace {

constexpr std::uint64_t kListenerId = 0;
constexpr std::uint64_t kWakeId = ~std::uint64_t{0};
constexpr std::size_t kReadBytes = 256 << 10;
constexpr int kReadsPerTurn = 16;  ///< then the next connection has its turn
constexpr int kBacklog = 512;

std::string errno_text() {
    const int error = errno;
    return std::error_code(error, std::generic_category()).message();
}

struct Addresses {
    ~Addresses() {
        if (first != nullptr) {
            freeaddrinfo(first);
        }
    }

    addrinfo* first = nullptr;
};

Result<> resolve(const std::string& host, const std::string& port, bool passive, Addresses& into) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &into.first); code != 0) {
        return fail(Errc::invalid_argument, "find the address of `{}`: {}", host,
                    gai_strerror(code));
    }
    return {};
}

/// host:port or [v6]:port.
Result<std::pair<std::string, std::string>> split_address(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
        return fail(Errc::invalid_argument, "data address `{}` is not host:port", address);
    }
    std::string host = address.substr(0, colon);
    if (host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    }
    return std::pair{std::move(host), address.substr(colon + 1)};
}

void send_at_once(int fd) {
    const int on = 1;
    // Failure only costs latency.
    static_cast<void>(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
}

std::string text_of(ByteView bytes) {
    std::string text(bytes.size(), '\0');
    std::memcpy(text.data(), bytes.data(), bytes.size());
    return text;
}

void put_text(Bytes& out, std::string_view text) {
    put_bytes(out, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

struct DataPlane::Link {
    enum class State {
        connecting,      ///< dialler: TCP is not up yet
        wait_challenge,  ///< dialler
        wait_welcome,    ///< dialler
        wait_hello,      ///< acceptor
        held,            ///< acceptor: of an epoch that is not here yet
        open,
    };

    struct Outgoing {
        std::array<std::byte, kHeaderBytes> header;
        Bytes payload;
        std::size_t sent = 0;

        [[nodiscard]] std::size_t size() const { return header.size() + payload.size(); }
    };

    ~Link() {
        if (fd >= 0) {
            ::close(fd);
        }
    }

    std::uint64_t id = 0;
    int fd = -1;
    State state = State::connecting;
    bool dialler = false;
    WorkerName peer;
    Introduction introduction;
    std::string claimed_proof;  ///< of a held dialler
    std::int64_t deadline_us = 0;
    FrameParser parser{kHandshakeBytesMax};
    std::deque<Outgoing> out;
    std::size_t queued_bytes = 0;
    bool wants_write = false;
};

DataPlane::DataPlane(DataPlaneOptions options, Env& env)
    : options_(std::move(options)), env_(env), buffer_(kReadBytes) {}

DataPlane::~DataPlane() {
    links_.clear();
    for (const int fd : {listener_, wake_, epoll_}) {
        if (fd >= 0) {
            ::close(fd);
        }
    }
}

Result<std::unique_ptr<DataPlane>> DataPlane::listen(DataPlaneOptions options, Env& env) {
    std::unique_ptr<DataPlane> plane(new DataPlane(std::move(options), env));
    HOLD_TRY(plane->start_listening());
    return plane;
}

Result<> DataPlane::start_listening() {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll_ < 0 || wake_ < 0) {
        return fail(Errc::unavailable, "watch sockets: {}", errno_text());
    }
    Addresses found;
    HOLD_TRY(resolve(options_.host, "0", true, found));
    listener_ = socket(found.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener_ < 0 || bind(listener_, found.first->ai_addr, found.first->ai_addrlen) != 0 ||
        ::listen(listener_, kBacklog) != 0) {
        return fail(make_error(Errc::unavailable, "listen for other workers on {}: {}",
                               options_.host, errno_text())
                        .at("HOLDFAST_DATA_HOST")
                        .advise("name an address of this node"));
    }
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    // SAFETY: sockaddr_storage may be read and written as any sockaddr.
    if (getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
        return fail(Errc::unavailable, "read the listener's port: {}", errno_text());
    }
    const bool v6 = bound.ss_family == AF_INET6;
    // SAFETY: ss_family says which of the two it is; both begin alike.
    const in_port_t port = v6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                              : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
    const bool bracket = options_.host.find(':') != std::string::npos;
    address_ = bracket ? fmt::format("[{}]:{}", options_.host, ntohs(port))
                       : fmt::format("{}:{}", options_.host, ntohs(port));
    for (const auto& [fd, id] : {std::pair{listener_, kListenerId}, std::pair{wake_, kWakeId}}) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = id;
        if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
            return fail(Errc::unavailable, "watch sockets: {}", errno_text());
        }
    }
    return {};
}

void DataPlane::wake() {
    const std::uint64_t one = 1;
    // A full counter already wakes.
    static_cast<void>(!::write(wake_, &one, sizeof one));
}

std::string DataPlane::nonce() const {
    std::string bytes(kNonceBytes, '\0');
    env_.random.fill(std::as_writable_bytes(std::span(bytes)));
    return bytes;
}

// ---- epochs

void DataPlane::close_epoch() {
    open_.clear();  // first: the ends below are our own doing and are not reported
    peers_.clear();
    redial_at_.clear();
    std::vector<std::uint64_t> ended;
    for (const auto& [id, link] : links_) {
        // A dialler that is still introducing itself may belong to the epoch to come.
        if (link->dialler || link->state == Link::State::open) {
            ended.push_back(id);
        }
    }
    for (const std::uint64_t id : ended) {
        links_.erase(id);
    }
}

void DataPlane::open_epoch(const OpenEpoch& open) {
    close_epoch();
    epoch_ = open.epoch;
    key_ = open.cluster_key;
    for (const PeerAddress& peer : open.peers) {
        peers_[peer.worker] = peer.data_address;
        if (options_.self > peer.worker) {
            redial_at_[peer.worker] = 0;
        }
    }
    std::vector<std::uint64_t> held;
    for (const auto& [id, link] : links_) {
        if (link->state == Link::State::held) {
            held.push_back(id);
        }
    }
    for (const std::uint64_t id : held) {
        Link& link = *links_.at(id);
        if (link.introduction.epoch > epoch_) {
            continue;
        }
        if (auto admitted = admit(link); !admitted) {
            drop(id, admitted.error().message);
        }
    }
    dial_due();
}

void DataPlane::dial_due() {
    const std::int64_t now = env_.clock.steady_us();
    for (auto& [peer, at] : redial_at_) {
        if (at >= 0 && now >= at) {
            at = -1;  // until this attempt ends
            dial(peer, peers_.at(peer));
        }
    }
}

void DataPlane::dial(WorkerName peer, const std::string& address) {
    const auto retry = [&] { redial_at_[peer] = env_.clock.steady_us() + options_.redial_us; };
    const auto split = split_address(address);
    Addresses found;
    if (!split || !resolve(split->first, split->second, false, found)) {
        retry();
        return;
    }
    auto link = std::make_unique<Link>();
    link->fd = socket(found.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0 || (connect(link->fd, found.first->ai_addr, found.first->ai_addrlen) != 0 &&
                         errno != EINPROGRESS)) {
        retry();
        return;
    }
    send_at_once(link->fd);
    link->dialler = true;
    link->peer = peer;
    link->state = Link::State::connecting;
    link->introduction = {epoch_, options_.self, peer, nonce(), {}};
    add(std::move(link));
}

// ---- links

void DataPlane::add(std::unique_ptr<Link> link) {
    link->id = ++last_id_;
    link->deadline_us = env_.clock.steady_us() + options_.handshake_us;
    Link& added = *link;
    links_[added.id] = std::move(link);
    epoll_event event{};
    added.wants_write = added.state == Link::State::connecting;
    event.events = EPOLLIN | (added.wants_write ? EPOLLOUT : 0U);
    event.data.u64 = added.id;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, added.fd, &event) != 0) {
        drop(added.id, errno_text());
    }
}

void DataPlane::watch(Link& link) {
    const bool wants = !link.out.empty() || link.state == Link::State::connecting;
    if (wants == link.wants_write) {
        return;
    }
    link.wants_write = wants;
    epoll_event event{};
    event.events = EPOLLIN | (wants ? EPOLLOUT : 0U);
    event.data.u64 = link.id;
    static_cast<void>(epoll_ctl(epoll_, EPOLL_CTL_MOD, link.fd, &event));  // a known socket
}

void DataPlane::drop(std::uint64_t id, const std::string& why) {
    const auto found = links_.find(id);
    if (found == links_.end()) {
        return;
    }
    const Link& link = *found->second;
    const WorkerName peer = link.peer;
    if (link.state == Link::State::open) {
        const auto open = open_.find(peer);
        if (open != open_.end() && open->second == id) {
            open_.erase(open);
            events_.emplace_back(PeerDown{epoch_, peer, why});
        }
    } else if (link.dialler && redial_at_.contains(peer) && link.introduction.epoch == epoch_) {
        redial_at_[peer] = env_.clock.steady_us() + options_.redial_us;
    }
    links_.erase(found);
}

void DataPlane::accept_all() {
    while (true) {
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            return;
        }
        auto link = std::make_unique<Link>();
        link->fd = fd;
        if (links_.size() - open_.size() >= options_.strangers_max) {
            continue;  // closes it
        }
        send_at_once(fd);
        link->state = Link::State::wait_hello;
        link->introduction.acceptor = options_.self;
        link->introduction.acceptor_nonce = nonce();
        Link& added = *link;
        add(std::move(link));
        if (!links_.contains(last_id_)) {
            continue;
        }
        Frame challenge = handshake_frame(FrameType::challenge, added);
        put_text(challenge.payload, added.introduction.acceptor_nonce);
        queue(added, challenge);
    }
}

void DataPlane::expire() {
    const std::int64_t now = env_.clock.steady_us();
    std::vector<std::uint64_t> late;
    for (const auto& [id, link] : links_) {
        if (link->state != Link::State::open && now >= link->deadline_us) {
            late.push_back(id);
        }
    }
    for (const std::uint64_t id : late) {
        drop(id, "introduction took too long");
    }
}

void DataPlane::queue(Link& link, const Frame& frame) {
    link.out.push_back({encode_header(frame), frame.payload, 0});
    link.queued_bytes += link.out.back().size();
    watch(link);
}

void DataPlane::send(Frame frame) {
    const auto open = open_.find(frame.target);
    if (open == open_.end() || frame.epoch != epoch_) {
        return;
    }
    Link& link = *links_.at(open->second);
    const bool was_empty = link.out.empty();
    Link::Outgoing out{encode_header(frame), std::move(frame.payload), 0};
    link.queued_bytes += out.size();
    link.out.push_back(std::move(out));
    if (link.queued_bytes > options_.queued_bytes_max) {
        drop(link.id, "it does not read");
    } else if (was_empty) {
        write_to(link.id);  // mostly all of it goes at once, without another turn of poll
    }
}

void DataPlane::write_to(std::uint64_t id) {
    Link& link = *links_.at(id);
    while (!link.out.empty()) {
        Link::Outgoing& first = link.out.front();
        std::array<iovec, 2> parts{};
        int count = 0;
        const std::size_t in_header = std::min(first.sent, first.header.size());
        const std::size_t in_payload = first.sent - in_header;
        if (in_header < first.header.size()) {
            parts[static_cast<std::size_t>(count++)] = {first.header.data() + in_header,
                                                        first.header.size() - in_header};
        }
        if (in_payload < first.payload.size()) {
            parts[static_cast<std::size_t>(count++)] = {first.payload.data() + in_payload,
                                                        first.payload.size() - in_payload};
        }
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = static_cast<std::size_t>(count);
        const ssize_t sent = sendmsg(link.fd, &message, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                drop(id, errno_text());
                return;
            }
            break;
        }
        first.sent += static_cast<std::size_t>(sent);
        if (first.sent == first.size()) {
            link.queued_bytes -= first.size();
            link.out.pop_front();
        }
    }
    watch(link);
}

void DataPlane::read_from(std::uint64_t id) {
    for (int turn = 0; turn < kReadsPerTurn; ++turn) {
        Link& link = *links_.at(id);
        const ssize_t got = recv(link.fd, buffer_.data(), buffer_.size(), 0);
        if (got < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                drop(id, errno_text());
            }
            return;
        }
        if (got == 0) {
            drop(id, "it closed the connection");
            return;
        }
        if (auto fed = link.parser.feed(ByteView(buffer_).first(static_cast<std::size_t>(got)));
            !fed) {
            drop(id, fed.error().message);
            return;
        }
        while (auto frame = link.parser.next()) {
            if (auto taken = take(link, std::move(*frame)); !taken) {
                drop(id, taken.error().message);
                return;
            }
            if (!links_.contains(id)) {
                return;
            }
        }
        if (static_cast<std::size_t>(got) < buffer_.size()) {
            return;
        }
    }
}

std::vector<WorkerEvent> DataPlane::poll(std::int64_t wait_us) {
    constexpr int kEvents = 64;
    std::array<epoll_event, kEvents> ready{};
    dial_due();
    if (!events_.empty()) {
        wait_us = 0;
    }
    for (const auto& [peer, at] : redial_at_) {
        if (at >= 0) {
            wait_us = std::min(wait_us, options_.redial_us);
        }
    }
    const int count =
        epoll_wait(epoll_, ready.data(), kEvents, static_cast<int>((wait_us + 999) / 1000));
    for (int i = 0; i < count; ++i) {
        const epoll_event& event = ready[static_cast<std::size_t>(i)];
        const std::uint64_t id = event.data.u64;
        if (id == kListenerId) {
            accept_all();
            continue;
        }
        if (id == kWakeId) {
            std::uint64_t times = 0;
            static_cast<void>(!::read(wake_, &times, sizeof times));  // only to reset it
            continue;
        }
        if (!links_.contains(id)) {
            continue;  // ended by an earlier event of this turn
        }
        Link& link = *links_.at(id);
        if (link.state == Link::State::connecting) {
            int error = 0;
            socklen_t size = sizeof error;
            if (getsockopt(link.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
                drop(id, std::error_code(error, std::generic_category()).message());
                continue;
            }
            link.state = Link::State::wait_challenge;
            watch(link);
        }
        if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
            read_from(id);
        }
        if ((event.events & EPOLLOUT) != 0 && links_.contains(id)) {
            write_to(id);
        }
    }
    expire();
    return std::exchange(events_, {});
}

// ---- introduction

Frame DataPlane::handshake_frame(FrameType type, const Link& link) const {
    Frame frame;
    frame.type = type;
    frame.epoch = link.introduction.epoch;
    frame.source = options_.self;
    frame.target = link.peer;
    return frame;
}

Result<> DataPlane::take(Link& link, Frame frame) {
    switch (link.state) {
        case Link::State::open:
            if (frame.source != link.peer || frame.target != options_.self ||
                frame.epoch != epoch_) {
                return fail(Errc::wire_corrupt, "it sent a frame of {} in epoch {}",
                            to_string(frame.source), frame.epoch);
            }
            events_.emplace_back(FrameReceived{std::move(frame)});
            return {};
        case Link::State::wait_challenge:
            return on_challenge(link, frame);
        case Link::State::wait_welcome:
            return on_welcome(link, frame);
        case Link::State::wait_hello:
            return on_hello(link, frame);
        case Link::State::connecting:
        case Link::State::held:
            break;
    }
    return fail(Errc::wire_corrupt, "it spoke out of turn");
}

Result<> DataPlane::on_challenge(Link& link, const Frame& frame) {
    if (frame.type != FrameType::challenge || frame.payload.size() != kNonceBytes) {
        return fail(Errc::wire_corrupt, "its first frame is no challenge");
    }
    link.introduction.acceptor_nonce = text_of(frame.payload);
    Frame hello = handshake_frame(FrameType::hello, link);
    put_text(hello.payload, link.introduction.dialler_nonce);
    put_text(hello.payload, dialler_proof(link.introduction, key_));
    link.state = Link::State::wait_welcome;
    queue(link, hello);
    return {};
}

Result<> DataPlane::on_hello(Link& link, const Frame& frame) {
    if (frame.type != FrameType::hello || frame.payload.size() != kNonceBytes + kProofBytes ||
        frame.target != options_.self) {
        return fail(Errc::wire_corrupt, "its first frame is no hello");
    }
    link.peer = frame.source;
    link.introduction.epoch = frame.epoch;
    link.introduction.dialler = frame.source;
    const std::string text = text_of(frame.payload);
    link.introduction.dialler_nonce = text.substr(0, kNonceBytes);
    link.claimed_proof = text.substr(kNonceBytes);
    if (frame.epoch > epoch_) {
        link.state = Link::State::held;
        return {};
    }
    return admit(link);
}

Result<> DataPlane::admit(Link& link) {
    const bool expected = link.introduction.epoch == epoch_ && peers_.contains(link.peer) &&
                          link.peer > options_.self && !open_.contains(link.peer);
    if (!expected) {
        return fail(Errc::stale_epoch, "worker {} of epoch {} is not expected in epoch {}",
                    to_string(link.peer), link.introduction.epoch, epoch_);
    }
    if (!equal_in_constant_time(link.claimed_proof, dialler_proof(link.introduction, key_))) {
        return fail(Errc::unauthenticated, "worker {} does not have the epoch's key",
                    to_string(link.peer));
    }
    Frame welcome = handshake_frame(FrameType::welcome, link);
    put_text(welcome.payload, acceptor_proof(link.introduction, key_));
    queue(link, welcome);
    opened(link);
    return {};
}

Result<> DataPlane::on_welcome(Link& link, const Frame& frame) {
    if (frame.type != FrameType::welcome || frame.source != link.peer ||
        !equal_in_constant_time(text_of(frame.payload), acceptor_proof(link.introduction, key_))) {
        return fail(Errc::unauthenticated, "worker {} does not have the epoch's key",
                    to_string(link.peer));
    }
    redial_at_.erase(link.peer);
    opened(link);
    return {};
}

void DataPlane::opened(Link& link) {
    link.state = Link::State::open;
    link.parser.allow_payload(kPayloadBytesMax);
    open_[link.peer] = link.id;
    events_.emplace_back(PeerUp{epoch_, link.peer});
}

}  // namespace holdfast::training
