// SPDX-License-Identifier: Apache-2.0
// Little-endian numbers in byte strings, read with bounds checks. For frames and state blobs only.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::training {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

static_assert(std::endian::native == std::endian::little, "numbers travel as little-endian");

/// Appends a number.
template <typename T>
    requires std::is_arithmetic_v<T>
void put(Bytes& out, T value) {
    const std::size_t at = out.size();
    out.resize(at + sizeof(T));
    std::memcpy(out.data() + at, &value, sizeof(T));
}

inline void put_bytes(Bytes& out, ByteView bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
}

/// Length, then bytes.
inline void put_blob(Bytes& out, ByteView bytes) {
    put<std::uint64_t>(out, bytes.size());
    put_bytes(out, bytes);
}

/// Reads from the front; every error is wire_corrupt.
class ByteReader {
  public:
    explicit ByteReader(ByteView bytes) : left_(bytes) {}

    template <typename T>
        requires std::is_arithmetic_v<T>
    Result<T> take() {
        HOLD_TRY(const ByteView raw, take_bytes(sizeof(T)));
        T value{};
        std::memcpy(&value, raw.data(), sizeof(T));
        return value;
    }

    Result<ByteView> take_bytes(std::uint64_t size) {
        if (size > left_.size()) {
            return fail(Errc::wire_corrupt, "message of a peer: {} bytes wanted, {} left", size,
                        left_.size());
        }
        const ByteView taken = left_.first(static_cast<std::size_t>(size));
        left_ = left_.subspan(static_cast<std::size_t>(size));
        return taken;
    }

    Result<ByteView> take_blob() {
        HOLD_TRY(const std::uint64_t size, take<std::uint64_t>());
        return take_bytes(size);
    }

    [[nodiscard]] std::size_t left() const { return left_.size(); }

  private:
    ByteView left_;
};

}  // namespace holdfast::training
