// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

#include "crc32c.hpp"
#include "crypto.hpp"

namespace holdfast::training {

namespace {

constexpr std::uint32_t kMagic = 0x57544648U;  // "HFTW"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kHeaderChecked = kHeaderBytes - 4;

void put_worker(Bytes& out, WorkerName worker) {
    put(out, static_cast<std::uint16_t>(worker.pipeline));
    put(out, static_cast<std::uint16_t>(worker.stage));
}

Result<WorkerName> take_worker(ByteReader& reader) {
    HOLD_TRY(const std::uint16_t pipeline, reader.take<std::uint16_t>());
    HOLD_TRY(const std::uint16_t stage, reader.take<std::uint16_t>());
    if (pipeline >= kPipelinesMax || stage >= kStagesMax) {
        return fail(Errc::wire_corrupt, "frame: no worker can be {}:{}", pipeline, stage);
    }
    return WorkerName{pipeline, stage};
}

Result<> take_op(ByteReader& reader, Frame& frame) {
    HOLD_TRY(const WorkerName place, take_worker(reader));
    HOLD_TRY(const std::uint16_t microbatch, reader.take<std::uint16_t>());
    HOLD_TRY(const std::uint16_t kind, reader.take<std::uint16_t>());
    if (microbatch >= kMicrobatchesMax || kind > 1) {
        return fail(Errc::wire_corrupt, "frame: no operation is microbatch {} of kind {}",
                    microbatch, kind);
    }
    frame.op = {static_cast<OpKind>(kind), place.pipeline, microbatch};
    frame.op_stage = place.stage;
    return {};
}

struct Header {
    Frame frame;
    std::uint64_t payload_size = 0;
    std::uint32_t payload_crc = 0;
};

/// Pre: kHeaderBytes bytes.
Result<Header> parse_header(ByteView bytes) {
    ByteReader reader(bytes);
    HOLD_TRY(const std::uint32_t magic, reader.take<std::uint32_t>());
    HOLD_TRY(const std::uint16_t version, reader.take<std::uint16_t>());
    if (magic != kMagic || version != kVersion) {
        return fail(Errc::wire_corrupt, "frame: magic {:08x}, version {}: not a worker's frame",
                    magic, version);
    }
    ByteReader tail(bytes.subspan(kHeaderChecked));
    HOLD_TRY(const std::uint32_t stated, tail.take<std::uint32_t>());
    if (stated != crc32c(bytes.first(kHeaderChecked))) {
        return fail(Errc::wire_corrupt, "frame: header checksum differs");
    }
    Header header;
    HOLD_TRY(const std::uint16_t type, reader.take<std::uint16_t>());
    if (type < static_cast<std::uint16_t>(FrameType::challenge) ||
        type > static_cast<std::uint16_t>(FrameType::state)) {
        return fail(Errc::wire_corrupt, "frame: unknown type {}", type);
    }
    header.frame.type = static_cast<FrameType>(type);
    HOLD_TRY(header.frame.epoch, reader.take<std::int64_t>());
    HOLD_TRY(header.frame.iteration, reader.take<std::int64_t>());
    if (header.frame.epoch < 0 || header.frame.iteration < 0) {
        return fail(Errc::wire_corrupt, "frame: epoch {}, iteration {}", header.frame.epoch,
                    header.frame.iteration);
    }
    HOLD_TRY(header.frame.source, take_worker(reader));
    HOLD_TRY(header.frame.target, take_worker(reader));
    HOLD_TRY(take_op(reader, header.frame));
    HOLD_TRY(header.payload_size, reader.take<std::uint64_t>());
    HOLD_TRY(header.payload_crc, reader.take<std::uint32_t>());
    HOLD_TRY(const std::uint64_t reserved, reader.take<std::uint64_t>());
    if (reserved != 0) {
        return fail(Errc::wire_corrupt, "frame: reserved bytes are set");
    }
    return header;
}

std::string proof(std::string_view role, const Introduction& who, std::string_view cluster_key) {
    return hmac_sha256(cluster_key, fmt::format("holdfast {} {} {} {} {}{}", role, who.epoch,
                                                to_string(who.dialler), to_string(who.acceptor),
                                                who.dialler_nonce, who.acceptor_nonce));
}

}  // namespace

std::array<std::byte, kHeaderBytes> encode_header(const Frame& frame) {
    Bytes out;
    out.reserve(kHeaderBytes);
    put(out, kMagic);
    put(out, kVersion);
    put(out, static_cast<std::uint16_t>(frame.type));
    put(out, frame.epoch);
    put(out, frame.iteration);
    put_worker(out, frame.source);
    put_worker(out, frame.target);
    put_worker(out, {frame.op.pipeline, frame.op_stage});
    put(out, static_cast<std::uint16_t>(frame.op.microbatch));
    put(out, static_cast<std::uint16_t>(frame.op.kind));
    put<std::uint64_t>(out, frame.payload.size());
    put(out, crc32c(frame.payload));
    put<std::uint64_t>(out, 0);
    put(out, crc32c(out));
    std::array<std::byte, kHeaderBytes> header{};
    HOLD_CHECK(out.size() == header.size(), "the header has its size");
    std::copy(out.begin(), out.end(), header.begin());
    return header;
}

Bytes encode(const Frame& frame) {
    const auto header = encode_header(frame);
    Bytes out(header.begin(), header.end());
    put_bytes(out, frame.payload);
    return out;
}

Result<> FrameParser::feed(ByteView bytes) {
    while (!bytes.empty()) {
        if (!has_header_) {
            const std::size_t part = std::min(kHeaderBytes - header_.size(), bytes.size());
            put_bytes(header_, bytes.first(part));
            bytes = bytes.subspan(part);
            if (header_.size() < kHeaderBytes) {
                return {};
            }
            HOLD_TRY(Header header, parse_header(header_));
            if (header.payload_size > payload_bytes_max_) {
                return fail(Errc::too_large, "frame: {} bytes of payload, at most {} allowed here",
                            header.payload_size, payload_bytes_max_);
            }
            header_.clear();
            has_header_ = true;
            frame_ = std::move(header.frame);
            payload_size_ = static_cast<std::size_t>(header.payload_size);
            payload_crc_ = header.payload_crc;
        }
        const std::size_t part = std::min(payload_size_ - frame_.payload.size(), bytes.size());
        put_bytes(frame_.payload, bytes.first(part));
        bytes = bytes.subspan(part);
        HOLD_TRY(finish_frame());
    }
    return {};
}

Result<> FrameParser::finish_frame() {
    if (frame_.payload.size() < payload_size_) {
        return {};
    }
    if (crc32c(frame_.payload) != payload_crc_) {
        return fail(Errc::wire_corrupt, "frame: payload checksum differs");
    }
    done_.push_back(std::exchange(frame_, {}));
    has_header_ = false;
    return {};
}

std::optional<Frame> FrameParser::next() {
    if (done_.empty()) {
        return std::nullopt;
    }
    Frame frame = std::move(done_.front());
    done_.pop_front();
    return frame;
}

std::string dialler_proof(const Introduction& introduction, std::string_view cluster_key) {
    return proof("dialler", introduction, cluster_key);
}

std::string acceptor_proof(const Introduction& introduction, std::string_view cluster_key) {
    return proof("acceptor", introduction, cluster_key);
}

}  // namespace holdfast::training
