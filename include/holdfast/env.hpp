// SPDX-License-Identifier: Apache-2.0
/// The seam between Holdfast and the machine: time, randomness, files and byte streams.
///
/// Product code asks an Env for these and never the operating system, so that one program runs on
/// the real machine (real_env) and, single-threaded and from a seed, in a simulation
/// (simulated_env.hpp). Times are microseconds in std::int64_t, named `_us`; a wait of kNoLimit
/// waits for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast {

inline constexpr std::int64_t kNoLimit = -1;
inline constexpr std::int64_t kSecondUs = 1'000'000;

/// Threads: safe to share.
class Clock {
  public:
    virtual ~Clock() = default;
    /// Microseconds since 1970-01-01 UTC; may step backwards when the machine's clock is set.
    [[nodiscard]] virtual std::int64_t wall_us() = 0;
    /// Microseconds since some start; never goes backwards. For durations and deadlines.
    [[nodiscard]] virtual std::int64_t steady_us() = 0;
    /// Returns after at least this long (simulated: moves the virtual clock).
    virtual void sleep_us(std::int64_t duration_us) = 0;
};

/// Threads: safe to share.
class Random {
  public:
    virtual ~Random() = default;
    [[nodiscard]] virtual std::uint64_t next() = 0;
    /// Fills with bytes fit for secrets (real: the kernel's generator).
    virtual void fill(std::span<std::byte> bytes) = 0;

    /// Uniform in [0, bound); 0 for bound 0.
    [[nodiscard]] std::uint64_t below(std::uint64_t bound);
    /// Uniform in [0, 1).
    [[nodiscard]] double uniform();
    /// `bytes` random bytes as lower-case hexadecimal: tokens and nonces.
    [[nodiscard]] std::string hex(std::size_t bytes);
};

/// A file open for appending. Closed by the destructor.
class AppendFile {
  public:
    virtual ~AppendFile() = default;
    /// Writes all or fails. What was written before a failure stays.
    virtual Result<> append(std::string_view bytes) = 0;
    /// Returns when everything appended so far survives a power loss.
    virtual Result<> sync() = 0;
    [[nodiscard]] virtual std::uint64_t size() const = 0;
};

/// An exclusive lock, held until destroyed.
class FileLock {
  public:
    virtual ~FileLock() = default;
};

/// Errors: not_found, denied, too_large, store_full (no space), store_io (the disk failed), failed.
/// Threads: safe to share.
class Files {
  public:
    virtual ~Files() = default;
    /// The whole file; too_large if it holds more than `bytes_max`.
    [[nodiscard]] virtual Result<std::string> read_file(const std::string& path,
                                                        std::size_t bytes_max) = 0;
    /// Up to `bytes_max` bytes from `offset`; empty at or after the end.
    [[nodiscard]] virtual Result<std::string> read_range(const std::string& path,
                                                         std::uint64_t offset,
                                                         std::size_t bytes_max) = 0;
    /// After success the file holds exactly `bytes`, also after a power loss; after a failure or a
    /// crash it holds what it held before. (Temporary file, fsync, rename, fsync of the folder.)
    virtual Result<> write_file_atomic(const std::string& path, std::string_view bytes,
                                       unsigned mode) = 0;
    [[nodiscard]] virtual Result<std::unique_ptr<AppendFile>> open_append(const std::string& path,
                                                                          unsigned mode) = 0;
    /// The folder and its missing parents; no error if it is there.
    virtual Result<> make_directories(const std::string& path, unsigned mode) = 0;
    /// Removes a file or an empty folder; not_found if absent.
    virtual Result<> remove(const std::string& path) = 0;
    /// Names in a folder, sorted, without "." and "..".
    [[nodiscard]] virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
    [[nodiscard]] virtual bool exists(const std::string& path) = 0;
    /// Takes the exclusive lock and writes our process id into the file.
    /// Errors: store_locked naming the owner's process id when another process (or another lock of
    /// this process) holds it.
    [[nodiscard]] virtual Result<std::unique_ptr<FileLock>> lock_file(const std::string& path) = 0;
    /// Bytes an unprivileged process can still write on the file system of `path`.
    [[nodiscard]] virtual Result<std::uint64_t> free_bytes(const std::string& path) = 0;
};

/// One end of a byte stream. Closed by the destructor.
/// Threads: one reader, one writer and any number of close() callers at a time.
class Connection {
  public:
    virtual ~Connection() = default;
    /// Waits for at least one byte and returns how many were read; 0: the peer ended its stream.
    /// Errors: timed_out after `wait_us`, peer_lost when the connection broke, cancelled after
    /// close().
    [[nodiscard]] virtual Result<std::size_t> read_some(std::span<std::byte> into,
                                                        std::int64_t wait_us) = 0;
    /// Errors: as read_some. After timed_out a part may have been sent: the stream is useless.
    virtual Result<> write_all(std::span<const std::byte> bytes, std::int64_t wait_us) = 0;
    /// Ends our direction: the peer reads what was sent, then 0.
    virtual void shutdown_write() = 0;
    /// Ends both directions and wakes a waiting reader or writer.
    virtual void close() = 0;
    /// The peer's address, for messages.
    [[nodiscard]] virtual std::string peer() const = 0;

    /// Reads until `into` is full. Errors: as read_some; peer_lost if the stream ends before.
    Result<> read_all(std::span<std::byte> into, std::int64_t wait_us);
};

class Listener {
  public:
    virtual ~Listener() = default;
    /// Errors: timed_out after `wait_us`, cancelled after close().
    [[nodiscard]] virtual Result<std::unique_ptr<Connection>> accept(std::int64_t wait_us) = 0;
    /// The address really bound: port 0 is replaced by the port the kernel chose.
    [[nodiscard]] virtual std::string address() const = 0;
    virtual void close() = 0;
};

/// Addresses: `tcp:HOST:PORT` (IPv6 in brackets) and `unix:/path`.
/// Threads: safe to share.
class Network {
  public:
    virtual ~Network() = default;
    [[nodiscard]] virtual Result<std::unique_ptr<Listener>> listen(const std::string& address) = 0;
    /// Errors: unavailable (nobody listens there; may be retried), timed_out, invalid_argument.
    [[nodiscard]] virtual Result<std::unique_ptr<Connection>> connect(const std::string& address,
                                                                      std::int64_t wait_us) = 0;
};

struct Env {
    Clock& clock;
    Random& random;
    Files& files;
    Network& network;
};

/// The machine itself; lives as long as the process.
[[nodiscard]] Env& real_env();

/// The variable's value, or nothing when unset. Not to be mixed with setenv in other threads.
[[nodiscard]] std::optional<std::string> environment_variable(const std::string& name);

/// 1536 → "1.5 KiB". For people, never for machines.
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
/// 61'000'000 → "1 min 1 s". For people, never for machines.
[[nodiscard]] std::string human_duration(std::int64_t duration_us);
/// 1'700'000'000'000'000 → "2023-11-14T22:13:20.000000Z".
[[nodiscard]] std::string utc_time(std::int64_t wall_us);

}  // namespace holdfast
