// SPDX-License-Identifier: Apache-2.0
// The frames between training workers. The same bytes, in pieces of any size, give the same frames
// or the same refusal; a frame that was accepted encodes to the bytes it came from.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "wire.hpp"

namespace {

using namespace holdfast::training;  // NOLINT(google-build-using-namespace): one small program

struct Outcome {
    std::vector<Frame> frames;
    bool is_refused = false;
};

Outcome parse(const Bytes& bytes, std::size_t piece) {
    Outcome outcome;
    FrameParser parser(std::size_t{1} << 20);
    for (std::size_t at = 0; at < bytes.size() && !outcome.is_refused; at += piece) {
        const std::size_t end = std::min(bytes.size(), at + piece);
        outcome.is_refused = !parser.feed(ByteView(bytes).subspan(at, end - at)).has_value();
        while (auto frame = parser.next()) {
            outcome.frames.push_back(std::move(*frame));
        }
    }
    return outcome;
}

/// Numbers from the front of the input; zero after its end.
class Source {
  public:
    Source(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

    std::uint8_t byte() { return at_ < size_ ? data_[at_++] : std::uint8_t{0}; }

    std::int32_t below(std::int32_t bound) { return (byte() * 256 + byte()) % bound; }

    [[nodiscard]] bool is_empty() const { return at_ >= size_; }

  private:
    const std::uint8_t* data_;
    std::size_t size_;
    std::size_t at_ = 0;
};

WorkerName worker(Source& source) {
    return {source.below(kPipelinesMax), source.below(kStagesMax)};
}

/// A frame that may be sent, made from the input: checksums keep made-up bytes from being one.
Frame valid_frame(Source& source) {
    Frame frame;
    frame.type = static_cast<FrameType>(1 + source.below(8));
    frame.epoch = source.below(1000);
    frame.iteration = source.below(1000);
    frame.source = worker(source);
    frame.target = worker(source);
    frame.op = {static_cast<OpKind>(source.below(2)), source.below(kPipelinesMax),
                source.below(kMicrobatchesMax)};
    frame.op_stage = source.below(kStagesMax);
    const std::int32_t payload = source.below(300);
    for (std::int32_t i = 0; i < payload; ++i) {
        frame.payload.push_back(static_cast<std::byte>(source.byte()));
    }
    return frame;
}

void expect(bool holds) {
    if (!holds) {
        std::abort();
    }
}

/// Any bytes: the same outcome however they are cut, and nothing accepted that is not a frame.
void check_any_bytes(const Bytes& bytes) {
    const Outcome whole = parse(bytes, bytes.size() + 1);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
        const Outcome cut = parse(bytes, piece);
        expect(cut.is_refused == whole.is_refused && cut.frames == whole.frames);
    }
    Bytes again;
    for (const Frame& frame : whole.frames) {
        const Bytes encoded = encode(frame);
        again.insert(again.end(), encoded.begin(), encoded.end());
    }
    expect(again.size() <= bytes.size() && std::equal(again.begin(), again.end(), bytes.begin()));
}

/// Frames that were sent arrive; with one byte changed, those before it arrive and none other.
void check_valid_frames(Source source) {
    std::vector<Frame> sent;
    Bytes bytes;
    std::vector<std::size_t> ends;
    const std::size_t count = 1 + source.byte() % 4;
    for (std::size_t i = 0; i < count && !source.is_empty(); ++i) {
        sent.push_back(valid_frame(source));
        const Bytes encoded = encode(sent.back());
        bytes.insert(bytes.end(), encoded.begin(), encoded.end());
        ends.push_back(bytes.size());
    }
    const Outcome outcome = parse(bytes, 13);
    expect(!outcome.is_refused && outcome.frames == sent);
    if (bytes.empty()) {
        return;
    }
    const std::size_t at = static_cast<std::size_t>(source.below(1 << 16)) % bytes.size();
    bytes[at] ^= static_cast<std::byte>(1 + source.byte() % 255);
    const Outcome damaged = parse(bytes, 13);
    std::size_t before = 0;
    while (before < ends.size() && ends[before] <= at) {
        ++before;
    }
    expect(damaged.frames.size() == before);
    expect(std::equal(damaged.frames.begin(), damaged.frames.end(), sent.begin()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Bytes bytes;
    bytes.reserve(size);
    for (std::size_t i = 0; i < size; ++i) {
        bytes.push_back(static_cast<std::byte>(data[i]));
    }
    check_any_bytes(bytes);
    check_valid_frames(Source(data, size));
    return 0;
}
