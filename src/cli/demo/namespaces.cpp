// SPDX-License-Identifier: Apache-2.0
#include "namespaces.hpp"

#include <utility>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace holdfast::cli::demo {
namespace {

Result<> ip(const std::vector<std::string>& words) {
    std::vector<char*> argv = {const_cast<char*>("ip")};  // posix_spawn's signature predates const
    for (const std::string& word : words) {
        argv.push_back(const_cast<char*>(word.c_str()));
    }
    argv.push_back(nullptr);
    pid_t pid = -1;
    int status = 0;
    if (posix_spawnp(&pid, "ip", nullptr, nullptr, argv.data(), environ) != 0) {
        return fail(make_error(Errc::failed, "run `ip`: it is not installed")
                        .advise("apt-get install iproute2"));
    }
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        return fail(Errc::failed, "`ip {}` failed", fmt::join(words, " "));
    }
    return {};
}

}  // namespace

Result<Namespaces> Namespaces::make(std::size_t hosts) {
    if (geteuid() != 0) {
        return fail(make_error(Errc::denied, "make network namespaces: only root may")
                        .advise("run as root, or use --fault sigkill"));
    }
    Namespaces namespaces("holdfast-" + std::to_string(getpid()));
    HOLD_TRY(namespaces.build(hosts));
    return namespaces;
}

Result<> Namespaces::build(std::size_t hosts) {
    HOLD_TRY(ip({"netns", "add", hub()}));
    made_.push_back(hub());
    HOLD_TRY(ip({"-n", hub(), "link", "set", "lo", "up"}));
    HOLD_TRY(ip({"-n", hub(), "link", "add", "br0", "type", "bridge"}));
    HOLD_TRY(ip({"-n", hub(), "addr", "add", server_address() + "/24", "dev", "br0"}));
    HOLD_TRY(ip({"-n", hub(), "link", "set", "br0", "up"}));
    for (std::size_t host = 0; host < hosts; ++host) {
        const std::string name = host_name(host);
        const std::string port = "port" + std::to_string(host);
        HOLD_TRY(ip({"netns", "add", name}));
        made_.push_back(name);
        HOLD_TRY(ip({"link", "add", port, "netns", hub(), "type", "veth", "peer", "name", "eth0",
                     "netns", name}));
        HOLD_TRY(ip({"-n", hub(), "link", "set", port, "master", "br0", "up"}));
        HOLD_TRY(ip({"-n", name, "addr", "add", host_address(host) + "/24", "dev", "eth0"}));
        HOLD_TRY(ip({"-n", name, "link", "set", "eth0", "up"}));
        HOLD_TRY(ip({"-n", name, "link", "set", "lo", "up"}));
    }
    return {};
}

Namespaces::~Namespaces() {
    for (const std::string& name : made_) {
        // Nothing better can be done in a destructor; `ip` has said what was wrong.
        (void)ip({"netns", "del", name});
    }
}

Namespaces::Namespaces(Namespaces&& other) noexcept
    : prefix_(std::move(other.prefix_)), made_(std::exchange(other.made_, {})) {}

Namespaces& Namespaces::operator=(Namespaces&& other) noexcept {
    std::swap(prefix_, other.prefix_);
    std::swap(made_, other.made_);
    return *this;
}

std::string Namespaces::host_name(std::size_t host) const {
    return prefix_ + "-host" + std::to_string(host);
}

std::vector<std::string> Namespaces::on_server() const {
    return {"/usr/bin/env", "ip", "netns", "exec", hub()};
}

std::vector<std::string> Namespaces::on_host(std::size_t host) const {
    return {"/usr/bin/env", "ip", "netns", "exec", host_name(host)};
}

std::string Namespaces::server_address() {
    return "10.99.0.1";
}

std::string Namespaces::host_address(std::size_t host) {
    return "10.99.0." + std::to_string(10 + host);
}

Result<> Namespaces::set_link(std::size_t host, bool up) {
    return ip({"-n", hub(), "link", "set", "port" + std::to_string(host), up ? "up" : "down"});
}

}  // namespace holdfast::cli::demo
