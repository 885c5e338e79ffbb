// SPDX-License-Identifier: Apache-2.0
/// The parts of real_env(), one file each; private to base.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include <holdfast/env.hpp>

namespace holdfast {

[[nodiscard]] Files& real_files();
[[nodiscard]] Network& real_network();

/// A file descriptor that is closed once.
class Descriptor {
  public:
    Descriptor() = default;

    explicit Descriptor(int number) : number_(number) {}

    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }

    ~Descriptor();

    [[nodiscard]] int get() const { return number_; }

    [[nodiscard]] bool is_open() const { return number_ >= 0; }

  private:
    int number_ = -1;
};

/// The Error of a failed system call: `action path: strerror`, with the code that fits
/// `error_number`.
[[nodiscard]] Error system_error(std::string_view action, const std::string& what,
                                 int error_number);

}  // namespace holdfast
