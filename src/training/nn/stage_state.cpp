// SPDX-License-Identifier: Apache-2.0
#include "nn/stage_state.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "nn/keyed_random.hpp"

static_assert(std::endian::native == std::endian::little, "state travels in little endian");

namespace holdfast::training::nn {
namespace {

constexpr std::uint64_t kMagic = 0x3130535441545348;  // "HSTATS01"; the digits are the format
constexpr const char* kWhat = "load stage state";

/// All that must agree between saver and loader, then what the saver says about its arrays.
struct Header {
    std::uint64_t magic = kMagic;
    std::int64_t layers = 0;
    std::int64_t width = 0;
    std::int64_t heads = 0;
    std::int64_t context = 0;
    std::int64_t vocabulary = 0;
    std::int64_t stage = 0;
    std::int64_t stages = 0;
    std::uint64_t size = 0;
    std::int64_t version = 0;
};

Header header_of(const StageOptions& options, std::size_t size) {
    return {.magic = kMagic,
            .layers = options.model.layers,
            .width = options.model.width,
            .heads = options.model.heads,
            .context = options.model.context,
            .vocabulary = options.model.vocabulary,
            .stage = options.stage,
            .stages = options.stages,
            .size = size,
            .version = 0};
}

Result<> same(const char* field, std::int64_t theirs, std::int64_t ours) {
    if (theirs != ours) {
        return fail(Errc::wire_corrupt, "{}: its {} is {}, this stage's is {}", kWhat, field,
                    theirs, ours);
    }
    return {};
}

Result<> check_header(const Header& theirs, const Header& ours) {
    if (theirs.magic != ours.magic) {
        return fail(Errc::wire_corrupt, "{}: it does not begin as a stage state does", kWhat);
    }
    HOLD_TRY(same("layers", theirs.layers, ours.layers));
    HOLD_TRY(same("width", theirs.width, ours.width));
    HOLD_TRY(same("heads", theirs.heads, ours.heads));
    HOLD_TRY(same("context", theirs.context, ours.context));
    HOLD_TRY(same("vocabulary", theirs.vocabulary, ours.vocabulary));
    HOLD_TRY(same("stage", theirs.stage, ours.stage));
    HOLD_TRY(same("stages", theirs.stages, ours.stages));
    if (theirs.size != ours.size || theirs.version < 0) {
        return fail(Errc::wire_corrupt, "{}: {} parameters at version {}, expected {} parameters",
                    kWhat, theirs.size, theirs.version, ours.size);
    }
    return {};
}

template <typename Value>
void append(std::vector<std::byte>& out, std::span<const Value> values) {
    const auto bytes = std::as_bytes(values);
    out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
    // Each round is a bijection of the running hash for a fixed word, and of the word for a fixed
    // hash.
    std::uint64_t hash = mix64(bytes.size());
    std::size_t at = 0;
    for (; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, sizeof word);
        hash = std::rotl((hash ^ word) * 0x9e3779b97f4a7c15U, 29);
    }
    std::uint64_t rest = 0;
    std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
    return mix64((hash ^ rest) * 0x9e3779b97f4a7c15U);
}

std::vector<std::byte> encode_state(const StageOptions& options, const AdamState& state) {
    Header header = header_of(options, state.parameters.size());
    header.version = state.version;
    std::vector<std::byte> out;
    out.reserve(sizeof header + 3 * state.parameters.size() * sizeof(float) +
                sizeof(std::uint64_t));
    append(out, std::span<const Header>(&header, 1));
    append(out, std::span<const float>(state.parameters));
    append(out, std::span<const float>(state.first));
    append(out, std::span<const float>(state.second));
    const std::uint64_t hash = hash_bytes(out);
    append(out, std::span<const std::uint64_t>(&hash, 1));
    return out;
}

Result<AdamState> decode_state(const StageOptions& options, std::size_t size,
                               std::span<const std::byte> bytes) {
    const std::size_t array = size * sizeof(float);
    const std::size_t expected = sizeof(Header) + 3 * array + sizeof(std::uint64_t);
    if (bytes.size() < sizeof(Header)) {
        return fail(Errc::wire_corrupt, "{}: {} bytes are too few for its header", kWhat,
                    bytes.size());
    }
    Header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    HOLD_TRY(check_header(header, header_of(options, size)));
    if (bytes.size() != expected) {
        return fail(Errc::wire_corrupt, "{}: {} bytes, expected {}", kWhat, bytes.size(), expected);
    }
    std::uint64_t hash = 0;
    std::memcpy(&hash, bytes.data() + expected - sizeof hash, sizeof hash);
    if (hash != hash_bytes(bytes.first(expected - sizeof hash))) {
        return fail(Errc::wire_corrupt, "{}: its hash does not match its bytes", kWhat);
    }
    AdamState state{.parameters = std::vector<float>(size),
                    .first = std::vector<float>(size),
                    .second = std::vector<float>(size),
                    .version = header.version};
    const std::byte* at = bytes.data() + sizeof header;
    for (std::vector<float>* values : {&state.parameters, &state.first, &state.second}) {
        std::memcpy(values->data(), at, array);
        at += array;
    }
    return state;
}

}  // namespace holdfast::training::nn
