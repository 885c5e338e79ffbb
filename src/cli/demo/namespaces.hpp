// SPDX-License-Identifier: Apache-2.0
// Hosts that can fall silent: network namespaces on one bridge. A host whose link is down sends no
// FIN and no RST, which is what a crashed machine or a pulled cable looks like. Needs root and
// iproute2; touches nothing outside the namespaces that it makes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::cli::demo {

class Namespaces {
  public:
    /// One namespace for the server (with the bridge) and `hosts` more. Errors: denied without
    /// root, failed otherwise.
    static Result<Namespaces> make(std::size_t hosts);
    ~Namespaces();
    Namespaces(Namespaces&& other) noexcept;
    Namespaces& operator=(Namespaces&& other) noexcept;
    Namespaces(const Namespaces&) = delete;
    Namespaces& operator=(const Namespaces&) = delete;

    /// What to put before a command so that it runs on the server's or on host i's side.
    [[nodiscard]] std::vector<std::string> on_server() const;
    [[nodiscard]] std::vector<std::string> on_host(std::size_t host) const;
    [[nodiscard]] static std::string server_address();
    [[nodiscard]] static std::string host_address(std::size_t host);

    Result<> set_link(std::size_t host, bool up);

  private:
    explicit Namespaces(std::string prefix) : prefix_(std::move(prefix)) {}

    [[nodiscard]] std::string hub() const { return prefix_ + "-hub"; }

    [[nodiscard]] std::string host_name(std::size_t host) const;
    Result<> build(std::size_t hosts);

    std::string prefix_;
    std::vector<std::string> made_;
};

}  // namespace holdfast::cli::demo
