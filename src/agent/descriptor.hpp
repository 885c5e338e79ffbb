// SPDX-License-Identifier: Apache-2.0
/// File descriptors with an owner, and folders read through them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace holdfast::agent {

/// A file descriptor that closes itself.
class Fd {
  public:
    Fd() = default;

    explicit Fd(int number) : number_(number) {}

    Fd(Fd&& other) noexcept : number_(other.release()) {}

    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) {
            reset(other.release());
        }
        return *this;
    }

    Fd(const Fd&) = delete;
    Fd& operator=(const Fd&) = delete;

    ~Fd() { reset(); }

    [[nodiscard]] int get() const { return number_; }

    [[nodiscard]] bool is_open() const { return number_ >= 0; }

    int release() {
        const int number = number_;
        number_ = -1;
        return number;
    }

    void reset(int number = -1);

  private:
    int number_ = -1;
};

/// Names in an open folder, without "." and "..", in no order, at most `count_max`; empty if it
/// cannot be read. The descriptor is left as it was.
[[nodiscard]] std::vector<std::string> names_in(int folder, std::size_t count_max);

}  // namespace holdfast::agent
