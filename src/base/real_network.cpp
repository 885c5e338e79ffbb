// SPDX-License-Identifier: Apache-2.0
/// Byte streams of the machine: TCP (no delay, keep-alive) and unix sockets, non-blocking inside so
/// that every wait has a deadline and close() wakes it.
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "real_parts.hpp"

namespace holdfast {

namespace {

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t bytes = 0;
    int family = AF_UNSPEC;

    // SAFETY: sockaddr_storage is made to be read as the sockaddr of its family.
    [[nodiscard]] const sockaddr* get() const {
        return reinterpret_cast<const sockaddr*>(&storage);
    }

    [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Result<SocketAddress> parse_unix(const std::string& path) {
    sockaddr_un unix_address{};
    if (path.empty() || path.size() >= sizeof(unix_address.sun_path)) {
        return fail(Errc::invalid_argument, "address unix:{}: the path must have 1 to {} bytes",
                    path, sizeof(unix_address.sun_path) - 1);
    }
    unix_address.sun_family = AF_UNIX;
    std::memcpy(unix_address.sun_path, path.c_str(), path.size() + 1);
    SocketAddress address;
    std::memcpy(&address.storage, &unix_address, sizeof(unix_address));
    address.bytes = sizeof(unix_address);
    address.family = AF_UNIX;
    return address;
}

Result<SocketAddress> parse_tcp(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) {
        return fail(Errc::invalid_argument, "address tcp:{}: expected tcp:HOST:PORT", text);
    }
    std::string host = text.substr(0, colon);
    const std::string port = text.substr(colon + 1);
    std::uint16_t number = 0;
    const auto parsed = std::from_chars(port.data(), port.data() + port.size(), number);
    if (port.empty() || parsed.ec != std::errc() || parsed.ptr != port.data() + port.size()) {
        return fail(Errc::invalid_argument, "address tcp:{}: the port must be 0 to 65535", text);
    }
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    }
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int status = ::getaddrinfo(host.c_str(), port.c_str(), &wanted, &found);
    if (status != 0 || found == nullptr) {
        return fail(
            make_error(Errc::unavailable, "address tcp:{}: {}", text, ::gai_strerror(status))
                .may_retry());
    }
    SocketAddress address;
    address.family = found->ai_family;
    address.bytes = found->ai_addrlen;
    std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
    ::freeaddrinfo(found);
    return address;
}

Result<SocketAddress> parse_address(const std::string& text) {
    if (text.starts_with("unix:")) {
        return parse_unix(text.substr(5));
    }
    if (text.starts_with("tcp:")) {
        return parse_tcp(text.substr(4));
    }
    return fail(Errc::invalid_argument, "address {}: expected tcp:HOST:PORT or unix:/path", text);
}

std::string tcp_text(const SocketAddress& address) {
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> port{};
    if (::getnameinfo(address.get(), address.bytes, host.data(), host.size(), port.data(),
                      port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return "tcp:unknown";
    }
    return address.family == AF_INET6 ? fmt::format("tcp:[{}]:{}", host.data(), port.data())
                                      : fmt::format("tcp:{}:{}", host.data(), port.data());
}

/// Waits for a descriptor until a deadline or until closed.
class Waiter {
  public:
    Waiter() : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        HOLD_CHECK(wake_.is_open(), "eventfd needs a free file descriptor");
    }

    void close() {
        closed_.store(true);
        const std::uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof(one));  // full counter: already awake
    }

    [[nodiscard]] bool is_closed() const { return closed_.load(); }

    /// `events`: POLLIN or POLLOUT. `deadline_us`: steady time, or kNoLimit.
    Result<> wait(int descriptor, short events, std::int64_t deadline_us, const std::string& what) {
        while (true) {
            std::int64_t left_ms = -1;
            if (deadline_us != kNoLimit) {
                const std::int64_t left_us = deadline_us - real_env().clock.steady_us();
                left_ms = left_us <= 0 ? 0 : std::min<std::int64_t>((left_us + 999) / 1000, 60'000);
            }
            std::array<pollfd, 2> polled = {pollfd{descriptor, events, 0},
                                            pollfd{wake_.get(), POLLIN, 0}};
            const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(left_ms));
            if (closed_.load()) {
                return fail(Errc::cancelled, "{}: closed on our side", what);
            }
            if (ready < 0 && errno != EINTR) {
                return fail(system_error("wait for", what, errno));
            }
            if (ready > 0 && polled[0].revents != 0) {
                return {};
            }
            if (deadline_us != kNoLimit && real_env().clock.steady_us() >= deadline_us) {
                return fail(make_error(Errc::timed_out, "{}: no answer in time", what).may_retry());
            }
        }
    }

  private:
    Descriptor wake_;
    std::atomic<bool> closed_{false};
};

std::int64_t deadline_after(std::int64_t wait_us) {
    return wait_us == kNoLimit ? kNoLimit : real_env().clock.steady_us() + wait_us;
}

class RealConnection : public Connection {
  public:
    RealConnection(Descriptor socket, std::string peer)
        : socket_(std::move(socket)), peer_(std::move(peer)) {}

    ~RealConnection() override { close(); }

    Result<std::size_t> read_some(std::span<std::byte> into, std::int64_t wait_us) override {
        if (into.empty()) {
            return std::size_t{0};
        }
        const std::int64_t deadline_us = deadline_after(wait_us);
        while (!waiter_.is_closed()) {
            const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
            if (got >= 0) {
                return static_cast<std::size_t>(got);
            }
            if (errno == EAGAIN || errno == EWOULDBLOCK) {
                HOLD_TRY(waiter_.wait(socket_.get(), POLLIN, deadline_us, "read from " + peer_));
            } else if (errno != EINTR) {
                return fail(lost("read from", errno));
            }
        }
        return fail(Errc::cancelled, "read from {}: closed on our side", peer_);
    }

    Result<> write_all(std::span<const std::byte> bytes, std::int64_t wait_us) override {
        const std::int64_t deadline_us = deadline_after(wait_us);
        while (!bytes.empty()) {
            if (waiter_.is_closed()) {
                return fail(Errc::cancelled, "write to {}: closed on our side", peer_);
            }
            const ssize_t sent =
                ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent >= 0) {
                bytes = bytes.subspan(static_cast<std::size_t>(sent));
            } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
                HOLD_TRY(waiter_.wait(socket_.get(), POLLOUT, deadline_us, "write to " + peer_));
            } else if (errno != EINTR) {
                return fail(lost("write to", errno));
            }
        }
        return {};
    }

    void shutdown_write() override { ::shutdown(socket_.get(), SHUT_WR); }

    void close() override {
        // The descriptor itself stays until the destructor: a thread inside recv must not meet a
        // number that was given to another file meanwhile.
        if (!waiter_.is_closed()) {
            waiter_.close();
            ::shutdown(socket_.get(), SHUT_RDWR);
        }
    }

    std::string peer() const override { return peer_; }

  private:
    [[nodiscard]] Error lost(std::string_view action, int error_number) const {
        Error error = system_error(action, peer_, error_number);
        error.code = Errc::peer_lost;
        return error;
    }

    Descriptor socket_;
    std::string peer_;
    Waiter waiter_;
};

void tune(int socket, int family) {
    if (family == AF_UNIX) {
        return;
    }
    const int on = 1;  // small frames leave at once; failing is harmless
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

class RealListener : public Listener {
  public:
    RealListener(Descriptor socket, std::string address, int family)
        : socket_(std::move(socket)), address_(std::move(address)), family_(family) {}

    ~RealListener() override { close(); }

    Result<std::unique_ptr<Connection>> accept(std::int64_t wait_us) override {
        const std::int64_t deadline_us = deadline_after(wait_us);
        while (true) {
            HOLD_TRY(waiter_.wait(socket_.get(), POLLIN, deadline_us, "accept on " + address_));
            SocketAddress from;
            from.bytes = sizeof(from.storage);
            Descriptor accepted(
                ::accept4(socket_.get(), from.get(), &from.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (accepted.is_open()) {
                from.family = family_;
                tune(accepted.get(), family_);
                return std::make_unique<RealConnection>(
                    std::move(accepted), family_ == AF_UNIX ? address_ : tcp_text(from));
            }
            // A peer that left between poll and accept is no failure of ours.
            if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
                return fail(system_error("accept on", address_, errno));
            }
        }
    }

    std::string address() const override { return address_; }

    void close() override {
        if (!waiter_.is_closed()) {
            waiter_.close();
            if (family_ == AF_UNIX) {
                ::unlink(address_.c_str() + std::strlen("unix:"));
            }
        }
    }

  private:
    Descriptor socket_;
    std::string address_;
    int family_;
    Waiter waiter_;
};

class RealNetwork : public Network {
  public:
    Result<std::unique_ptr<Listener>> listen(const std::string& text) override {
        HOLD_TRY(SocketAddress address, parse_address(text));
        Descriptor made(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!made.is_open()) {
            return fail(system_error("make a socket for", text, errno));
        }
        if (address.family == AF_UNIX) {
            HOLD_TRY(remove_dead_socket(text, address));
        } else {
            const int on = 1;
            ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        }
        if (::bind(made.get(), address.get(), address.bytes) != 0) {
            Error error = system_error("listen on", text, errno);
            error.code = errno == EADDRINUSE ? Errc::conflict : error.code;
            return fail(std::move(error));
        }
        if (::listen(made.get(), SOMAXCONN) != 0) {
            return fail(system_error("listen on", text, errno));
        }
        std::string bound = text;
        if (address.family != AF_UNIX) {
            ::getsockname(made.get(), address.get(), &address.bytes);
            bound = tcp_text(address);
        }
        return std::make_unique<RealListener>(std::move(made), bound, address.family);
    }

    Result<std::unique_ptr<Connection>> connect(const std::string& text,
                                                std::int64_t wait_us) override {
        const std::int64_t deadline_us = deadline_after(wait_us);
        HOLD_TRY(const SocketAddress address, parse_address(text));
        Descriptor made(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!made.is_open()) {
            return fail(system_error("make a socket for", text, errno));
        }
        if (::connect(made.get(), address.get(), address.bytes) != 0) {
            if (errno != EINPROGRESS) {
                return fail(unreachable(text, errno));
            }
            Waiter waiter;
            HOLD_TRY(waiter.wait(made.get(), POLLOUT, deadline_us, "connect to " + text));
            int status = 0;
            socklen_t bytes = sizeof(status);
            ::getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &status, &bytes);
            if (status != 0) {
                return fail(unreachable(text, status));
            }
        }
        tune(made.get(), address.family);
        return std::make_unique<RealConnection>(std::move(made), text);
    }

  private:
    static Error unreachable(const std::string& text, int error_number) {
        Error error = system_error("connect to", text, error_number);
        error.code = Errc::unavailable;
        error.retryable = true;
        return error;
    }

    /// A socket file that nobody listens on is left over from a process that died.
    static Result<> remove_dead_socket(const std::string& text, const SocketAddress& address) {
        const Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!probe.is_open()) {
            return fail(system_error("make a socket for", text, errno));
        }
        if (::connect(probe.get(), address.get(), address.bytes) == 0 || errno == EAGAIN) {
            return fail(Errc::conflict, "listen on {}: another process listens there", text);
        }
        if (errno == ECONNREFUSED) {
            ::unlink(text.c_str() + std::strlen("unix:"));
        }
        return {};
    }
};

}  // namespace

Network& real_network() {
    static RealNetwork network;
    return network;
}

}  // namespace holdfast
