// SPDX-License-Identifier: Apache-2.0
// What workers send each other over TCP: frames, and the proof of membership that opens a
// connection.
//
// Header, 64 bytes, little-endian:
//    0 magic "HFTW"   4 version   6 type   8 epoch   16 iteration
//   24 source pipeline, stage   28 target pipeline, stage   32 op pipeline, stage, microbatch, kind
//   40 payload length   48 payload CRC-32C   52 zero (8 bytes)   60 CRC-32C of bytes 0..59
// A header is checked before anything is allocated for its payload, and memory grows only with
// bytes that came.
//
// Opening: the acceptor sends a random challenge; the dialler answers with its own and an HMAC over
// both and both names under the epoch's cluster key; the acceptor proves itself likewise. A worker
// of an old epoch has an old key.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include <holdfast/result.hpp>
#include <holdfast/training.hpp>

#include "bytes.hpp"

namespace holdfast::training {

enum class FrameType : std::uint16_t {
    challenge = 1,
    hello = 2,
    welcome = 3,
    activation = 4,     ///< output of a stage's forward for the next stage
    gradient = 5,       ///< of a stage's input for the stage before
    reduce = 6,         ///< a piece of a peer's gradient sums and losses
    state_request = 7,  ///< the iteration field holds the version wanted
    state = 8,          ///< a piece of a stage's state
};

struct Frame {
    FrameType type = FrameType::activation;
    std::int64_t epoch = 0;
    std::int64_t iteration = 0;
    WorkerName source;
    WorkerName target;
    Op op;
    std::int32_t op_stage = 0;
    Bytes payload;
    bool operator==(const Frame&) const = default;
};

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kPayloadBytesMax = std::size_t{256} << 20;
/// Before a connection is authenticated its frames are tiny.
inline constexpr std::size_t kHandshakeBytesMax = 256;

/// The header; the payload follows it on the wire as it is.
std::array<std::byte, kHeaderBytes> encode_header(const Frame& frame);
Bytes encode(const Frame& frame);

/// Cuts a byte stream into frames.
class FrameParser {
  public:
    explicit FrameParser(std::size_t payload_bytes_max) : payload_bytes_max_(payload_bytes_max) {}

    /// Errors: wire_corrupt (wrong magic, version, checksum, reserved bytes, type or range),
    /// too_large. The stream is useless after an error.
    Result<> feed(ByteView bytes);
    /// The next whole frame, if one is there.
    std::optional<Frame> next();

    void allow_payload(std::size_t bytes_max) { payload_bytes_max_ = bytes_max; }

  private:
    Result<> finish_frame();

    std::size_t payload_bytes_max_;
    Bytes header_;
    bool has_header_ = false;
    std::size_t payload_size_ = 0;
    std::uint32_t payload_crc_ = 0;
    Frame frame_;
    std::deque<Frame> done_;
};

// ---- membership proof

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;

/// Who opens a connection to whom, in which epoch.
struct Introduction {
    std::int64_t epoch = 0;
    WorkerName dialler;
    WorkerName acceptor;
    std::string dialler_nonce;
    std::string acceptor_nonce;
};

std::string dialler_proof(const Introduction& introduction, std::string_view cluster_key);
std::string acceptor_proof(const Introduction& introduction, std::string_view cluster_key);

}  // namespace holdfast::training
